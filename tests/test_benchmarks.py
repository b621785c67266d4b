"""Benchmarks keep what they find, and the page says no more than that."""

import json
from pathlib import Path

import pytest

from experiments.benchmarks import data, ensemble, page, predict, record, robustness, step
from pyro_deeponet.problems import Antiderivative

MODULES = {"data": data, "ensemble": ensemble, "predict": predict, "robustness": robustness,
           "step": step}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_help_names_the_command_and_the_file(name, capsys):
    with pytest.raises(SystemExit) as stop:
        MODULES[name].main(["--help"])
    said = capsys.readouterr().out
    assert stop.value.code == 0
    assert f"python -m experiments.benchmarks.{name}" in said
    assert "--json" in said


def test_a_run_keeps_its_figures_and_the_page_shows_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "CASES", (data.Case("small", Antiderivative, 3, 60.0),))
    monkeypatch.setattr(data, "alone", lambda work, *arguments: work(*arguments))
    folder = tmp_path / "benchmarks"
    data.main(["--json", str(folder / "data.json")])
    kept = json.loads((folder / "data.json").read_text())
    seconds = kept["tables"][0]["rows"][0][2]
    assert kept["command"] == "python -m experiments.benchmarks.data"
    page.main(["--folder", str(folder)])
    text = folder.with_suffix(".md").read_text()
    assert f"| small | 3 | {seconds:.2f} |" in text
    assert "Made with `python -m experiments.benchmarks.data`" in text
    assert f"{seconds:.2f}" in capsys.readouterr().out
    unmeasured = text[text.index("## Not measured yet") :]
    assert "benchmarks.step" in unmeasured
    assert "benchmarks.data" not in unmeasured


def test_predictions_are_measured_at_a_small_size(tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "alone", lambda work, *arguments: work(*arguments))
    monkeypatch.setattr(predict, "against_matmuls", lambda *_: (1.0, 2.0, 3.0))
    monkeypatch.setattr(predict, "intervals", lambda *_: 1.0)
    predict.main(["--functions", "50", "--json", str(tmp_path / "predict.json")])
    kept = json.loads((tmp_path / "predict.json").read_text())
    assert kept["command"].endswith("predict --functions 50")
    assert len(kept["tables"]) == 3


def test_a_missed_bar_is_said_and_ends_with_1(tmp_path, capsys):
    options = record.command_line("step", "Doc: x").parse_args(["--json", str(tmp_path / "a.json")])
    found = record.Record("step", options)
    found.bar("fast", True)
    found.bar("small", False)
    assert found.finish() == 1
    assert "small: MISSED" in capsys.readouterr().out
    assert json.loads((tmp_path / "a.json").read_text())["bars"] == [
        ["fast", True],
        ["small", False],
    ]


def test_an_unwritable_file_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    words = ["--json", str(tmp_path / "file" / "a.json")]
    found = record.Record("step", record.command_line("step", "Doc").parse_args(words))
    with pytest.raises(SystemExit, match=r"cannot write .*a\.json.*--json"):
        found.finish()


def test_the_page_is_that_of_the_kept_figures():
    docs = Path(__file__).parents[1] / "docs"
    assert (docs / "benchmarks.md").read_text() == page.page(docs / "benchmarks")
