r"""The Laplace approximation with the Gauss-Newton curvature.

At the maximum of the posterior the guide becomes a Gaussian whose precision is the Fisher
information of the likelihood, :math:`\sum J_\mu^\top J_\mu / \sigma^2 + 2 J_\sigma^\top J_\sigma /
\sigma^2`, plus the curvature of the prior there. It is positive definite where a Hessian need not
be, and the Hessian itself for a linear network with Gaussian priors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.infer.autoguide import AutoLaplaceApproximation
from torch import Tensor

from pyro_deeponet.data import OperatorData
from pyro_deeponet.guides import make_guide, site_names, unflatten
from pyro_deeponet.model import DeepONet

__all__ = ["finish_guide"]

#: Numbers of a Jacobian held at once.
MAX_JACOBIAN = 20_000_000


def finish_guide(guide: Any, model: DeepONet, data: OperatorData) -> Any:
    """Turn a fitted `AutoLaplaceApproximation` into its Gaussian; leave other guides alone."""
    if not isinstance(guide, AutoLaplaceApproximation):
        return guide
    names = site_names(guide)
    shapes = {name: model.shapes[name] for name in names}
    centre = guide.loc.detach()
    weights = unflatten(centre, shapes)
    priors = [_prior_precision(model.prior_of(name), weights[name]) for name in names]
    precision = _fisher(model, shapes, centre, data).double()
    precision.diagonal().add_(torch.cat(priors))
    values, vectors = torch.linalg.eigh(precision)
    root = torch.linalg.qr(vectors.mT / values.clamp_min(1e-12 * values[-1]).sqrt()[:, None]).R.mT
    scale = root.diagonal().abs()
    gaussian = make_guide("mvn", model)
    with torch.no_grad():
        gaussian.loc.copy_(centre)
        gaussian.scale = scale.to(centre)
        gaussian.scale_tril = (root * root.diagonal().sign() / scale[:, None]).to(centre)
    return gaussian


def _prior_precision(prior: Any, weight: Tensor) -> Tensor:
    r"""The diagonal of :math:`-\nabla^2 \log p` at a weight, but at least one over the variance.

    For a Gaussian prior the two are the same. Others have places without curvature, or with a
    negative one: all but the peak of a Laplace prior, the tails of Student's t. There the variance
    bounds the weights that the data say nothing about. Where it is infinite, the squared slope of
    :math:`\log p` stands for it: the density falls by :math:`e` over a length of 1 / slope.

    Examples:
        >>> from pyro_deeponet.priors import Laplace, Normal, StudentT
        >>> w = torch.tensor([0.0, 9.0])
        >>> for prior in (Normal(0.0, 0.5), Laplace(scale=0.5), StudentT(df=1.0)):
        ...     print(_prior_precision(prior("head.bias", w.shape), w))
        tensor([4., 4.], dtype=torch.float64)
        tensor([2., 2.], dtype=torch.float64)
        tensor([2.0000, 0.0482], dtype=torch.float64)
    """
    hessian = torch.autograd.functional.hessian(prior.log_prob, weight)
    slope = torch.autograd.functional.jacobian(prior.log_prob, weight)
    variance = prior.variance.expand(weight.shape)
    floor = torch.where(torch.isfinite(variance), 1 / variance, slope.square())
    curvature = -hessian.reshape(weight.numel(), -1).diagonal()
    return torch.maximum(curvature, floor.reshape(-1)).double()


def _fisher(
    model: DeepONet, shapes: dict[str, torch.Size], centre: Tensor, data: OperatorData
) -> Tensor:
    """The information of all observations about the weights, `(P, P)`."""
    plain = {name: w.detach() for name, w in model.plain_weights().items()}
    size = centre.numel()
    information = centre.new_zeros(size, size)
    chunk = max(1, MAX_JACOBIAN // (2 * size * data.s[0].numel()))
    for rows in torch.arange(len(data), device=centre.device).split(chunk):
        index = None if data.index is None else data.index[rows]
        real = None if data.mask is None else data.mask[rows]

        def standardised(flat: Tensor, rows: Tensor = rows, index: Any = index) -> Tensor:
            weights = unflatten(flat, shapes) | plain
            return torch.stack(model.moments(weights, data.u[rows], data.y, index))

        sigma = standardised(centre)[1]
        jacobian = torch.func.jacrev(standardised)(centre)
        jacobian[1] *= math.sqrt(2)
        jacobian = jacobian / sigma[..., None]
        jacobian = jacobian if real is None else jacobian[:, real]
        flat = jacobian.reshape(-1, size)
        information += flat.mT @ flat
    return information
