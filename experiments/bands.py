"""The figure of the README: bands that widen where the network is wrong.

Learns the anti-derivative of smooth random functions from noisy points, then predicts for ever
rougher functions, which it has never seen. Draws three predictions of a deep ensemble, and error
and predicted spread of the ensemble and of the mean-field posterior against the roughness. Writes
the picture, and the numbers in it beside as .json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import pyro_deeponet as pdo
from pyro_deeponet.plots.style import COLOURS, new_axes
from pyro_deeponet.storage import write_atomically, write_text

__all__ = ["draw", "learn", "main", "measure"]

#: Length scale of the training functions, and those of the functions that are asked for.
FAMILIAR, ASKED = 0.5, (0.5, 0.35, 0.25, 0.18, 0.12)
#: Which of them are drawn, and what they are called.
SHOWN = {0.5: "as in training", 0.25: "twice as rough", 0.12: "four times as rough"}
FUNCTIONS, POINTS, NOISE, TEST_FUNCTIONS, TEST_SEED = 200, 20, 0.05, 500, 15
LABELS = {"ensemble": "deep ensemble", "vb": "mean-field VB"}


def problem(length_scale: float) -> pdo.problems.Problem:
    """The anti-derivative of functions of this length scale."""
    return pdo.problems.Antiderivative(field=pdo.GaussianRandomField(length_scale))


def learn(seed: int, progress: bool = True, steps: int = 2000) -> dict[str, pdo.Posterior]:
    """Both posteriors, of the same data.

    Args:
        seed: Chooses data, starts and batches.
        progress: Whether to show progress bars.
        steps: Of the warm start; inference takes half as many.
    """
    train = problem(FAMILIAR).dataset(FUNCTIONS, POINTS, noise=NOISE, seed=seed)
    plain = pdo.DeepONet.for_data(train, prior=None, activation="gelu")
    bayesian = pdo.DeepONet.for_data(train, activation="gelu")
    settings: dict[str, Any] = {"warm_start": steps, "seed": seed, "progress": progress}
    return {
        "ensemble": pdo.ensemble(plain, train, members=10, steps=steps // 2, **settings),
        "vb": pdo.fit(bayesian, train, steps=steps // 2, **settings),
    }


def measure(posteriors: dict[str, pdo.Posterior]) -> dict[str, list[dict[str, float]]]:
    """Error, predicted spread and coverage at every roughness, root mean squares over all points.

    Args:
        posteriors: By name.

    Returns:
        By the same names, an entry for each of `ASKED`.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in posteriors}
    for length_scale in ASKED:
        test = problem(length_scale).dataset(TEST_FUNCTIONS, seed=TEST_SEED)
        for name, posterior in posteriors.items():
            p = posterior.predict(test.u, test.y, seed=0)
            found[name].append({
                "length_scale": length_scale,
                "error": float((p.mean - test.s).square().mean().sqrt()),
                "std": float(p.std.square().mean().sqrt()),
                "coverage_95": pdo.metrics.coverage(p, test.s),
            })  # fmt: skip
    return found


def draw(ensemble: pdo.Posterior, found: dict[str, list[dict[str, float]]]) -> Figure:
    """The figure.

    Args:
        ensemble: Whose predictions are shown.
        found: What `measure` found.
    """
    axes = new_axes(1, len(SHOWN) + 1, size=(3.1, 3.0))[0]
    for ax, (length_scale, title) in zip(axes, SHOWN.items(), strict=False):
        test = problem(length_scale).dataset(1, seed=TEST_SEED)
        p = ensemble.predict(test.u, test.y, seed=0)
        pdo.plots.function(p, 0, test.y, truth=test.s, ax=ax)
        ax.set(title=f"inputs {title}", xlabel="t", ylabel="s(t)")
        if ax is not axes[0]:
            ax.get_legend().remove()
            ax.set_ylabel("")
    for ax in axes[1 : len(SHOWN)]:
        ax.sharey(axes[0])  # or the widths could not be compared
    _against_roughness(axes[-1], found)
    figure: Figure = axes[0].figure
    return figure


def _against_roughness(ax: Axes, found: dict[str, list[dict[str, float]]]) -> None:
    for name, colour in (("ensemble", COLOURS["prediction"]), ("vb", COLOURS["deterministic"])):
        roughness = [FAMILIAR / entry["length_scale"] for entry in found[name]]
        for what, style in (("error", "o--"), ("std", "s-")):
            values = [entry[what] for entry in found[name]]
            ax.plot(roughness, values, style, ms=4, color=colour, label=f"{LABELS[name]}, {what}")
    ax.set(xlabel="roughness of the inputs", yscale="log", title="500 functions each")
    ax.set_ylabel("root mean square")
    ax.legend(fontsize=7.5, frameon=False)


def main(arguments: list[str] | None = None) -> None:
    """Learn, measure, draw."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bands",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("docs/figures/bands.png"), metavar="FILE",
        help="the picture (default: docs/figures/bands.png)")  # fmt: skip
    add("--seed", type=int, default=0, help="chooses data and starts (default: 0)")
    add("--no-progress", dest="progress", action="store_false", help="no progress bars")
    options = parser.parse_args(arguments)
    posteriors = learn(options.seed, options.progress)
    found = measure(posteriors)
    command = f"python -m experiments.bands --seed {options.seed}"
    figure = draw(posteriors["ensemble"], found)
    try:
        write_atomically(options.out, lambda file: figure.savefig(file, format="png", dpi=130))
        kept = {"command": command, "seed": options.seed, "found": found}
        write_text(options.out.with_suffix(".json"), json.dumps(kept, indent=1) + "\n")
    except OSError as error:
        sys.exit(f"cannot write {options.out}: {error.strerror}; name another file with --out")
    plt.close(figure)
    print(f"Look at {options.out}")


if __name__ == "__main__":
    main()
