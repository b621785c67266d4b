"""Building a guide for a model, and having it start where it should."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import (
    AutoContinuous,
    AutoDelta,
    AutoGuide,
    AutoLaplaceApproximation,
    AutoNormal,
    AutoNormalizingFlow,
)
from pyro.poutine import unwrap
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor, nn
from torch.distributions import biject_to

from pyro_deeponet.guides.families import GUIDES, INIT_SCALE, Guide
from pyro_deeponet.layers import defaults_of
from pyro_deeponet.priors import start_of

__all__ = [
    "is_point_guide",
    "make_guide",
    "scale_parameters",
    "site_names",
    "sites_of",
    "start_guide",
]

#: Most latent numbers for which a full covariance is sensible.
MAX_DENSE = 4000


def make_guide(guide: Guide, model: Any, scale: float = INIT_SCALE) -> Any:
    """Build a guide and run it once, after which it has its parameters.

    Args:
        guide: A name, or a callable `model -> guide`.
        model: The DeepONet.
        scale: Where the scales of a guide with a name start, of one that has them.

    Raises:
        ValueError: An unknown name, or a guide that does not suit the model.
        TypeError: The callable gave something that cannot be called.
    """
    if isinstance(guide, str):
        if guide not in GUIDES:
            names = ", ".join(map(repr, GUIDES))
            raise ValueError(f"guide is {guide!r}, expected one of {names}, or model -> guide")
        if guide in ("mvn", "laplace", "iaf"):
            _check_size(guide, model)
        named: Any = GUIDES[guide]
        guide = partial(named, init_scale=scale) if _has_scale(named) else named
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


def _has_scale(make: Any) -> bool:
    return "init_scale" in getattr(make, "keywords", {})


def _check_size(guide: str, model: Any) -> None:
    with torch.no_grad(), poutine.block(), pyro.get_param_store().scope():
        trace: Any = prune_subsample_sites(poutine.trace(model).get_trace(*model.example()))
    counts = {name: site["value"].numel() for name, site in trace.iter_stochastic_nodes()}
    size, weights = sum(counts.values()), sum(counts[name] for name in model.sampled_shapes())
    if size > MAX_DENSE:
        scales = f" and {size - weights} scales of their prior" if size > weights else ""
        raise ValueError(
            f"guide {guide!r} would hold a matrix of {size} x {size} numbers, for {weights} "
            f"weights{scales}; up to {MAX_DENSE} in all are sensible. Take 'lowrank' or "
            "'meanfield', a smaller network, or a prior for fewer weights, such as "
            "priors.ByLayer({'head.*': priors.Normal(), '*': None})"
        )


def _check_sites(guide: AutoLaplaceApproximation, model: Any) -> None:
    if scales := [name for name in site_names(guide) if name not in model.shapes]:
        raise ValueError(
            f"guide 'laplace' has the curvature of weights alone, and the prior has sites of its "
            f"own, such as {scales[0]!r}. Take 'normal', 'meanfield', 'lowrank', or another prior"
        )


def start_guide(guide: Any, weights: Mapping[str, Tensor]) -> None:
    """Move the centre of one of Pyro's guides to these weights; other guides stay as they are.

    Args:
        guide: A guide that has run once.
        weights: Values by site; sites not named stay where they are, unless the prior has them
            start elsewhere with these weights. So do numbers outside of the prior's support.
    """
    if not isinstance(guide, AutoGuide) or getattr(guide, "prototype_trace", None) is None:
        return
    prior = getattr(unwrap(guide.model), "prior", None)
    start = dict(weights)
    for name, weight in weights.items():
        start |= start_of(prior, name, weight)
    values = {
        name: biject_to(site["fn"].support).inv(start[name])
        for name, site in sites_of(guide).items()
        if name in start
    }
    with torch.no_grad():
        if isinstance(guide, AutoNormal | AutoDelta):
            centres = guide.locs if isinstance(guide, AutoNormal) else guide
            parameters = dict(centres.named_parameters())
            for name, value in values.items():
                _move(parameters[f"{name}_unconstrained"], value)
        elif isinstance(guide, AutoContinuous):
            flow = isinstance(guide, AutoNormalizingFlow)
            last = guide.transform[-1] if flow and len(guide.transform) else guide
            if isinstance(getattr(last, "loc", None), nn.Parameter):
                for site, centre in guide._unpack_latent(last.loc):
                    if site["name"] in values:
                        _move(centre, values[site["name"]])


def _move(centre: Tensor, value: Tensor) -> None:
    """Move a centre, but for those of its numbers that the prior does not allow: they stay."""
    centre.copy_(torch.where(value.isfinite(), value, centre))


def scale_parameters(guide: Any) -> list[nn.Parameter]:
    """Those parameters of a guide that say how wide it is, not where."""
    return [
        parameter
        for name, parameter in guide.named_parameters()
        if name.startswith("scale") or name.endswith("log_scale")
    ]


def site_names(guide: Any) -> list[str]:
    """Names of the latent sites of one of Pyro's guides, in its order."""
    return list(sites_of(guide))


def sites_of(guide: Any) -> dict[str, Any]:
    """The latent sites of the model of one of Pyro's guides, by name, in the guide's order."""
    return dict(guide.prototype_trace.iter_stochastic_nodes())


def is_point_guide(guide: Any) -> bool:
    """Whether every draw of the guide is the same, so that one particle is enough."""
    return isinstance(guide, AutoDelta | AutoLaplaceApproximation)
