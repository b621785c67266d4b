"""Exact updates: the last layers of branch and trunk, whose conditional posterior is Gaussian."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_deeponet.data import OperatorData
from pyro_deeponet.divergence import gaussian_prior
from pyro_deeponet.layers import MLP
from pyro_deeponet.model import DeepONet

__all__ = ["check_solvable", "normal_equations", "solve_last_layers"]

#: Most weights of a last layer: the matrix over pairs of them is held, two or three times.
MAX_UNKNOWNS = 11_000
#: Numbers that are held at once of the rows of the equations.
CHUNK = 8_000_000


def check_solvable(model: DeepONet) -> list[str]:
    """The nets whose last layers can be solved for, `"branch"` and `"trunk"` or one of them.

    Raises:
        ValueError: There is none; the message says why.
    """
    if model.outputs is not None:
        raise ValueError(f"solve= is for one output at a location, the model has {model.outputs}")
    found, reasons = [], []
    for name in ("branch", "trunk"):
        net = getattr(model, name)
        if not isinstance(net, MLP) or len(net.activations) == len(net.sizes):
            reasons.append(f"the {name} does not end with a linear layer")
        elif any(gaussian_prior(model, site) is None for site in _sites(model, name)):
            reasons.append(f"the last layer of the {name} has no Gaussian prior")
        elif (count := sum(model.shapes[s].numel() for s in _sites(model, name))) > MAX_UNKNOWNS:
            reasons.append(f"the last layer of the {name} has {count} weights, over {MAX_UNKNOWNS}")
        else:
            found.append(name)
    if not found:
        raise ValueError(
            f"solve= finds no layer to solve for: {'; '.join(reasons)}. It wants a net given by "
            "its widths, final_activation=False, and priors.Normal or FanIn; or leave it at 0"
        )
    return found


@torch.no_grad()
def solve_last_layers(
    model: DeepONet,
    weights: Mapping[str, Tensor],
    data: OperatorData,
    rounds: int = 1,
    tell: Callable[[str, float], Any] = lambda net, level: None,
) -> tuple[dict[str, Tensor], float]:
    r"""Move the last layers of branch and trunk to the means of their conditional posteriors.

    Given all other weights and a noise level :math:`\sigma`, `mu` is linear in the last layer of a
    net (and in the linear path of `branch_skip`), :math:`\mu = A w`, so that with a prior
    :math:`w \sim \mathcal N(m, V)` the posterior of :math:`w` is Gaussian, with mean

    .. math:: (A^\top A + \sigma^2 V^{-1})^{-1} (A^\top z + \sigma^2 V^{-1} m).

    This is the update of coordinate-ascent variational inference for the centres of these weights,
    with the others at theirs. The nets take turns, and :math:`\sigma` is each time what is left
    unexplained.

    Args:
        model: The model; its other nodes, `delta` among them, play no part.
        weights: By name, of one network.
        data: All training data.
        rounds: How many turns.
        tell: Called after each update with the name of the net and the noise level.

    Returns:
        The weights, and the noise level in network units.
    """
    found = {name: w.double() for name, w in weights.items()}
    nets = check_solvable(model)
    locations = data.y.double()
    z, mask, index = model.scaling.s(data.s.double()), data.mask, data.index
    if mask is not None:
        z = torch.where(mask, z, 0.0)

    def level() -> float:
        mu, _ = model.nodes(found, data.u.double(), locations, index)
        error = mu - z if mask is None else torch.where(mask, mu - z, 0.0)
        count = error.numel() if mask is None else int(mask.sum())
        return max(float(error.square().sum() / count) ** 0.5, torch.finfo(data.s.dtype).eps)

    sigma = level()
    for _ in range(rounds):
        for net in nets:
            _update(model, net, found, data, z, sigma)
            sigma = level()
            tell(net, sigma)
    return {name: w.to(weights[name]) for name, w in found.items()}, sigma


def normal_equations(
    of_functions: Tensor,
    of_locations: Tensor,
    z: Tensor,
    index: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Matrix and right-hand side of least squares for :math:`z_{ij} = f_i^\top C g_j`.

    The rows of the equations, one for each observation, are never built: the matrix is a sum of
    Kronecker products, one for each function.

    Args:
        of_functions: `f`, `(n, a)`.
        of_locations: `g`, `(q, b)`.
        z: Observations `(n, q)`, or `(n, m)` with `index`; zero where they are not real.
        index: Which locations belong to which function, `(n, m)`.
        mask: Which observations are real.

    Returns:
        `(ab, ab)` and `(ab,)`, for `C` in the order of its rows.

    Examples:
        >>> f, g, C = torch.randn(9, 2), torch.randn(8, 3), torch.randn(2, 3)
        >>> matrix, right = normal_equations(f, g, f @ C @ g.T)
        >>> torch.allclose(torch.linalg.solve(matrix, right), C.flatten(), atol=1e-3)
        True
    """
    (n, a), b, m = of_functions.shape, of_locations.shape[1], z.shape[1]
    matrix = of_functions.new_zeros(a * a, b * b)
    right = of_functions.new_zeros(a, b)
    rows = max(1, CHUNK // (a * a + b * b + m * b))
    for part in torch.arange(n, device=z.device).split(rows):
        f, values = of_functions[part], z[part]
        g = of_locations.expand(len(part), -1, -1) if index is None else of_locations[index[part]]
        if mask is not None:
            g = g * mask[part][..., None]
        squares = (f[:, :, None] * f[:, None, :]).flatten(1)
        matrix.addmm_(squares.mT, (g.mT @ g).flatten(1))
        right += f.mT @ (values[:, None, :] @ g)[:, 0]
    whole = matrix.view(a, a, b, b).permute(0, 2, 1, 3).reshape(a * b, a * b)
    return whole, right.flatten()


def _sites(model: DeepONet, net: str) -> list[str]:
    """The last layer of a net, and for the branch its linear path."""
    last = f"{net}.{len(getattr(model, net).sizes) - 1}"
    skip = ["branch.skip.weight"] if net == "branch" and model.branch_skip else []
    return [f"{last}.weight", f"{last}.bias", *skip]


def _update(
    model: DeepONet,
    net: str,
    weights: dict[str, Tensor],
    data: OperatorData,
    z: Tensor,
    sigma: float,
) -> None:
    """Put the mean of the conditional posterior in the place of the last layer of a net."""
    sites = _sites(model, net)
    sizes = [model.shapes[site][1] if len(model.shapes[site]) == 2 else 1 for site in sites]
    u, y = data.u.double(), data.y.double()
    seen = y if model.features is None else model.features(y)
    x = model.scaling.u(u) if net == "branch" else model.scaling.y(seen)
    hidden = getattr(model, net).hidden(x, weights)
    own = torch.cat([hidden, torch.ones_like(hidden[:, :1]), *([x] if len(sites) > 2 else [])], 1)
    slope = model.head.rows(weights["head.weight"], 0)[0]  # (p,), or (1,) for the head "dot"
    offset = model.head.rows(weights["head.bias"][:, None], 0)[0]
    if net == "branch":
        pair = own, model.trunk_features(weights, y) * slope
    else:
        pair = model.branch_features(weights, u) * slope, own
    target = z - offset if data.mask is None else torch.where(data.mask, z - offset, 0.0)
    matrix, right = normal_equations(*pair, target, data.index, data.mask)

    def arrange(parts: Sequence[Tensor]) -> Tensor:
        """From the weights of a layer `(p, columns)` to the order of the equations."""
        table = torch.cat([part.reshape(len(part), -1).double() for part in parts], 1)
        return (table.mT if net == "branch" else table).flatten()

    means, scales = zip(*(gaussian_prior(model, site) or () for site in sites), strict=True)
    ridge = (sigma / arrange(scales)).square()
    right = right + ridge * arrange(means)
    solution = _solve(matrix, right, ridge)
    width = pair[1].shape[1] if net == "branch" else pair[0].shape[1]
    table = solution.view(-1, width).mT if net == "branch" else solution.view(width, -1)
    for site, part in zip(sites, table.split(sizes, 1), strict=True):
        weights[site] = part.reshape(model.shapes[site]).contiguous()


def _solve(matrix: Tensor, right: Tensor, ridge: Tensor) -> Tensor:
    """Solve with a ridge on the diagonal, at least as large as the rounding of the matrix."""
    diagonal = matrix.diagonal()
    rounding = torch.finfo(matrix.dtype).eps * diagonal.max().item()
    diagonal.add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    while failed:
        diagonal.add_(rounding)
        rounding *= 10
        factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.cholesky_solve(right[:, None], factor)[:, 0]
