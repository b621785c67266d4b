"""Advection and diffusion of a periodic profile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_deeponet.fields import check_number, check_positive
from pyro_deeponet.problems.base import checked
from pyro_deeponet.problems.field_problem import SpaceTimeProblem

__all__ = ["AdvectionDiffusion"]

_INITIAL_CONDITIONS = ("sin2", "periodic")


@dataclass(frozen=True, kw_only=True)
class AdvectionDiffusion(SpaceTimeProblem):
    r"""A profile that is carried along and smoothed out, periodic in `x`.

    .. math:: s_t + c s_x - D s_{xx} = 0

    The input of the operator is the profile :math:`s(x, 0)` at the sensors. The trigonometric
    interpolant through them is solved for exactly: with wave numbers
    :math:`\kappa_m = 2 \pi m / p`, :math:`p` the length of the domain,

    .. math:: s(x, t) = \sum_m \hat s_m e^{i \kappa_m (x - c t) - D \kappa_m^2 t},

    which is one fixed matrix times the sensor values. The first and the last sensor are the same
    point of the period. Where they differ, as for `"sin2"` whose field is not periodic, the
    profile jumps there and takes the mean of the two, the value a Fourier series has at a jump;
    so the mass :math:`\int s\,dx` stays the trapezoidal rule of the input.

    Args:
        field: Random field :math:`v` behind the profile; its domain, :math:`[0, 1]`, is the period.
        n_sensors: Number of sensors.
        n_x: Number of uniform points of the grid in `x`, both ends among them.
        n_times: Number of uniform times, 0 and `final_time` among them.
        final_time: End of the time interval.
        velocity: :math:`c`.
        diffusivity: :math:`D`.
        initial_condition: `"sin2"` for :math:`s(x, 0) = \sin^2(2 \pi v(x))`, or `"periodic"`
            for :math:`s(x, 0) = v(\sin^2(\pi x))`, :math:`x` in units of the domain.

    Examples:
        >>> import torch
        >>> problem = AdvectionDiffusion(initial_condition="periodic")
        >>> s = problem.solve(problem.draw(2, seed=0)).reshape(2, *problem.grid_shape)
        >>> s.shape  # (functions, x, t)
        torch.Size([2, 100, 100])
        >>> torch.allclose(s[:, 0], s[:, -1])
        True
    """

    velocity: float = 1.0
    diffusivity: float = 0.1
    initial_condition: str = "sin2"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("diffusivity", self.diffusivity)
        check_number("velocity", self.velocity)
        if self.initial_condition not in _INITIAL_CONDITIONS:
            known = ", ".join(repr(name) for name in _INITIAL_CONDITIONS)
            raise ValueError(
                f"unknown initial_condition {self.initial_condition!r}; choose one of {known}"
            )

    def draw(self, n: int, seed: int) -> Tensor:
        """Draw `n` initial profiles :math:`s(x, 0)` at the sensors, of shape `(n, k)`."""
        if self.initial_condition == "sin2":
            return torch.sin(2 * torch.pi * super().draw(n, seed)) ** 2
        low, high = self.field.domain
        phase = torch.pi * (self.sensors - low) / (high - low)
        return self.field.sample(n, low + (high - low) * torch.sin(phase) ** 2, seed)

    @checked
    def solve(self, u: NDArray) -> NDArray:
        """Solve for profiles `(n, k)` on the grid `(n, q)`, float64 of the same kind."""
        return u @ self._solution

    @cached_property
    def _solution(self) -> NDArray[np.float64]:
        """Matrix of shape `(k, q)` that takes sensor values to the solution on the grid."""
        low, high = self.field.domain
        points = self.n_sensors - 1
        mode = np.arange(points // 2 + 1)
        # A real series: a mode stands for its conjugate too, but for the mean and, with an even
        # number of points, for the highest, of which the sensors see the cosine alone.
        weight = np.where((mode == 0) | (2 * mode == points), 1.0, 2.0) / points
        wave = 2 * np.pi * mode / (high - low)
        x, t = self.grid.numpy().T[..., None]
        travelling = np.exp(
            1j * wave * (x - low - self.velocity * t) - self.diffusivity * wave**2 * t
        )
        transform = np.exp(-2j * np.pi / points * np.outer(mode, np.arange(points)))
        from_period = (travelling * weight @ transform).real.T
        first = 0.5 * from_period[:1]
        return np.concatenate([first, from_period[1:], first])
