"""Drawing all weights of a guide at once, without a Pyro message per site."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoContinuous, AutoDelta, AutoNormal
from torch import Tensor, nn
from torch.nn.functional import softplus

from pyro_deeponet.guides.families import is_unbounded
from pyro_deeponet.guides.making import sites_of

__all__ = ["flat_sampler", "mean_field", "unflatten"]


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
    sites = sites_of(guide)
    if sites.keys() != shapes.keys():
        return None
    if not all(is_unbounded(site["fn"]) for site in sites.values()):
        return None
    if isinstance(guide, AutoContinuous):
        return partial(_draw_continuous, guide)
    if isinstance(guide, AutoDelta):
        return partial(_draw_delta, _parameters(guide, sites))
    if type(guide).scale_constraint is not constraints.softplus_positive:
        return None
    return partial(_draw_normal, mean_field(guide))


def mean_field(guide: AutoNormal) -> Callable[[], tuple[Tensor, Tensor]]:
    """A function that reads means and standard deviations, each `(P,)`, in the guide's order."""
    sites = sites_of(guide)
    locs, scales = _parameters(guide.locs, sites), _parameters(guide.scales, sites)
    return lambda: (_flat(locs), softplus(_flat(scales)))


def unflatten(flat: Tensor, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    """Cut a matrix of draws `(S, P)` into weights by name, `(S, *shape)`."""
    parts = flat.split([shape.numel() for shape in shapes.values()], dim=-1)
    return {
        name: part.view(*flat.shape[:-1], *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _parameters(module: nn.Module, sites: Mapping[str, Any]) -> list[nn.Parameter]:
    parameters = dict(module.named_parameters())
    return [parameters[f"{name}_unconstrained"] for name in sites]


def _flat(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([parameter.reshape(-1) for parameter in parameters])


def _draw_normal(moments: Callable[[], tuple[Tensor, Tensor]], size: int) -> tuple[Tensor, Tensor]:
    loc, scale = moments()
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
