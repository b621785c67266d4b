"""What ten networks cost over one: `python -m experiments.benchmarks.ensemble`.

The default network on the anti-derivative, 3000 functions x 20 points, in batches of 100. Short
trainings of one network (`fit` without a prior), and of ensembles of one and ten, take turns, and
each time is the median over the turns, so that a busy machine slows all alike and the ratios stand.
Exits with 1 when ten members take three times as long as one or more.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.benchmarks.record import Record, command_line
from pyro_deeponet import DeepONet, ensemble, fit
from pyro_deeponet.problems import Antiderivative

__all__ = ["main", "milliseconds"]

MEMBERS, STEPS, TURNS, BAR = 10, 100, 5, 3.0


def milliseconds(trainings: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median time of a step of each training, taken in turns after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in trainings}
    for turn in range(TURNS + 1):
        for name, training in trainings.items():
            spent = training().history.seconds
            if turn:
                times[name].append(1e3 * spent / STEPS)
    return {name: statistics.median(spent) for name, spent in times.items()}


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 when the bar is missed."""
    record = Record("ensemble", command_line("ensemble", __doc__).parse_args(arguments))
    data = Antiderivative().dataset(3000, 20, seed=0)
    model = DeepONet.for_data(data, prior=None)
    many = f"ensemble of {MEMBERS}"
    columns = dict.fromkeys(["", "one (fit)", "ensemble of 1", many, f"{many} / one"], ".2f")
    table = record.table("Milliseconds a step, batches of 100 functions, float32", columns)
    total = [0.0, 0.0, 0.0]
    for name in ("warm start", "inference"):
        steps, warm_start = (0, STEPS) if name == "warm start" else (STEPS, 0)
        short: dict[str, Any] = {"steps": steps, "warm_start": warm_start, "progress": False}
        ms = milliseconds({
            "fit": partial(fit, model, data, **short),
            "one": partial(ensemble, model, data, 1, **short),
            "many": partial(ensemble, model, data, MEMBERS, **short),
        })  # fmt: skip
        table.row(name, *ms.values(), ms["many"] / ms["fit"])
        total = [a + b for a, b in zip(total, ms.values(), strict=True)]
    ratio = total[2] / total[0]
    table.row("a step of each", *total, ratio)
    record.bar(f"{ratio:.1f} times as long as one network, less than {BAR:.0f}", ratio < BAR)
    return record.finish()


if __name__ == "__main__":
    raise SystemExit(main())
