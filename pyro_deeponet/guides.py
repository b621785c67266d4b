"""Variational posteriors: names for Pyro's guides, where they start, and drawing from them at once.

A guide is a name from `GUIDES` or any callable `model -> guide`, such as
`functools.partial(AutoDiagonalNormal, init_scale=1e-2)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.distributions.transforms import ComposeTransformModule, affine_autoregressive
from pyro.infer.autoguide import (
    AutoContinuous,
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
from pyro.poutine import unwrap
from torch import Tensor, nn
from torch.distributions import biject_to
from torch.nn.functional import softplus

from pyro_deeponet.layers import defaults_of
from pyro_deeponet.priors import start_of

__all__ = [
    "GUIDES",
    "Guide",
    "flat_sampler",
    "is_point_guide",
    "make_guide",
    "scale_parameters",
    "site_names",
    "start_guide",
]

Guide = str | Callable[[Any], Any]

#: Scale at which the guides start. Larger ones drown what the warm start learnt in noise.
INIT_SCALE = 1e-4
#: Most weights for which a full covariance is sensible.
MAX_DENSE = 4000


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


def _auto(kind: Any, **kwargs: Any) -> Callable[[Any], AutoGuide]:
    return partial(kind, init_loc_fn=init_to_median, **kwargs)


GUIDES: dict[str, Callable[[Any], AutoGuide]] = {
    "normal": _auto(AutoNormal, init_scale=INIT_SCALE),
    "diagonal": _auto(AutoDiagonalNormal, init_scale=INIT_SCALE),
    "lowrank": _auto(AutoLowRankMultivariateNormal, init_scale=INIT_SCALE),
    "mvn": _auto(AutoMultivariateNormal, init_scale=INIT_SCALE),
    "iaf": AutoScaledIAF,
    "laplace": _auto(AutoLaplaceApproximation),
    "delta": _auto(AutoDelta),
}


def make_guide(guide: Guide, model: Any) -> Any:
    """Build a guide and run it once, after which it has its parameters.

    Args:
        guide: A name, or a callable `model -> guide`.
        model: The DeepONet.

    Raises:
        ValueError: An unknown name.
        TypeError: The callable gave something that cannot be called.
    """
    if isinstance(guide, str):
        if guide not in GUIDES:
            names = ", ".join(map(repr, GUIDES))
            raise ValueError(f"guide is {guide!r}, expected one of {names}, or model -> guide")
        if guide in ("mvn", "laplace", "iaf"):
            _check_size(guide, model)
        guide = GUIDES[guide]
    made = guide(model)
    if not isinstance(made, nn.Module):
        raise TypeError(
            f"the guide callable gave {type(made).__name__}, expected a guide that is a module, "
            "such as an AutoGuide or a PyroModule that keeps its parameters as PyroParam"
        )
    # In a parameter store of its own, else Pyro would hand the guide parameters of the same name.
    with torch.no_grad(), pyro.get_param_store().scope(), defaults_of(model.head.like):
        made(*model.example())
    if isinstance(made, AutoLaplaceApproximation):
        _check_sites(made, model)
    return made


def _check_size(guide: str, model: Any) -> None:
    size = sum(shape.numel() for shape in model.sampled_shapes().values())
    if size > MAX_DENSE:
        raise ValueError(
            f"guide {guide!r} would hold a matrix of {size} x {size} numbers, a row a weight; "
            f"up to {MAX_DENSE} weights are sensible. Take 'lowrank', or a smaller network"
        )


def _check_sites(guide: AutoLaplaceApproximation, model: Any) -> None:
    if scales := [name for name in site_names(guide) if name not in model.shapes]:
        raise ValueError(
            f"guide 'laplace' has the curvature of weights alone, and the prior has sites of its "
            f"own, such as {scales[0]!r}. Take 'normal', 'diagonal', 'lowrank', or another prior"
        )


def start_guide(guide: Any, weights: Mapping[str, Tensor]) -> None:
    """Move the centre of one of Pyro's guides to these weights; other guides stay as they are.

    Args:
        guide: A guide that has run once.
        weights: Values by site; sites not named stay where they are, unless the prior has them
            start elsewhere with these weights.
    """
    if not isinstance(guide, AutoGuide) or getattr(guide, "prototype_trace", None) is None:
        return
    prior = getattr(unwrap(guide.model), "prior", None)
    start = dict(weights)
    for name, weight in weights.items():
        start |= start_of(prior, name, weight)
    values = {
        name: biject_to(site["fn"].support).inv(start[name])
        for name, site in _sites(guide).items()
        if name in start
    }
    with torch.no_grad():
        if isinstance(guide, AutoNormal | AutoDelta):
            centres = guide.locs if isinstance(guide, AutoNormal) else guide
            parameters = dict(centres.named_parameters())
            for name, value in values.items():
                parameters[f"{name}_unconstrained"].copy_(value)
        elif isinstance(guide, AutoContinuous):
            flow = isinstance(guide, AutoNormalizingFlow)
            last = guide.transform[-1] if flow and len(guide.transform) else guide
            if isinstance(getattr(last, "loc", None), nn.Parameter):
                for site, centre in guide._unpack_latent(last.loc):
                    if site["name"] in values:
                        centre.copy_(values[site["name"]])


def scale_parameters(guide: Any) -> list[nn.Parameter]:
    """Those parameters of a guide that say how wide it is, not where."""
    return [
        parameter
        for name, parameter in guide.named_parameters()
        if name.startswith("scale") or name.endswith("log_scale")
    ]


def site_names(guide: Any) -> list[str]:
    """Names of the latent sites of one of Pyro's guides, in its order."""
    return list(_sites(guide))


