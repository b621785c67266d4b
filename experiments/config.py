"""What an experiment is: a problem, its presets, and where the paper looks at it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyro_deeponet.problems import Problem, SpaceTimeProblem

__all__ = ["Config", "Experiment"]


@dataclass(frozen=True)
class Config:
    """The settings of a run.

    Args:
        functions: Training functions.
        points: Locations at which each of them is observed.
        model: Arguments of `DeepONet.for_data`.
        fit: Arguments of `fit`.
        deterministic: Arguments of `fit` in which the deterministic net differs from `fit`. A plain
            step costs a small part of one with 25 particles, so that it gets more of them.
        vb: Arguments of `fit` that are the VB-DeepONet's alone: what uses the prior.
        held_out: Fraction of the training functions kept from both fits, for `calibrate`. Zero:
            fit to all of them and calibrate on `calibration_functions` others.
        calibration_functions: Functions drawn beside the training data where none is held out.
        test_functions: New functions to score, on the whole grid.
        mixture_functions: The first of them, on which the scores that need every component of the
            mixture (`nll`, `crps`) and the PIT are taken; the time for them is the largest part.
        lags: As in `metrics.crps`.
        num_samples: Weight samples of a prediction.
        sizes: Numbers of training functions at which to measure the error.
        sizes_fit: Arguments of `fit` in which those fits differ from `fit`.
    """

    functions: int
    points: int
    model: Mapping[str, Any]
    fit: Mapping[str, Any]
    deterministic: Mapping[str, Any]
    vb: Mapping[str, Any] = field(default_factory=dict)
    held_out: float = 0.0
    calibration_functions: int = 200
    test_functions: int = 10_000
    mixture_functions: int = 1_000
    lags: int | None = None
    num_samples: int = 100
    sizes: tuple[int, ...] = ()
    sizes_fit: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The settings as a JSON file gives them back; priors and the like by their `repr`."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain: dict[str, Any] = json.loads(json.dumps(values, default=_plain))
        return plain


@dataclass(frozen=True)
class Experiment:
    """A problem and how it is studied.

    Args:
        name: In file names.
        title: In tables and reports.
        module: What `python -m` runs, with the options that choose this problem.
        problem: The operator.
        presets: Settings by name.
        densities: Where the paper shows densities, by its own indices, which count from one:
            `(t,)`, or `(x, t)`.
        paper: NMSE that the paper prints, of the VB-DeepONet and of the deterministic one.
    """

    name: str
    title: str
    module: str
    problem: Problem
    presets: Mapping[str, Config]
    densities: tuple[tuple[int, ...], ...]
    paper: tuple[float, float]

    @property
    def locations(self) -> list[int]:
        """Rows of `problem.grid` where the paper shows densities."""
        if isinstance(self.problem, SpaceTimeProblem):
            return [(x - 1) * self.problem.n_times + t - 1 for x, t in self.densities]
        return [t - 1 for (t,) in self.densities]


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else repr(value)
