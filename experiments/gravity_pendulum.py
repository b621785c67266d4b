"""A gravity pendulum under a force, s1' = s2 and s2' = -sin s1 + u, from rest; learns u to s1.

Fits the VB-DeepONet and a deterministic DeepONet, scores both on new functions, and writes
metrics.json, report.md, the fitted networks and the figures of the paper to --out. An interrupted
run goes on when it is started again.
"""

from __future__ import annotations

from experiments.config import Config, Experiment
from experiments.experiment import command_line, run
from pyro_deeponet.priors import Normal
from pyro_deeponet.problems import GravityPendulum

__all__ = ["EXPERIMENT", "main"]

PRESETS = {
    "paper": Config(
        functions=3500,
        points=20,
        model={
            "branch": (25, 25, 25, 25),
            "trunk": (25, 25, 25, 25),
            "activation": "relu",
            "final_activation": True,
            "head": "dot",
            "prior": Normal(0.0, 1.0),
            "scaling": "minmax",
        },
        fit={"warm_start": 40_000, "steps": 4_000, "batch_size": 100, "lr": 3e-3},
        deterministic={"steps": 80_000},
    ),
    "best": Config(
        functions=3500,
        points=20,
        model={
            "branch": (50, 50, 50),
            "trunk": (50, 50, 50),
            "activation": "gelu",
            "final_activation": False,
            "head": "features",
            "branch_skip": True,
            "prior": Normal(0.0, 1.0),
            "scaling": "standard",
        },
        fit={
            "warm_start": 10_000,
            "steps": 300,
            "batch_size": 100,
            "lr": 3e-3,
            "optimizer": "soap",
        },
        vb={"map_start": True, "solve": 1},
        deterministic={"steps": 13_000},
        held_out=0.1,
    ),
    "quick": Config(
        functions=1000,
        points=20,
        model={
            "branch": (50, 50),
            "trunk": (50, 50),
            "activation": "gelu",
            "final_activation": False,
            "head": "features",
            "prior": Normal(0.0, 0.1),
            "scaling": "standard",
        },
        fit={"warm_start": 8_000, "steps": 800, "batch_size": 100, "lr": 3e-3},
        deterministic={"steps": 6_000},
        held_out=0.1,
        test_functions=500,
        mixture_functions=200,
    ),
}

EXPERIMENT = Experiment(
    name="gravity_pendulum",
    title="Gravity pendulum",
    module="experiments.gravity_pendulum",
    problem=GravityPendulum(),
    presets=PRESETS,
    densities=((30,), (50,)),
    paper=(2.5e-4, 3.3e-4),
)


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment."""
    parser = command_line(EXPERIMENT.module, __doc__, PRESETS)
    run(EXPERIMENT, parser.parse_args(arguments))


if __name__ == "__main__":
    main()
