"""Time and memory of predictions: `python -m experiments.benchmarks.predict`.

The networks are not trained: their weights scatter about those from which training starts, by
0.05, which is wide, and their noise level varies with them from point to point and from sample to
sample, about 0.01 network units: made up, for a net that fits clean data well. The level makes a
difference to the time, since a small one is cheaper to compute: the second case is also run with a
level of 1.

1. Mean and standard deviation of the anti-derivative net, against stock `Predictive` on the rows of
   the paper, every input function repeated for each of its points. Stock is measured on a fraction
   of the functions and scaled.
2. The diffusion-reaction net on its whole grid, and the bare products of branch and trunk features
   that it cannot do without, in square tiles of as many numbers.
3. Intervals of the mixture itself.

Each runs in a fresh process, so that its peak memory is its own (and holds that of the interpreter
with torch loaded). The two sides of a ratio take turns, so that a busy machine slows both alike.
Exits with 1 when a bar is missed. All cores are used; set `OMP_NUM_THREADS` to use fewer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import Tensor
from torch.nn.functional import softplus

from experiments.benchmarks.record import Record, alone, command_line, peak_memory
from pyro_deeponet import DeepONet, Posterior
from pyro_deeponet.evaluation import BLOCK

__all__ = ["against_matmuls", "against_stock", "intervals", "main"]

SAMPLES = 100
MIN_SPEEDUP = 50.0
MAX_MATMULS = 4.0
MAX_MEMORY = 2048.0  # MiB
MAX_SECONDS = 5.0


def random_posterior(model: DeepONet, noise: float = 0.01) -> Posterior:
    """A posterior that scatters about the weights from which training would start."""
    torch.manual_seed(0)
    start = model.start()
    start["head.bias"][1] = math.log(math.expm1(noise))
    return Posterior(
        model, weights={k: w + 0.05 * torch.randn(SAMPLES, *w.shape) for k, w in start.items()}
    )


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rows_model(model: DeepONet) -> Callable[[Tensor, Tensor], Tensor]:
    """The network as one writes it down from the paper, a row an observation."""

    def weight(name: str) -> Tensor:
        shape = model.shapes[name]
        drawn: Tensor = pyro.sample(name, dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))
        return drawn

    def net(name: str, x: Tensor, depth: int) -> Tensor:
        for i in range(depth):
            x = x @ weight(f"{name}.{i}.weight").T + weight(f"{name}.{i}.bias")
            x = torch.relu(x) if i < depth - 1 else x
        return x

    def rows(u: Tensor, y: Tensor) -> Tensor:
        b = net("branch", u, len(model.branch_sizes))
        t = net("trunk", y, len(model.trunk_sizes))
        product = (b * t).sum(1, keepdim=True)
        out = product @ weight("head.weight").T + weight("head.bias")
        with pyro.plate("rows", len(u)):
            drawn: Tensor = pyro.sample("s", dist.Normal(out[:, 0], softplus(out[:, 1]) + 1e-6))
            return drawn

    return rows


def against_stock(functions: int, fraction: int, turns: int) -> tuple[float, float]:
    """Seconds of ours for all functions, and of stock `Predictive` scaled to all functions."""
    model = DeepONet(sensors=100, coordinates=1, branch=(30,) * 3, trunk=(30,) * 3)
    posterior = random_posterior(model)
    u, y = torch.randn(functions, 100), torch.linspace(0, 1, 100)[:, None]
    part = functions // fraction
    stock = Predictive(rows_model(model), posterior_samples=posterior.sample_weights(SAMPLES))

    def stock_moments() -> tuple[Tensor, Tensor]:
        s = stock(u[:part].repeat_interleave(len(y), 0), y.repeat(part, 1))["s"]
        return s.mean(0), s.std(0)

    def our_moments() -> tuple[Tensor, Tensor]:
        p = posterior.predict(u, y)
        return p.mean, p.std

    p = posterior.predict(u[:part], y)
    # The weights are the same, so that the means differ by the noise that stock draws.
    error = (stock_moments()[0] - p.mean.flatten()) / p.aleatoric_std.flatten()
    error = error.abs() * math.sqrt(SAMPLES)
    if not 0.7 < error.mean() < 0.9:  # 0.8 for a normal distribution
        raise RuntimeError(f"stock and ours disagree: {error.mean():.2f} standard errors")
    ours, theirs = zip(
        *((seconds(our_moments), seconds(stock_moments)) for _ in range(turns)), strict=True
    )
    return min(ours), min(theirs) * fraction


def against_matmuls(functions: int, pieces: int, noise: float) -> tuple[float, float, float]:
    """Seconds of ours and of the bare matrix products, and the peak in MiB."""
    model = DeepONet(sensors=100, coordinates=2, branch=(25,) * 4, trunk=(25,) * 4)
    posterior = random_posterior(model, noise)
    axis = torch.linspace(0, 1, 100)
    u, y = torch.randn(functions, 100), torch.cartesian_prod(axis, axis)
    posterior.predict(u[:100], y[:100])
    side = math.isqrt(BLOCK // SAMPLES)
    part, window = functions // pieces, 1000
    b, t = torch.randn(SAMPLES, part, 25), torch.randn(SAMPLES, window, 25)

    def multiply() -> None:
        for i in range(0, part, side):
            for _ in range(0, len(y), window):
                for j in range(0, window, side):
                    torch.matmul(b[:, i : i + side], t[:, j : j + side].mT)

    bare = 0.0
    for turn in range(pieces):
        if turn == pieces // 2:
            ours = seconds(lambda: posterior.predict(u, y).std)
        bare += seconds(multiply)
    return ours, bare, peak_memory()


def intervals(functions: int) -> float:
    """Seconds of 95 % intervals of the mixture at 100 points a function."""
    model = DeepONet(sensors=100, coordinates=1, branch=(30,) * 3, trunk=(30,) * 3)
    p = random_posterior(model).predict(torch.randn(functions, 100), torch.rand(100, 1))
    return seconds(lambda: p.interval(0.95, method="mixture"))


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 when a bar is missed."""
    parser = command_line("predict", __doc__)
    parser.add_argument("--functions", type=int, default=10_000, help="in cases 1 and 2")
    options = parser.parse_args(arguments)
    record, n = Record("predict", options), options.functions
    columns = dict.fromkeys(["", "ours, s", "other, s", "other / ours"], ".2f")

    title = f"Mean and std of {n} functions x 100 times, {SAMPLES} samples"
    table = record.table(title, columns, 52)
    ours, stock = alone(against_stock, n, 50, 3)
    table.row("stock Predictive (a fiftieth of the functions x 50)", ours, stock, stock / ours)
    faster = stock / ours
    record.bar(f"{faster:.0f}x faster, at least {MIN_SPEEDUP:.0f}x", faster >= MIN_SPEEDUP)

    title = f"Mean and std of {n} functions x 100 x 100 grid, {SAMPLES} samples"
    table = record.table(title, columns, 52)
    ours, bare, memory = alone(against_matmuls, n, 10, 0.01)
    table.row("bare matrix products", ours, bare, bare / ours)
    record.bar(f"{memory:.0f} MiB, at most {MAX_MEMORY:.0f}", memory <= MAX_MEMORY)
    slower = ours / bare
    record.bar(f"{slower:.1f}x the products, at most {MAX_MATMULS:.0f}x", slower <= MAX_MATMULS)
    ours, bare, _ = alone(against_matmuls, n // 5, 10, 1.0)
    table.row("noise level 1, a fifth of the functions", ours, bare, bare / ours)

    title = f"Intervals of the mixture, 1000 functions x 100 points, {SAMPLES} samples"
    table = record.table(title, {"": "", "ours, s": ".2f"}, 52)
    took = alone(intervals, 1000)
    table.row("95 % intervals", took)
    record.bar(f"{took:.2f} s, at most {MAX_SECONDS:.0f} s", took <= MAX_SECONDS)
    return record.finish()


if __name__ == "__main__":
    raise SystemExit(main())
