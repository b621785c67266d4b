"""What was learnt: a distribution over networks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoGuide
from torch import Tensor

from pyro_deeponet.arrays import ArrayLike, check_finite, check_matrix, to_tensor
from pyro_deeponet.data import OperatorData
from pyro_deeponet.elbo import unflatten
from pyro_deeponet.guides import flat_sampler, site_names
from pyro_deeponet.history import History
from pyro_deeponet.model import DeepONet
from pyro_deeponet.prediction import Network, Prediction

__all__ = ["Calibration", "Posterior"]

#: Bytes that a prediction may hold beside its results, unless told: a quarter of a GiB.
MAX_MEMORY = 2**28


@dataclass(frozen=True)
class Calibration:
    """A correction of the predictive spread.

    Args:
        factor: What the predictive standard deviation is multiplied by.
        level: Coverage for which the factor was chosen.
        functions: Number of held-out functions it rests on.
    """

    factor: float
    level: float
    functions: int


class Posterior:
    """A distribution over the weights of a DeepONet, and the predictions it makes.

    `fit`, `mcmc` and `ensemble` return one. Its weights are drawn from a guide, or from samples
    that are kept; a deterministic net has but one.

    Args:
        model: The model whose weights these are.
        guide: A fitted guide.
        weights: Samples by name, each `(S, ...)`, instead of a guide.
        history: What happened during the fit.
        calibration: A correction of the spread, see `calibrate`.
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
        self.model, self.guide, self.weights = model, guide, weights
        self.history = history or History()
        self.calibration = calibration

    @torch.no_grad()
    def sample_weights(self, num_samples: int = 100, seed: int | None = None) -> dict[str, Tensor]:
        """Draw networks.

        Args:
            num_samples: How many, `S`.
            seed: Chooses them; without it they come from torch's global random state.

        Returns:
            Weights by the name of their site, each `(S, ...)`.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}, expected at least 1")
        with self._seeded(seed):
            drawn = self._draw(num_samples)
        return {name: w.expand(num_samples, *w.shape[1:]) for name, w in drawn.items()}

    def _draw(self, num_samples: int) -> dict[str, Tensor]:
        """Weights by name, `(S, ...)`; those that are the same in all samples `(1, ...)`."""
        drawn = {name: w.detach()[None] for name, w in self.model.plain_weights().items()}
        if self.weights is not None:
            return drawn | _choose(self.weights, num_samples)
        if self.guide is None:
            return drawn
        sampled = self.model.sampled_shapes()
        draw = flat_sampler(self.guide, sampled)
        if draw is not None:
            flat, _ = draw(num_samples)
            return drawn | unflatten(flat, {name: sampled[name] for name in site_names(self.guide)})
        arguments = self.model.example()
        with pyro.get_param_store().scope():
            if not isinstance(self.guide, AutoGuide):
                return drawn | Predictive(self.guide, num_samples=num_samples)(*arguments)
            with pyro.plate("samples", num_samples, dim=-3):
                values = self.guide(*arguments)
        return drawn | {name: v.squeeze(1).squeeze(1) for name, v in values.items()}

    @contextlib.contextmanager
    def _seeded(self, seed: int | None) -> Iterator[None]:
        if seed is None:
            yield
            return
        device = self.model.head.like.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    def predict(
        self,
        u: ArrayLike | OperatorData,
        y: ArrayLike | None = None,
        num_samples: int = 100,
        seed: int | None = None,
        max_memory: int = MAX_MEMORY,
    ) -> Prediction:
        """The predictive distribution of new functions.

        Its moments are computed in closed form from the network's outputs under each weight
        sample. The samples are the same for all functions and locations, and are streamed: memory
        stays below `max_memory` beside the inputs and the results, whatever the sizes.

        Args:
            u: Functions at the sensors, `(n, k)`; or data, to predict at their own points.
            y: Locations, `(q, d)`.
            num_samples: Number of weight samples.
            seed: Chooses the weight samples.
            max_memory: Bytes.

        Returns:
            A `Prediction` with values `(n, q)`, or `(n, m)` for indexed data, of the kind (tensor
            or numpy array) that `u` was.
        """
        network, mask, numpy = self._network(u, y, num_samples, seed, max_memory)
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
            `(S, n, q)`, a tensor or a numpy array as `u` was.
        """
        if kind not in ("observation", "function"):
            raise ValueError(f"kind is {kind!r}, expected 'observation' or 'function'")
        network, _, numpy = self._network(u, y, num_samples, seed, MAX_MEMORY)
        out = network.u.new_empty(num_samples, *network.shape)
        with self._seeded(None if seed is None else seed + 1):
            for where, mu, sigma in network.blocks("sampling"):
                if kind == "observation":
                    mu = torch.normal(mu.expand(num_samples, *mu.shape[1:]), sigma)
                out[:, where[0], where[1]] = mu
        return out.cpu().numpy() if numpy else out

    def predictive(self, num_samples: int = 100, seed: int | None = None) -> Predictive:
        """A stock `pyro.infer.Predictive` over the model, for handlers and sites of your own.

        It is called as the model is, `predictive(u, y)`, gives site `s` with observation noise,
        and knows nothing of `calibrate`. Its weights are drawn once, here.
        """
        weights = self.sample_weights(num_samples, seed)
        sampled = {k: v for k, v in weights.items() if k not in self.model.plain_weights()}
        if not sampled:
            return Predictive(self.model, num_samples=num_samples)
        return Predictive(self.model, posterior_samples=sampled)

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
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level}, expected a number between 0 and 1")
        n = len(held_out)
        if n / (n + 1) < level:
            raise ValueError(
                f"{n} held-out functions cannot vouch for a level of {level}: "
                f"at least {math.ceil(level / (1 - level))} are needed"
            )
        plain = Posterior(self.model, self.guide, weights=self.weights)
        p = plain.predict(held_out, num_samples=num_samples, seed=seed)
        score = (held_out.s.to(p.mean) - p.mean).abs() / p.std
        real = torch.ones_like(score) if p.mask is None else p.mask.to(score)
        weight = (real / real.sum(1, keepdim=True) / (n + 1)).flatten().double()
        order = score.flatten().argsort()
        reached = weight[order].cumsum(0) >= level * (1 - 1e-12)
        quantile = score.flatten()[order][int(reached.nonzero()[0])]
        factor = float(quantile) / NormalDist().inv_cdf((1 + level) / 2)
        return Posterior(
            self.model,
            self.guide,
            weights=self.weights,
            history=self.history,
            calibration=Calibration(factor, level, n),
        )

    def _network(
        self,
        u: ArrayLike | OperatorData,
        y: ArrayLike | None,
        num_samples: int,
        seed: int | None,
        max_memory: int,
    ) -> tuple[Network, Tensor | None, bool]:
        """Check the inputs and draw the weights."""
        index = mask = None
        numpy = isinstance(u, np.ndarray)
        if isinstance(u, OperatorData):
            if y is not None:
                raise ValueError("y comes with the data; pass predict(data) or predict(u, y)")
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
        if max_memory < 1:
            raise ValueError(f"max_memory is {max_memory} bytes, expected a positive number")
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}, expected at least 1")
        with torch.no_grad(), self._seeded(seed):
            weights = self._draw(num_samples)
        network = Network(
            model=self.model,
            weights=weights,
            u=functions.to(like),
            y=locations.to(like),
            index=None if index is None else index.to(like.device),
            factor=1.0 if self.calibration is None else self.calibration.factor,
            max_memory=max_memory,
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


def _choose(weights: Mapping[str, Tensor], num_samples: int) -> dict[str, Tensor]:
    """At most `num_samples` of the samples kept, evenly spread over them."""
    kept = next(iter(weights.values())).shape[0]
    chosen = torch.linspace(0, kept - 1, min(num_samples, kept)).round().long()
    return {name: w[chosen.to(w.device)] for name, w in weights.items()}
