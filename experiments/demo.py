"""Draw inputs and solutions of the four operators: `python -m experiments.demo`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from pyro_deeponet.problems import (
    AdvectionDiffusion,
    Antiderivative,
    DiffusionReaction,
    GravityPendulum,
    Problem,
    SpaceTimeProblem,
)

__all__ = ["figure", "main"]

TITLES: dict[str, Problem] = {
    "anti-derivative": Antiderivative(),
    "gravity pendulum": GravityPendulum(),
    "diffusion-reaction": DiffusionReaction(),
    "advection-diffusion": AdvectionDiffusion(),
}


def figure(title: str, problem: Problem, seed: int) -> mpl.figure.Figure:
    """Input functions and the solutions they lead to, side by side."""
    data = problem.dataset(5 if problem.grid.shape[1] == 1 else 3, seed=seed)
    fig, (left, *right) = plt.subplots(
        1, 1 + (1 if data.y.shape[1] == 1 else len(data)), figsize=(11, 3), layout="constrained"
    )
    fig.suptitle(title)
    left.plot(problem.sensors, data.u.T)
    left.set(xlabel="t" if data.y.shape[1] == 1 else "x", ylabel="input u")
    if not isinstance(problem, SpaceTimeProblem):
        right[0].plot(data.y[:, 0], data.s.T)
        right[0].set(xlabel="t", ylabel="solution s")
        return fig
    fields = data.s.reshape(len(data), *problem.grid_shape)
    for i, (ax, field) in enumerate(zip(right, fields, strict=True)):
        image = ax.imshow(field.T, origin="lower", extent=(0, 1, 0, 1), aspect="auto")
        ax.set(xlabel="x", ylabel="t", title=f"s(x, t) of input {i + 1}")
        fig.colorbar(image, ax=ax)
    for i, line in enumerate(left.get_lines()):
        line.set_label(f"input {i + 1}")
    left.legend()
    return fig


def main(arguments: list[str] | None = None) -> None:
    """Write a figure an operator and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m experiments.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/demo"), help="folder for figures")
    parser.add_argument("--seed", type=int, default=0, help="chooses the random inputs")
    options = parser.parse_args(arguments)
    mpl.use("Agg")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        for title, problem in TITLES.items():
            began = time.perf_counter()
            path = options.out / f"{title.replace(' ', '-')}.png"
            fig = figure(title, problem, options.seed)
            fig.savefig(path, dpi=150)
            plt.close(fig)
            print(f"{title:<20} {path}  ({time.perf_counter() - began:.1f} s)")
    except OSError as error:
        sys.exit(f"cannot write to {options.out}: {error.strerror}; name another folder with --out")
    print(f"Look at the figures in {options.out}/")


if __name__ == "__main__":
    main()
