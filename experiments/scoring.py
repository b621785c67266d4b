"""Scores of large test sets, chunk by chunk, equal to those of the whole."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_deeponet import OperatorData, Posterior, Prediction, metrics
from pyro_deeponet.problems import Problem

__all__ = ["Scores", "Tally", "chunks", "rescaled", "score"]

#: Points of the test set that are solved for and predicted at once: with a few arrays of this size
#: a test set of 10 000 functions on a grid of 10 000 points fits into a part of a GiB.
CHUNK_POINTS = 5_000_000


class Tally:
    """Means over chunks with the weights that make them the mean over all."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, Any] = defaultdict(float)
        self._weights: defaultdict[str, float] = defaultdict(float)

    def add(self, name: str, value: Any, weight: float) -> None:
        """Count the score of a chunk."""
        self._sums[name] += value * weight
        self._weights[name] += weight

    def __call__(self, name: str) -> Any:
        """The score of all chunks together."""
        return self._sums[name] / self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sums)

    def add_error(self, mean: Any, truth: Tensor) -> None:
        """Count errors: NMSE weighs by the squared truth it is relative to."""
        self.add("nmse", metrics.nmse(mean, truth), float(truth.double().square().sum()))
        self.add("relative_l2", metrics.relative_l2(mean, truth), len(truth))

    def add_intervals(self, prediction: Prediction, truth: Tensor) -> None:
        """Count coverage and width of the intervals mean +- z std, a point as a point."""
        points = truth.numel()
        self.add("coverage_95", metrics.coverage(prediction, truth), points)
        self.add("width_95", metrics.interval_width(prediction), points)
        self.add("curve", metrics.calibration_curve(prediction, truth)[1], points)

    def add_mixture(self, prediction: Prediction, truth: Tensor, lags: int | None) -> None:
        """Count the scores that need every component of the mixture."""
        self.add("nll", metrics.nll(prediction, truth), truth.numel())
        self.add("crps", metrics.crps(prediction, truth, lags), truth.numel())

    def scores(self) -> dict[str, float]:
        """Scores by the names that `evaluate` gives them."""
        found = {name: float(self(name)) for name in self if name != "curve"}
        if "curve" in self._sums:
            gap = self("curve") - torch.tensor(metrics.LEVELS, dtype=torch.float64)
            found["calibration_error"] = float(gap.abs().mean())
        return found

    def curve(self) -> list[float]:
        """Coverage found at each of `metrics.LEVELS`."""
        found: list[float] = self("curve").tolist()
        return found


@dataclass
class Scores:
    """Scores of the three predictors, and what was seen on the way.

    Attributes:
        vb: Of the posterior as fitted.
        calibrated: Of the calibrated posterior.
        deterministic: Of the deterministic net.
        seconds: What the predictions took, by predictor.
        truth: True values at some locations, a tensor a chunk.
    """

    vb: Tally = field(default_factory=Tally)
    calibrated: Tally = field(default_factory=Tally)
    deterministic: Tally = field(default_factory=Tally)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    truth: list[Tensor] = field(default_factory=list)


def chunks(problem: Problem, u: Tensor, points: int = CHUNK_POINTS) -> Iterator[OperatorData]:
    """Solve for input functions on the whole grid, some at a time.

    Args:
        problem: The operator.
        u: Functions `(n, k)`, float64.
        points: Points in a chunk.

    Yields:
        Data in the float type that training data have.
    """
    rows = max(1, points // len(problem.grid))
    dtype = torch.get_default_dtype()
    for part in u.split(rows):
        yield OperatorData(u=part, y=problem.grid, s=problem.solve(part)).to(dtype)


def rescaled(prediction: Prediction, factor: float) -> Prediction:
    """A prediction whose standard deviations are `factor` times as large.

    What `calibrate` does to moments and Gaussian intervals, without another pass through the
    networks. The components of the mixture stay as they are: ask a calibrated posterior for those.
    """
    wider = copy.copy(prediction)
    wider.epistemic_std = factor * prediction.epistemic_std
    wider.aleatoric_std = factor * prediction.aleatoric_std
    return wider


def score(
    problem: Problem,
    u: Tensor,
    calibrated: Posterior,
    deterministic: Posterior | None = None,
    *,
    num_samples: int = 100,
    mixture_functions: int = 0,
    lags: int | None = None,
    locations: Sequence[int] = (),
    seed: int = 0,
    progress: bool = True,
    points: int = CHUNK_POINTS,
) -> Scores:
    """Score predictions of many new functions on the whole grid.

    Args:
        problem: The operator.
        u: Functions `(n, k)`, float64.
        calibrated: A posterior; what it is without its calibration is scored too.
        deterministic: A deterministic net.
        num_samples: Weight samples, the same for all functions.
        mixture_functions: How many of the functions, the first ones, to score with the whole
            mixture.
        lags: As in `metrics.crps`.
        locations: Rows of the grid at which to keep the truth.
        seed: Chooses the weight samples.
        progress: Whether to show a progress bar.
        points: Points in a chunk.
    """
    found = Scores()
    factor = 1.0 if calibrated.calibration is None else calibrated.calibration.factor
    raw = Posterior(calibrated.model, calibrated.guide, weights=calibrated.weights)
    done = 0
    with tqdm(total=len(u), desc="scoring", unit=" functions", disable=not progress) as bar:
        for data in chunks(problem, u, points):
            began = time.perf_counter()
            p = raw.predict(data.u, data.y, num_samples, seed, progress=False)
            found.seconds["vb"] += time.perf_counter() - began
            found.vb.add_error(p.mean, data.s)
            found.calibrated.add_error(p.mean, data.s)
            found.vb.add_intervals(p, data.s)
            found.calibrated.add_intervals(rescaled(p, factor), data.s)
            if deterministic is not None:
                began = time.perf_counter()
                mean = deterministic.predict(data.u, data.y, progress=False).mean
                found.seconds["deterministic"] += time.perf_counter() - began
                found.deterministic.add_error(mean, data.s)
            if done < mixture_functions:
                first = data.subset(slice(0, mixture_functions - done))
                for posterior, tally in ((raw, found.vb), (calibrated, found.calibrated)):
                    some = posterior.predict(first.u, first.y, num_samples, seed, progress=False)
                    tally.add_mixture(some, first.s, lags)
            found.truth.append(data.s[:, list(locations)])
            done += len(data)
            bar.update(len(data))
    return found
