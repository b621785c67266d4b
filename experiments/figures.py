"""The figures of an experiment: what the paper shows, and how honest the intervals are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from torch import Tensor

from experiments.config import Config, Experiment
from experiments.scoring import chunks
from pyro_deeponet import OperatorData, Posterior, Prediction, metrics, plots
from pyro_deeponet.plots.style import new_axes
from pyro_deeponet.problems import SpaceTimeProblem

__all__ = ["Results", "draw"]


@dataclass
class Results:
    """What figures are drawn from.

    Args:
        experiment: What was run.
        config: With these settings.
        train: Data both nets were fitted to.
        test: Inputs of the test functions, `(n, k)`.
        vb: The posterior as fitted.
        calibrated: The same, calibrated.
        deterministic: The deterministic net.
        truth: True outputs of the test functions at `experiment.densities`, `(n, locations)`.
        curves: Coverage found at each of `metrics.LEVELS`, before and after calibration.
        errors: NMSE by the number of training functions; empty where it was not measured.
    """

    experiment: Experiment
    config: Config
    train: OperatorData
    test: Tensor
    vb: Posterior
    calibrated: Posterior
    deterministic: Posterior
    truth: Tensor
    curves: tuple[list[float], list[float]]
    errors: dict[int, float]

    def predict(self, posterior: Posterior, data: OperatorData) -> Prediction:
        """Predict as the scores were taken."""
        return posterior.predict(data.u, data.y, self.config.num_samples, seed=0)

    @cached_property
    def some(self) -> OperatorData:
        """The test functions that are looked at in detail, with the truth."""
        problem, u = self.experiment.problem, self.test[: self.config.mixture_functions]
        return next(chunks(problem, u, len(u) * len(problem.grid)))

    @cached_property
    def before_and_after(self) -> tuple[Prediction, Prediction]:
        """Predictions of these functions, before and after calibration."""
        return self.predict(self.vb, self.some), self.predict(self.calibrated, self.some)


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Draw all figures as PNG and PDF.

    Args:
        results: What to draw.
        folder: Where the files go.

    Returns:
        Captions by the name of the figure.
    """
    wanted: dict[str, tuple[Callable[[Results], Any], str]] = {
        "inputs": (_inputs, "Training inputs and their mean"),
    }
    if isinstance(results.experiment.problem, SpaceTimeProblem):
        wanted |= {
            "fields": (_fields, "One test function: truth, both predictions, errors and std"),
            "bounds": (_bounds, "The same function: 95 % interval and mean"),
        }
    else:
        wanted["functions"] = (
            _functions,
            "Three test functions with 95 % intervals (above), and their errors (below)",
        )
    wanted |= {
        "densities": (
            _densities,
            f"Densities of the output over {len(results.test)} test functions",
        ),
        "calibration": (_calibration, "Coverage of the intervals of all levels"),
        "pit": (_pit, "Probability integral transform, before and after calibration"),
        "error_against_std": (_error_against_std, "Error against predicted std, likewise"),
        "history": (_history, "Course of the VB-DeepONet's fit"),
    }
    if results.errors:
        wanted["nmse_against_functions"] = (_sizes, "NMSE against the number of training functions")
    for name, (function, _) in wanted.items():
        axes = function(results)
        figure = axes.flat[0].figure if hasattr(axes, "flat") else axes.figure
        for suffix in ("png", "pdf"):
            figure.savefig(folder / f"{name}.{suffix}", dpi=130)
            figure.set_layout_engine("none")  # what was laid out once need not be again
        plt.close(figure)
    return {name: caption for name, (_, caption) in wanted.items()}


def _inputs(r: Results) -> Any:
    return plots.inputs(r.experiment.problem.sensors, r.train.u)


def _functions(r: Results) -> Any:
    """Functions hide an error smaller than a line; the lower row shows it."""
    data = r.some.subset(slice(0, 3))
    p, d = r.predict(r.vb, data), r.predict(r.deterministic, data).mean
    low, high = p.interval(0.95)
    axes = new_axes(2, len(data), size=(3.8, 2.7), sharex=True)
    for i in range(len(data)):
        plots.function(p, i, data.y, truth=data.s, deterministic=d, ax=axes[0, i])
        s = data.s[i]
        rest = (x[i].cpu() - s for x in (p.mean, low, high, d))
        mean, lower, upper, deterministic = rest
        plots.band(
            data.y, mean, lower, upper, truth=s - s, deterministic=deterministic, ax=axes[1, i],
            label="95 % interval",
        )  # fmt: skip
        axes[0, i].set(title=f"test function {i + 1}", xlabel="")
        axes[1, i].set(xlabel="t", ylabel="prediction - truth" if i == 0 else "")
        axes[0, i].set(ylabel="s" if i == 0 else "")
        for ax in axes[:, i] if i else axes[1:, i]:
            ax.get_legend().remove()
    axes[0, 0].figure.align_ylabels(axes[:, 0])
    return axes


def _fields(r: Results) -> Any:
    data = r.some.subset(0)
    p, d = r.predict(r.vb, data), r.predict(r.deterministic, data)
    return plots.fields(data.y, data.s[0], p.mean[0], p.std[0], deterministic=d.mean[0])


def _bounds(r: Results) -> Any:
    data = r.some.subset(0)
    p = r.predict(r.vb, data)
    low, high = p.interval(0.95)
    return plots.bounds(data.y, low[0], p.mean[0], high[0])


def _densities(r: Results) -> Any:
    """At the paper's locations, over all test functions; a density for each weight sample."""
    experiment, axes = r.experiment, new_axes(1, len(r.experiment.densities), size=(4.6, 3.2))
    u, y = r.test.to(r.train.u), r.train.y[experiment.locations]
    samples = r.vb.sample(u, y, r.config.num_samples, kind="function", seed=0)
    deterministic = r.deterministic.predict(u, y).mean
    for j, (ax, indices) in enumerate(zip(axes[0], experiment.densities, strict=True)):
        plots.density(samples[:, :, j], r.truth[:, j], deterministic[:, j], ax=ax)
        names = "t" if len(indices) == 1 else "xt"
        where = ", ".join(f"{n}_{{{i}}}" for n, i in zip(names, indices, strict=True))
        ax.set(xlabel=f"$s({where})$")
    return axes


def _calibration(r: Results) -> Any:
    ax = None
    for curve, label in zip(r.curves, ("as fitted", "calibrated"), strict=True):
        ax = plots.calibration(metrics.LEVELS, curve, ax=ax, label=label)
    return ax


def _pit(r: Results) -> Any:
    axes = _pair()
    for ax, p in zip(axes[0], r.before_and_after, strict=True):
        plots.pit_histogram(metrics.pit(p, r.some.s), ax=ax)
    return axes


def _error_against_std(r: Results) -> Any:
    axes = _pair()
    for ax, p in zip(axes[0], r.before_and_after, strict=True):
        plots.error_against_std(p, r.some.s, ax=ax)
    return axes


def _pair() -> Any:
    axes = new_axes(1, 2, size=(3.9, 3.5))
    for ax, title in zip(axes[0], ("as fitted", "calibrated"), strict=True):
        ax.set_title(title)
    return axes


def _history(r: Results) -> Any:
    return plots.history(r.vb.history)


def _sizes(r: Results) -> Any:
    return plots.nmse_against_functions(
        list(r.errors), list(r.errors.values()), label="VB-DeepONet"
    )
