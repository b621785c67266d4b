"""The figure of the README, made small."""

import json

from experiments import bands


def test_the_figure_and_its_numbers_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(bands, "FUNCTIONS", 20)
    monkeypatch.setattr(bands, "TEST_FUNCTIONS", 5)
    learn = bands.learn
    monkeypatch.setattr(bands, "learn", lambda seed, progress: learn(seed, progress, steps=20))
    bands.main(["--out", str(tmp_path / "a" / "bands.png"), "--seed", "3", "--no-progress"])
    kept = json.loads((tmp_path / "a" / "bands.json").read_text())
    assert kept["command"] == "python -m experiments.bands --seed 3"
    assert [entry["length_scale"] for entry in kept["found"]["vb"]] == list(bands.ASKED)
    assert (tmp_path / "a" / "bands.png").read_bytes().startswith(b"\x89PNG")
