"""Running an experiment: data, both fits, scores, figures, report."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyro
import torch
from torch import Tensor

import pyro_deeponet as pdo
from experiments import figures, report
from experiments.config import Config, Experiment
from experiments.scoring import Scores, score
from pyro_deeponet import OperatorData, Posterior
from pyro_deeponet.storage import write_text

__all__ = ["command_line", "run"]

#: Seeds far from those of training data, which are small. All runs of a problem share a test set.
TEST_SEED, CALIBRATION_SEED = 1_000_000, 2_000_000
#: Test functions behind each point of the curve of NMSE against training functions.
SIZES_TEST_FUNCTIONS = 1_000


def command_line(module: str, description: str, presets: Iterable[str]) -> argparse.ArgumentParser:
    """The options that all experiments have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--preset", choices=list(presets), default="quick",
        help="paper: the paper's network, prior and data; best: the same data, our choices; "
        "quick: a small run of a minute or two (default)")  # fmt: skip
    add("--seed", type=_count(0), default=0, help="chooses training data, start and batches")
    add("--out", type=Path, metavar="FOLDER",
        help="for all results (default: results/<preset>/<problem>-seed<seed>)")  # fmt: skip
    add("--test-functions", type=_count(1), metavar="N",
        help="new functions to score (default: as the preset says)")  # fmt: skip
    add("--device", type=_device, default="cpu", help="where to compute, such as cpu or cuda")
    add("--force", action="store_true", help="run again, even if the result exists")
    add("--no-progress", dest="progress", action="store_false", help="no progress bars")
    return parser


def run(experiment: Experiment, options: argparse.Namespace) -> dict[str, Any]:
    """Run an experiment, or read its result where there is one already.

    A run that was interrupted goes on from where it was, to the same result.

    Args:
        experiment: What to run.
        options: As parsed by `command_line`.

    Returns:
        The content of `metrics.json`.
    """
    mpl.use("Agg")
    config = experiment.presets[options.preset]
    if options.test_functions is not None:
        config = dataclasses.replace(config, test_functions=options.test_functions)
    name = f"{experiment.name}-seed{options.seed}"
    out: Path = options.out or Path("results", options.preset, name)
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        (out / ".writable").touch()
        (out / ".writable").unlink()
    except OSError as error:
        sys.exit(f"cannot write to {out}: {error.strerror}; name another folder with --out")
    file = out / "metrics.json"
    told = {"problem": experiment.name, "preset": options.preset, "seed": options.seed}
    if options.force:
        for old in (file, *out.glob("*.checkpoint")):
            old.unlink(missing_ok=True)
    if file.exists():
        metrics = json.loads(file.read_text())
        _check_same(out, metrics, told | {"config": config.to_json()})
        print(f"{out} holds this run already: skipped (--force runs it again)\n")
    else:
        try:
            metrics = told | _Run(experiment, config, options, out)()
            write_text(file, json.dumps(metrics, indent=1))
        except KeyboardInterrupt:
            sys.exit(f"\ninterrupted; the same command goes on from what is in {out}")
        except OSError as error:  # a full disk, above all
            sys.exit(
                f"cannot write to {out}: {error.strerror or error}; make room and start the same "
                "command again, which goes on from what is there, or name another folder with --out"
            )
        for checkpoint in out.glob("*.checkpoint"):
            checkpoint.unlink()
    report.write(metrics, out)
    print(f"{report.table(metrics)}\n\nLook at {out / 'report.md'} and the figures beside it")
    return metrics


