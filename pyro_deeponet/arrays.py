"""From what users hold (tensors, numpy arrays, lists) to checked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "ArrayLike",
    "check_finite",
    "check_matrix",
    "check_outputs",
    "common_float",
    "to_booleans",
    "to_integers",
    "to_tensor",
]

ArrayLike = Tensor | np.ndarray | Sequence[Any]


def to_tensor(name: str, value: ArrayLike) -> Tensor:
    """A tensor of real numbers from a tensor, a numpy array or a nested list.

    Examples:
        >>> to_tensor("u", [[1.0, 2.0]])
        tensor([[1., 2.]])
    """
    try:
        tensor = value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be a numeric tensor, numpy array or nested list of equal rows, "
            f"got {type(value).__name__}: {error}"
        ) from None
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise TypeError(f"{name} must hold real numbers, got {tensor.dtype}")
    if not isinstance(value, Tensor | np.ndarray) and tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())  # a list of Python floats has no precision
    return tensor


def to_integers(name: str, value: ArrayLike) -> Tensor:
    """A tensor of whole numbers; floats are refused, not rounded."""
    tensor = torch.as_tensor(value)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must hold whole numbers (rows of y), got {tensor.dtype}")
    return tensor.long()


def to_booleans(name: str, value: ArrayLike) -> Tensor:
    """A tensor of booleans; numbers are refused, not compared with zero."""
    tensor = torch.as_tensor(value)
    if tensor.dtype != torch.bool:
        raise TypeError(f"{name} must hold booleans, got {tensor.dtype}; pass {name} != 0")
    return tensor


def common_float(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give all arrays the widest float type among them, refusing to round whole numbers."""
    floats = [t.dtype for t in arrays.values() if t.is_floating_point()]
    common = torch.get_default_dtype() if not floats else torch.float32
    for dtype in floats:
        common = torch.promote_types(common, dtype)
    for name, tensor in arrays.items():
        if not tensor.is_floating_point() and (tensor.to(common).to(tensor.dtype) != tensor).any():
            raise ValueError(
                f"{name} holds whole numbers that {common} cannot represent exactly; "
                f"convert it yourself, for instance {name}.astype('float64')"
            )
    return {name: tensor.to(common) for name, tensor in arrays.items()}


def check_matrix(name: str, tensor: Tensor, fix: str) -> None:
    """Refuse anything but two dimensions; `fix` says how to get there from one."""
    if tensor.dim() != 2:
        hint = f"; pass {fix}" if tensor.dim() == 1 else ""
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected two dimensions{hint}")


def check_outputs(name: str, tensor: Tensor) -> None:
    """Refuse anything but a value, or a vector of values, for each function and point."""
    if tensor.dim() not in (2, 3) or 0 in tensor.shape[2:]:
        hint = f"; pass {name}[None, :] for one function" if tensor.dim() == 1 else ""
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, expected (functions, points), or (functions, "
            f"points, outputs) for several outputs at a point{hint}"
        )


def check_finite(name: str, tensor: Tensor, hint: str = "") -> None:
    """Refuse NaN and infinity, saying where the first one is."""
    bad = ~torch.isfinite(tensor)
    if bad.any():
        row = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"{name} has {int(bad.sum())} NaN or infinite values, the first in row {row}; "
            f"remove or mend them{hint}"
        )
