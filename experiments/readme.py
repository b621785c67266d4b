"""The tables and numbers of README.md, from the files that the runs left under docs/.

Writes what stands between `<!-- name -->` and `<!-- /name -->`: the results, the speed and the
numbers below the figure. A part whose file is missing stays as it is.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from experiments.report import markdown, number
from experiments.results import read, spread
from pyro_deeponet.storage import write_text

__all__ = ["main", "updated"]


def updated(text: str, docs: Path) -> str:
    """The text with its parts made anew.

    Args:
        text: That of the README.
        docs: The folder with `results/`, `benchmarks/` and `figures/`.
    """
    parts = {"results": _results(docs), "speed": _speed(docs), "bands": _bands(docs)}
    for name, part in parts.items():
        pattern = re.compile(f"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"the text has no part between <!-- {name} --> and <!-- /{name} -->")
        if part is not None:  # told without escapes, which a replacement would read
            text = pattern.sub(r"\1\2", text)
            text = text.replace(f"<!-- {name} -->\n", f"<!-- {name} -->\n{part}")
    return text


def _results(docs: Path) -> str | None:
    found = read(docs / "results")
    if not found:
        return None
    rows = [["problem", "the paper", "preset `paper`", "preset `best`", "95 % coverage, `best`"]]
    for name, runs in found.get("paper", {}).items():
        best = found.get("best", {}).get(name, [])
        rows.append([
            runs[0]["title"],
            number(runs[0]["paper"]["vb"]),
            spread(runs, _nmse, ".2e"),
            spread(best, _nmse, ".2e") if best else "",
            spread(best, lambda run: run["scores"]["calibrated"]["coverage_95"], ".3f")
            if best else "",
        ])  # fmt: skip
    return markdown(rows)


def _nmse(run: dict[str, Any]) -> float:
    value: float = run["scores"]["vb"]["nmse"]
    return value


def _speed(docs: Path) -> str | None:
    file = docs / "benchmarks" / "step.json"
    if not file.exists():
        return None
    steps = json.loads(file.read_text())
    table = steps["tables"][0]
    rows = [["batch", "plain Pyro on repeated rows", "this package", "written by hand in torch"]]
    rows += [
        [row[0], *(f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}" for ms in row[1:4])]
        for row in table["rows"]
        if row[0].startswith("anti-derivative")
    ]
    machine = steps["machine"]
    return (
        f"One step of inference with 25 particles, in milliseconds, on {machine['cores']} cores\n"
        f"(`{steps['command']}`, seed 0, torch {machine['torch']}):\n\n{markdown(rows)}"
    )


def _bands(docs: Path) -> str | None:
    file = docs / "figures" / "bands.json"
    if not file.exists():
        return None
    kept = json.loads(file.read_text())
    (e, far_e), (vb, far_vb) = (
        (entries[0], entries[-1]) for entries in (kept["found"][k] for k in ("ensemble", "vb"))
    )
    said = (
        f"Where the error of the ensemble grows from {e['error']:.3f} to {far_e['error']:.3f}, its "
        f"standard deviation grows from {e['std']:.3f} to {far_e['std']:.3f}, and 95 % intervals "
        f"still cover {100 * far_e['coverage_95']:.1f} %. The mean-field posterior does not "
        f"notice: its error grows from {vb['error']:.3f} to {far_vb['error']:.3f}, its standard "
        f"deviation from {vb['std']:.3f} to {far_vb['std']:.3f}, and its intervals cover "
        f"{100 * far_vb['coverage_95']:.1f} %. Made with `{kept['command']}`."
    )
    # No line may begin with a percent sign, which would make it a comment of the site.
    return textwrap.fill(said.replace(" %", "\N{NO-BREAK SPACE}%"), 100, break_on_hyphens=False)


def main(arguments: list[str] | None = None) -> None:
    """Write the README anew."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.readme",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", type=Path, nargs="?", default=Path("README.md"),
        help="default: README.md, beside docs/",
    )  # fmt: skip
    file = parser.parse_args(arguments).file
    try:
        write_text(file, updated(file.read_text(encoding="utf-8"), file.parent / "docs"))
    except OSError as error:
        sys.exit(f"cannot read or write {error.filename or file}: {error.strerror}")
    except ValueError as error:
        sys.exit(f"{file}: {error}")
    print(f"Look at {file}")


if __name__ == "__main__":
    main()
