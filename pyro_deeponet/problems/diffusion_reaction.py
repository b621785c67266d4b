"""Diffusion and quadratic reaction under a source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pyro_deeponet.fields import check_integer, check_number, check_positive
from pyro_deeponet.problems.base import checked
from pyro_deeponet.problems.field_problem import SpaceTimeProblem, spline_matrix

__all__ = ["DiffusionReaction"]


@dataclass(frozen=True, kw_only=True)
class DiffusionReaction(SpaceTimeProblem):
    r"""Diffusion and reaction of a substance that a source :math:`u(x)` feeds.

    .. math:: s_t = D s_{xx} + k s^2 + u(x)

    with zero initial and boundary values. In space, central differences on a grid `refine_x`
    times finer; in time, Strang splitting into two parts that are each solved exactly: half a
    step of :math:`s_t = k s^2`, which is :math:`s / (1 - k s \tau / 2)`; a step of the linear
    part, which is :math:`e^{\tau L} s + \tau \varphi(\tau L) u` with
    :math:`\varphi(z) = (e^z - 1) / z`; half a step of the first. The method is of second order.
    The boundary layer that appears at once where :math:`u` does not vanish at the boundary needs
    no special start, since the stiff part is never approximated in time.

    Args:
        field: Random field of :math:`u`; its domain is the interval of `x`, :math:`[0, 1]`.
        n_sensors: Number of sensors.
        n_x: Number of uniform points of the grid in `x`, both ends among them.
        n_times: Number of uniform times, 0 and `final_time` among them.
        final_time: End of the time interval.
        diffusivity: :math:`D`.
        k: Rate of the reaction; 0 switches it off.
        refine_x: Internal intervals in an interval of the grid in `x`.
        refine_t: Internal steps between two times of the grid; take more where diffusion or
            reaction is strong, :math:`D \pi^2` or :math:`k s` times the step not small.

    Examples:
        >>> problem = DiffusionReaction(n_x=20, n_times=11)
        >>> s = problem.solve(problem.draw(2, seed=0)).reshape(2, *problem.grid_shape)
        >>> s.shape  # (functions, x, t)
        torch.Size([2, 20, 11])
    """

    diffusivity: float = 0.01
    k: float = 0.01
    refine_x: int = 4
    refine_t: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("refine_x", self.refine_x, minimum=1)
        check_integer("refine_t", self.refine_t, minimum=1)
        check_positive("diffusivity", self.diffusivity)
        check_number("k", self.k)

    @checked
    def solve(self, u: NDArray) -> NDArray:
        """Solve for inputs `(n, k)` on the grid `(n, q)`, float64 of the same kind."""
        propagator, source = self._linear_step
        forcing = u @ source
        half = 0.5 * self.k * self._step
        on_grid = slice(self.refine_x - 1, None, self.refine_x)
        s = np.zeros_like(forcing)
        field = np.zeros((len(u), self.n_x, self.n_times))
        for step in range(1, (self.n_times - 1) * self.refine_t + 1):
            s = _react(_react(s, half) @ propagator + forcing, half)
            if step % self.refine_t == 0:
                field[:, 1:-1, step // self.refine_t] = s[:, on_grid]
        return field.reshape(len(u), -1)

    @property
    def _step(self) -> float:
        return self.final_time / ((self.n_times - 1) * self.refine_t)

    @cached_property
    def _linear_step(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        r"""The symmetric :math:`e^{\tau L}`, and the map from sensor values to the source's part.

        :math:`L` is the central difference with zero boundary values; its eigenvectors are sines.
        """
        low, high = self.field.domain
        intervals = (self.n_x - 1) * self.refine_x
        j = np.arange(1, intervals)
        sines = np.sqrt(2 / intervals) * np.sin(np.pi / intervals * np.outer(j, j))
        spacing = (high - low) / intervals
        rates = -self.diffusivity * (2 / spacing * np.sin(np.pi / 2 / intervals * j)) ** 2
        z = rates * self._step
        propagator = (sines * np.exp(z)) @ sines
        duhamel = self._step * (sines * (np.expm1(z) / z)) @ sines
        inside = np.linspace(low, high, intervals + 1)[1:-1]
        return propagator, spline_matrix(self.sensors, inside).T @ duhamel


def _react(s: NDArray, k_tau: float) -> NDArray:
    """Flow of `s' = k s^2` over a time `tau`; infinite where it blows up before."""
    return s / np.maximum(1 - k_tau * s, 0.0)
