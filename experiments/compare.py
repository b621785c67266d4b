"""Priors, guides and other inference on one small noisy problem, beside deterministic nets.

Learns the anti-derivative from 100 functions at 20 points each with 5 % noise, once for each of
many settings that differ in a prior, a guide or a call. Keeps the scores of each under --results as
soon as it is done, skips those that are kept already, and writes the page and its figure beside
that folder (docs/compare.md, docs/compare.png).
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch

import pyro_deeponet as pdo
from experiments.experiment import TEST_SEED
from experiments.report import markdown
from experiments.results import spread
from experiments.settings import SETTINGS
from experiments.variants import Kept, command_line, read, run_missing, seeds_of
from pyro_deeponet.plots.style import COLOURS, new_axes
from pyro_deeponet.storage import write_text

__all__ = ["main", "page"]

PROBLEM: pdo.problems.Problem = pdo.problems.Antiderivative()
FUNCTIONS, POINTS, NOISE, TEST_FUNCTIONS = 100, 20, 0.05, 1_000
#: What a Bayesian setting should reach: NMSE over that of the best deterministic net, coverage.
BETTER, HONEST = 0.8, (0.92, 0.98)
#: Columns of the table by the scores they show.
SCORES = {"nmse": ("NMSE", ".2e"), "coverage_95": ("95 % coverage", ".3f"),
          "width_95": ("mean width", ".3f"), "crps": ("CRPS", ".4f"),
          "nll": ("NLL", ".2f")}  # fmt: skip
#: Of the families, from the palette of the package.
_MARKS = {
    "deterministic": (COLOURS["deterministic"], "s"),
    "MAP": ("#CC79A7", "v"),
    "variational": (COLOURS["prediction"], "o"),
    "ensemble": (COLOURS["data"], "D"),
    "MCMC": (COLOURS["truth"], "^"),
}

_INTRODUCTION = """\
# Priors, guides and inference compared

The anti-derivative learnt from {functions} functions at {points} points each, with {noise:.0%}
noise on the observations: little data, where being Bayesian should pay. Every row is the same
network, of {weights} weights or a few less, and changes the arguments of one call, which
`experiments/settings.py` lists. All but some of the deterministic nets have the same warm start of
2000 steps; what learns by gradients, members of an ensemble too, has 2000 more.

NMSE is against the noise-free truth on {test} new functions, on the whole grid. All else is against
observations of them with the noise that the training data have: coverage and mean width of 95 %
intervals, CRPS and negative log density, of both of which less is better. *Parameters* are the
numbers that the result consists of: centres and scales of a guide, all members of an ensemble, all
samples of a chain. Numbers are medians over seeds {seeds}, with the range in brackets; a seed
chooses data, start and batches. The settings were chosen by looking at seed 0 alone. Seconds were
taken on a busy machine, with {threads} thread(s) at most.

