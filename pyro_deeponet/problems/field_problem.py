"""Problems whose input is a random field on an interval."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import make_interp_spline
from torch import Tensor

from pyro_deeponet.fields import GaussianRandomField, check_integer, check_positive
from pyro_deeponet.problems.base import Problem

__all__ = ["FieldProblem", "SpaceTimeProblem", "TimeProblem", "spline_matrix"]


@dataclass(frozen=True, kw_only=True)
class FieldProblem(Problem):
    """A problem whose input is a random field, seen at uniformly spaced sensors.

    Args:
        field: Random field the input is drawn from; its domain is the interval of the problem.
        n_sensors: Number `k` of sensors, the two ends of the interval among them.

    Examples:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Mean(FieldProblem):
        ...     grid = torch.zeros(1, 1, dtype=torch.float64)
        ...     def solve(self, u):
        ...         return u.mean(1, keepdim=True)
        >>> Mean(field=GaussianRandomField(0.2), n_sensors=50).dataset(8)
        OperatorData(8 functions x 1 point, 50 sensors, 1 location in 1 coordinate, float32)
    """

    field: GaussianRandomField = dataclasses.field(default_factory=GaussianRandomField)
    n_sensors: int = 100

    def __post_init__(self) -> None:
        if not (hasattr(self.field, "sample") and hasattr(self.field, "domain")):
            raise TypeError(
                f"field must be a random field such as GaussianRandomField(0.5), got {self.field!r}"
            )
        check_integer("n_sensors", self.n_sensors, minimum=2)

    @cached_property
    def sensors(self) -> Tensor:  # type: ignore[override]
        """Points where the input is seen, of shape `(k,)`."""
        return torch.linspace(*self.field.domain, self.n_sensors, dtype=torch.float64)

    def draw(self, n: int, seed: int) -> Tensor:
        """Draw `n` input functions at the sensors, of shape `(n, k)`."""
        return self.field.sample(n, self.sensors, seed)


@dataclass(frozen=True, kw_only=True)
class TimeProblem(FieldProblem):
    """A field problem in time alone, over the domain of the field.

    Args:
        field: Random field the input is drawn from.
        n_sensors: Number `k` of sensors.
        n_times: Number `q` of uniform times, both ends of the interval among them.

    Examples:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Square(TimeProblem):
        ...     def solve(self, u):
        ...         return u**2
        >>> Square(n_sensors=20, n_times=20).dataset(8, n_points=5)
        OperatorData(8 functions x 5 points, 20 sensors, 20 locations in 1 coordinate, float32)
    """

    n_times: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("n_times", self.n_times, minimum=2)

    @cached_property
    def grid(self) -> Tensor:  # type: ignore[override]
        """Times of shape `(q, 1)`."""
        return torch.linspace(*self.field.domain, self.n_times, dtype=torch.float64)[:, None]


@dataclass(frozen=True, kw_only=True)
class SpaceTimeProblem(FieldProblem):
    """A field problem in one space dimension, the domain of the field, and time.

    Args:
        field: Random field the input is drawn from.
        n_sensors: Number `k` of sensors.
        n_x: Number of uniform points of the grid in `x`, both ends among them.
        n_times: Number of uniform times, 0 and `final_time` among them.
        final_time: End of the time interval.

    Examples:
        Decay at every point by itself, from the initial state `u`:

        >>> @dataclass(frozen=True, kw_only=True)
        ... class Decay(SpaceTimeProblem):
        ...     def solve(self, u):
        ...         t = torch.linspace(0.0, self.final_time, self.n_times, dtype=u.dtype)
        ...         return (u[:, :, None] * torch.exp(-t)).flatten(1)
        >>> Decay(n_sensors=10, n_x=10, n_times=4).dataset(8)
        OperatorData(8 functions x 40 points, 10 sensors, 40 locations in 2 coordinates, float32)
    """

    n_x: int = 100
    n_times: int = 100
    final_time: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("n_x", self.n_x, minimum=3)
        check_integer("n_times", self.n_times, minimum=2)
        check_positive("final_time", self.final_time)

    @property
    def grid_shape(self) -> tuple[int, int]:
        """`(n_x, n_times)`: `s.reshape(n, *grid_shape)` is indexed by function, x and t.

        Examples:
            >>> from pyro_deeponet.problems import DiffusionReaction
            >>> problem = DiffusionReaction(n_x=5, n_times=7)
            >>> problem.grid_shape, problem.grid.shape
            ((5, 7), torch.Size([35, 2]))
        """
        return self.n_x, self.n_times

    @cached_property
    def grid(self) -> Tensor:  # type: ignore[override]
        """Locations `(x, t)` of shape `(n_x * n_times, 2)`, t varying fastest."""
        x = torch.linspace(*self.field.domain, self.n_x, dtype=torch.float64)
        t = torch.linspace(0.0, self.final_time, self.n_times, dtype=torch.float64)
        return torch.cartesian_prod(x, t)


def spline_matrix(sensors: Tensor, x: NDArray, antiderivative: bool = False) -> NDArray:
    r"""Matrix that takes values at the sensors to values of their spline at `x`.

    The not-a-knot spline of degree five (less with fewer than six sensors) through the sensor
    values :math:`u` is linear in them, :math:`\tilde u(x) = W u`. Through 100 points of an RBF
    field of length scale 0.5 it is right to about 1e-9.

    Args:
        sensors: Increasing points of shape `(k,)`.
        x: Points of shape `(a,)`.
        antiderivative: Integrate the spline, exactly, from the first sensor to each `x`.

    Returns:
        Matrix :math:`W` of shape `(a, k)`.
    """
    k = len(sensors)
    spline = make_interp_spline(sensors.numpy(), np.eye(k), k=min(5, k - 1))
    if antiderivative:
        spline = spline.antiderivative()
        return spline(x) - spline(sensors[0].item())
    return spline(x)
