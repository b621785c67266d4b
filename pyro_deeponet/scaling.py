"""Affine maps between physical units, which users see, and network units, which train well."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyro_deeponet.data import OperatorData

__all__ = ["Affine", "Scaling"]


class Affine(nn.Module):
    r"""The map :math:`z = (x - \text{shift}) / \text{scale}`, held as buffers.

    Args:
        shift: What becomes zero; one number, or one for each column.
        scale: What becomes one.

    Examples:
        >>> celsius = Affine(shift=32.0, scale=1.8)
        >>> celsius(torch.tensor([212.0])), celsius.inverse(torch.tensor([100.0]))
        (tensor([100.]), tensor([212.]))
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Tensor | float = 0.0, scale: Tensor | float = 1.0) -> None:
        super().__init__()
        dtype = torch.get_default_dtype()
        self.register_buffer("shift", torch.as_tensor(shift, dtype=dtype).clone())
        self.register_buffer("scale", torch.as_tensor(scale, dtype=dtype).clone())
        if not (torch.isfinite(self.shift).all() and (self.scale > 0).all()):
            raise ValueError(f"expected a finite shift and a positive scale, got {shift}, {scale}")

    def forward(self, x: Tensor) -> Tensor:
        """From physical to network units."""
        return (x - self.shift) / self.scale

    def inverse(self, z: Tensor) -> Tensor:
        """From network to physical units."""
        return self.shift + self.scale * z


class Scaling(nn.Module):
    """The three maps of a model: `u` a sensor, `y` a coordinate, `s` all outputs alike.

    Args:
        u: Map of the input functions, shift and scale `()` or `(k,)`.
        y: Map of the locations, `()` or `(d,)`.
        s: Map of the outputs, `()`.

    Examples:
        >>> data = OperatorData(u=[[1.0], [3.0]], y=[[0.0], [4.0]], s=[[0.0, 10.0], [10.0, 20.0]])
        >>> scaling = Scaling.minmax(data)
        >>> scaling.s(data.s).tolist()
        [[0.0, 0.5], [0.5, 1.0]]
    """

    def __init__(
        self, u: Affine | None = None, y: Affine | None = None, s: Affine | None = None
    ) -> None:
        super().__init__()
        self.u = u or Affine()
        self.y = y or Affine()
        self.s = s or Affine()

    @classmethod
    def standard(cls, data: OperatorData) -> Scaling:
        """Mean zero and standard deviation one, over what was observed."""
        return cls(
            *(
                Affine(x.mean(0), _spread(x, x.std(0, correction=0), data.u.dtype))
                for x in _columns(data)
            )
        )

    @classmethod
    def minmax(cls, data: OperatorData) -> Scaling:
        """From zero to one, over what was observed."""
        return cls(
            *(
                Affine(x.amin(0), _spread(x, x.amax(0) - x.amin(0), data.u.dtype))
                for x in _columns(data)
            )
        )

    @classmethod
    def identity(cls, sensors: int, coordinates: int) -> Scaling:
        """No scaling, with buffers of the size that `standard` and `minmax` give."""
        u, y = torch.zeros(sensors), torch.zeros(coordinates)
        return cls(Affine(u, u + 1), Affine(y, y + 1), Affine())


def _columns(data: OperatorData) -> tuple[Tensor, Tensor, Tensor]:
    """What each map is fitted to, in float64: `u (n, k)`, `y (q, d)` and all real `s` in a row."""
    s = data.s if data.mask is None else data.s[data.mask]
    y = data.y if data.index is None else data.y[_used(data.index, data.mask)]
    return data.u.double(), y.double(), s.reshape(-1).double()


def _used(index: Tensor, mask: Tensor | None) -> Tensor:
    return torch.unique(index if mask is None else index[mask])


def _spread(x: Tensor, spread: Tensor, dtype: torch.dtype) -> Tensor:
    """The spread of each column, or one where the column is constant up to rounding."""
    constant = spread <= 8 * torch.finfo(dtype).eps * x.abs().amax(0)
    return torch.where(constant, torch.ones_like(spread), spread)
