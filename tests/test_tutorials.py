"""Every code cell of the tutorials runs, and the explanations name what exists."""

import json
import re
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
PAGES = sorted((DOCS / "tutorials").glob("[0-9]*.md"))
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OPTIONS = re.compile(r"\A(?::[\w-]+:[^\n]*\n)+")


def cells(text):
    """The code cells of a page: the line each begins at, and its code without options."""
    found = []
    for match in CELL.finditer(text):
        options = OPTIONS.match(match[1])
        skipped = options[0] if options else ""
        line = text.count("\n", 0, match.start(1)) + skipped.count("\n") + 1
        found.append((line, match[1].removeprefix(skipped)))
    return found


@pytest.fixture
def fresh_start(tmp_path, monkeypatch):
    """An empty folder, new figures and random states, all of them put back afterwards."""
    monkeypatch.chdir(tmp_path)
    numpy_state, figures = np.random.get_state(), set(plt.get_fignums())  # noqa: NPY002
    with mpl.rc_context(), torch.random.fork_rng():
        yield
    for number in set(plt.get_fignums()) - figures:
        plt.close(number)
    np.random.set_state(numpy_state)  # noqa: NPY002


@pytest.mark.usefixtures("fresh_start")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_cells_of_a_tutorial_run(page):
    namespace = {"__name__": "__main__"}
    found = cells(page.read_text(encoding="utf-8"))
    assert found, f"{page.name} has no code cells"
    for number, (line, code) in enumerate(found, 1):
        try:
            # The blank lines make a traceback name the line of the page.
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
        except Exception as error:
            where = f"{page.name}, cell {number} (line {line})"
            pytest.fail(f"{where}: {type(error).__name__}: {error}")


def test_the_tutorials_are_found():
    assert [page.name[0] for page in PAGES] == [str(i) for i in range(1, len(PAGES) + 1)]


def test_cells_and_their_options_are_told_apart():
    page = "# Title\n\n```{code-cell} ipython3\n:tags: [x]\nx = 1\n```\n\n```python\ny\n```\n"
    assert cells(page) == [(5, "x = 1\n")]


def test_coverages_that_the_explanation_quotes_are_those_of_the_results():
    page = (DOCS / "explanation" / "3-mean-field.md").read_text(encoding="utf-8")
    results = (DOCS / "results.md").read_text(encoding="utf-8")
    quoted = [line.split(" | ") for line in page.splitlines() if line.count("[0.") == 4]
    assert len(quoted) == 5
    for problem, paper, paper_calibrated, best, best_calibrated in quoted:
        for found in (paper, paper_calibrated), (best, best_calibrated.removesuffix(" |")):
            assert f"{problem} | {' | '.join(found)} |" in results


def test_single_numbers_that_the_explanations_quote_are_those_of_the_files():
    explanation = DOCS / "explanation"
    page = (explanation / "3-mean-field.md").read_text(encoding="utf-8")
    pendulum, antiderivative = (
        json.loads((DOCS / "results" / "paper" / f"{name}-seed0.json").read_text())
        for name in ("gravity_pendulum", "antiderivative")
    )
    before, after = (antiderivative["scores"][kind] for kind in ("vb", "calibrated"))
    assert f"is {pendulum['calibration_factor']:.3f}." in page
    assert f"from {before['coverage_95']:.3f} to {after['coverage_95']:.3f}" in page
    assert f"from {before['nll']:.2f} to {after['nll']:.2f}" in page
    assert after["crps"] < before["crps"]
    quoted = re.findall(r"NMSE from (\S+) to (\S+) and the\s+coverage from (\S+) to (\S+)\.", page)
    compare = (DOCS / "compare.md").read_text(encoding="utf-8")
    assert "takes NMSE from {} to {}, and coverage from {} to {}.".format(*quoted[0]) in compare
    departures = (explanation / "4-departures.md").read_text(encoding="utf-8")
    ablation = (DOCS / "ablation.md").read_text(encoding="utf-8")
    quoted = re.findall(r"\d\.\d\de-\d\d", departures)
    assert quoted
    assert all(re.search(rf"\| {number} [\[|]", ablation) for number in quoted)


def test_tests_that_the_explanation_names_exist():
    page = (DOCS / "explanation" / "2-factorised-evaluation.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", page)
    assert len(named) > 5
    for file, test in named:
        assert f"def {test}(" in (TESTS / file).read_text(encoding="utf-8") or not test
