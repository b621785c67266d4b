"""Time and peak memory of making test sets: `python -m experiments.benchmarks.data`.

Each problem runs in a fresh process, so that its peak memory is its own (and holds that of the
interpreter with torch loaded). Exits with 1 when a bar is missed. All cores are used; set
`OMP_NUM_THREADS` to use fewer.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

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
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return seconds, peak / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> int:
    """Print the table; return 1 when a bar is missed."""
    print(f"{'problem':<30}{'functions':>10}{'seconds':>9}{'bar':>6}{'MiB':>7}{'bar':>7}")
    missed = False
    for case in CASES:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            seconds, memory = pool.submit(measure, case).result()
        met = seconds < case.max_seconds and memory < MAX_MEMORY
        missed |= not met
        print(
            f"{case.name:<30}{case.functions:>10}{seconds:>9.2f}{case.max_seconds:>6.0f}"
            f"{memory:>7.0f}{MAX_MEMORY:>7.0f}{'' if met else '  missed'}"
        )
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
