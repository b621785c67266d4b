"""Correcting the spread of predictions by what was seen on held-out functions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Calibration", "conformal_quantile"]


@dataclass(frozen=True)
class Calibration:
    """A correction of the predictive spread.

    Args:
        factor: What the predictive standard deviation is multiplied by.
        level: Coverage for which the factor was chosen.
        functions: Number of held-out functions it rests on.

    Examples:
        >>> Calibration(factor=1.2, level=0.95, functions=100).factor
        1.2
    """

    factor: float
    level: float
    functions: int


def conformal_quantile(score: Tensor, mask: Tensor | None, level: float) -> float:
    """The `level`-quantile of absolute scores, each function having the weight `1/(n+1)`.

    Args:
        score: `(n, m)`, or `(n, m, c)` for several outputs.
        mask: Which scores are real, of the same shape; the others do not count.
        level: At most `n/(n+1)`; the rest of the weight stands at infinity.

    Examples:
        >>> conformal_quantile(torch.tensor([[1.0], [-3.0], [2.0], [0.5]]), None, 0.6)
        2.0
    """
    score = score.abs().flatten(1)
    real = (torch.ones_like(score) if mask is None else mask.flatten(1)).double()
    weight = (real / real.sum(1, keepdim=True) / (len(score) + 1)).flatten()
    order = score.flatten().argsort()
    reached = weight[order].cumsum(0) >= level * (1 - 1e-9)  # rounding
    return float(score.flatten()[order][int(reached.nonzero()[0])])
