"""What was learnt: a distribution over networks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from pyro.infer import Predictive
from torch import Tensor

from pyro_deeponet import networks, serialization
from pyro_deeponet.arrays import ArrayLike, check_finite, check_matrix, to_tensor
from pyro_deeponet.calibration import Calibration, conformal_quantile
from pyro_deeponet.data import OperatorData
from pyro_deeponet.drawing import check_weights, choose, draw, repeat, seeded
from pyro_deeponet.evaluation import Network
from pyro_deeponet.guides import Guide
from pyro_deeponet.history import History
from pyro_deeponet.layers import Activation
from pyro_deeponet.likelihoods import Likelihood
from pyro_deeponet.model import DeepONet
from pyro_deeponet.prediction import Prediction
from pyro_deeponet.priors import Prior

__all__ = ["Calibration", "Posterior"]

#: Bytes that a prediction may hold beside its results, unless told: a quarter of a GiB.
MAX_MEMORY = 2**28


class Posterior:
    """A distribution over the weights of a DeepONet, and the predictions it makes.

    `fit`, `mcmc` and `ensemble` return one. Its weights are drawn from a guide, or from samples
    that are kept; a deterministic net has but one.

    Args:
        model: The model whose weights these are.
        guide: A fitted guide.
        weights: Samples by name, each `(S, ...)`, instead of a guide; those of weights that are
            plain parameters take their place.
        history: What happened during the fit.
        calibration: A correction of the spread, see `calibrate`.

    Examples:
        >>> model = DeepONet(sensors=4, coordinates=1, branch=(8,), trunk=(8,))
        >>> networks = {name: torch.zeros(10, *shape) for name, shape in model.shapes.items()}
        >>> posterior = Posterior(model, weights=networks)
        >>> posterior.predict(torch.zeros(3, 4), torch.zeros(5, 1))
        Prediction(3 functions x 5 points, mixture of 10 weight samples)
    """

    def __init__(
        self,
        model: DeepONet,
        guide: Any = None,
        *,
        weights: Mapping[str, Tensor] | None = None,
        history: History | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        if (guide is None) == (weights is None) and (model.sampled_shapes() or guide is not None):
            raise ValueError(
                "pass guide=, a fitted guide, or weights=, samples by name: "
                f"{'both were given' if guide is not None else 'the weights have priors'}"
            )
        if weights is not None:
            kept = {name: shape for name, shape in model.shapes.items() if name in weights}
            check_weights(weights, model.sampled_shapes() | kept)
        self.model, self.guide, self.weights = model, guide, weights
        self.history = history or History()
        self.calibration = calibration

    @torch.no_grad()
    def sample_weights(self, num_samples: int = 100, seed: int | None = None) -> dict[str, Tensor]:
        """Draw networks.

        From samples that are kept, those evenly spread over them are taken, whatever the seed;
        where fewer are kept than asked for, they come again in turn.

        Args:
            num_samples: How many, `S`.
            seed: Chooses them; without it they come from torch's global random state.

        Returns:
            Weights by the name of their site, each `(S, ...)`.

        Examples:
            >>> model = DeepONet(sensors=4, coordinates=1, prior=None)
            >>> Posterior(model).sample_weights(10)["head.bias"].shape
            torch.Size([10, 2])
        """
        _check_count(num_samples)
        with seeded(seed, self._device):
            drawn = self._draw(num_samples)
        return {name: repeat(w, num_samples) for name, w in drawn.items()}

    def _draw(self, num_samples: int) -> dict[str, Tensor]:
        """Weights by name, `(S, ...)`, or fewer; those the same in all samples `(1, ...)`."""
        drawn = {name: w.detach()[None] for name, w in self.model.plain_weights().items()}
        if self.weights is not None:
            return drawn | choose(self.weights, num_samples)
        return drawn if self.guide is None else drawn | draw(self.model, self.guide, num_samples)

    @property
    def _device(self) -> torch.device:
        return self.model.head.like.device

    def predict(
        self,
        u: ArrayLike | OperatorData,
        y: ArrayLike | None = None,
        num_samples: int = 100,
        seed: int | None = None,
        max_memory: int = MAX_MEMORY,
        progress: bool = True,
    ) -> Prediction:
        """The predictive distribution of new functions.

        Its moments are computed in closed form from the network's outputs under each weight
        sample. The samples are the same for all functions and locations, and are streamed: memory
        stays below `max_memory` beside the inputs and the results, whatever the sizes.

        Args:
            u: Functions at the sensors, `(n, k)`; or data, to predict at their own points.
            y: Locations, `(q, d)`.
            num_samples: Number of weight samples. Where samples are kept (`mcmc`, `ensemble`), at
                most those, evenly spread over them, and each of them once.
            seed: Chooses the weight samples.
            max_memory: Bytes.
            progress: Whether a prediction that takes long shows a progress bar.

        Returns:
            A `Prediction` with values `(n, q)`, or `(n, m)` for indexed data, and a last dimension
            of outputs where the model has several; of the kind (tensor or numpy array) that `u`
            was.

        Examples:
            >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
            >>> p = posterior.predict(np.zeros((3, 4)), np.zeros((5, 1)))
            >>> p.mean.shape, p.interval(0.95)[0].shape
            ((3, 5), (3, 5))
        """
        with seeded(seed, self._device):
            network, mask, numpy = self._network(u, y, num_samples, max_memory, progress)
        return Prediction(network, mask, numpy)

    @torch.no_grad()
    def sample(
        self,
        u: ArrayLike | OperatorData,
        y: ArrayLike | None = None,
        num_samples: int = 100,
        kind: str = "observation",
        seed: int | None = None,
    ) -> Any:
        """Draw output functions: row `i` is the output of one network everywhere.

        Args:
            u: As in `predict`.
            y: As in `predict`.
            num_samples: Number of draws, `S`.
            kind: `"observation"`: with observation noise. `"function"`: without.
            seed: Chooses the networks (those that `predict` takes with it) and the noise.

        Returns:
            `(S, n, q)`, or `(S, n, q, c)` for several outputs; a tensor or a numpy array as `u`
            was.

        Examples:
            >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
            >>> posterior.sample(torch.zeros(3, 4), torch.zeros(5, 1), num_samples=7).shape
            torch.Size([7, 3, 5])
        """
        if kind not in ("observation", "function"):
            raise ValueError(f"kind is {kind!r}, expected 'observation' or 'function'")
        with seeded(seed, self._device):
            network, _, numpy = self._network(u, y, num_samples, MAX_MEMORY)
            out = network.u.new_empty(num_samples, *network.shape)
            for where, mu, sigma in network.blocks("sampling"):
                mu = repeat(mu, num_samples)
                if kind == "observation":
                    mu = torch.addcmul(mu, repeat(sigma, num_samples), torch.randn_like(mu))
                out[:, where[0], where[1]] = mu
        return out.cpu().numpy() if numpy else out

    def predictive(self, num_samples: int = 100, seed: int | None = None) -> Predictive:
        """A stock `pyro.infer.Predictive` over the model, for handlers and sites of your own.

        It is called as the model is, `predictive(u, y)`, gives site `s` with observation noise,
        and knows nothing of `calibrate`. Its weights are drawn once, here.

        Examples:
            >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
            >>> posterior.predictive(10)(torch.zeros(3, 4), torch.zeros(5, 1))["s"].shape
            torch.Size([10, 3, 5])
        """
        weights, kept = self.sample_weights(num_samples, seed), self.weights or {}
        plain = self.model.plain_weights()
        sampled = {k: v for k, v in weights.items() if k not in plain or k in kept}
        if not sampled:
            return Predictive(self.model, num_samples=num_samples)
        lifted = {name: w.detach() for name, w in plain.items() if name in kept}
        model = _with_sites(self.model, lifted) if lifted else self.model
        return Predictive(model, posterior_samples=sampled)

    @property
    def diagnostics(self) -> dict[str, float]:
        """What `mcmc` found out about its chains, see there; empty for other posteriors.

        Examples:
            >>> Posterior(DeepONet(sensors=4, coordinates=1, prior=None)).diagnostics
            {}
        """
        return self.history.diagnostics

    def calibrate(
        self, held_out: OperatorData, level: float = 0.95, num_samples: int = 100, seed: int = 0
    ) -> Posterior:
        r"""A posterior whose intervals cover new functions as often as they say.

        Split-conformal calibration with the function as the exchangeable unit. With the scores
        :math:`r_{ij} = |s_{ij} - \text{mean}_{ij}| / \text{std}_{ij}` of the held-out data, the
        factor on the predictive standard deviation is :math:`\hat q / z`, where :math:`z` is the
        Gaussian quantile of `level` and :math:`\hat q` the `level`-quantile of the scores, each
        function counting :math:`1/(n+1)` however many points it has, and :math:`1/(n+1)` standing
        at infinity for the function to come.

        Guaranteed, for `interval(level)` with the Gaussian method: over the draw of the held-out
        functions and of one new function from the same distribution, a point of it taken at
        random (as the points of the held-out functions were) is covered with probability `level`
        at least. Not guaranteed: coverage of a given function or location, of whole functions at
        once, of functions from elsewhere (other inputs, other noise), and of other levels, whose
        intervals are scaled by the same factor.

        Args:
            held_out: Functions that the posterior was not fitted to.
            level: Coverage asked for; `n >= level / (1 - level)` functions are needed.
            num_samples: Weight samples for the predictions behind the scores.
            seed: Chooses them.

        Returns:
            A posterior with the same weights. `std`, `interval`, `quantile`, `cdf`, `log_prob` and
            `sample` of it spread `factor` times as far about the mean.

        Examples:
            >>> model = DeepONet(sensors=1, coordinates=1, prior=None)
            >>> u, y = torch.randn(100, 1), torch.zeros(1, 1)
            >>> observed = OperatorData(u, y, Posterior(model).sample(u, y, num_samples=1)[0])
            >>> Posterior(model).calibrate(observed)
            Posterior(DeepONet(...), calibrated: std x ... for 95% on 100 functions)
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level}, expected a number between 0 and 1")
        n = len(held_out)
        if n / (n + 1) < level:
            raise ValueError(
                f"{n} held-out functions cannot vouch for a level of {level}: "
                f"at least {math.ceil(level / (1 - level))} are needed"
            )
        plain = self._with(None)
        p = plain.predict(held_out, num_samples=num_samples, seed=seed)
        quantile = conformal_quantile((held_out.s.to(p.mean) - p.mean) / p.std, p.mask, level)
        factor = quantile / NormalDist().inv_cdf((1 + level) / 2)
        return self._with(Calibration(factor, level, n))

    def _with(self, calibration: Calibration | None) -> Posterior:
        return Posterior(
            self.model,
            self.guide,
            weights=self.weights,
            history=self.history,
            calibration=calibration,
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the posterior to one file: model, scaling, guide or weights, history, calibration.

        The file holds plain values and tensors only. It takes the place of an older one when it is
        complete. A prior, guide, activation, likelihood, module or features of your own are not
        in it, and must be passed to `load`.

        Args:
            path: The file; its folder is created when missing.

        Returns:
            The path written.

        Examples:
            >>> import tempfile
            >>> posterior = Posterior(DeepONet(sensors=4, coordinates=1, prior=None))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = posterior.save(f"{folder}/net.pt")
            ...     Posterior.load(path)
            Posterior(DeepONet(4 sensors, 1 coordinate, ...deterministic))
        """
        parts = self.model, self.guide, self.weights, self.history, self.calibration
        return serialization.write(path, *parts)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        prior: Prior | None = None,
        guide: Guide | None = None,
        activation: Activation | None = None,
        likelihood: Likelihood | None = None,
        branch: networks.Network | None = None,
        trunk: networks.Network | None = None,
        trunk_features: networks.Features | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Posterior:
        """Read a posterior from a file that `save` wrote. Nothing in the file is run.

        Args:
            path: The file.
            prior: The prior, where it was a callable of your own.
            guide: The callable `model -> guide`, likewise.
            activation: The activation, likewise.
            likelihood: The likelihood, likewise; its parameters are read from the file.
            branch: The module, or the callable that makes it, where the branch was one; its
                weights and buffers are read from the file.
            trunk: The same for the trunk.
            trunk_features: The features, where they were a callable of your own.
            device: Where the posterior goes; the CPU unless told.
            dtype: Its float type; that of the file unless told.

        Returns:
            The posterior. With the same seed it predicts as the one that was saved.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged or something else, or needs what was not passed.

        Examples:
            An activation of your own is not in the file:

            >>> import tempfile
            >>> model = DeepONet(sensors=4, coordinates=1, prior=None, activation=torch.cos)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = Posterior(model).save(f"{folder}/net.pt")
            ...     Posterior.load(path, activation=torch.cos, dtype=torch.float64)
            Posterior(DeepONet(4 sensors, 1 coordinate, ...own activation, ...deterministic))
        """
        own = {
            "prior": prior, "guide": guide, "activation": activation, "likelihood": likelihood,
            "branch": branch, "trunk": trunk, "trunk_features": trunk_features,
        }  # fmt: skip
        return cls(**serialization.read(path, own, device, dtype))

    def _network(
        self,
        u: ArrayLike | OperatorData,
        y: ArrayLike | None,
        num_samples: int,
        max_memory: int,
        progress: bool = True,
    ) -> tuple[Network, Tensor | None, bool]:
        """Check the inputs and draw the weights."""
        index = mask = None
        numpy = isinstance(u, np.ndarray)
        if isinstance(u, OperatorData):
            if y is not None:
                raise ValueError("y comes with the data; pass predict(data) or predict(u, y)")
            self.model.check_data(u)
            index, mask = u.index, u.mask
            functions, locations = u.u, u.y
        elif y is None:
            raise ValueError("y is missing: pass predict(u, y), or predict(data)")
        else:
            functions, locations = to_tensor("u", u), to_tensor("y", y)
        like = self.model.head.like
        check_matrix("u", functions, "u[None, :] for one function")
        check_matrix("y", locations, "y[:, None] for one coordinate, y[None, :] for one location")
        self.model.check_inputs(functions, locations)
        for name, tensor in (("u", functions), ("y", locations)):
            check_finite(name, tensor)
            if not len(tensor):
                raise ValueError(f"{name} is empty, expected at least one row")
        if max_memory < 1:
            raise ValueError(f"max_memory is {max_memory} bytes, expected a positive number")
        _check_count(num_samples)
        with torch.no_grad():
            weights = self._draw(num_samples)
        network = Network(
            model=self.model,
            weights=weights,
            u=functions.to(like),
            y=locations.to(like),
            index=None if index is None else index.to(like.device),
            factor=1.0 if self.calibration is None else self.calibration.factor,
            max_memory=max_memory,
            progress=progress,
        )
        return network, mask, numpy

    def __repr__(self) -> str:
        parts = [repr(self.model)]
        if self.weights is not None:
            parts.append(f"{next(iter(self.weights.values())).shape[0]} samples")
        elif self.guide is not None:
            parts.append(f"guide {type(self.guide).__name__}")
        if self.calibration is not None:
            c = self.calibration
            parts.append(
                f"calibrated: std x {c.factor:.3g} for {c.level:.0%} on {c.functions} functions"
            )
        return f"Posterior({', '.join(parts)})"


def _with_sites(model: DeepONet, parameters: Mapping[str, Tensor]) -> Callable[..., Tensor]:
    """The model with these parameters as sites, which can be told the samples of an ensemble.

    `pyro.poutine.lift` does not do it: a `PyroModule` reads its parameters whatever handlers say.
    """

    def lifted(*args: Any, **kwargs: Any) -> Tensor:
        own = {
            name: pyro.sample(name, dist.Delta(value, event_dim=value.dim()))
            for name, value in parameters.items()
        }
        out: Tensor = torch.func.functional_call(model, own, args, kwargs)
        return out

    return lifted


def _check_count(num_samples: int) -> None:
    if num_samples < 1:
        raise ValueError(f"num_samples is {num_samples}, expected at least 1")
