"""Priors, guides and other inference on one small noisy problem, beside deterministic nets.

Learns the anti-derivative from 100 functions at 20 points each with 5 % noise, once for each of
many settings that differ in a prior, a guide or a call. Keeps the scores of each under --results as
soon as it is done, skips those that are kept already, and writes the page and its figure beside
that folder (docs/compare.md, docs/compare.png).
"""

from __future__ import annotations

import time

import torch

import pyro_deeponet as pdo
from experiments import settings
from experiments.comparison import SCORES, write
from experiments.experiment import TEST_SEED
from experiments.settings import SETTINGS
from experiments.variants import Kept, command_line, run_missing

__all__ = ["main", "run"]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing and write the page."""
    options = command_line("compare", __doc__, "settings", SETTINGS).parse_args(arguments)
    run_missing(options, run, write)


def run(name: str, seed: int, progress: bool = True) -> Kept:
    """Learn with one setting, and score it.

    Args:
        name: A key of `SETTINGS`.
        seed: Chooses training data, start and batches.
        progress: Whether to show progress bars.
    """
    setting = SETTINGS[name]
    print(f"{setting.family}: {setting.label}, seed {seed}")
    train = settings.PROBLEM.dataset(settings.FUNCTIONS, settings.POINTS, settings.NOISE, seed)
    arguments = setting.call
    if setting.held_out:
        train, arguments["validation"] = train.split(1 - setting.held_out, seed=seed)
    net = pdo.DeepONet.for_data(train, **setting.network)
    began = time.perf_counter()
    infer = getattr(pdo, setting.inference)
    posterior = infer(net, train, **arguments, seed=seed, progress=progress)
    return {
        "variant": name,
        "seed": seed,
        "seconds": time.perf_counter() - began,
        "scores": score(posterior, seed),
        "parameters": parameters(posterior),
        "weights": sum(shape.numel() for shape in net.shapes.values()),
        "diagnostics": posterior.diagnostics,
        "threads": torch.get_num_threads(),
        "config": setting.to_json(),
    }


def score(posterior: pdo.Posterior, seed: int) -> dict[str, float]:
    """Scores on new functions, the error by the truth and all else by noisy observations."""
    problem, functions = settings.PROBLEM, settings.TEST_FUNCTIONS
    truth = problem.dataset(functions, seed=TEST_SEED)
    # `dataset` takes noise relative to the spread of its own outputs, which differ a little.
    trained = problem.dataset(settings.FUNCTIONS, settings.POINTS, seed=seed)
    noise = settings.NOISE * (trained.s.std(correction=0) / truth.s.std(correction=0)).item()
    noisy = problem.dataset(functions, noise=noise, seed=TEST_SEED)
    p = posterior.predict(truth.u, truth.y, seed=0, progress=False)
    found = {**pdo.evaluate(p, noisy.s), "nmse": pdo.metrics.nmse(p.mean, truth.s)}
    return {key: found[key] for key in SCORES}


def parameters(posterior: pdo.Posterior) -> int:
    """How many numbers a posterior consists of."""
    if posterior.weights is not None:
        return sum(weight.numel() for weight in posterior.weights.values())
    parts = [posterior.model, *([] if posterior.guide is None else [posterior.guide])]
    return sum(p.numel() for part in parts for p in part.parameters())


if __name__ == "__main__":
    main()
