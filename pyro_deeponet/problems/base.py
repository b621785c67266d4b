"""What an operator has to offer, and the data sets it gets in return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_deeponet.data import OperatorData
from pyro_deeponet.fields import check_integer, check_number

__all__ = ["Problem", "checked"]

Array = TypeVar("Array", Tensor, NDArray[Any])

# Solution values held in float64 at once while a data set is made: 20 MB.
_CHUNK_VALUES = 2_500_000


class Problem(ABC):
    """An operator that takes an input function to an output function.

    A subclass sets two attributes and writes two methods; tensors and numpy arrays both do.
    It gets :meth:`dataset` in return.

    Attributes:
        sensors: Points where the input function is seen, of shape `(k,)`.
        grid: Locations where the output function is known, of shape `(q, d)`.

    Examples:
        >>> import torch
        >>> from pyro_deeponet import GaussianRandomField
        >>> class Derivative(Problem):
        ...     sensors = torch.linspace(0, 1, 50, dtype=torch.float64)
        ...     grid = sensors[:, None]
        ...     def draw(self, n, seed):
        ...         return GaussianRandomField(0.3).sample(n, self.sensors, seed)
        ...     def solve(self, u):
        ...         return torch.gradient(u, spacing=(self.sensors,), dim=1)[0]
        >>> data = Derivative().dataset(8, n_points=20, noise=0.05)
        >>> data.u.shape, data.s.shape
        (torch.Size([8, 50]), torch.Size([8, 20]))
    """

    sensors: Tensor
    grid: Tensor

    @abstractmethod
    def draw(self, n: int, seed: int) -> Any:
        """Draw `n` input functions at the sensors, of shape `(n, k)`.

        Examples:
            >>> from pyro_deeponet.problems import Antiderivative
            >>> Antiderivative().draw(5, seed=0).shape
            torch.Size([5, 100])
        """

    @abstractmethod
    def solve(self, u: Any) -> Any:
        """Map inputs `(n, k)` to outputs on the grid, `(n, q)`, or `(n, q, c)` for several.

        Examples:
            >>> from pyro_deeponet.problems import Antiderivative
            >>> s = Antiderivative(n_times=3).solve(torch.ones(1, 100))    # s(t) = t
            >>> s
            tensor([[0.0000, 0.5000, 1.0000]], dtype=torch.float64)
        """

    def dataset(
        self,
        n_functions: int,
        n_points: int | None = None,
        noise: float = 0.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> OperatorData:
        """Draw inputs, solve for the outputs and observe them.

        The functions depend on `seed` alone: locations and noise have random streams of their
        own, so that data sets of one seed differ in what is observed of the same functions.

        Args:
            n_functions: Number of functions `n`.
            n_points: Number `m` of distinct grid locations at which each function is observed,
                drawn for every function anew. `None`, or all of them, gives the whole grid
                (and no `index`).
            noise: Standard deviation of Gaussian noise on the observations, as a fraction of the
                standard deviation of all noise-free observations (of each output, where there are
                several): `0.05` is 5 % noise.
            seed: Non-negative integer.
            dtype: Type the data are stored in; they are computed in float64.

        Returns:
            Data with `u (n, k)`, `y (q, d)` and `s (n, m)`, or `(n, m, c)`, and `index (n, m)`,
            sorted in each row, when functions are observed at some of the locations.

        Examples:
            >>> from pyro_deeponet.problems import Antiderivative
            >>> Antiderivative().dataset(n_functions=8, n_points=20, noise=0.05, seed=0)
            OperatorData(8 functions x 20 points, 100 sensors, 100 locations in 1 coordinate, ...)
        """
        n = check_integer("n_functions", n_functions, minimum=1)
        seed = check_integer("seed", seed, minimum=0)
        check_number("noise", noise)
        if noise < 0:
            raise ValueError(
                f"noise must be >= 0, a fraction of the outputs' spread, got {noise!r}"
            )
        if not dtype.is_floating_point:
            raise TypeError(f"dtype must be a floating point type, got {dtype}")
        grid = torch.as_tensor(self.grid, dtype=torch.float64)
        if grid.ndim != 2:
            raise ValueError(
                f"grid must have shape (locations, coordinates), got {tuple(grid.shape)}; "
                f"for one coordinate use grid[:, None]"
            )
        q = len(grid)
        m = q if n_points is None else check_integer("n_points", n_points, minimum=1)
        if m > q:
            raise ValueError(
                f"n_points={m} is more than the {q} locations of the grid; "
                f"ask for at most {q}, or build the problem with a finer grid"
            )
        location_seed, noise_seed = np.random.SeedSequence(seed).spawn(2)

        u = self.draw(n, seed)
        _expect_shape("draw", u, (n, len(self.sensors)))
        s = torch.empty(0)
        index = torch.empty(n, m, dtype=torch.int64) if m < q else None
        rng = np.random.default_rng(location_seed)
        chunk = max(1, _CHUNK_VALUES // q)
        for start in range(0, n, chunk):
            rows = slice(start, min(start + chunk, n))
            solution = self.solve(u[rows])
            _expect_shape("solve", solution, (rows.stop - start, q), tuple(solution.shape[2:3]))
            solution = torch.as_tensor(solution)
            if index is not None:
                index[rows] = _distinct_locations(rng, len(solution), m, q)
                every = torch.arange(len(solution), device=solution.device)[:, None]
                solution = solution[every, index[rows].to(solution.device)]
            if start == 0:
                s = torch.empty(n, *solution.shape[1:], dtype=dtype)
            s[rows] = solution.to(s)
        if noise > 0:
            _add_noise(s, noise, np.random.default_rng(noise_seed), chunk)
        return OperatorData(u=torch.as_tensor(u).to(s), y=grid.to(s), s=s, index=index)


def checked(solve: Callable[[Any, NDArray], NDArray]) -> Callable[[Any, Array], Array]:
    """Let a `solve` written for float64 arrays take tensors too, and refuse wrong inputs.

    Args:
        solve: Method that maps an array `(n, k)` to one of shape `(n, q)` or `(n, q, c)`.

    Returns:
        The method with the input validated. It returns float64 of the kind it was given: a tensor
        for a tensor, an array for an array.
    """

    @wraps(solve)
    def wrapper(self: Problem, u: Any) -> Any:
        if not isinstance(u, (Tensor, np.ndarray)):
            raise TypeError(f"u must be a tensor or a numpy array, got {type(u).__name__}")
        values = u.detach().cpu().numpy() if isinstance(u, Tensor) else u
        sensors = len(self.sensors)
        if values.ndim != 2:
            hint = "; for a single function pass u[None]" if values.ndim == 1 else ""
            raise ValueError(
                f"u must have shape (functions, {sensors} sensors), got {values.shape}{hint}"
            )
        if values.shape[1] != sensors:
            raise ValueError(
                f"u has {values.shape[1]} sensors, the problem was built for {sensors}; "
                f"interpolate u onto problem.sensors"
            )
        if values.dtype.kind not in "fiu":
            raise TypeError(f"u must hold real numbers, got {values.dtype}")
        values = np.ascontiguousarray(values, dtype=np.float64)
        _refuse_non_finite(values, "u holds NaN or infinite values; drop or repair these rows")
        with np.errstate(all="ignore"):  # the outcome is checked instead
            solution = solve(self, values)
        _refuse_non_finite(
            solution,
            "the solution leaves the range of numbers (it may blow up in finite time); "
            "scale the input down or shorten the interval",
        )
        return torch.from_numpy(solution).to(u.device) if isinstance(u, Tensor) else solution

    return wrapper


def _distinct_locations(rng: np.random.Generator, n: int, m: int, q: int) -> Tensor:
    """Draw `m` of `q` indices without repetition for each of `n` functions, `(n, m)`."""
    index = rng.random((n, q)).argpartition(m - 1, axis=1)[:, :m]
    return torch.from_numpy(np.sort(index, axis=1))


def _add_noise(s: Tensor, noise: float, rng: np.random.Generator, chunk: int) -> None:
    scale = noise * s.std((0, 1), correction=0).double().numpy()
    for rows in s.split(chunk):
        rows += torch.from_numpy(scale * rng.standard_normal(tuple(rows.shape))).to(rows)


def _expect_shape(
    method: str, values: Tensor | NDArray, shape: tuple[int, int], several: tuple[int, ...] = ()
) -> None:
    if tuple(values.shape) != (*shape, *several):
        axes = "functions, sensors" if method == "draw" else "functions, locations of the grid"
        raise ValueError(
            f"{method} returned shape {tuple(values.shape)}, expected {shape} = ({axes})"
        )


def _refuse_non_finite(values: NDArray, message: str) -> None:
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise ValueError(f"{message} (first row {bad[0]}, {len(bad)} of {len(values)} in all)")
