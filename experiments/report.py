"""Tables and reports of a run, from its `metrics.json` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyro_deeponet.storage import write_text

__all__ = ["markdown", "table", "write"]

ROWS = {
    "nmse": "NMSE",
    "relative_l2": "relative L2 error",
    "coverage_95": "coverage of 95 % intervals",
    "width_95": "their mean width",
    "nll": "negative log density",
    "crps": "CRPS",
    "calibration_error": "calibration error",
}
COLUMNS = {
    "vb": "VB-DeepONet",
    "calibrated": "calibrated",
    "deterministic": "deterministic",
}


def cells(metrics: dict[str, Any]) -> list[list[str]]:
    """Rows of the table of scores, the header first."""
    scores, paper, seconds = metrics["scores"], metrics["paper"], metrics["seconds"]
    rows = [["", *COLUMNS.values()]]
    for key, label in ROWS.items():
        rows.append([label, *(number(scores[column].get(key)) for column in COLUMNS)])
    rows.append(["NMSE in the paper", number(paper["vb"]), "", number(paper["deterministic"])])
    for what in ("fit", "predict"):
        vb, deterministic = (seconds[f"{what}_{which}"] for which in ("vb", "deterministic"))
        rows.append([f"seconds to {what}", f"{vb:.1f}", "", f"{deterministic:.1f}"])
    return rows


def number(value: float | None) -> str:
    """Three digits that matter, or nothing."""
    return "" if value is None else f"{value:.3g}"


def table(metrics: dict[str, Any]) -> str:
    """The scores of a run for the terminal."""
    title = f"{metrics['title']}, preset {metrics['preset']}, seed {metrics['seed']}"
    lines = [f"{row[0]:<28}" + "".join(f"{cell:>16}" for cell in row[1:]) for row in cells(metrics)]
    return "\n".join([title, *lines])


def markdown(rows: list[list[str]]) -> str:
    """A Markdown table, the header first."""
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def write(metrics: dict[str, Any], folder: Path) -> Path:
    """Write `report.md` into the folder of a run.

    Args:
        metrics: The content of `metrics.json`.
        folder: Where that file and `figures/` are.

    Returns:
        The path of the report.
    """
    data, config = metrics["data"], metrics["config"]
    settings = [[key, f"`{value}`"] for key, value in config.items() if value not in ({}, [])]
    parts = [
        f"# {metrics['title']}: preset {metrics['preset']}, seed {metrics['seed']}",
        f"Made with `{metrics['command']}`.",
        markdown(cells(metrics)),
        f"Both nets were fitted to {data['fitted_functions']} functions at {config['points']} "
        f"points each, and scored on {data['test_functions']} new functions at "
        f"{data['test_points']} points each; log density and CRPS on the first "
        f"{data['nll_and_crps_functions']} of them. "
        f"Calibration multiplies the predicted standard deviation by "
        f"{metrics['calibration_factor']:.3g}, found on {data['calibration_functions']} "
        f"{data['calibration_source']}. The paper's numbers are those it prints.",
        *(
            f"## {caption}\n\n![{caption}](figures/{name}.png)"
            for name, caption in metrics["figures"].items()
        ),
        "## Settings",
        markdown([["setting", "value"], *settings]),
        "Versions: " + ", ".join(f"{name} {v}" for name, v in metrics["versions"].items()) + ".",
    ]
    return write_text(folder / "report.md", "\n\n".join(parts) + "\n")
