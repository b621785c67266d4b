"""Studies of named variants: each is run with some seeds, its scores are kept, a page shows them.

What `experiments.ablation` and `experiments.compare` share. A variant that is kept already is not
run again, so that a study which was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyro_deeponet as pdo
from pyro_deeponet.storage import write_text

__all__ = ["Kept", "command_line", "read", "run_missing", "seeds_of"]

#: What is kept of one run: its `variant` and `seed`, scores, seconds and settings.
Kept = dict[str, Any]


def command_line(
    name: str, description: str | None, what: str, variants: Iterable[str]
) -> argparse.ArgumentParser:
    """The options of a study.

    Args:
        name: Of the module under `experiments`, and of the folder and the page under `docs`.
        description: What `--help` says first.
        what: The option that chooses among the variants, without its dashes.
        variants: Their names.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, folder = parser.add_argument, Path("docs", name)
    names = list(variants)
    add(f"--{what}", dest="variants", nargs="+", choices=names, default=names, metavar="NAME",
        help=f"which to run, of {', '.join(names)} (default: all)")  # fmt: skip
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    add("--results", type=Path, default=folder, metavar="FOLDER",
        help=f"for the scores that the page shows (default: {folder})")  # fmt: skip
    add("--table-only", action="store_true", help="write the page and run nothing")
    add("--no-progress", dest="progress", action="store_false", help="no progress bars")
    return parser


def run_missing(
    options: argparse.Namespace,
    run: Callable[[str, int, bool], Kept],
    write: Callable[[Path, Path], Any],
) -> None:
    """Run what is not kept yet, and write the page.

    Args:
        options: As parsed by `command_line`.
        run: Given a variant, a seed and whether to show progress bars, what to keep.
        write: Given the folder of what is kept and the path of the page, writes the page.
    """
    path = options.results.with_suffix(".md")
    try:
        options.results.mkdir(parents=True, exist_ok=True)
        for seed in options.seeds if not options.table_only else ():
            for name in options.variants:
                file = options.results / f"{name}-seed{seed}.json"
                if file.exists():
                    print(f"{file} is there: skipped (remove it to run {name} again)")
                    continue
                found = _uninterrupted(run, name, seed, options.progress)
                write_text(file, json.dumps(found, indent=1))
        write(options.results, path)
    except OSError as error:
        sys.exit(f"cannot write {error.filename or path}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command goes on with what is missing")
    print(f"Look at {path}")


def read(folder: Path) -> list[Kept]:
    """All that is kept in a folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def seeds_of(runs: list[Kept]) -> str:
    """The seeds of these runs, for a sentence.

    Examples:
        >>> seeds_of([{"seed": 1}, {"seed": 0}, {"seed": 1}])
        '0, 1'
    """
    return ", ".join(str(seed) for seed in sorted({run["seed"] for run in runs})) or "none yet"


def _uninterrupted(
    run: Callable[[str, int, bool], Kept], name: str, seed: int, progress: bool
) -> Kept:
    """What a run gives, unless Ctrl-C ended its fit: that returns what has been learnt so far."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="interrupted after")
        try:
            return run(name, seed, progress)
        except pdo.Diverged as error:
            sys.exit(f"the fit of {name} with seed {seed} diverged: {error}")
        except UserWarning as warning:
            if not str(warning).startswith("interrupted after"):
                raise
            raise KeyboardInterrupt from None
