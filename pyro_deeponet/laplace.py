r"""The Laplace approximation with the Gauss-Newton curvature.

At the maximum of the posterior the guide becomes a Gaussian whose precision is the Fisher
information of the likelihood, :math:`\sum J_\mu^\top J_\mu / \sigma^2 + 2 J_\sigma^\top J_\sigma /
\sigma^2`, plus the precision of the prior (one over its variance). It is positive definite where a
Hessian need not be, and the Hessian itself for a linear network with Gaussian priors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.infer.autoguide import AutoLaplaceApproximation
from torch import Tensor

from pyro_deeponet.data import OperatorData
from pyro_deeponet.elbo import unflatten
from pyro_deeponet.guides import make_guide, site_names
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
    priors = [1 / model.prior_of(name).variance.expand(model.shapes[name]) for name in names]
    precision = _fisher(model, shapes, centre, data).double()
    precision.diagonal().add_(torch.cat([p.flatten() for p in priors]).nan_to_num(0.0))
    values, vectors = torch.linalg.eigh(precision)
    root = torch.linalg.qr(vectors.mT / values.clamp_min(1e-12 * values[-1]).sqrt()[:, None]).R.mT
    scale = root.diagonal().abs()
    gaussian = make_guide("mvn", model)
    with torch.no_grad():
        gaussian.loc.copy_(centre)
        gaussian.scale = scale.to(centre)
        gaussian.scale_tril = (root * root.diagonal().sign() / scale[:, None]).to(centre)
    return gaussian


def _fisher(
    model: DeepONet, shapes: dict[str, torch.Size], centre: Tensor, data: OperatorData
) -> Tensor:
    """The information of all observations about the weights, `(P, P)`."""
    plain = {name: w.detach() for name, w in model.plain_weights().items()}
    size = centre.numel()
    information = centre.new_zeros(size, size)
    chunk = max(1, MAX_JACOBIAN // (2 * size * data.s.shape[1]))
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
