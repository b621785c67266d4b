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
        """From physical to network units.

        Examples:
            >>> Affine(shift=1.0, scale=2.0)(torch.tensor(5.0))
            tensor(2.)
        """
        return (x - self.shift) / self.scale

    def inverse(self, z: Tensor) -> Tensor:
        """From network to physical units.

        Examples:
            >>> Affine(shift=1.0, scale=2.0).inverse(torch.tensor(2.0))
            tensor(5.)
        """
        return self.shift + self.scale * z


class Scaling(nn.Module):
    """The three maps of a model: `u` a sensor, `y` a coordinate, `s` an output.

    Args:
        u: Map of the input functions, shift and scale `()` or `(k,)`.
        y: Map of the locations, `()` or `(d,)`.
        s: Map of the outputs, `()`, or `(c,)` where there are several at a location.

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
        """Mean zero and standard deviation one, over what was observed.

        Examples:
            >>> data = OperatorData(u=[[1.0], [3.0]], y=[[0.0], [4.0]], s=[[0.0, 4.0], [0.0, 4.0]])
            >>> Scaling.standard(data).s(data.s).tolist()
            [[-1.0, 1.0], [-1.0, 1.0]]
        """
        return cls(*(_fitted(x, x.nanmean(0), _std(x), data.u.dtype) for x in _columns(data)))

    @classmethod
    def minmax(cls, data: OperatorData) -> Scaling:
        """From zero to one, over what was observed.

        Examples:
            >>> data = OperatorData(u=[[1.0], [3.0]], y=[[0.0], [4.0]], s=[[0.0, 4.0], [0.0, 4.0]])
            >>> Scaling.minmax(data).s(data.s).tolist()
            [[0.0, 1.0], [0.0, 1.0]]
        """
        ends = ((x, _least(x), -_least(-x)) for x in _columns(data))
        return cls(*(_fitted(x, low, high - low, data.u.dtype) for x, low, high in ends))

    @classmethod
    def identity(cls, sensors: int, coordinates: int, outputs: int | None = None) -> Scaling:
        """No scaling, with buffers of the size that `standard` and `minmax` give.

        Examples:
            >>> Scaling.identity(sensors=3, coordinates=2).u.scale
            tensor([1., 1., 1.])
        """
        u, y = torch.zeros(sensors), torch.zeros(coordinates)
        s = torch.zeros(()) if outputs is None else torch.zeros(outputs)
        return cls(*(Affine(x, x + 1) for x in (u, y, s)))


def _columns(data: OperatorData) -> tuple[Tensor, Tensor, Tensor]:
    """What each map is fitted to, in float64: `u (n, k)`, `y (q, d)`, and `s (N,)` or `(N, c)`.

    Outputs that are not real are NaN.
    """
    s = data.s.double()
    if data.mask is not None:
        s = s.masked_fill(~data.mask, torch.nan)
    y = data.y
    if data.index is not None:
        real = torch.isfinite(s) if s.dim() == 2 else torch.isfinite(s).any(2)
        y = y[torch.unique(data.index[real])]
    return data.u.double(), y.double(), s.flatten(0, 1)


def _std(x: Tensor) -> Tensor:
    return (x - x.nanmean(0)).square().nanmean(0).sqrt()


def _least(x: Tensor) -> Tensor:
    return x.nan_to_num(torch.inf, torch.inf, -torch.inf).amin(0)


def _fitted(x: Tensor, shift: Tensor, spread: Tensor, dtype: torch.dtype) -> Affine:
    """The map, which leaves the scale of a column that is constant up to rounding.

    A column without a single value, an output that was never observed, is left as it is.
    """
    constant = ~(spread > 8 * torch.finfo(dtype).eps * -_least(-x.abs()))
    scale = torch.where(constant, torch.ones_like(spread), spread)
    return Affine(torch.where(torch.isfinite(shift), shift, 0.0), scale)
