"""Diffusion and reaction, s_t = 0.01 s_xx + 0.01 s^2 + u(x), from zero; learns u(x) to s(x, t).

Fits the VB-DeepONet and a deterministic DeepONet, scores both on new functions, and writes
metrics.json, report.md, the fitted networks and the figures of the paper to --out. An interrupted
run goes on when it is started again.
"""

from __future__ import annotations

from experiments.config import Config, Experiment
from experiments.experiment import command_line, run
from pyro_deeponet.networks import Decays, Fourier
from pyro_deeponet.priors import Normal
from pyro_deeponet.problems import DiffusionReaction

__all__ = ["EXPERIMENT", "main"]

PRESETS = {
    "paper": Config(
        functions=500,
        points=100,
        model={
            "branch": (25, 25, 25, 25),
            "trunk": (25, 25, 25, 25),
            "activation": "relu",
            "final_activation": True,
            "head": "dot",
            "prior": Normal(0.0, 1.0),
            "scaling": None,
        },
        fit={"warm_start": 20_000, "steps": 2_000, "batch_size": 25, "lr": 3e-3},
        deterministic={"steps": 60_000},
        mixture_functions=100,
        lags=5,
    ),
    "best": Config(
        functions=500,
        points=100,
        model={
            "branch": (64, 64, 64),
            "trunk": (64, 64, 64),
            "activation": "gelu",
            "final_activation": False,
            "head": "features",
            "branch_skip": True,
            # Detail within the walls, not periodic; and what starts fast and goes on slowly.
            "trunk_features": Decays(((), (0.01, 0.03, 0.1, 0.3)), Fourier((2.0, None), 4)),
            "prior": Normal(0.0, 1.0),
            "scaling": "standard",
        },
        fit={
            "warm_start": 26_000,
            "steps": 60,
            "batch_size": 25,
            "lr": 3e-3,
            "final_lr": 1e-4,
            "optimizer": "soap",
        },
        vb={"map_start": True, "solve": 1},
        deterministic={"steps": 4_700},
        mixture_functions=100,
        lags=5,
        held_out=0.2,  # with fewer functions calibration errs on the wide side
    ),
    "quick": Config(
        functions=300,
        points=100,
        model={
            "branch": (50, 50),
            "trunk": (50, 50),
            "activation": "gelu",
            "final_activation": False,
            "head": "features",
            "prior": Normal(0.0, 0.1),
            "scaling": "standard",
        },
        fit={"warm_start": 4_000, "steps": 400, "batch_size": 25, "lr": 3e-3},
        deterministic={"steps": 3_000},
        held_out=0.2,
        test_functions=50,
        mixture_functions=20,
        lags=5,
    ),
}

EXPERIMENT = Experiment(
    name="diffusion_reaction",
    title="Diffusion-reaction",
    module="experiments.diffusion_reaction",
    problem=DiffusionReaction(),
    presets=PRESETS,
    densities=((8, 45), (47, 100)),
    paper=(6.10e-3, 4.58e-3),
)


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment."""
    parser = command_line(EXPERIMENT.module, __doc__, PRESETS)
    run(EXPERIMENT, parser.parse_args(arguments))


if __name__ == "__main__":
    main()
