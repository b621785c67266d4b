"""The page of `experiments.compare`, `docs/compare.md`, and its figure, from kept scores alone."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from experiments import settings
from experiments.report import markdown
from experiments.results import spread
from experiments.settings import SETTINGS
from experiments.variants import Kept, read, seeds_of
from pyro_deeponet.plots.style import COLOURS, new_axes
from pyro_deeponet.storage import write_text

__all__ = ["SCORES", "page", "reading", "write"]

#: What is kept of each run: its column, and how it is printed.
SCORES = {
    "nmse": ("NMSE", ".2e"),
    "coverage_95": ("95 % coverage", ".3f"),
    "width_95": ("mean width", ".3f"),
    "crps": ("CRPS", ".4f"),
    "nll": ("NLL", ".2f"),
}
#: What a Bayesian setting should reach: NMSE over that of the best deterministic net, coverage.
BETTER, LOW, HIGH = 0.8, 0.92, 0.98
#: Colours, of the palette of the package, and markers of the families.
_MARKS = {
    "deterministic": (COLOURS["deterministic"], "s"),
    "MAP": ("#CC79A7", "v"),
    "variational": (COLOURS["prediction"], "o"),
    "ensemble": (COLOURS["data"], "D"),
    "MCMC": (COLOURS["truth"], "^"),
}

_INTRODUCTION = """\
# Priors, guides and inference compared

The anti-derivative learnt from {functions} functions at {points} points each, with {noise} noise on
the observations: little data, where being Bayesian should pay. Every row is the same network, of
{weights} weights, and changes the arguments of one call; `experiments/settings.py` lists them. All
but some of the deterministic nets have the same warm start of 2000 steps; what learns by gradients,
each member of an ensemble too, has 2000 steps more.

NMSE is against the noise-free truth on {test} new functions, on the whole grid. All else is against
observations of them with the noise that the training data have: coverage and mean width of 95 %
intervals, CRPS and negative log density (NLL), of both of which less is better. *Parameters* are
the numbers that the result consists of: centres and scales of a guide, all members of an ensemble,
all samples of a chain. Numbers are medians over seeds {seeds}, with the range in brackets; a seed
chooses data, start and batches. The settings were chosen by looking at seed 0 alone. Seconds were
taken on a busy machine; threads: {threads}.

