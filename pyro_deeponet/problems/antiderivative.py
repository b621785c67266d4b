"""The antiderivative operator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pyro_deeponet.problems.base import checked
from pyro_deeponet.problems.field_problem import TimeProblem, spline_matrix

__all__ = ["Antiderivative"]


@dataclass(frozen=True, kw_only=True)
class Antiderivative(TimeProblem):
    r"""The antiderivative :math:`s' = u(t)`, :math:`s(0) = 0`.

    The spline through the sensor values is integrated exactly, so that
    :math:`s = A u` with a fixed matrix :math:`A`.

    Args:
        field: Random field of :math:`u`; its domain is the time interval, :math:`[0, 1]`.
        n_sensors: Number `k` of sensors.
        n_times: Number `q` of uniform times, both ends of the interval among them.

    Examples:
        >>> import torch
        >>> problem = Antiderivative()
        >>> u = torch.cos(problem.sensors)[None]
        >>> torch.allclose(problem.solve(u), torch.sin(problem.grid.T), atol=1e-10)
        True
    """

    @checked
    def solve(self, u: NDArray) -> NDArray:
        """Integrate inputs `(n, k)` to outputs `(n, q)`, float64 of the same kind."""
        return u @ self._integral.T

    @cached_property
    def _integral(self) -> NDArray[np.float64]:
        return spline_matrix(self.sensors, self.grid[:, 0].numpy(), antiderivative=True)
