"""Branch and trunk nets other than the package's own, and features for the trunk."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyro_deeponet.layers import ACTIVATIONS, MLP, Activation
from pyro_deeponet.modules import BayesianModule
from pyro_deeponet.priors import Prior

__all__ = ["BayesianModule", "Decays", "Features", "Fourier", "Network"]

#: What a net is told by: widths of layers, a module, or a callable that makes one.
Network = Sequence[int] | nn.Module | Callable[[], nn.Module]
#: From locations `(q, d)` in physical units to what the trunk sees of them, `(q, d')`.
Features = Callable[[Tensor], Tensor]

#: Locations with which features are tried out.
ROWS = 3


@dataclass(frozen=True)
class Fourier:
    r"""Sines and cosines of periodic coordinates, :math:`\sin` and :math:`\cos 2\pi j x / P`.

    They take the place of a coordinate :math:`x` of period :math:`P`, for
    :math:`j = 1 \dots` `harmonics`; whatever the weights, the output then has this period. On a
    domain of length :math:`L` that is not periodic, a period of :math:`2L` gives the trunk fine
    detail to build on and ties no two points together.

    Args:
        periods: Period of each coordinate in physical units, `None` for one that stays as it is.
        harmonics: Number of sines, and of cosines, for each period.

    Examples:
        >>> features = Fourier((1.0, None), harmonics=2)      # x of period 1, and time
        >>> y = torch.tensor([[0.2, 7.0], [1.2, 7.0]])
        >>> features(y)               # sin, sin 2x, cos, cos 2x, and time as it was
        tensor([[ 0.9511,  0.5878,  0.3090, -0.8090,  7.0000],
                [ 0.9511,  0.5878,  0.3090, -0.8090,  7.0000]])
    """

    periods: Sequence[float | None]
    harmonics: int = 3

    def __post_init__(self) -> None:
        given: Any = self.periods
        if not isinstance(given, Sequence) or isinstance(given, str) or not len(given):
            raise TypeError(
                f"periods is {given!r}, expected one for each coordinate, such as (1.0, None)"
            )
        if not all(p is None or (isinstance(p, int | float) and 0 < p < math.inf) for p in given):
            raise ValueError(f"periods is {given!r}, expected positive numbers, or None")
        if not isinstance(self.harmonics, int) or self.harmonics < 1:
            raise ValueError(f"harmonics is {self.harmonics!r}, expected a whole number from 1 on")
        object.__setattr__(self, "periods", tuple(given))

    def __call__(self, y: Tensor) -> Tensor:
        """The features `(q, d')` of locations `(q, d)` in physical units."""
        if y.shape[-1] != len(self.periods):
            raise ValueError(
                f"Fourier has periods for {len(self.periods)} coordinates, the locations have "
                f"{y.shape[-1]}; give None for a coordinate that is not periodic"
            )
        columns: list[Tensor] = []
        orders = torch.arange(1, self.harmonics + 1, dtype=y.dtype, device=y.device)
        for x, period in zip(y.unsqueeze(-1).unbind(-2), self.periods, strict=True):
            if period is None:
                columns.append(x)
            else:
                angles = x * (orders * (2 * math.pi / period))
                columns += [angles.sin(), angles.cos()]
        return torch.cat(columns, dim=-1)


@dataclass(frozen=True)
class Decays:
    r"""Exponentials of the coordinates, :math:`e^{-x / L}`, beside the coordinates or features.

    What diffuses or relaxes changes fast at first and then slowly. With decays on several scales
    the trunk has both at hand.

    Args:
        lengths: For each coordinate the lengths :math:`L` in physical units, `()` for one without;
            a negative length grows, from the far end.
        beside: What else the trunk sees, such as a `Fourier`; `None`: the coordinates.

    Examples:
        >>> features = Decays(((), (0.1, 1.0)))                # x as it is, t, and two decays of t
        >>> features(torch.tensor([[0.2, 0.0], [0.2, 1.0]]))
        tensor([[2.0000e-01, 0.0000e+00, 1.0000e+00, 1.0000e+00],
                [2.0000e-01, 1.0000e+00, 4.5400e-05, 3.6788e-01]])
    """

    lengths: Sequence[Sequence[float]]
    beside: Features | None = None

    def __post_init__(self) -> None:
        given: Any = self.lengths
        if not isinstance(given, Sequence) or not all(isinstance(x, Sequence) for x in given):
            raise TypeError(
                f"lengths is {given!r}, expected those of each coordinate, such as ((), (0.1, 1.0))"
            )
        each = [x for lengths in given for x in lengths]
        if not each or not all(isinstance(x, int | float) and 0 < abs(x) < math.inf for x in each):
            raise ValueError(
                f"lengths is {given!r}, expected numbers other than zero, at least one"
            )
        if self.beside is not None and not callable(self.beside):
            raise TypeError(
                f"beside is {self.beside!r}, expected features such as Fourier, or None"
            )
        object.__setattr__(self, "lengths", tuple(tuple(lengths) for lengths in given))

    def __call__(self, y: Tensor) -> Tensor:
        """The features `(q, d')` of locations `(q, d)` in physical units."""
        if y.shape[-1] != len(self.lengths):
            raise ValueError(
                f"Decays has lengths for {len(self.lengths)} coordinates, the locations have "
                f"{y.shape[-1]}; give () for a coordinate without"
            )
        columns = [y if self.beside is None else self.beside(y)]
        for x, lengths in zip(y.unsqueeze(-1).unbind(-2), self.lengths, strict=True):
            if lengths:
                columns.append((-x / x.new_tensor(lengths)).exp())
        return torch.cat(columns, dim=-1)


def make_network(
    network: Network,
    inputs: int,
    prior: Prior | None,
    activation: str | Activation,
    final_activation: bool,
    name: str,
) -> MLP | BayesianModule:
    """A Bayesian net of widths, of a module, or of a callable that makes a module.

    Examples:
        >>> make_network((8, 4), 3, None, "relu", False, "trunk").sizes
        (8, 4)
        >>> make_network(nn.Linear(3, 4), 3, None, "relu", False, "trunk").sizes[-1]
        4
    """
    act = _activation(activation)
    if isinstance(network, Sequence):
        check_sizes(name, network)
        return MLP((inputs, *network), prior, act, final_activation, name)
    if not callable(network):
        raise TypeError(
            f"{name} is {network!r}, expected widths of layers such as (30, 30), a "
            "torch.nn.Module, or a callable that makes one"
        )
    return BayesianModule(network, inputs, prior, name)


def check_sizes(name: str, sizes: Sequence[int]) -> None:
    """Refuse what are no widths."""
    if not len(sizes) or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ValueError(f"{name} is {sizes}, expected positive whole numbers")


def common_width(branch: Sequence[int], trunk: Sequence[int]) -> int:
    """The width `p` that nets of these sizes share."""
    if branch[-1] != trunk[-1]:
        raise ValueError(
            f"the branch ends with width {branch[-1]} and the trunk with {trunk[-1]}; "
            "their product needs equal last widths"
        )
    return branch[-1]


def describe(net: MLP | BayesianModule) -> str:
    """A net in a few words.

    Examples:
        >>> describe(make_network((8, 4), 3, None, "relu", False, "trunk"))
        '8-4'
        >>> describe(make_network(nn.Linear(3, 4), 3, None, "relu", False, "trunk"))
        'Linear of width 4'
    """
    if isinstance(net, MLP):
        return "-".join(map(str, net.sizes))
    return f"{net.kind} of width {net.sizes[-1]}"


def count_features(features: Features | None, coordinates: int) -> int:
    """Number of inputs that a trunk has on these features of the coordinates."""
    if features is None:
        return coordinates
    if not callable(features) or isinstance(features, type):
        raise TypeError(
            f"trunk_features is {features!r}, expected a callable from locations (q, "
            f"{coordinates}) to features (q, d'), such as networks.Fourier((1.0,))"
        )
    if isinstance(features, nn.Module) and any(True for _ in features.parameters()):
        raise ValueError(
            "trunk_features has parameters, which would not be learnt; make it the first part of a "
            "module and pass that as trunk"
        )
    out: Any = features(torch.linspace(0, 1, ROWS * coordinates).reshape(ROWS, coordinates))
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != ROWS or not out.shape[1]:
        found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"trunk_features made {found} of locations ({ROWS}, {coordinates}), expected "
            f"({ROWS}, d'): a row of features for each location"
        )
    return out.shape[1]


def _activation(activation: str | Activation) -> Activation:
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        names = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"activation is {activation!r}, expected one of {names}, or a callable")
    return ACTIVATIONS[activation]
