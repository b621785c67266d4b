"""The predictive distribution at some points: a mixture of Gaussians, one a weight sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_deeponet import mixture
from pyro_deeponet.arrays import ArrayLike, to_tensor
from pyro_deeponet.evaluation import Network, Where

__all__ = ["Prediction"]


class Prediction:
    r"""The predictive distribution of outputs at some points.

    With weights :math:`\theta_1 \dots \theta_S` from the posterior it is the mixture
    :math:`\frac1S \sum_i \mathcal N(\mu_i, \sigma_i^2)`. By the law of total variance its variance
    is the sum of the epistemic one, :math:`\operatorname{Var}_i \mu_i`, which more data would
    reduce, and the aleatoric one, :math:`\frac1S \sum_i \sigma_i^2`, which it would not.

    Everything has the shape of the points, `(n, q)`, or `(n, q, c)` for several outputs, and
    physical units. Arrays are of the kind (tensor or numpy) that was passed to `predict`.

    Attributes:
        mean: Mean of the mixture.
        epistemic_std: Standard deviation of the mean over weights.
        aleatoric_std: Root mean square of the noise level over weights.
        std: Standard deviation of the mixture.
        mask: Which points are real, for ragged data; otherwise `None`.

    Examples:
        >>> from pyro_deeponet import DeepONet, Posterior
        >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
        >>> p = posterior.predict(torch.zeros(2, 4), torch.zeros(3, 1))    # not trained: s = 0
        >>> p.mean.shape, p.epistemic_std.max(), p.aleatoric_std.max()     # but for its noise
        (torch.Size([2, 3]), tensor(0.), tensor(0.1000))
    """

    def __init__(
        self,
        network: Network,
        mask: Tensor | None = None,
        numpy: bool = False,
        moments: tuple[Any, Any, Any] | None = None,
    ) -> None:
        self._network, self._numpy = network, numpy
        found = tuple(map(self._out, network.moments())) if moments is None else moments
        self.mean, self.epistemic_std, self.aleatoric_std = found
        self.mask = None if mask is None else self._out(mask)

    def output(self, i: int) -> Prediction:
        """The prediction of one of several outputs, with values `(n, q)`.

        Examples:
            >>> from pyro_deeponet import DeepONet, Posterior
            >>> model = DeepONet(sensors=4, coordinates=1, outputs=2, prior=None)
            >>> p = Posterior(model).predict(torch.zeros(3, 4), torch.zeros(5, 1))
            >>> p.mean.shape, p.output(1).mean.shape
            (torch.Size([3, 5, 2]), torch.Size([3, 5]))
        """
        shape = self._network.shape
        if len(shape) < 3 or not -shape[2] <= i < shape[2]:
            raise ValueError(f"there is no output {i}: the prediction has shape {tuple(shape)}")
        moments = self.mean[..., i], self.epistemic_std[..., i], self.aleatoric_std[..., i]
        mask = None if self.mask is None else torch.as_tensor(self.mask[..., i])
        return Prediction(replace(self._network, output=i), mask, self._numpy, moments)

    @property
    def std(self) -> Any:
        """Standard deviation of the mixture.

        Examples:
            >>> from pyro_deeponet import DeepONet, Posterior
            >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
            >>> p = posterior.predict(torch.zeros(1, 4), torch.zeros(2, 1))
            >>> p.std
            tensor([[0.1000, 0.1000]])
        """
        hypot: Any = np.hypot if self._numpy else torch.hypot
        return hypot(self.epistemic_std, self.aleatoric_std)

    def interval(
        self, level: float = 0.95, kind: str = "predictive", method: str = "gaussian"
    ) -> tuple[Any, Any]:
        """The central interval that holds a fraction `level` of the distribution.

        Args:
            level: Between 0 and 1.
            kind: `"predictive"`: of an observation. `"epistemic"`: of the noise-free mean.
            method: `"gaussian"`: mean and standard deviation, as in the paper. `"mixture"`:
                quantiles of the mixture itself.

        Returns:
            Lower and upper bound, of the shape of `mean` each.

        Examples:
            >>> from pyro_deeponet import DeepONet, Posterior
            >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
            >>> p = posterior.predict(torch.zeros(1, 4), torch.zeros(2, 1))
            >>> p.interval(0.95)
            (tensor([[-0.1960, -0.1960]]), tensor([[0.1960, 0.1960]]))
        """
        _check_level("level", level)
        tails = (1 - level) / 2, (1 + level) / 2
        low, high = (self.quantile(q, kind, method) for q in tails)
        return low, high

    def quantile(self, q: float, kind: str = "predictive", method: str = "mixture") -> Any:
        """The value below which a fraction `q` of the distribution lies, of the shape of `mean`.

        Args:
            q: Between 0 and 1.
            kind: As in `interval`.
            method: As in `interval`; here `"mixture"` unless told.

        Examples:
            >>> from pyro_deeponet import DeepONet, Posterior
            >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
            >>> p = posterior.predict(torch.zeros(1, 4), torch.zeros(2, 1))
            >>> p.quantile(0.975)
            tensor([[0.1960, 0.1960]])
        """
        _check_level("q", q)
        _check_choice("kind", kind, ("predictive", "epistemic"))
        _check_choice("method", method, ("gaussian", "mixture"))
        if method == "gaussian":
            std = self.std if kind == "predictive" else self.epistemic_std
            return self.mean + NormalDist().inv_cdf(q) * std
        if kind == "epistemic":
            return self._each("quantiles", lambda mu, sigma: mu.quantile(q, dim=0))
        return self._each("quantiles", lambda mu, sigma: mixture.quantile(mu, sigma, q))

    def cdf(self, s: ArrayLike) -> Any:
        """Probability that the mixture gives to values below `s`, of the shape of `mean`.

        Examples:
            >>> from pyro_deeponet import DeepONet, Posterior
            >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
            >>> p = posterior.predict(torch.zeros(1, 4), torch.zeros(2, 1))
            >>> p.cdf([[0.0, 0.1]])
            tensor([[0.5000, 0.8413]])
        """
        return self._each("probabilities", mixture.cdf, s)

    def log_prob(self, s: ArrayLike) -> Any:
        """Log density of the mixture at `s`, of the shape of `mean`: an output by itself.

        Examples:
            >>> from pyro_deeponet import DeepONet, Posterior
            >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
            >>> p = posterior.predict(torch.zeros(1, 4), torch.zeros(2, 1))
            >>> p.log_prob([[0.0, 0.1]])
            tensor([[1.3836, 0.8836]])
        """
        return self._each("log density", mixture.log_prob, s)

    def components(self) -> Iterator[tuple[Where, Tensor, Tensor]]:
        """The components of the mixture, block by block.

        Yields:
            The block's place in `(n, q)`, and means and standard deviations `(S, a, b)`, or
            `(S, a, b, c)` for several outputs.

        Examples:
            >>> from pyro_deeponet import DeepONet, Posterior
            >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
            >>> p = posterior.predict(torch.zeros(1, 4), torch.zeros(2, 1))
            >>> [(where, mu.shape) for where, mu, sigma in p.components()]
            [((slice(0, 1, None), slice(0, 2, None)), torch.Size([1, 1, 2]))]
        """
        return self._network.blocks("components")

    def _each(self, what: str, function: Callable[..., Tensor], s: ArrayLike | None = None) -> Any:
        """Apply a function of the mixture to every block."""
        out = self._network.u.new_empty(self._network.shape)
        values = None if s is None else to_tensor("s", s).to(out)
        if values is not None and values.shape != out.shape:
            raise ValueError(
                f"s has shape {tuple(values.shape)}, the prediction {tuple(out.shape)}; "
                "pass one value for each point"
            )
        for where, mu, sigma in self._network.blocks(what):
            out[where] = function(mu, sigma, *([] if values is None else [values[where]]))
        return self._out(out)

    def _out(self, tensor: Tensor) -> Any:
        return tensor.cpu().numpy() if self._numpy else tensor

    def __repr__(self) -> str:
        (n, q, *several), s = self._network.shape, self._network.samples
        outputs = f" x {several[0]} outputs" if several else ""
        return f"Prediction({n} functions x {q} points{outputs}, mixture of {s} weight samples)"


def _check_level(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value}, expected a number between 0 and 1")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(repr, choices))}")
