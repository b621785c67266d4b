"""How far a guide is from the prior, for all weights at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_deeponet.guides import AutoMeanField, mean_field, unflatten
from pyro_deeponet.model import DeepONet

__all__ = ["flat_divergence", "gaussian_prior"]


def flat_divergence(
    model: DeepONet, guide: Any, shapes: dict[str, torch.Size]
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The KL divergence of guide from prior, of draws `(S, P)` and their log densities `(S,)`.

    Priors that contain sample or param statements, or parameters to be learned, are left to Pyro:
    for them there is none.

    Args:
        model: The model.
        guide: A guide that `flat_sampler` can draw from.
        shapes: Shapes of its weights by site, in its order.

    Examples:
        >>> from pyro_deeponet.guides import flat_sampler, make_guide
        >>> model = DeepONet(sensors=4, coordinates=1, branch=(3,), trunk=(3,))
        >>> guide = make_guide("meanfield", model)
        >>> divergence = flat_divergence(model, guide, model.shapes)
        >>> draw = flat_sampler(guide, model.shapes)
        >>> bool(divergence(*draw(2)) == divergence(*draw(2)))  # in closed form
        True
    """
    with poutine.block(), poutine.trace() as tracer:
        priors = {name: model.prior_of(name) for name in shapes}
    if len(tracer.trace.nodes):
        return None
    log_prior = _flat_log_prior(priors, shapes)
    if log_prior(_zeros(model, shapes)).requires_grad:
        return None
    if isinstance(guide, AutoMeanField):
        return _mean_field_divergence(mean_field(guide), priors, shapes)
    return lambda flat, log_q: (log_q - log_prior(flat)).mean()


def gaussian_prior(model: DeepONet, name: str) -> tuple[Tensor, Tensor] | None:
    """Means and standard deviations of a weight's prior, each of the weight's shape.

    `None` where the weight has no prior, one that is not of independent Gaussians, or one with
    sample or param statements of its own.

    Examples:
        >>> model = DeepONet(sensors=4, coordinates=1, branch=(3,), trunk=(3,))
        >>> mean, std = gaussian_prior(model, "branch.0.weight")
        >>> std.shape, std.unique()
        (torch.Size([3, 4]), tensor([1.]))
    """
    if name not in model.sampled_shapes():
        return None
    with poutine.block(), poutine.trace() as tracer:
        prior = model.prior_of(name)
    found = None if len(tracer.trace.nodes) else _flat_gaussian({name: prior})
    if found is None:
        return None
    loc, scale = (x.detach().reshape(model.shapes[name]) for x in found)
    return loc, scale


def _flat_log_prior(
    priors: Mapping[str, Any], shapes: dict[str, torch.Size]
) -> Callable[[Tensor], Tensor]:
    """The log prior of a matrix of draws, `(S, P) -> (S,)`."""
    gaussian = _flat_gaussian(priors)
    if gaussian is not None:
        loc, scale = gaussian
        constant = -scale.log().sum() - 0.5 * math.log(2 * math.pi) * loc.numel()
        if (loc == loc[0]).all() and (scale == scale[0]).all():
            loc, scale = loc[0], scale[0]
        return lambda flat: constant - 0.5 * ((flat - loc) / scale).square().sum(-1)

    def log_prior(flat: Tensor) -> Tensor:
        weights = unflatten(flat, shapes)
        return torch.stack([prior.log_prob(weights[name]) for name, prior in priors.items()]).sum(0)

    return log_prior


def _mean_field_divergence(
    moments: Callable[[], tuple[Tensor, Tensor]],
    priors: Mapping[str, Any],
    shapes: dict[str, torch.Size],
) -> Callable[[Tensor, Tensor], Tensor]:
    r"""The divergence of independent Gaussians from the prior, in closed form where there is one.

    From a Gaussian prior :math:`\mathcal N(m, t^2)` it is

    .. math:: \mathrm{KL} = \sum \log \frac ts + \frac{s^2 + (\mu - m)^2}{2 t^2} - \frac12
    """
    gaussian = _flat_gaussian(priors)
    if gaussian is not None:
        m, t = gaussian

        def closed(flat: Tensor, log_q: Tensor) -> Tensor:
            mu, s = moments()
            ratio = s / t
            return 0.5 * (ratio.square() + ((mu - m) / t).square() - 1).sum() - ratio.log().sum()

        return closed

    def site_by_site(flat: Tensor, log_q: Tensor) -> Tensor:
        means, scales = (unflatten(part, shapes) for part in moments())
        weights, total = unflatten(flat, shapes), flat.new_zeros(())
        for name, prior in priors.items():
            q = dist.Normal(means[name], scales[name]).to_event(means[name].dim())
            try:
                total = total + kl_divergence(q, prior)
            except NotImplementedError:
                total = total + (q.log_prob(weights[name]) - prior.log_prob(weights[name])).mean()
        return total

    return site_by_site


def _zeros(model: DeepONet, shapes: dict[str, torch.Size]) -> Tensor:
    return model.head.like.new_zeros(1, sum(shape.numel() for shape in shapes.values()))


def _flat_gaussian(priors: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Means and standard deviations `(P,)` of priors that are independent Gaussians throughout."""
    bases = [_base(prior) for prior in priors.values()]
    if any(type(base) is not dist.Normal for base in bases):
        return None
    loc, scale = (torch.cat([getattr(b, k).reshape(-1) for b in bases]) for k in ("loc", "scale"))
    return loc, scale


def _base(prior: dist.Distribution) -> Any:
    while isinstance(prior, dist.Independent):
        prior = prior.base_dist
    return prior
