"""The guides that have a name: Pyro's own, started narrow, and two that Pyro lacks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.distributions.transforms import ComposeTransformModule, affine_autoregressive
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuide,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoNormalizingFlow,
)
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor, nn
from torch.distributions import biject_to

__all__ = ["GUIDES", "AutoMeanField", "AutoScaledIAF", "Guide", "LowRank", "is_unbounded"]

#: What `fit` takes for a guide: a name from `GUIDES`, or a callable `model -> guide`.
Guide = str | Callable[[Any], Any]

#: Scale at which the guides start. Larger ones drown what the warm start learnt in noise.
INIT_SCALE = 1e-4


class AutoMeanField(AutoNormal):
    r"""Independent Gaussians, :math:`q(w) = \mathcal N(\text{loc}, \text{scale}^2)`, site by site.

    The distribution of `AutoNormal`, which draws an auxiliary site first and makes the weight a
    point mass there. Here the weight itself is drawn, so that the divergence from its prior has a
    closed form for `TraceMeanField_ELBO` and `DeepONetELBO` to find: always with Gaussian priors
    (those given the scales of a `Horseshoe` too) and with `Laplace`. What is positive or otherwise
    bounded is drawn as a transformed Gaussian.

    The loss then scatters far less as long as the guide is narrow. Its gradients scatter as
    before, from the likelihood.

    Examples:
        >>> from pyro import poutine
        >>> from pyro_deeponet import DeepONet
        >>> model = DeepONet(sensors=4, coordinates=1, branch=(3,), trunk=(3,))
        >>> with pyro.get_param_store().scope():
        ...     trace = poutine.trace(AutoMeanField(model)).get_trace(*model.example())
        >>> trace.nodes["branch.0.weight"]["fn"]
        Independent(Normal(loc: torch.Size([3, 4]), scale: torch.Size([3, 4])), 2)
    """

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw all sites, with the arguments of the model."""
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        plates = self._create_plates(*args, **kwargs)
        values = {}
        prototype: Any = self.prototype_trace
        for name, site in prototype.iter_stochastic_nodes():
            with ExitStack() as stack:
                for frame in site["cond_indep_stack"]:
                    if frame.vectorized:
                        stack.enter_context(plates[frame.name])
                values[name] = pyro.sample(name, self._distribution(name, site["fn"]))
        return values

    def _distribution(self, name: str, prior: Any) -> Any:
        gaussian = dist.Normal(*self._get_loc_and_scale(name)).to_event(self._event_dims[name])
        if is_unbounded(prior):
            return gaussian
        # With a cache, so that the density of a draw that was rounded to its bound is known.
        return dist.TransformedDistribution(gaussian, biject_to(prior.support).with_cache())


def is_unbounded(distribution: Any) -> bool:
    """Whether the support is all real numbers or vectors."""
    support = distribution.support
    return getattr(support, "base_constraint", support) in (
        constraints.real,
        constraints.real_vector,
    )


class AutoScaledIAF(AutoNormalizingFlow):
    """An inverse autoregressive flow followed by a fixed small affine map.

    The flow alone starts as a standard normal, which is far from any trained network. The map
    brings it to the guide's start, `loc + INIT_SCALE * flow`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model, _scaled_flow)

    def get_base_dist(self) -> Any:
        """A standard normal in the float type and on the device of the flow."""
        flow: Any = self.transform
        like = flow[-1].loc
        return dist.Normal(torch.zeros_like(like), torch.ones_like(like)).to_event(1)


class StartingPoint(dist.TransformModule):
    """A learnable diagonal affine map, `loc + exp(log_scale) * x`."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, size: int) -> None:
        super().__init__(cache_size=1)
        self.loc = nn.Parameter(torch.zeros(size))
        self.log_scale = nn.Parameter(torch.full((size,), INIT_SCALE).log())

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.log_scale.exp() * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.log_scale.exp()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Sum of the log scales."""
        return self.log_scale.sum().expand(x.shape[:-1])


def _scaled_flow(size: int) -> ComposeTransformModule:
    flow = affine_autoregressive(size, hidden_dims=[size])  # Pyro asks for at least the input's
    return ComposeTransformModule([flow, StartingPoint(size)])


@dataclass(frozen=True)
class LowRank:
    r"""A Gaussian with covariance :math:`D + F F^\top`, diagonal plus a matrix of this rank.

    Where weights are correlated and too many for `"mvn"`: it holds `rank` numbers more a weight.

    Args:
        rank: Columns of :math:`F`; the square root of the number of weights unless told, which is
            what the name `"lowrank"` stands for.

    Examples:
        >>> from pyro_deeponet import DeepONet, OperatorData, fit
        >>> data = OperatorData(u=[[0.0], [1.0]], y=[[0.0], [1.0]], s=[[0.0, 0.0], [0.0, 1.0]])
        >>> model = DeepONet.for_data(data, branch=(4,), trunk=(4,))
        >>> fit(model, data, LowRank(rank=3), steps=5, warm_start=5, progress=False).guide.rank
        3
    """

    rank: int | None = None

    def __post_init__(self) -> None:
        given: Any = self.rank
        if given is not None and not (isinstance(given, Integral) and int(given) > 0):
            raise ValueError(f"rank is {given!r}, expected a positive whole number")

    def __call__(self, model: Any) -> AutoGuide:
        """The guide of a model."""
        kind = AutoLowRankMultivariateNormal
        return kind(model, init_loc_fn=init_to_median, init_scale=INIT_SCALE, rank=self.rank)


def _auto(kind: Any, **kwargs: Any) -> Callable[[Any], AutoGuide]:
    return partial(kind, init_loc_fn=init_to_median, **kwargs)


#: The guides that have a name, each a callable `model -> guide`.
GUIDES: dict[str, Callable[[Any], AutoGuide]] = {
    "normal": _auto(AutoNormal, init_scale=INIT_SCALE),
    "diagonal": _auto(AutoDiagonalNormal, init_scale=INIT_SCALE),
    "meanfield": _auto(AutoMeanField, init_scale=INIT_SCALE),
    "lowrank": LowRank(),
    "mvn": _auto(AutoMultivariateNormal, init_scale=INIT_SCALE),
    "iaf": AutoScaledIAF,
    "laplace": _auto(AutoLaplaceApproximation),
    "delta": _auto(AutoDelta),
}
