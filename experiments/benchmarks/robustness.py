"""What a default fit makes of data at other scales: `python -m experiments.benchmarks.robustness`.

Each data set is fitted twice with the defaults of `DeepONet.for_data` and `fit`: well scaled, and
with outputs of another size or far from zero. The squared error over the variance of the truth must
not be more than three times that of the well-scaled twin. Exits with 1 when it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.benchmarks.record import Record, command_line
from pyro_deeponet import DeepONet, GaussianRandomField, OperatorData, fit
from pyro_deeponet.metrics import nmse
from pyro_deeponet.problems import Antiderivative, Problem

__all__ = ["Case", "ThreeCoordinates", "error", "main"]

MAX_RATIO = 3.0


class ThreeCoordinates(Problem):
    """The anti-derivative of `u` at the first of three coordinates, modulated by the others."""

    def __init__(self) -> None:
        self.inner = Antiderivative(field=GaussianRandomField(0.5), n_times=8)
        self.sensors = self.inner.sensors
        axis = self.inner.grid[:, 0]
        self.grid = torch.cartesian_prod(axis, axis, axis)

    def draw(self, n: int, seed: int) -> Tensor:
        """Draw input functions `(n, k)`."""
        return self.inner.draw(n, seed)

    def solve(self, u: Tensor) -> Tensor:
        """Solve on the grid `(n, 512)`."""
        integral = self.inner.solve(u).repeat_interleave(64, dim=1)
        return integral * torch.cos(torch.pi * self.grid[:, 1] * self.grid[:, 2])


@dataclass(frozen=True)
class Case:
    """A data set, and the affine map its outputs go through."""

    name: str
    problem: Callable[[], Problem]
    functions: int
    noise: float
    scale: float
    offset: float


CASES = (
    Case("outputs of size 1e-4", Antiderivative, 1000, 0.0, 1e-4, 0.0),
    Case("outputs of size 1e5", Antiderivative, 1000, 0.0, 1e5, 0.0),
    Case("an offset of 1000", Antiderivative, 1000, 0.0, 1.0, 1000.0),
    Case("50 functions, size 1e5", Antiderivative, 50, 0.0, 1e5, 0.0),
    Case("10 % noise, size 1e-4", Antiderivative, 1000, 0.1, 1e-4, 0.0),
    Case("three coordinates, offset", ThreeCoordinates, 1000, 0.0, 1.0, 1000.0),
)


def error(case: Case, scale: float, offset: float, seed: int) -> float:
    """Fit with defaults; squared error over the variance of the truth on 500 new functions."""
    problem = case.problem()
    train = problem.dataset(case.functions, 20, noise=case.noise, seed=seed)
    test = problem.dataset(500, seed=seed + 1000)
    mapped = OperatorData(train.u, train.y, offset + scale * train.s, train.index)
    posterior = fit(DeepONet.for_data(mapped), mapped, seed=seed)
    mean = (posterior.predict(test.u, test.y, seed=0).mean - offset) / scale
    return nmse(mean - test.s.mean(), test.s - test.s.mean())


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 when a bar is missed."""
    parser = command_line("robustness", __doc__)
    parser.add_argument("--seed", type=int, default=0, help="chooses data and fit (default 0)")
    options = parser.parse_args(arguments)
    record = Record("robustness", options)
    columns = {
        "data": "", "well scaled": ".2e", "as it is": ".2e", "ratio": ".2f", "seconds": ".0f"
    }  # fmt: skip
    table = record.table("Squared error over the variance of the truth", columns)
    worst = 0.0
    twins: dict[tuple[Callable[[], Problem], int, float], float] = {}
    for case in CASES:
        began = time.perf_counter()
        key = (case.problem, case.functions, case.noise)
        if key not in twins:
            twins[key] = error(case, 1.0, 0.0, options.seed)
        found = error(case, case.scale, case.offset, options.seed)
        ratio = found / twins[key]
        worst = max(worst, ratio)
        table.row(case.name, twins[key], found, ratio, time.perf_counter() - began)
    record.bar(f"largest ratio {worst:.2f}, at most {MAX_RATIO:.0f}", worst <= MAX_RATIO)
    return record.finish()


if __name__ == "__main__":
    raise SystemExit(main())
