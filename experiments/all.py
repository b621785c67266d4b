"""Every problem with one preset, for some seeds, and the page of results.

Runs what is missing, keeps each run's metrics, and some figures of seed 0, under --results as soon
as it ends, and writes the page beside that folder (docs/results.md) from those files.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from experiments import advection_diffusion, antiderivative, diffusion_reaction, gravity_pendulum
from experiments.config import Experiment
from experiments.experiment import command_line, run
from experiments.results import FIGURES, write_page

__all__ = ["EXPERIMENTS", "main"]

EXPERIMENTS: tuple[Experiment, ...] = (
    antiderivative.EXPERIMENT,
    gravity_pendulum.EXPERIMENT,
    diffusion_reaction.EXPERIMENT,
    *advection_diffusion.EXPERIMENTS.values(),
)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.all",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--preset", choices=["paper", "best"], default="paper", help="default: paper")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    add("--out", type=Path, default=Path("results"), metavar="FOLDER",
        help="for runs, each in <preset>/<problem>-seed<seed> (default: results)")  # fmt: skip
    add("--results", type=Path, default=Path("docs/results"), metavar="FOLDER",
        help="for the metrics that the page shows (default: docs/results)")  # fmt: skip
    add("--table-only", action="store_true", help="write the page and run nothing")
    add("--no-progress", action="store_true", help="no progress bars")
    options = parser.parse_args(arguments)
    page = options.results.with_suffix(".md")
    try:
        if not options.table_only:
            for seed in options.seeds:
                for experiment in EXPERIMENTS:
                    _run(experiment, seed, options)
                    write_page(options.results, page)
        write_page(options.results, page)
    except OSError as error:
        sys.exit(f"cannot write {error.filename or page}: {error.strerror}")
    print(f"Look at {page}")


def _run(experiment: Experiment, seed: int, options: argparse.Namespace) -> None:
    """Run an experiment unless its metrics are kept already."""
    name = f"{experiment.name}-seed{seed}"
    kept = options.results / options.preset / f"{name}.json"
    if kept.exists():
        print(f"{kept} is there: skipped (remove it to run {experiment.title} again)")
        return
    out = options.out / options.preset / name
    words = ["--preset", options.preset, "--seed", str(seed), "--out", str(out)]
    if options.no_progress:
        words.append("--no-progress")
    parser = command_line("experiments.all", "", experiment.presets)
    run(experiment, parser.parse_args(words))
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(out / "metrics.json", kept)
    if seed == 0:
        for figure in FIGURES:
            picture = out / "figures" / f"{figure}.png"
            if picture.exists():
                shutil.copyfile(picture, kept.with_name(f"{name}-{figure}.png"))
    print()


if __name__ == "__main__":
    main()
