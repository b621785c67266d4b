"""The gravity pendulum under an external force."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pyro_deeponet.fields import check_number, check_positive
from pyro_deeponet.problems.base import checked
from pyro_deeponet.problems.field_problem import TimeProblem, spline_matrix

__all__ = ["GravityPendulum"]


@dataclass(frozen=True, kw_only=True)
class GravityPendulum(TimeProblem):
    r"""The angle of a pendulum at rest that a force :math:`u(t)` sets in motion.

    .. math:: s_1' = s_2, \quad s_2' = -k \sin s_1 + u(t), \quad s_1(0) = s_2(0) = 0,

    with target :math:`s_1`, or both, by the classical Runge-Kutta method of fourth order on the
    spline through the sensor values.

    Args:
        field: Random field of :math:`u`; its domain is the time interval, :math:`[0, 1]`.
        n_sensors: Number of sensors.
        n_times: Number `q` of uniform times, both ends of the interval among them.
        k: Strength of gravity; 0 switches it off.
        max_step: Longest step of the integrator.
        speed: Whether the speed :math:`s_2` is an output beside the angle: `s` is then `(n, q, 2)`.

    Examples:
        >>> import torch
        >>> problem = GravityPendulum(k=0.0)  # no gravity: s = t^2 / 2 for u = 1
        >>> s = problem.solve(torch.ones(1, 100))
        >>> torch.allclose(s, problem.grid.T**2 / 2, atol=1e-10)
        True
        >>> GravityPendulum(speed=True).dataset(10)
        OperatorData(10 functions x 100 points x 2 outputs, 100 sensors, ...)
    """

    k: float = 1.0
    max_step: float = 0.01
    speed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("k", self.k)
        check_positive("max_step", self.max_step)

    @checked
    def solve(self, u: NDArray) -> NDArray:
        """Integrate inputs `(n, k)` to angles `(n, q)`, float64 of the same kind.

        With `speed`, to angles and speeds `(n, q, 2)`.
        """
        # A row a time: the inputs of a stage are then contiguous over the functions.
        force = self._stages @ u.T
        h = self._step
        angle = np.zeros(len(u))
        speed = np.zeros(len(u))
        states = np.zeros((2 if self.speed else 1, self.n_times, len(u)))
        for step in range(1, (self.n_times - 1) * self._substeps + 1):
            begin, middle, end = force[2 * step - 2 : 2 * step + 1]
            v1, a1 = speed, begin - self.k * np.sin(angle)
            v2, a2 = speed + h / 2 * a1, middle - self.k * np.sin(angle + h / 2 * v1)
            v3, a3 = speed + h / 2 * a2, middle - self.k * np.sin(angle + h / 2 * v2)
            v4, a4 = speed + h * a3, end - self.k * np.sin(angle + h * v3)
            angle = angle + h / 6 * (v1 + 2 * v2 + 2 * v3 + v4)
            speed = speed + h / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
            if step % self._substeps == 0:
                states[:, step // self._substeps] = (angle, speed) if self.speed else angle
        return np.ascontiguousarray(states.T if self.speed else states[0].T)

    @cached_property
    def _substeps(self) -> int:
        """Steps between two times of the grid."""
        low, high = self.field.domain
        return math.ceil((high - low) / (self.n_times - 1) / self.max_step)

    @cached_property
    def _step(self) -> float:
        low, high = self.field.domain
        return (high - low) / ((self.n_times - 1) * self._substeps)

    @cached_property
    def _stages(self) -> NDArray[np.float64]:
        """Matrix that takes sensor values to the beginning, middle and end of every step."""
        times = np.linspace(*self.field.domain, 2 * (self.n_times - 1) * self._substeps + 1)
        return spline_matrix(self.sensors, times)
