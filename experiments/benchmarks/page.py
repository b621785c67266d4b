"""The page of benchmarks, docs/benchmarks.md, from the files that the benchmarks left.

Each benchmark keeps its figures with `--json docs/benchmarks/<name>.json`; `make bench` runs them
all and then this.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from experiments.benchmarks.record import shown
from experiments.report import markdown
from pyro_deeponet.storage import write_text

__all__ = ["BENCHMARKS", "main", "page"]

#: In the order of the page: what each is called there.
BENCHMARKS = {
    "step": "A step of inference",
    "predict": "Predictions",
    "ensemble": "Ensembles",
    "data": "Data sets",
    "robustness": "Default fits of badly scaled data",
}

_INTRODUCTION = """\
# Benchmarks

How long things take, how much memory they need, and how well defaults bear data at other scales,
each held against a bar. Written by `python -m experiments.benchmarks.page` from the files under
`benchmarks/`, one a benchmark; `make bench` makes them all anew. Times are of the machine that a
section names, and of what else it did at that time; ratios carry further than seconds."""


def page(folder: Path) -> str:
    """The page in Markdown.

    Args:
        folder: With `<name>.json` for each benchmark that was run.
    """
    parts = [_INTRODUCTION]
    missing = []
    for name, title in BENCHMARKS.items():
        file = folder / f"{name}.json"
        if file.exists():
            parts += [f"## {title}", *_section(name, json.loads(file.read_text()))]
        else:
            missing.append(name)
    if missing:
        commands = [f"python -m experiments.benchmarks.{name}" for name in missing]
        parts += ["## Not measured yet", "\n".join(["```shell", *commands, "```"])]
    return "\n\n".join(parts) + "\n"


def _section(name: str, kept: dict[str, Any]) -> list[str]:
    module = importlib.import_module(f"experiments.benchmarks.{name}")
    _, _, explanation = (module.__doc__ or "").strip().partition("\n\n")
    machine = kept["machine"]
    parts = [
        explanation,
        f"Made with `{kept['command']}` on {machine['cores']} cores ({machine['processor']}, at "
        f"most {machine['threads']} threads), Python {machine['python']}, torch "
        f"{machine['torch']}, pyro {machine['pyro']}, pyro-deeponet {machine['pyro_deeponet']}.",
    ]
    for table in kept["tables"]:
        rows = [shown(table["columns"], row) for row in table["rows"]]
        parts += [f"**{table['title']}**", markdown([list(table["columns"]), *rows])]
    bars = [f"- {text}: {'met' if met else '**missed**'}" for text, met in kept["bars"]]
    return [*parts, "Bars:", "\n".join(bars)] if bars else parts


def main(arguments: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("docs/benchmarks"),
        help="with the figures; the page goes beside it (default: docs/benchmarks)",
    )  # fmt: skip
    folder = parser.parse_args(arguments).folder
    try:
        path = write_text(folder.with_suffix(".md"), page(folder))
    except OSError as error:
        sys.exit(f"cannot write {folder.with_suffix('.md')}: {error.strerror}")
    print(f"Look at {path}")


if __name__ == "__main__":
    main()