Written by `python -m experiments.compare --table-only` from the files under `compare/`; without
that option the command makes what is missing."""


def write(folder: Path, path: Path) -> None:
    """Write the page, and the figure that it shows, of all scores under a folder."""
    if found := _kept(folder):
        _draw(found, path.with_suffix(".png"))
    write_text(path, page(folder))


def page(folder: Path) -> str:
    """The page in Markdown, of all scores under a folder."""
    found = _kept(folder)
    runs = [run for own in found.values() for run in own]
    introduction = _INTRODUCTION.format(
        functions=settings.FUNCTIONS, points=settings.POINTS, noise=_percent(settings.NOISE),
        test=settings.TEST_FUNCTIONS, seeds=seeds_of(runs), weights=_distinct(runs, "weights"),
        threads=_distinct(runs, "threads"),
    )  # fmt: skip
    rows = [["", "setting", *(title for title, _ in SCORES.values()), "seconds", "parameters"]]
    for name, own in found.items():
        scores = [run["scores"] for run in own]
        rows.append([
            SETTINGS[name].family,
            SETTINGS[name].label,
            *(spread(scores, itemgetter(key), f) for key, (_, f) in SCORES.items()),
            spread(own, itemgetter("seconds"), ".0f"),
            _distinct(own, "parameters"),
        ])  # fmt: skip
    caption = "Medians and ranges over seeds; in the grey parts the bar is met"
    picture = [f"![{caption}]({folder.name}.png)", f"*{caption}.*"] if runs else []
    return "\n\n".join([introduction, *reading(found), *picture, markdown(rows)]) + "\n"


def reading(found: dict[str, list[Kept]]) -> list[str]:
    """What the medians say, a paragraph each; nothing where there is nothing to compare with."""
    nmse, coverage = _medians(found, "nmse"), _medians(found, "coverage_95")
    plain = [name for name in found if SETTINGS[name].family == "deterministic"]
    others = sorted((name for name in found if name not in plain), key=nmse.__getitem__)
    if not plain or not others:
        return []
    best = min(plain, key=nmse.__getitem__)
    met = [n for n in others if nmse[n] <= BETTER * nmse[best] and LOW <= coverage[n] <= HIGH]
    parts = [
        "## What the numbers say",
        f"The bar: {_percent(1 - BETTER)} less NMSE than the *best* of the deterministic nets "
        f"({SETTINGS[best].label}: {nmse[best]:.2e}) or better, and 95 % intervals that cover "
        f"{LOW} to {HIGH} of noisy observations. Of the {len(others)} other settings {len(met)} "
        "meet it.",
        "\n".join(
            f"- {_title(name)}: NMSE {_percent(1 - nmse[name] / nmse[best])} lower, coverage "
            f"{coverage[name]:.3f}"
            for name in met
        ),
        "MAP is one network with weight decay, an ensemble without a prior draws from no "
        "posterior, and a KL weight below one tempers Bayes' rule.",
    ]
    for sentence, some in {
        f"Too wide, covering more than {HIGH}": [n for n in found if coverage[n] > HIGH],
        f"Too narrow, covering less than {LOW}": [n for n in found if coverage[n] < LOW],
    }.items():
        if some:
            counts = Counter(SETTINGS[name].family for name in some)
            listing = ", ".join(f"{count} {family}" for family, count in counts.items())
            parts.append(f"{sentence}: {listing}.")
    if {"normal", "tempered"} <= set(found):
        parts.append(
            f"With the prior N(0, 0.1) and the guide `normal`, a KL weight of 0.1 in place of 1 "
            f"takes NMSE from {nmse['normal']:.2e} to {nmse['tempered']:.2e}, and coverage from "
            f"{coverage['normal']:.3f} to {coverage['tempered']:.3f}."
        )
    r_hat = {n: max(run["diagnostics"].get("r_hat_max", 0.0) for run in found[n]) for n in others}
    unmixed = [f"{_title(name)}: {worst:.1f}" for name, worst in r_hat.items() if worst > 1.1]
    if unmixed:
        parts.append(
            "Chains that have not mixed, by the largest R-hat of an output, which should be 1.1 at "
            f"most: {'; '.join(unmixed)}. So many samples predict as well as these rows say; the "
            "exact posterior may do otherwise."
        )
    return [part for part in parts if part]


def _draw(found: dict[str, list[Kept]], path: Path) -> None:
    """Medians and ranges of error and coverage, a row a setting."""
    mpl.use("Agg")
    (axes,) = new_axes(1, 2, size=(5.2, 0.8 + 0.24 * len(found)), sharey=True)
    ax: Any
    for ax, key in zip(axes, ("nmse", "coverage_95"), strict=True):
        for row, (name, own) in enumerate(found.items()):
            colour, marker = _MARKS[SETTINGS[name].family]
            values = [run["scores"][key] for run in own]
            ax.plot([min(values), max(values)], [row, row], color=colour, lw=1.6, alpha=0.5)
            ax.plot(median(values), row, marker, color=colour, ms=5.5)
        ax.set(ylim=(len(found) - 0.4, -0.6))
        ax.grid(axis="y", color="0.92", lw=0.8)
        ax.set_axisbelow(True)
    labels = [_title(name).replace("`", "") for name in found]
    axes[0].set_yticks(range(len(found)), labels, fontsize=9)
    axes[0].set(xscale="log", xlabel="NMSE against the truth")
    axes[1].set(xlabel="coverage of 95 % intervals")
    nmse = _medians(found, "nmse")
    plain = [nmse[name] for name in found if SETTINGS[name].family == "deterministic"]
    shade: dict[str, Any] = {"color": COLOURS["reference"], "alpha": 0.2, "lw": 0, "zorder": 0}
    axes[1].axvspan(LOW, HIGH, **shade)
    if plain:
        limits = axes[0].get_xlim()
        axes[0].axvspan(limits[0], BETTER * min(plain), **shade)
        axes[0].set_xlim(limits)
    path.parent.mkdir(parents=True, exist_ok=True)
    axes[0].figure.savefig(path, dpi=130)
    plt.close(axes[0].figure)


def _kept(folder: Path) -> dict[str, list[Kept]]:
    """What is kept of each setting, in the order of `SETTINGS`."""
    runs = read(folder)
    own = {name: [run for run in runs if run["variant"] == name] for name in SETTINGS}
    return {name: runs for name, runs in own.items() if runs}


def _medians(found: dict[str, list[Kept]], key: str) -> dict[str, float]:
    return {name: median(run["scores"][key] for run in own) for name, own in found.items()}


def _distinct(runs: list[Kept], key: str) -> str:
    return " or ".join(str(value) for value in sorted({run[key] for run in runs}, reverse=True))


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _title(name: str) -> str:
    return f"{SETTINGS[name].family}, {SETTINGS[name].label}"