Written by `python -m experiments.compare --table-only` from the files under `compare/`; without
that option the command makes what is missing."""


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
    train, arguments = PROBLEM.dataset(FUNCTIONS, POINTS, NOISE, seed), setting.call
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
    truth = PROBLEM.dataset(TEST_FUNCTIONS, seed=TEST_SEED)
    # `dataset` takes noise relative to the spread of its own outputs, which differ a little.
    trained = PROBLEM.dataset(FUNCTIONS, POINTS, seed=seed)
    noise = NOISE * (trained.s.std(correction=0) / truth.s.std(correction=0)).item()
    noisy = PROBLEM.dataset(TEST_FUNCTIONS, noise=noise, seed=TEST_SEED)
    p = posterior.predict(truth.u, truth.y, seed=0, progress=False)
    found = {**pdo.evaluate(p, noisy.s), "nmse": pdo.metrics.nmse(p.mean, truth.s)}
    return {key: found[key] for key in SCORES}


def parameters(posterior: pdo.Posterior) -> int:
    """How many numbers a posterior consists of."""
    if posterior.weights is not None:
        return sum(weight.numel() for weight in posterior.weights.values())
    parts = [posterior.model, *([] if posterior.guide is None else [posterior.guide])]
    return sum(p.numel() for part in parts for p in part.parameters())


def write(folder: Path, path: Path) -> None:
    """Write the page, and the figure that it shows, of all scores under a folder."""
    if found := kept(folder):
        draw(found, path.with_suffix(".png"))
    write_text(path, page(folder))


def kept(folder: Path) -> dict[str, list[Kept]]:
    """What is kept of each setting, in the order of `SETTINGS`."""
    runs = read(folder)
    own = {name: [run for run in runs if run["variant"] == name] for name in SETTINGS}
    return {name: runs for name, runs in own.items() if runs}


def page(folder: Path) -> str:
    """The page in Markdown, of all scores under a folder."""
    found = kept(folder)
    runs = [run for own in found.values() for run in own]
    introduction = _INTRODUCTION.format(
        functions=FUNCTIONS, points=POINTS, noise=NOISE, test=TEST_FUNCTIONS, seeds=seeds_of(runs),
        weights=max((run["weights"] for run in runs), default="no"),
        threads=max((run["threads"] for run in runs), default="no"),
    )  # fmt: skip
    heads = [title for title, _ in SCORES.values()]
    rows = [["", "setting", *heads, "seconds", "parameters"]]
    for name, own in found.items():
        rows.append([
            SETTINGS[name].family,
            SETTINGS[name].label,
            *(spread(own, lambda run, key=key: run["scores"][key], digits)  # type: ignore[misc]
              for key, (_, digits) in SCORES.items()),
            spread(own, lambda run: run["seconds"], ".0f"),
            str(max(run["parameters"] for run in own)),
        ])  # fmt: skip
    picture = [f"![NMSE and coverage of every setting]({folder.name}.png)"] if runs else []
    return "\n\n".join([introduction, *reading(found), *picture, markdown(rows)]) + "\n"


def reading(found: dict[str, list[Kept]]) -> list[str]:
    """What the numbers say, by medians."""
    nmse, coverage = middles(found, "nmse"), middles(found, "coverage_95")
    plain = [name for name in found if SETTINGS[name].family == "deterministic"]
    others = [name for name in found if name not in plain]
    if not plain or not others:
        return []
    best = min(plain, key=nmse.__getitem__)
    met = [n for n in others if nmse[n] <= BETTER * nmse[best] and _honest(coverage[n])]
    wide = [n for n in others if coverage[n] > HONEST[1]]
    parts = [
        "## What the numbers say",
        f"The bar: at least {1 - BETTER:.0%} less NMSE than the *best* of the deterministic nets "
        f"({SETTINGS[best].label}: {nmse[best]:.2e}), and 95 % intervals that cover {HONEST[0]} to "
        f"{HONEST[1]} of noisy observations. {len(met)} of {len(others)} other settings meet it, "
        "the most accurate first:",
        "\n".join(
            f"- {_title(n)}: NMSE lower by {1 - nmse[n] / nmse[best]:.0%}, coverage "
            f"{coverage[n]:.3f}"
            for n in sorted(met, key=nmse.__getitem__)
        ),
        "MAP is one network with weight decay, and an ensemble without a prior draws from no "
        "posterior: they are no Bayesian inference, though near to it.",
    ]
    if wide:
        parts.append(
            f"Intervals of these cover more than {HONEST[1]}, so that they are too wide: "
            f"{'; '.join(map(_title, wide))}."
        )
    worst = max((_r_hat(run) for own in found.values() for run in own), default=0.0)
    if worst > 1.1:
        parts.append(
            f"The chains have not mixed: R-hat of some outputs is up to {worst:.1f}, where 1.1 is "
            "the most to accept. Their rows tell how well so many samples predict, not what the "
            "exact posterior would."
        )
    return [part for part in parts if part]


def middles(found: dict[str, list[Kept]], key: str) -> dict[str, float]:
    """Medians over seeds of a score."""
    return {name: median(run["scores"][key] for run in own) for name, own in found.items()}


def draw(found: dict[str, list[Kept]], path: Path) -> None:
    """Medians and ranges of error and coverage, a row a setting."""
    mpl.use("Agg")
    (axes,) = new_axes(1, 2, size=(4.6, 0.8 + 0.24 * len(found)), sharey=True)
    ax: Any
    for ax, key in zip(axes, ("nmse", "coverage_95"), strict=True):
        middle, seen = middles(found, key), set()
        for row, (name, own) in enumerate(found.items()):
            colour, marker = _MARKS[SETTINGS[name].family]
            values = [run["scores"][key] for run in own]
            ax.plot([min(values), max(values)], [row, row], color=colour, lw=1.6, alpha=0.5)
            label = None if SETTINGS[name].family in seen else SETTINGS[name].family
            seen.add(SETTINGS[name].family)
            ax.plot(middle[name], row, marker, color=colour, ms=5.5, label=label)
        ax.set(ylim=(len(found) - 0.4, -0.6))
        ax.grid(axis="y", color="0.92", lw=0.8)
        ax.set_axisbelow(True)
    labels = [SETTINGS[name].label.replace("`", "") for name in found]
    axes[0].set_yticks(range(len(found)), labels, fontsize=9)
    axes[0].set(xscale="log", xlabel="NMSE against the noise-free truth")
    axes[1].set(xlabel="coverage of 95 % predictive intervals")
    axes[1].axvspan(*HONEST, color=COLOURS["reference"], alpha=0.2, lw=0, zorder=0)
    axes[1].legend(loc="lower left", fontsize=9, frameon=True, framealpha=0.9, edgecolor="none")
    plain = [v for n, v in middles(found, "nmse").items() if SETTINGS[n].family == "deterministic"]
    if plain:
        axes[0].axvspan(0, BETTER * min(plain), color=COLOURS["reference"], alpha=0.2, lw=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    axes[0].figure.savefig(path, dpi=130)
    plt.close(axes[0].figure)


def _honest(coverage: float) -> bool:
    return HONEST[0] <= coverage <= HONEST[1]


def _title(name: str) -> str:
    return f"{SETTINGS[name].family}, {SETTINGS[name].label}"


def _r_hat(run: Kept) -> float:
    return float(run["diagnostics"].get("r_hat_max", 0.0))


if __name__ == "__main__":
    main()
