"""What a stranger meets first in the shell: each answer helps."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import antiderivative, experiment

ROOT = Path(__file__).parents[1]


def make(folder, *words):
    """Run make on a copy of the Makefile, where nothing is installed."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    done = subprocess.run(["make", *words], cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@needs_make
def test_make_alone_lists_the_targets(tmp_path):
    code, said = make(tmp_path)
    assert code == 0
    for target in ("demo", "test", "docs", "lint"):
        assert f"\n  {target} " in said


@needs_make
def test_an_old_python_is_told_from_a_missing_one(tmp_path):
    old = tmp_path / "python3.8"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.10 || exit 1\n')
    old.chmod(0o755)
    code, said = make(tmp_path, "demo", f"PYTHON={old}")
    assert code != 0
    assert f"needs Python 3.10 or newer; '{old}' is Python 3.8.10" in said
    assert "make PYTHON=python3.11" in said
    code, said = make(tmp_path, "demo", "PYTHON=no-such-python")
    assert "'no-such-python' is not installed" in said


@needs_make
def test_a_python_without_venv_is_explained(tmp_path):
    bare = tmp_path / "python3"
    bare.write_text('#!/bin/sh\n[ "$1" = -c ] || exit 1\n')
    bare.chmod(0o755)
    code, said = make(tmp_path, "demo", f"PYTHON={bare}")
    assert code != 0
    assert "apt install python3-venv" in said


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ("sys.version_info = (3, 8)", "needs Python 3.10 or newer"),
        ("sys.modules['pyro'] = None", "pyro is not installed in"),
    ],
    ids=["old", "not installed"],
)
def test_a_wrong_python_is_told_what_to_do(setup, message):
    code = f"import sys; {setup}; import experiments"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr
    assert ".venv/bin/python" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_named_and_the_run_can_go_on(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(experiment._Run, "__call__", full)
    with pytest.raises(SystemExit, match=r"No space left on device; make room.*goes on.*--out"):
        antiderivative.main(["--out", str(tmp_path / "out")])
