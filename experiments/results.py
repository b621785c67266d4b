"""The page of results, `docs/results.md`, from the metrics of finished runs alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from experiments.report import markdown, number
from pyro_deeponet.storage import write_text

__all__ = ["FIGURES", "page", "read", "write_page"]

Metrics = dict[str, Any]

#: Figures of a run that the page shows where they are kept, as `<problem>-seed<k>-<figure>.png`.
FIGURES = ("functions", "fields", "densities", "nmse_against_functions")

_INTRODUCTION = """\
# Results

The four problems of the paper, with the VB-DeepONet and a deterministic DeepONet fitted to the same
data. Written by `python -m experiments.all --table-only` from the files under `{folder}/`; each of
them holds all scores, settings, versions and seconds of one run. Numbers are medians over seeds,
with the range in brackets. NMSE is the squared error over the squared truth, pooled over all
functions and points; scores are on new functions, on the whole grid."""

_PRESETS = {
    "paper": "The paper's networks, prior N(0, 1) on every weight, its data sizes and scaling.",
    "best": "The same data, our choice of network, prior and schedule. A share of the training "
    "functions is held out for calibration. Both nets have the same layers, the same optimiser "
    "(Soap) and the same steps of warm start. That of the VB-DeepONet knows the prior; then come "
    "exact updates of the last layers, which a prior makes possible (not for sin²(2πv)), and "
    "variational inference: see [starting well](explanation/5-starting-well.md). The deterministic "
    "net has no prior to use. It takes more steps of the optimiser instead, for more seconds.",
}

#: In the order of the paper.
_PROBLEMS = (
    "antiderivative",
    "gravity_pendulum",
    "diffusion_reaction",
    "advection_diffusion-sin2",
    "advection_diffusion-periodic",
)


def read(folder: Path) -> dict[str, dict[str, list[Metrics]]]:
    """Metrics of all runs under a folder.

    Args:
        folder: With a folder for each preset, and in it `<problem>-seed<k>.json`.

    Returns:
        By preset and problem, in the order of the paper, and then of the seeds.
    """
    found: dict[str, dict[str, list[Metrics]]] = {}
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*/*.json"))]
    presets = [*_PRESETS, *(run["preset"] for run in runs)]
    problems = [*_PROBLEMS, *(run["problem"] for run in runs)]

    def order(run: Metrics) -> tuple[int, int, int]:
        return presets.index(run["preset"]), problems.index(run["problem"]), run["seed"]

    for run in sorted(runs, key=order):
        found.setdefault(run["preset"], {}).setdefault(run["problem"], []).append(run)
    return found


def spread(runs: list[Metrics], value: Callable[[Metrics], float], digits: str = ".3g") -> str:
    """Median over runs, and their range where there is more than one.

    Examples:
        >>> spread([{"x": 3.0}, {"x": 1.0}, {"x": 2.0}], lambda run: run["x"])
        '2 [1, 3]'
    """
    values = sorted(value(run) for run in runs)
    middle, *ends = (f"{v:{digits}}" for v in (median(values), values[0], values[-1]))
    return middle if len(values) == 1 else f"{middle} [{', '.join(ends)}]"


def page(folder: Path, name: str) -> str:
    """The page in Markdown.

    Args:
        folder: As for `read`.
        name: What the page calls it.
    """
    found = read(folder)
    parts = [_INTRODUCTION.format(folder=name)]
    for preset, problems in found.items():
        parts += [f"## Preset `{preset}`", *([_PRESETS[preset]] if preset in _PRESETS else [])]
        parts += ["### Error (NMSE)", _errors(problems), _verdict(problems)]
        parts += ["### Honesty and time", _honesty(problems)]
        parts += ["### Commands", _commands(problems)]
        parts += _figures(problems, folder, name)
    if not found:
        parts.append("No run has finished yet.")
    return "\n\n".join(parts) + "\n"


def write_page(folder: Path, path: Path) -> Path:
    """Write the page for all metrics under a folder."""
    name = folder.relative_to(path.parent).as_posix() if _inside(folder, path.parent) else folder
    return write_text(path, page(folder, str(name)))


def _inside(folder: Path, parent: Path) -> bool:
    return folder.resolve().is_relative_to(parent.resolve()) and folder.is_relative_to(parent)


def _errors(problems: dict[str, list[Metrics]]) -> str:
    rows = [
        ["problem", "paper, VB", "ours, VB", "paper, deterministic", "ours, deterministic",
         "ours, VB / deterministic", "seeds", "test functions"]
    ]  # fmt: skip
    for runs in problems.values():
        rows.append([
            runs[0]["title"],
            number(runs[0]["paper"]["vb"]),
            spread(runs, lambda run: run["scores"]["vb"]["nmse"], ".2e"),
            number(runs[0]["paper"]["deterministic"]),
            spread(runs, lambda run: run["scores"]["deterministic"]["nmse"], ".2e"),
            f"{_ratio(runs):.2f}",
            ", ".join(str(run["seed"]) for run in runs),
            ", ".join(str(run["data"]["test_functions"]) for run in runs),
        ])  # fmt: skip
    return markdown(rows)


def _ratio(runs: list[Metrics]) -> float:
    """Median error of the VB-DeepONet over that of the deterministic one."""
    vb, deterministic = (
        median(run["scores"][which]["nmse"] for run in runs) for which in ("vb", "deterministic")
    )
    return vb / deterministic


def _verdict(problems: dict[str, list[Metrics]]) -> str:
    """Where being Bayesian costs accuracy, and where it does not."""
    below = [runs[0]["title"] for runs in problems.values() if _ratio(runs) <= 1]
    found = f": {'; '.join(below)}" if below else ""
    return (
        "The VB-DeepONet's median error is at or below that of our own deterministic DeepONet on "
        f"{len(below)} of {len(problems)} problems{found}."
    )


def _honesty(problems: dict[str, list[Metrics]]) -> str:
    rows = [
        ["problem", "95 % coverage", "calibrated", "CRPS", "calibrated", "seconds to fit, VB",
         "deterministic"]
    ]  # fmt: skip
    for runs in problems.values():
        rows.append([
            runs[0]["title"],
            spread(runs, lambda run: run["scores"]["vb"]["coverage_95"], ".3f"),
            spread(runs, lambda run: run["scores"]["calibrated"]["coverage_95"], ".3f"),
            spread(runs, lambda run: run["scores"]["vb"]["crps"], ".2e"),
            spread(runs, lambda run: run["scores"]["calibrated"]["crps"], ".2e"),
            spread(runs, lambda run: run["seconds"]["fit_vb"], ".0f"),
            spread(runs, lambda run: run["seconds"]["fit_deterministic"], ".0f"),
        ])  # fmt: skip
    return markdown(rows)


def _commands(problems: dict[str, list[Metrics]]) -> str:
    commands = [run["command"] for runs in problems.values() for run in runs]
    return "\n".join(["```shell", *commands, "```"])


def _figures(problems: dict[str, list[Metrics]], folder: Path, name: str) -> list[str]:
    """A heading and a picture for each figure that is kept."""
    parts = []
    for run in (run for runs in problems.values() for run in runs):
        for figure in FIGURES:
            file = f"{run['preset']}/{run['problem']}-seed{run['seed']}-{figure}.png"
            if (folder / file).exists():
                caption = f"{run['title']}, seed {run['seed']}: {run['figures'][figure]}"
                parts += [f"**{caption}**", f"![{caption}]({name}/{file})"]
    return ["### Figures", *parts] if parts else []
