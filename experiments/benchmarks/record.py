"""What a benchmark found: shown line by line as it is found, and kept in a file for the page."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyro
import torch

import pyro_deeponet
from pyro_deeponet.storage import write_text

__all__ = ["Record", "Table", "alone", "command_line", "peak_memory", "shown"]


def command_line(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with what all benchmarks take.

    Args:
        name: Of the benchmark, as in `python -m experiments.benchmarks.<name>`.
        doc: Docstring of its module.
    """
    title, _, rest = (doc or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.benchmarks.{name}",
        description=f"{title.partition(':')[0]}.\n{rest}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="keep the figures there, such as docs/benchmarks/step.json, for the page",
    )  # fmt: skip
    return parser


class Table:
    """Rows of figures, each printed when it is known.

    Args:
        title: What the table shows.
        columns: How to print the numbers of each column, by its heading: `".1f"`.
        width: Characters of the first column; others are as wide as their headings need.
    """

    def __init__(self, title: str, columns: dict[str, str], width: int = 34) -> None:
        self.title, self.columns, self.width = title, columns, width
        self.rows: list[list[Any]] = []
        print(f"\n{title}")
        self._print(list(columns))

    def row(self, *cells: Any) -> None:
        """Print a row and keep it."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(list(cells))
        self._print(shown(self.columns, cells))

    def _print(self, cells: list[str]) -> None:
        widths = [max(10, len(heading) + 2) for heading in self.columns][1:]
        rest = "".join(f"{cell:>{width}}" for cell, width in zip(cells[1:], widths, strict=True))
        print(f"{cells[0]:<{self.width}}{rest}", flush=True)


class Record:
    """All that one run of a benchmark found.

    Args:
        name: Of the benchmark.
        arguments: The options it was given, of `command_line`.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name, self.path = name, arguments.json
        given = {k: v for k, v in vars(arguments).items() if k != "json"}
        options = "".join(f" --{name} {value}" for name, value in given.items())
        self.command = f"python -m experiments.benchmarks.{name}{options}"
        self.tables: list[Table] = []
        self.bars: list[list[Any]] = []

    def table(self, title: str, columns: dict[str, str], width: int = 34) -> Table:
        """A new table, in which rows are then put."""
        self.tables.append(Table(title, columns, width))
        return self.tables[-1]

    def bar(self, text: str, met: bool) -> None:
        """Say whether a bar is met."""
        self.bars.append([text, bool(met)])
        print(f"  {text}: {'met' if met else 'MISSED'}", flush=True)

    def finish(self) -> int:
        """Write the file, if one is wanted; 1 when a bar was missed, else 0."""
        if self.path is not None:
            try:
                write_text(self.path, json.dumps(self.to_json(), indent=1) + "\n")
            except OSError as error:
                sys.exit(f"cannot write {self.path}: {error.strerror}; name another with --json")
        return int(not all(met for _, met in self.bars))

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "benchmark": self.name,
            "command": self.command,
            "machine": {
                "processor": platform.machine(),
                "cores": os.cpu_count(),
                "threads": torch.get_num_threads(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "pyro": pyro.__version__,
                "pyro_deeponet": pyro_deeponet.__version__,
            },
            "tables": [
                {"title": table.title, "columns": table.columns, "rows": table.rows}
                for table in self.tables
            ],
            "bars": self.bars,
        }


def shown(columns: dict[str, str], cells: Any) -> list[str]:
    """The cells of a row as text.

    Examples:
        >>> shown({"": "", "ms": ".1f"}, ["ours", 3.14])
        ['ours', '3.1']
    """
    return [
        cell if isinstance(cell, str) else f"{cell:{spec}}"
        for spec, cell in zip(columns.values(), cells, strict=True)
    ]


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process, so that its peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def peak_memory() -> float:
    """The most memory that this process has held, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
