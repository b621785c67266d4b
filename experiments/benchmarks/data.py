"""Time and peak memory of making test sets: `python -m experiments.benchmarks.data`.

Each problem runs in a fresh process, so that its peak memory is its own (and holds that of the
interpreter with torch loaded). Exits with 1 when a bar is missed. All cores are used; set
`OMP_NUM_THREADS` to use fewer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from experiments.benchmarks.record import Record, alone, command_line, peak_memory
from pyro_deeponet.problems import (
    AdvectionDiffusion,
    Antiderivative,
    DiffusionReaction,
    GravityPendulum,
    Problem,
)

__all__ = ["CASES", "Case", "main", "measure"]

MAX_MEMORY = 2048.0  # MiB


@dataclass(frozen=True)
class Case:
    """A test set to make, and the seconds it may take."""

    name: str
    problem: Callable[[], Problem]
    functions: int
    max_seconds: float


CASES = (
    Case("antiderivative", Antiderivative, 10_000, 5.0),
    Case("gravity pendulum", GravityPendulum, 10_000, 5.0),
    Case("diffusion-reaction", DiffusionReaction, 1_000, 20.0),
    Case("advection-diffusion, sin2", AdvectionDiffusion, 1_000, 20.0),
    Case(
        "advection-diffusion, periodic",
        partial(AdvectionDiffusion, initial_condition="periodic"),
        1_000,
        20.0,
    ),
)


def measure(case: Case) -> tuple[float, float]:
    """Make the test set of a case on the whole grid.

    Args:
        case: What to make.

    Returns:
        Seconds, with all set-up, and the peak memory of this process in MiB.
    """
    start = time.perf_counter()
    case.problem().dataset(case.functions, seed=1)
    return time.perf_counter() - start, peak_memory()


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 when a bar is missed."""
    record = Record("data", command_line("data", __doc__).parse_args(arguments))
    columns = {"problem": "", "functions": "d", "seconds": ".2f", "bar": ".0f", "MiB": ".0f"}
    table = record.table("Test sets on the whole grid", columns)
    most = 0.0
    late = []
    for case in CASES:
        seconds, memory = alone(measure, case)
        table.row(case.name, case.functions, seconds, case.max_seconds, memory)
        most = max(most, memory)
        late += [case.name] if seconds >= case.max_seconds else []
    record.bar(f"each within its seconds{''.join(f', but {name}' for name in late)}", not late)
    record.bar(f"peak memory {most:.0f} MiB, less than {MAX_MEMORY:.0f}", most < MAX_MEMORY)
    return record.finish()


if __name__ == "__main__":
    raise SystemExit(main())
