"""What each choice of the preset `best` brings: the gravity pendulum with one of them undone.

Fits the VB-DeepONet of the preset and, one at a time, variants in which a single setting is that of
the preset `paper` (or absent). Keeps the scores of each under --results as soon as it is done,
skips those that are kept already, and writes the page beside that folder (docs/ablation.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyro_deeponet as pdo
from experiments.config import Config
from experiments.experiment import TEST_SEED
from experiments.gravity_pendulum import EXPERIMENT
from experiments.report import markdown
from experiments.results import spread
from experiments.scoring import score
from experiments.variants import Kept, command_line, read, run_missing, seeds_of
from pyro_deeponet.storage import write_text

__all__ = ["VARIANTS", "main", "page"]

TEST_FUNCTIONS = 2_000
#: By name: what it says in the table, and the arguments of the model and of `fit` that differ.
VARIANTS: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "best": ("nothing: the preset `best`", {}, {}),
    "adam": ("optimiser: Adam, not Soap", {}, {"optimizer": "adam"}),
    "no-exact-updates": ("no exact updates", {}, {"solve": 0}),
    "least-squares": ("warm start by least squares, not MAP", {}, {"map_start": False}),
    "narrow-prior": ("prior: N(0, 0.1), not N(0, 1)", {"prior": pdo.priors.Normal(0.0, 0.1)}, {}),
    "relu": ("activation: ReLU, not GELU", {"activation": "relu"}, {}),
    "dot": ("head: `dot`, not `features`", {"head": "dot"}, {}),
    "no-skip": ("no linear path in the branch", {"branch_skip": False}, {}),
    "narrow": ("25 units a layer, not 50", {"branch": (25,) * 3, "trunk": (25,) * 3}, {}),
    "no-warm-start": ("no warm start", {}, {"warm_start": 0}),
}

_INTRODUCTION = """\
# What each choice brings

The gravity pendulum with the preset `best`, and with one setting at a time changed back. Each row
is the VB-DeepONet alone, on {functions} new functions; numbers are medians over seeds {seeds}, with
the range in brackets. Coverage is that of 95 % intervals, calibrated on held-out training
functions.

Written by `python -m experiments.ablation --table-only` from the files under `ablation/`; without
that option the command makes what is missing."""


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing and write the page."""
    options = command_line("ablation", __doc__, "variants", VARIANTS).parse_args(arguments)
    run_missing(
        options,
        lambda name, seed, progress: run(name, EXPERIMENT.presets["best"], seed, progress),
        lambda folder, path: write_text(path, page(folder)),
    )


def run(name: str, config: Config, seed: int, progress: bool = True) -> Kept:
    """Fit and score one variant of a preset.

    Args:
        name: A key of `VARIANTS`.
        config: The preset that it is a variant of.
        seed: Chooses training data, start and batches.
        progress: Whether to show progress bars.
    """
    _, model, fit = VARIANTS[name]
    config = dataclasses.replace(
        config,
        model={**config.model, **model},
        fit={**config.fit, **config.vb, **fit},
        vb={},
        test_functions=TEST_FUNCTIONS,
    )
    print(f"{EXPERIMENT.title}, {name}, seed {seed}")
    problem = EXPERIMENT.problem
    data = problem.dataset(config.functions, config.points, seed=seed)
    train, held_out = data.split(1 - config.held_out, seed=seed)
    net = pdo.DeepONet.for_data(train, **config.model)
    posterior = pdo.fit(net, train, **config.fit, seed=seed, progress=progress)
    calibrated = posterior.calibrate(held_out, num_samples=config.num_samples)
    scores = score(
        problem, problem.draw(config.test_functions, TEST_SEED), calibrated,
        num_samples=config.num_samples, progress=progress,
    )  # fmt: skip
    return {
        "variant": name,
        "seed": seed,
        "scores": {"vb": scores.vb.scores(), "calibrated": scores.calibrated.scores()},
        "seconds": posterior.history.seconds,
        "config": config.to_json(),
    }


def page(folder: Path) -> str:
    """The page in Markdown, of all scores under a folder."""
    runs = read(folder)
    rows = [["changed", "NMSE", "95 % coverage", "mean width", "seconds to fit"]]
    for name, (label, _, _) in VARIANTS.items():
        own = [run for run in runs if run["variant"] == name]
        if own:
            rows.append([
                label,
                spread(own, lambda run: run["scores"]["vb"]["nmse"], ".2e"),
                spread(own, lambda run: run["scores"]["calibrated"]["coverage_95"], ".3f"),
                spread(own, lambda run: run["scores"]["calibrated"]["width_95"], ".2e"),
                spread(own, lambda run: run["seconds"], ".0f"),
            ])  # fmt: skip
    introduction = _INTRODUCTION.format(functions=TEST_FUNCTIONS, seeds=seeds_of(runs))
    return "\n\n".join([introduction, markdown(rows)]) + "\n"


if __name__ == "__main__":
    main()