def _sites(guide: Any) -> dict[str, Any]:
    return dict(guide.prototype_trace.iter_stochastic_nodes())


def is_point_guide(guide: Any) -> bool:
    """Whether every draw of the guide is the same, so that one particle is enough."""
    return isinstance(guide, AutoDelta | AutoLaplaceApproximation)


def flat_sampler(
    guide: Any, shapes: Mapping[str, torch.Size]
) -> Callable[[int], tuple[Tensor, Tensor]] | None:
    """A function that draws all weights of a guide at once, if it is one of Pyro's that allow it.

    Args:
        guide: A guide that has run once.
        shapes: Shape of each weight by site, in any order.

    Returns:
        `draw(S) -> (values (S, P), log q (S,))` with the sites in the guide's order, or `None`
        where the guide is of another kind, or has sites other than these, or bounded ones.
    """
    if not isinstance(guide, AutoNormal | AutoDelta | AutoContinuous):
        return None
    sites = _sites(guide)
    if sites.keys() != shapes.keys() or not all(_unbounded(site["fn"]) for site in sites.values()):
        return None
    if isinstance(guide, AutoContinuous):
        return partial(_draw_continuous, guide)
    if isinstance(guide, AutoDelta):
        return partial(_draw_delta, _parameters(guide, sites))
    if type(guide).scale_constraint is not constraints.softplus_positive:
        return None
    return partial(_draw_normal, _parameters(guide.locs, sites), _parameters(guide.scales, sites))


def _unbounded(distribution: Any) -> bool:
    support = distribution.support
    return getattr(support, "base_constraint", support) in (
        constraints.real,
        constraints.real_vector,
    )


def _parameters(module: nn.Module, sites: Mapping[str, Any]) -> list[nn.Parameter]:
    parameters = dict(module.named_parameters())
    return [parameters[f"{name}_unconstrained"] for name in sites]


def _flat(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([parameter.reshape(-1) for parameter in parameters])


def _draw_normal(
    locs: list[nn.Parameter], scales: list[nn.Parameter], size: int
) -> tuple[Tensor, Tensor]:
    loc, scale = _flat(locs), softplus(_flat(scales))
    noise = torch.randn(size, loc.numel(), dtype=loc.dtype, device=loc.device)
    log_q = (
        -0.5 * noise.square().sum(-1)
        - scale.log().sum()
        - 0.5 * math.log(2 * math.pi) * loc.numel()
    )
    return torch.addcmul(loc, scale, noise), log_q


def _draw_delta(values: list[nn.Parameter], size: int) -> tuple[Tensor, Tensor]:
    value = _flat(values)
    return value.expand(size, -1), value.new_zeros(size)


def _draw_continuous(guide: AutoContinuous, size: int) -> tuple[Tensor, Tensor]:
    posterior = guide.get_posterior()
    value = posterior.rsample((size,))
    return value, posterior.log_prob(value)
