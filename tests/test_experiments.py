"""The experiments through their command lines, with tiny settings; the page of results."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from fakes import FakePrediction

import pyro_deeponet as pdo
from experiments import (
    ablation,
    advection_diffusion,
    all,
    antiderivative,
    compare,
    comparison,
    diffusion_reaction,
    experiment,
    figures,
    gravity_pendulum,
    scoring,
    settings,
)
from experiments.config import Config
from experiments.results import page, read, write_page
from experiments.variants import read as read_variants
from pyro_deeponet.priors import Normal
from pyro_deeponet.problems import (
    AdvectionDiffusion,
    Antiderivative,
    DiffusionReaction,
    GravityPendulum,
)

MODULES = [antiderivative, gravity_pendulum, diffusion_reaction, advection_diffusion]
SMALL = {
    "antiderivative": Antiderivative(n_sensors=12, n_times=10),
    "gravity_pendulum": GravityPendulum(n_sensors=12, n_times=50),
    "diffusion_reaction": DiffusionReaction(n_sensors=12, n_x=47, n_times=10),
    "advection_diffusion-sin2": AdvectionDiffusion(n_sensors=12, n_x=10, n_times=8),
    "advection_diffusion-periodic": AdvectionDiffusion(
        n_sensors=12, n_x=10, n_times=8, initial_condition="periodic"
    ),
}
OF_ALL = ["inputs", "densities", "calibration", "pit", "error_against_std", "history"]


def module_name(module):
    return module.__name__


def tiny(setup):
    """The same experiment on a coarse grid, with settings that take a second."""
    presets = {
        name: dataclasses.replace(
            config,
            functions=60,
            points=6,
            model={**config.model, "branch": (8, 8), "trunk": (8, 8)},
            fit={**config.fit, "warm_start": 30, "steps": 10, "batch_size": 20, "num_particles": 2},
            deterministic={"steps": 20},
            held_out=config.held_out and 0.4,
            calibration_functions=20,
            test_functions=25,
            mixture_functions=8,
            num_samples=6,
            sizes=config.sizes[:2] and (20, 40),
            sizes_fit={},
        )
        for name, config in setup.presets.items()
    }
    problem = SMALL[setup.name]
    densities = setup.densities
    if problem.grid.shape[1] == 2:
        n_x, n_t = problem.grid_shape
        densities = tuple((min(x, n_x - 1), min(t, n_t)) for x, t in densities)
    return dataclasses.replace(setup, problem=problem, presets=presets, densities=densities)


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    for module in MODULES[:3]:
        monkeypatch.setattr(module, "EXPERIMENT", tiny(module.EXPERIMENT))
    both = {name: tiny(setup) for name, setup in advection_diffusion.EXPERIMENTS.items()}
    monkeypatch.setattr(advection_diffusion, "EXPERIMENTS", both)
    monkeypatch.setattr(all, "EXPERIMENTS", [antiderivative.EXPERIMENT, *both.values()])
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_figures(monkeypatch):
    """Figures take most of the time of a tiny run."""
    monkeypatch.setattr(figures, "draw", lambda results, folder: {})


def metrics_of(out):
    return json.loads((out / "metrics.json").read_text())


@pytest.mark.parametrize("module", [*MODULES, all], ids=module_name)
def test_help_names_the_options(module, capsys):
    with pytest.raises(SystemExit) as stop:
        module.main(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert f"python -m {module.__name__}" in text
    for option in ("--preset", "--out", "--no-progress"):
        assert option in text


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (antiderivative, ["--preset", "best"]),
        (gravity_pendulum, ["--preset", "paper"]),
        (gravity_pendulum, ["--preset", "quick"]),
        (diffusion_reaction, ["--preset", "best"]),
        (advection_diffusion, ["--preset", "paper"]),
        (advection_diffusion, ["--preset", "paper", "--initial-condition", "periodic"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else module_name(value),
)
def test_every_problem_runs_and_is_scored(no_figures, module, options, tmp_path, capsys):
    out = tmp_path / "out"
    module.main([*options, "--seed", "1", "--out", str(out), "--no-progress"])
    shown = capsys.readouterr()
    assert "VB-DeepONet" in shown.out
    assert str(out / "report.md") in shown.out
    assert "%|" not in shown.err, "a progress bar was shown"
    metrics = metrics_of(out)
    assert (metrics["preset"], metrics["seed"]) == (options[1], 1)
    assert f"--seed {metrics['seed']}" in metrics["command"]
    assert set(metrics["versions"]) == {"python", "torch", "pyro", "numpy", "pyro_deeponet"}
    assert metrics["data"]["test_functions"] == 25
    assert set(metrics["scores"]["deterministic"]) == {"nmse", "relative_l2"}
    evaluated = {
        "nmse", "relative_l2", "coverage_95", "width_95", "nll", "crps", "calibration_error"
    }  # fmt: skip
    for who in ("vb", "calibrated"):
        assert set(metrics["scores"][who]) == evaluated
    assert all_finite(metrics["scores"])
    assert all_finite(metrics["seconds"])
    assert metrics["seconds"]["fit_vb"] > 0
    assert metrics["seconds"]["fit_deterministic"] > 0


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (antiderivative, ["functions", "nmse_against_functions"]),
        (diffusion_reaction, ["fields", "bounds"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else module_name(value),
)
def test_a_run_writes_everything(module, names, tmp_path):
    out = tmp_path / "out"
    module.main(["--preset", "paper", "--out", str(out), "--no-progress"])
    metrics = metrics_of(out)
    names = [*OF_ALL, *names]
    written = {path.name for path in (out / "figures").iterdir()}
    assert written == {f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")}
    report = (out / "report.md").read_text()
    assert all_in(report, [f"figures/{name}.png" for name in names])
    assert not list(out.glob("*.checkpoint"))

    posterior = pdo.Posterior.load(out / "posterior.pt")
    assert posterior.calibration.factor == pytest.approx(metrics["calibration_factor"])
    pdo.Posterior.load(out / "deterministic.pt")


def all_finite(numbers):
    if isinstance(numbers, dict):
        return all_true(all_finite(value) for value in numbers.values())
    return math.isfinite(numbers)


def all_true(values):  # `all` is an experiment here
    return False not in set(values)


def all_in(text, parts):
    return all_true(part in text for part in parts)


def test_a_run_that_exists_is_skipped_unless_forced(no_figures, tmp_path, capsys):
    words = ["--preset", "quick", "--out", str(tmp_path / "out"), "--no-progress"]
    antiderivative.main(words)
    first = (tmp_path / "out" / "metrics.json").stat().st_mtime_ns
    table = capsys.readouterr().out.split("Anti-derivative")[-1]
    antiderivative.main(words)
    shown = capsys.readouterr().out
    assert "skipped (--force runs it again)" in shown
    assert table in shown
    assert (tmp_path / "out" / "metrics.json").stat().st_mtime_ns == first
    antiderivative.main([*words, "--force"])
    assert "skipped" not in capsys.readouterr().out
    assert (tmp_path / "out" / "metrics.json").stat().st_mtime_ns > first


def test_another_run_in_the_folder_is_not_taken_for_this_one(no_figures, tmp_path):
    words = ["--out", str(tmp_path / "out"), "--no-progress"]
    antiderivative.main(words)
    with pytest.raises(SystemExit, match=r"preset: quick there, best now.*--force"):
        antiderivative.main([*words, "--preset", "best"])
    with pytest.raises(SystemExit, match="test_functions: 25 there, 7 now"):
        antiderivative.main([*words, "--test-functions", "7"])


def test_an_interrupted_run_goes_on_to_the_same_scores(no_figures, tmp_path, monkeypatch):
    antiderivative.main(["--out", str(tmp_path / "whole"), "--no-progress"])
    fit, out = pdo.fit, tmp_path / "broken"

    def interrupted(*args, **kwargs):
        def stop(state):
            if state.stage == "inference" and state.step == 5:
                raise KeyboardInterrupt

        return fit(*args, **kwargs, callback=stop)

    monkeypatch.setattr(pdo, "fit", interrupted)
    with (
        pytest.warns(UserWarning, match="interrupted"),
        pytest.raises(SystemExit, match="the same command goes on"),
    ):
        antiderivative.main(["--out", str(out), "--no-progress"])
    assert not (out / "metrics.json").exists()
    monkeypatch.setattr(pdo, "fit", fit)
    antiderivative.main(["--out", str(out), "--no-progress"])
    assert metrics_of(out)["scores"] == metrics_of(tmp_path / "whole")["scores"]


def test_the_default_folder_tells_preset_problem_and_seed(no_figures, tmp_path):
    antiderivative.main(["--seed", "3", "--test-functions", "4", "--no-progress"])
    assert (tmp_path / "results" / "quick" / "antiderivative-seed3" / "metrics.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "bst"], "invalid choice: 'bst'"),
        (["--seed", "-1"], "'-1' is no whole number from 0 on"),
        (["--seed", "one"], "'one' is no whole number from 0 on"),
        (["--test-functions", "0"], "'0' is no whole number from 1 on"),
        (["--device", "abacus"], "cannot compute on 'abacus'"),
        (["--what"], "unrecognized arguments: --what"),
    ],
)
def test_wrong_options_are_explained(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        antiderivative.main(words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SystemExit, match=r"cannot write to .*file.*name another folder with --out"):
        antiderivative.main(["--out", str(tmp_path / "file" / "out")])


@pytest.mark.parametrize("name", ["gravity_pendulum", "advection_diffusion-sin2"])
def test_chunked_scores_are_those_of_the_whole(name):
    problem = SMALL[name]
    train = problem.dataset(40, 6)
    arguments = {"steps": 20, "warm_start": 60, "batch_size": 20, "progress": False}
    model = pdo.DeepONet.for_data(train, branch=(8, 8), trunk=(8, 8))
    calibrated = pdo.fit(model, train, num_particles=2, **arguments).calibrate(
        problem.dataset(30, 6, seed=5), num_samples=5
    )
    raw = pdo.Posterior(calibrated.model, calibrated.guide)
    plain = pdo.DeepONet.for_data(
        train, branch=(8, 8), trunk=(8, 8), prior=None, likelihood=pdo.likelihoods.FixedNoise()
    )
    deterministic = pdo.fit(plain, train, **arguments)
    u = problem.draw(23, seed=9)
    found = scoring.score(
        problem, u, calibrated, deterministic, num_samples=5, mixture_functions=23, seed=4,
        progress=False, points=5 * len(problem.grid), locations=[3],
    )  # fmt: skip
    whole = next(scoring.chunks(problem, u, 10**9))
    for posterior, tally in ((raw, found.vb), (calibrated, found.calibrated)):
        expected = pdo.evaluate(posterior.predict(whole.u, whole.y, 5, seed=4), whole.s)
        assert tally.scores() == pytest.approx(expected, rel=1e-4)
    mean = deterministic.predict(whole.u, whole.y).mean
    assert found.deterministic.scores()["nmse"] == pytest.approx(pdo.metrics.nmse(mean, whole.s))
    assert torch.equal(torch.cat(found.truth), whole.s[:, [3]])


def test_the_density_locations_are_those_of_the_paper():
    paper = experiment.Experiment(
        name="", title="", module="", problem=DiffusionReaction(), presets={},
        densities=((8, 45), (47, 100)), paper=(0.0, 0.0),
    )  # fmt: skip
    expected = torch.tensor([[7 / 99, 44 / 99], [46 / 99, 1.0]], dtype=torch.float64)
    assert torch.allclose(paper.problem.grid[paper.locations], expected)


def fabricated(seed, nmse, coverage=0.95, preset="best"):
    scores = {"nmse": nmse, "coverage_95": coverage, "crps": 10 * nmse}
    return {
        "problem": "antiderivative",
        "title": "Anti-derivative",
        "preset": preset,
        "seed": seed,
        "command": f"python -m experiments.antiderivative --preset {preset} --seed {seed}",
        "paper": {"vb": 9e-5, "deterministic": 1.6e-4},
        "scores": {"vb": scores, "calibrated": scores, "deterministic": {"nmse": 2 * nmse}},
        "data": {"test_functions": 1000},
        "seconds": {"fit_vb": 100.0 + seed, "fit_deterministic": 200.0},
    }


def test_the_page_shows_medians_and_ranges(tmp_path):
    folder = tmp_path / "docs" / "results"
    (folder / "best").mkdir(parents=True)
    for seed, nmse, coverage in ((2, 4e-6, 0.96), (0, 1e-6, 0.94), (1, 7e-6, 0.95)):
        file = folder / "best" / f"antiderivative-seed{seed}.json"
        file.write_text(json.dumps(fabricated(seed, nmse, coverage)))
    text = write_page(folder, tmp_path / "docs" / "results.md").read_text()
    assert "4.00e-06 [1.00e-06, 7.00e-06]" in text
    assert "8.00e-06 [2.00e-06, 1.40e-05]" in text
    assert "0.950 [0.940, 0.960]" in text
    assert "101 [100, 102]" in text
    assert "9e-05" in text
    assert "0.00016" in text
    assert "`results/`" in text
    for seed in range(3):
        assert f"python -m experiments.antiderivative --preset best --seed {seed}\n" in text


def test_the_page_puts_the_papers_preset_first(tmp_path):
    for preset in ("best", "paper"):
        (tmp_path / preset).mkdir()
        file = tmp_path / preset / "antiderivative-seed0.json"
        file.write_text(json.dumps(fabricated(0, 1e-6, preset=preset)))
    assert list(read(tmp_path)) == ["paper", "best"]
    text = page(tmp_path, "results")
    assert text.index("Preset `paper`") < text.index("Preset `best`")


def test_the_page_shows_the_figures_that_are_kept(tmp_path):
    (tmp_path / "best").mkdir()
    for seed in (0, 1):
        found = {**fabricated(seed, 1e-6), "figures": {"functions": "Three functions"}}
        (tmp_path / "best" / f"antiderivative-seed{seed}.json").write_text(json.dumps(found))
    (tmp_path / "best" / "antiderivative-seed0-functions.png").touch()
    text = page(tmp_path, "results")
    assert "Three functions](results/best/antiderivative-seed0-functions.png)" in text
    assert "seed1-functions.png" not in text


def test_figures_of_seed_0_are_kept_for_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(all, "EXPERIMENTS", all.EXPERIMENTS[:1])
    all.main(["--preset", "best", "--seeds", "0", "1", "--no-progress"])
    kept = {path.name for path in (tmp_path / "docs" / "results" / "best").glob("*.png")}
    expected = {"functions", "densities"}
    assert kept == {f"antiderivative-seed0-{figure}.png" for figure in expected}


def test_all_runs_what_is_missing_and_writes_the_page(no_figures, tmp_path, capsys):
    words = ["--preset", "best", "--seeds", "1", "--no-progress"]
    kept = tmp_path / "docs" / "results" / "best" / "antiderivative-seed1.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps(fabricated(1, 1e-6)))
    all.main(words)
    shown = capsys.readouterr().out
    assert f"{kept.relative_to(tmp_path)} is there: skipped" in shown
    assert "Look at docs/results.md" in shown
    assert len(list(kept.parent.iterdir())) == 3
    text = (tmp_path / "docs" / "results.md").read_text()
    assert "Anti-derivative" in text
    assert text.count("\n| Advection-diffusion, ") == 4
    (tmp_path / "docs" / "results.md").unlink()
    all.main(["--table-only"])
    assert (tmp_path / "docs" / "results.md").read_text() == text


TINY = Config(
    functions=40, points=5, model={"branch": (8,), "trunk": (8,), "prior": Normal(0.0, 0.1)},
    fit={"warm_start": 20, "steps": 5}, deterministic={}, held_out=0.5, num_samples=5,
)  # fmt: skip


@pytest.fixture
def tiny_ablation(monkeypatch):
    tiny = dataclasses.replace(ablation.EXPERIMENT, presets={"best": TINY})
    monkeypatch.setattr(ablation, "EXPERIMENT", tiny)
    monkeypatch.setattr(ablation, "TEST_FUNCTIONS", 3)


def test_the_ablation_keeps_each_variant_and_skips_what_is_there(tiny_ablation, tmp_path, capsys):
    words = ["--variants", "best", "relu", "--seeds", "1", "--no-progress"]
    words += ["--results", str(tmp_path / "ablation")]
    ablation.main(words)
    found = json.loads((tmp_path / "ablation" / "relu-seed1.json").read_text())
    assert found["config"]["model"]["activation"] == "relu"
    assert found["config"]["fit"] == TINY.fit
    text = (tmp_path / "ablation.md").read_text()
    assert "activation: ReLU" in text
    assert f"{found['scores']['vb']['nmse']:.2e}" in text
    capsys.readouterr()
    ablation.main(words)
    assert capsys.readouterr().out.count("is there: skipped") == 2


def test_each_variant_changes_the_preset_best_in_one_way():
    best = ablation.EXPERIMENT.presets["best"]
    for name, (_, model, fit) in ablation.VARIANTS.items():
        changed = {k for k, v in model.items() if best.model[k] != v}
        changed |= {k for k, v in fit.items() if {**best.fit, **best.vb}[k] != v}
        if name == "narrow":
            assert changed == {"branch", "trunk"}
        else:
            assert len(changed) == (name != "best"), name


def test_the_page_of_the_ablation_is_that_of_the_kept_scores():
    docs = Path(__file__).parents[1] / "docs"
    assert (docs / "ablation.md").read_text() == ablation.page(docs / "ablation")


@pytest.fixture
def tiny_comparison(monkeypatch):
    monkeypatch.setattr(settings, "PROBLEM", SMALL["antiderivative"])
    monkeypatch.setattr(settings, "FUNCTIONS", 20)
    monkeypatch.setattr(settings, "POINTS", 5)
    monkeypatch.setattr(settings, "TEST_FUNCTIONS", 6)
    monkeypatch.setattr(settings, "NETWORK", {"branch": (4,), "trunk": (4,)})
    brief = {"warm_start": 20, "steps": 5}
    monkeypatch.setattr(settings, "ARGUMENTS", {
        "fit": {**brief, "num_particles": 2}, "ensemble": {**brief, "members": 2},
        "mcmc": {"warm_start": 20},
    })  # fmt: skip
    short = {"warmup": 2, "samples": 4, "max_tree_depth": 2}
    nuts = dataclasses.replace(
        settings.SETTINGS["nuts"], arguments={"kernel": "nuts", "chains": 1, **short}
    )
    monkeypatch.setitem(settings.SETTINGS, "nuts", nuts)


@pytest.mark.filterwarnings("ignore:the chains disagree")
def test_the_comparison_keeps_each_setting_and_skips_what_is_there(
    tiny_comparison, tmp_path, capsys
):
    names = ["deterministic", "deterministic-stopped", "lowrank", "plain-trunk", "ensemble", "nuts"]
    words = ["--settings", *names, "--seeds", "1", "--no-progress"]
    words += ["--results", str(tmp_path / "compare")]
    compare.main(words)
    text = (tmp_path / "compare.md").read_text()
    assert (tmp_path / "compare.png").stat().st_size > 10_000
    for name in names:
        found = json.loads((tmp_path / "compare" / f"{name}-seed1.json").read_text())
        assert found["config"] == settings.SETTINGS[name].to_json()
        assert set(found["scores"]) == set(comparison.SCORES)
        assert all_finite(found["scores"])
        assert f"| {settings.SETTINGS[name].label} | {found['scores']['nmse']:.2e} |" in text
    capsys.readouterr()
    compare.main(words)
    assert capsys.readouterr().out.count("is there: skipped") == len(names)
    (tmp_path / "compare.md").unlink()
    compare.main(["--table-only", "--results", str(tmp_path / "compare")])
    assert (tmp_path / "compare.md").read_text() == text


@pytest.mark.filterwarnings("ignore:the chains disagree")
@pytest.mark.parametrize(
    ("name", "each"),
    [("deterministic", 1), ("map", 1), ("normal", 2), ("ensemble", 2), ("nuts", 4)],
)
def test_parameters_are_the_numbers_that_a_result_consists_of(tiny_comparison, name, each):
    found = compare.run(name, 0, progress=False)
    assert found["parameters"] == each * found["weights"]


def test_the_comparison_is_scored_with_the_noise_of_the_training_data(tiny_comparison, monkeypatch):
    monkeypatch.setattr(settings, "TEST_FUNCTIONS", 1000)
    clean = settings.PROBLEM.dataset(settings.FUNCTIONS, settings.POINTS, seed=3)
    sigma = settings.NOISE * clean.s.std(correction=0)

    class Truth:
        def predict(self, u, y, **_):
            s = settings.PROBLEM.dataset(len(u), seed=experiment.TEST_SEED).s
            return FakePrediction(s[None], sigma.expand(1, *s.shape))

    found = compare.score(Truth(), seed=3)
    assert found["nmse"] == 0
    assert found["coverage_95"] == pytest.approx(0.95, abs=0.01)
    assert found["crps"] == pytest.approx(sigma.item() / math.sqrt(math.pi), rel=0.03)


@pytest.mark.parametrize("name", ["normal", "ensemble"])
def test_an_interrupted_setting_is_not_kept(tiny_comparison, name, tmp_path, monkeypatch):
    def stop(state):
        if state.stage == "inference":
            raise KeyboardInterrupt

    stopped = dataclasses.replace(settings.SETTINGS[name], arguments={"callback": stop})
    monkeypatch.setitem(settings.SETTINGS, name, stopped)
    with pytest.raises(SystemExit, match="interrupted; the same command goes on"):
        compare.main(["--settings", "map", name, "--seeds", "0", "--no-progress"])
    kept = (tmp_path / "docs" / "compare").iterdir()
    assert [path.name for path in kept] == ["map-seed0.json"]


def test_a_setting_that_diverges_is_named(tiny_comparison, monkeypatch):
    wild = dataclasses.replace(settings.SETTINGS["normal"], arguments={"lr": 1e30})
    monkeypatch.setitem(settings.SETTINGS, "normal", wild)
    with pytest.raises(SystemExit, match=r"fit of normal with seed 0 diverged: .*lower lr"):
        compare.main(["--settings", "normal", "--seeds", "0", "--no-progress"])


def of_setting(nmse, coverage, r_hat=None):
    diagnostics = {} if r_hat is None else {"r_hat_max": r_hat}
    return [
        {"scores": {"nmse": nmse * k, "coverage_95": coverage}, "diagnostics": diagnostics}
        for k in (1, 0.1, 10)
    ]


def test_the_comparison_is_read_by_the_best_deterministic_net():
    found = {
        "deterministic": of_setting(1e-3, 0.94),
        "deterministic-short": of_setting(2e-3, 0.90),
        "map": of_setting(0.81e-3, 0.95),
        "normal": of_setting(0.1e-3, 0.99),
        "tempered": of_setting(0.79e-3, 0.921),
        "nuts": of_setting(0.4e-3, 0.979, r_hat=1.5),
        "hmc": of_setting(0.9e-3, 0.95, r_hat=1.05),
    }
    paragraphs = comparison.reading(found)
    text = "\n".join(paragraphs)
    assert "2000 + 2000 steps: 1.00e-03" in text
    assert "Of the 5 other settings 2 meet it." in text
    listed = [line for line in text.splitlines() if line.startswith("- ")]
    assert all_in(listed[0], ["NUTS", "NMSE 60 % lower, coverage 0.979"])
    assert all_in(listed[1], ["KL weight", "NMSE 21 % lower, coverage 0.921"])
    assert len(listed) == 2
    assert "more than 0.98: 1 variational." in text
    assert "less than 0.92: 1 deterministic." in text
    assert "NMSE from 1.00e-04 to 7.90e-04, and coverage from 0.990 to 0.921." in text
    assert paragraphs[-1].count("MCMC") == 1
    del found["deterministic"], found["deterministic-short"]
    assert comparison.reading(found) == []


def test_the_page_of_the_comparison_is_that_of_the_kept_scores():
    docs = Path(__file__).parents[1] / "docs"
    assert (docs / "compare.md").read_text() == comparison.page(docs / "compare")
    for run in read_variants(docs / "compare"):
        assert run["config"] == settings.SETTINGS[run["variant"]].to_json()