@dataclass
class _Run:
    """One run, with what it needs everywhere."""

    experiment: Experiment
    config: Config
    options: argparse.Namespace
    out: Path

    def __call__(self) -> dict[str, Any]:
        began = time.perf_counter()
        config, problem, seed = self.config, self.experiment.problem, self.options.seed
        print(f"{self.experiment.title}, preset {self.options.preset}, seed {seed}")
        train = problem.dataset(config.functions, config.points, seed=seed)
        if config.held_out:
            train, held_out = train.split(1 - config.held_out, seed=seed)
        else:
            held_out = problem.dataset(
                config.calibration_functions, config.points, seed=CALIBRATION_SEED + seed
            )
        test = problem.draw(config.test_functions, TEST_SEED)
        vb = self._fit("VB-DeepONet", "vb", train, config.model, {**config.fit, **config.vb})
        plain = {**config.model, "prior": None, "likelihood": pdo.likelihoods.FixedNoise()}
        deterministic = self._fit(
            "deterministic DeepONet", "deterministic", train, plain,
            {**config.fit, **config.deterministic},
        )  # fmt: skip
        calibrated = vb.calibrate(held_out, num_samples=config.num_samples)
        calibrated.save(self.out / "posterior.pt")
        deterministic.save(self.out / "deterministic.pt")
        errors = self._sizes(train, test)
        scores = self._score(test, calibrated, deterministic, config.mixture_functions)
        print("drawing the figures")
        shown = figures.Results(
            self.experiment, config, train, test, vb, calibrated, deterministic,
            torch.cat(scores.truth), (scores.vb.curve(), scores.calibrated.curve()), errors,
        )  # fmt: skip
        captions = figures.draw(shown, self.out / "figures")
        assert calibrated.calibration is not None
        return {
            "title": self.experiment.title,
            "paper": dict(zip(("vb", "deterministic"), self.experiment.paper, strict=True)),
            "scores": {
                "vb": scores.vb.scores(),
                "calibrated": scores.calibrated.scores(),
                "deterministic": scores.deterministic.scores(),
            },
            "calibration_factor": calibrated.calibration.factor,
            "data": {
                "fitted_functions": len(train),
                "calibration_functions": len(held_out),
                "calibration_source": "held-out training functions"
                if config.held_out
                else "functions drawn beside the training data",
                "test_functions": len(test),
                "test_points": len(problem.grid),
                "nll_and_crps_functions": min(config.mixture_functions, len(test)),
            },
            "seconds": {
                "fit_vb": vb.history.seconds,
                "fit_deterministic": deterministic.history.seconds,
                "predict_vb": scores.seconds["vb"],
                "predict_deterministic": scores.seconds["deterministic"],
                "run": time.perf_counter() - began,
            },
            "calibration_curve": {
                "levels": list(pdo.metrics.LEVELS),
                "vb": scores.vb.curve(),
                "calibrated": scores.calibrated.curve(),
            },
            "nmse_against_functions": {"functions": list(errors), "nmse": list(errors.values())},
            "figures": captions,
            "command": self._command(),
            "config": config.to_json(),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "pyro": pyro.__version__,
                "numpy": np.__version__,
                "pyro_deeponet": pdo.__version__,
            },
            "threads": torch.get_num_threads(),
        }

    def _fit(
        self,
        what: str,
        file: str,
        train: OperatorData,
        model: Mapping[str, Any],
        arguments: Mapping[str, Any],
    ) -> Posterior:
        """Fit a model, or go on with an interrupted fit."""
        steps = arguments["warm_start"] + arguments["steps"]
        print(f"fitting the {what} to {len(train)} functions, {steps} steps")
        net = pdo.DeepONet.for_data(train, **model).to(self.options.device)
        checkpoint = self.out / f"{file}.checkpoint"
        try:
            posterior = pdo.fit(
                net, train, **arguments, seed=self.options.seed,
                progress=self.options.progress, checkpoint=checkpoint,
            )  # fmt: skip
        except pdo.Diverged as error:
            sys.exit(f"the fit of the {what} diverged: {error}")
        except ValueError as error:
            if not checkpoint.exists():
                raise
            sys.exit(f"{error} (--force removes it)")
        history = posterior.history
        if len(history.warm_start) + len(history.loss) < steps:  # Ctrl-C ends a fit early
            raise KeyboardInterrupt
        print(f"  {history.seconds:.0f} s")
        return posterior

    def _sizes(self, train: OperatorData, test: Tensor) -> dict[int, float]:
        """NMSE of the VB-DeepONet by the number of training functions."""
        found = {}
        for size in self.config.sizes:
            # With a share held out there may be fewer functions than the largest size asks for.
            part = train.subset(slice(0, size))
            arguments = {**self.config.fit, **self.config.vb, **self.config.sizes_fit}
            vb = self._fit("VB-DeepONet", f"functions-{size}", part, self.config.model, arguments)
            tally = self._score(test[:SIZES_TEST_FUNCTIONS], vb).vb
            found[len(part)] = tally.scores()["nmse"]
        return found

    def _score(
        self,
        test: Tensor,
        posterior: Posterior,
        deterministic: Posterior | None = None,
        mixture_functions: int = 0,
    ) -> Scores:
        return score(
            self.experiment.problem, test, posterior, deterministic,
            num_samples=self.config.num_samples, mixture_functions=mixture_functions,
            lags=self.config.lags, locations=self.experiment.locations,
            progress=self.options.progress,
        )  # fmt: skip

    def _command(self) -> str:
        options = self.options
        command = f"python -m {self.experiment.module} --preset {options.preset}"
        command += f" --seed {options.seed}"
        if options.test_functions is not None:
            command += f" --test-functions {options.test_functions}"
        return command


def _check_same(out: Path, found: dict[str, Any], told: dict[str, Any]) -> None:
    """Refuse to take another run's result for this one's."""
    other: dict[str, Any] = {
        key: (found.get(key), value) for key, value in told.items() if found.get(key) != value
    }
    if not other:
        return
    if "config" in other:
        there, now = other.pop("config")
        other |= {k: (there.get(k), now[k]) for k in now if there.get(k) != now[k]}
    listing = "; ".join(f"{key}: {there} there, {now} now" for key, (there, now) in other.items())
    sys.exit(f"{out} holds another run ({listing}); name another --out, or --force to replace it")


def _count(least: int) -> Any:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return int(text)

    return number


def _device(text: str) -> str:
    try:
        torch.zeros(1, device=text)
    except (RuntimeError, AssertionError) as error:  # the latter from a torch without CUDA
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"cannot compute on {text!r}: {reason}") from None
    return text
