"""Where branch and trunk meet: from features to output nodes."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["affine", "contract", "without_plates"]


def contract(
    b: Tensor, t: Tensor, index: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    r"""The scalar products :math:`\langle b_i, t_j \rangle` of functions and their locations.

    With an index there are two exact ways: multiply over the whole grid and pick the scalars, or
    pick the features of each point and multiply those. The first moves `q` scalars a function, the
    second `m` vectors of width `p`; the cheaper one is taken.

    Args:
        b: Branch features `(*S, n, p)`.
        t: Trunk features `(*S, q, p)`.
        index: `(n, m)`.
        out: Memory for the result, which may be used where no gradients are recorded.

    Returns:
        `(*S, n, q)`, or `(*S, n, m)`.
    """
    if index is None:
        return torch.matmul(b, t.mT, out=out)
    return _over_grid(b, t, index) if _grid_is_cheaper(b, t, index) else _over_points(b, t, index)


def _grid_is_cheaper(b: Tensor, t: Tensor, index: Tensor) -> bool:
    return t.shape[-2] <= index.shape[-1] * b.shape[-1]


def _over_grid(b: Tensor, t: Tensor, index: Tensor) -> Tensor:
    grid = b @ t.mT
    return grid.gather(-1, index.expand(*grid.shape[:-1], -1))


def _over_points(b: Tensor, t: Tensor, index: Tensor) -> Tensor:
    # With all samples of a location side by side one look-up fetches them in one piece.
    samples = torch.broadcast_shapes(b.shape[:-2], t.shape[:-2])
    b, t = (x.expand(*samples, -1, -1).reshape(-1, *x.shape[-2:]) for x in (b, t))
    rows = t.transpose(0, 1).flatten(1)
    picked = torch.nn.functional.embedding(index, rows).unflatten(-1, (len(t), -1))
    products = (picked * b.transpose(0, 1).unsqueeze(1)).sum(-1)
    return products.permute(2, 0, 1).reshape(*samples, *index.shape)


def affine(slope: Tensor, product: Tensor, offset: Tensor, out: Tensor | None = None) -> Tensor:
    """`slope * product + offset`, without gradients in few passes over memory at hand.

    Not `addcmul`, which is several times slower when two of its arguments are broadcast.

    Args:
        slope: `(*S, 1, 1)`.
        product: `(*S, n, q)`.
        offset: `(*S, 1, 1)`.
        out: Memory for the result, which may be used; `product` itself too.
    """
    samples = product.shape[:-2]
    if torch.is_grad_enabled() or slope.shape[:-2] != samples or offset.shape[:-2] != samples:
        return slope * product + offset
    return torch.mul(slope, product, out=out).add_(offset)


def without_plates(x: Tensor) -> Tensor:
    """Drop the two dimensions of size one that Pyro keeps for the plates left of `(n, q)`."""
    return x.squeeze(-3).squeeze(-3) if x.dim() >= 4 and x.shape[-4:-2] == (1, 1) else x
