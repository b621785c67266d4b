"""Time of one step of variational inference: `python -m experiments.benchmarks.step`.

Three ways to take the same step (25 particles, mean-field Gaussian guide, prior N(0, 1), Adam) on
the same batch: the plain Pyro recipe on repeated rows, one particle after another; ours, with the
default guide; and one written by hand in torch for this network and guide alone. They take turns,
and each time is the median over the turns, so that a busy machine slows all alike and the ratios
stand. Then how the time grows with particles, functions and points, and the memory that a data set
of a million rows needs. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.optim import PyroOptim
from torch import Tensor
from torch.nn.functional import embedding, softplus

from experiments.benchmarks.record import Record, Table, alone, command_line, peak_memory
from pyro_deeponet import DeepONet, DeepONetELBO, OperatorData, fit
from pyro_deeponet.guides import make_guide, start_guide
from pyro_deeponet.problems import Antiderivative, DiffusionReaction
from pyro_deeponet.training import isolated

__all__ = ["by_hand", "main", "ours", "plain_recipe"]

PARTICLES = 25
MAX_MEMORY = 2048.0  # MiB
Step = Callable[[], object]
#: Name, data set, widths, turns, bars: times faster than the recipe, times slower than by hand.
CASES = (
    ("anti-derivative, batch 100", Antiderivative, 100, 20, (30,) * 3, 20.0, 2.0),
    ("anti-derivative, batch 3000", Antiderivative, 3000, 20, (30,) * 3, 13.0, 1.4),
    ("diffusion-reaction, batch 25", DiffusionReaction, 25, 100, (25,) * 4, None, None),
    ("diffusion-reaction, batch 500", DiffusionReaction, 500, 100, (25,) * 4, None, None),
)


def plain_recipe(model: DeepONet, data: OperatorData) -> Step:
    """Stock SVI on a model of rows, as one writes it down from the paper."""
    u, y, s = data.to_rows()

    def net(name: str, x: Tensor, depth: int) -> Tensor:
        for i in range(depth):
            w, b = (_weight(model, f"{name}.{i}.{kind}") for kind in ("weight", "bias"))
            x = x @ w.T + b
            x = torch.relu(x) if i < depth - 1 else x
        return x

    def rows(u: Tensor, y: Tensor, s: Tensor) -> None:
        b = net("branch", model.scaling.u(u), len(model.branch_sizes))
        t = net("trunk", model.scaling.y(y), len(model.trunk_sizes))
        joint = (b * t).sum(1, keepdim=True)
        out = joint @ _weight(model, "head.weight").T + _weight(model, "head.bias")
        with pyro.plate("rows", len(s)):
            pyro.sample("s", dist.Normal(out[:, 0], softplus(out[:, 1]) + 1e-6), obs=s)

    guide = AutoNormal(rows, init_loc_fn=init_to_value(values=model.start()), init_scale=1e-3)
    svi = SVI(
        rows, guide, PyroOptim(torch.optim.Adam, {"lr": 1e-4}), Trace_ELBO(num_particles=PARTICLES)
    )
    return partial(svi.step, u, y, model.scaling.s(s))


def _weight(model: DeepONet, name: str) -> Tensor:
    shape = model.shapes[name]
    weight: Tensor = pyro.sample(name, dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))
    return weight


def ours(model: DeepONet, data: OperatorData, particles: int = PARTICLES) -> Step:
    """What `fit` does in a step with its default guide."""
    guide = make_guide("normal", model)
    start_guide(guide, model.start())
    elbo = DeepONetELBO(particles)
    optimizer = torch.optim.Adam(guide.parameters(), lr=1e-4, fused=True)

    def step() -> float:
        optimizer.zero_grad()
        loss = elbo.loss_and_grads(model, guide, data.u, data.y, data.s, data.index)
        optimizer.step()
        return loss

    return step


def by_hand(model: DeepONet, data: OperatorData) -> Step:
    """The same step for this network and guide alone: one flat vector, no modules, no Pyro."""
    shapes = list(model.shapes.values())
    sizes = [shape.numel() for shape in shapes]
    start = torch.cat([w.flatten() for w in model.start().values()])
    loc = start.clone().requires_grad_()
    rho = torch.full_like(loc, math.log(math.expm1(1e-3))).requires_grad_()
    optimizer = torch.optim.Adam([loc, rho], lr=1e-4, fused=True)
    u, s = model.scaling.u(data.u), model.scaling.s(data.s)
    index = torch.arange(len(data.y)).expand(len(u), -1) if data.index is None else data.index
    used, index = torch.unique(index, return_inverse=True)
    y = model.scaling.y(data.y)[used]
    branch, count = len(model.branch_sizes), PARTICLES
    grid_first = len(y) <= index.shape[1] * model.branch_sizes[-1]

    def net(x: Tensor, weights: list[Tensor]) -> Tensor:
        x = x.expand(count, *x.shape)
        for i in range(0, len(weights), 2):
            x = torch.baddbmm(weights[i + 1].unsqueeze(1), x, weights[i].transpose(1, 2))
            x = torch.relu(x) if i < len(weights) - 2 else x
        return x

    def step() -> float:
        optimizer.zero_grad()
        scale, noise = softplus(rho), torch.randn(count, len(loc))
        theta = loc + scale * noise
        weights = [
            part.view(count, *shape)
            for part, shape in zip(theta.split(sizes, 1), shapes, strict=True)
        ]
        b, t = net(u, weights[: 2 * branch]), net(y, weights[2 * branch : -2])
        if grid_first:
            f = torch.bmm(b, t.transpose(1, 2)).gather(2, index.expand(count, -1, -1))
        else:
            picked = embedding(index, t.transpose(0, 1).flatten(1)).unflatten(-1, (count, -1))
            f = (picked * b.transpose(0, 1).unsqueeze(1)).sum(-1).permute(2, 0, 1)
        w, c = weights[-2], weights[-1]
        mu = w[:, 0, 0, None, None] * f + c[:, 0, None, None]
        sigma = softplus(w[:, 1, 0, None, None] * f + c[:, 1, None, None]) + 1e-6
        likelihood = -(0.5 * ((s - mu) / sigma) ** 2 + sigma.log()).sum() / count
        log_q = -0.5 * (noise**2).sum() / count - scale.log().sum()
        loss = log_q + 0.5 * (theta**2).sum() / count - likelihood
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def medians(steps: dict[str, Step], turns: dict[str, int]) -> dict[str, float]:
    """Median milliseconds of each, taken in turns after one step to warm up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for turn in range(max(turns.values())):
        for name, step in steps.items():
            if turn < turns[name]:
                began = time.perf_counter()
                step()
                times[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def exponent(sizes: list[int], times: list[float]) -> float:
    """Slope of the line through the times on doubly logarithmic paper."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def growth(table: Table) -> list[float]:
    """How the time of a step grows with particles, functions and points: fitted exponents."""
    full = Antiderivative(n_times=800).dataset(4000, seed=0)
    model = DeepONet.for_data(full)

    def part(functions: int, points: int) -> OperatorData:
        return OperatorData(full.u[:functions], full.y[:points], full.s[:functions, :points])

    families = {
        "particles": [(n, partial(ours, model, part(500, 100), n)) for n in (25, 50, 100, 200)],
        "functions": [(n, partial(ours, model, part(n, 100))) for n in (500, 1000, 2000, 4000)],
        "points": [(n, partial(ours, model, part(500, n))) for n in (100, 200, 400, 800)],
    }
    found = []
    for what, family in families.items():
        steps = {str(size): make() for size, make in family}
        times = medians(steps, dict.fromkeys(steps, 5))
        found.append(exponent([size for size, _ in family], list(times.values())))
        listing = ", ".join(f"{size}: {ms:.0f}" for size, ms in times.items())
        table.row(f"{what} ({listing} ms)", found[-1])
    return found


def million_rows() -> tuple[float, float]:
    """Peak memory in MiB, and seconds, of 200 + 200 steps on 50 000 functions x 20 points."""
    data = Antiderivative().dataset(50_000, 20, seed=0)
    began = time.perf_counter()
    fit(DeepONet.for_data(data), data, steps=200, warm_start=200, progress=False)
    return peak_memory(), time.perf_counter() - began


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; return 1 when a bar is missed."""
    record = Record("step", command_line("step", __doc__).parse_args(arguments))
    columns = {
        "": "", "plain recipe": ".0f", "ours": ".1f", "by hand": ".1f", "recipe / ours": ".1f",
        "ours / by hand": ".2f",
    }  # fmt: skip
    table = record.table(f"Milliseconds a step, {PARTICLES} particles, float32", columns)
    for name, problem, batch, points, widths, faster, slower in CASES:
        data = problem().dataset(batch, points, seed=0)
        model = DeepONet.for_data(data, branch=widths, trunk=widths)
        with isolated(torch.device("cpu"), seed=0):
            steps = {
                "recipe": plain_recipe(model, data),
                "ours": ours(model, data),
                "hand": by_hand(model, data),
            }
            few = 15 if batch >= 500 else 60
            turns = {"recipe": 3 if batch >= 500 else 8, "ours": few, "hand": few}
            ms = medians(steps, turns)
        gain, overhead = ms["recipe"] / ms["ours"], ms["ours"] / ms["hand"]
        table.row(name, *ms.values(), gain, overhead)
        if faster is not None and slower is not None:
            record.bar(f"at least {faster:.0f}x faster than the recipe", gain >= faster)
            record.bar(f"at most {slower:.1f}x the time of the one by hand", overhead <= slower)
    table = record.table(
        "Growth of the time of a step", {"with the number of": "", "power": ".2f"}, 60
    )
    found = growth(table)
    record.bar("powers between 0.8 and 1.1", all(0.8 <= power <= 1.1 for power in found))
    columns = {"": "", "seconds": ".1f", "peak MiB": ".0f"}
    table = record.table("A million rows in minibatches of 100 functions", columns)
    memory, seconds = alone(million_rows)
    table.row("200 + 200 steps", seconds, memory)
    record.bar(f"peak memory {memory:.0f} MiB, at most {MAX_MEMORY:.0f}", memory <= MAX_MEMORY)
    return record.finish()


if __name__ == "__main__":
    raise SystemExit(main())
