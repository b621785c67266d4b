"""Sampling the posterior by Hamiltonian Monte Carlo, with Pyro's kernels."""

from __future__ import annotations

import inspect
import math
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from pyro.infer import HMC, MCMC, NUTS
from pyro.infer.autoguide.initialization import init_to_value
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor
from tqdm.auto import tqdm

from pyro_deeponet.data import OperatorData
from pyro_deeponet.divergence import flat_divergence
from pyro_deeponet.elbo import gaussian_log_likelihood
from pyro_deeponet.fit import fit
from pyro_deeponet.guides import flat_sampler
from pyro_deeponet.inference import flatten
from pyro_deeponet.layers import defaults_of
from pyro_deeponet.model import DeepONet
from pyro_deeponet.posterior import Posterior
from pyro_deeponet.threads import threads_for
from pyro_deeponet.training import isolated

__all__ = ["mcmc"]

#: Above it, chains are said to disagree (Gelman and Rubin's own rule).
WORST_R_HAT = 1.1
#: Samples a chain from which on halves of chains can be compared.
FEWEST = 4
#: Most steps of a trajectory of HMC, as many as those of NUTS may have.
MAX_STEPS = 1024
#: Functions and points at which the network's outputs are compared between chains.
FUNCTIONS, POINTS = 20, 20
#: Arguments of Pyro's kernels that are not the user's: told here, or by the model.
TAKEN = {
    "model", "potential_fn", "init_strategy", "transforms", "max_plate_nesting",
    "num_steps", "jit_compile", "jit_options", "ignore_jit_warnings",
}  # fmt: skip


class BoundedHMC(HMC):
    """Pyro's HMC, whose trajectories of a fixed length do not get longer without end.

    Their number of steps is the length over the step size. Before the mass matrix is adapted the
    step size of a network can be a thousandth or less.
    """

    @property
    def num_steps(self) -> int:
        """Steps of a trajectory."""
        return min(MAX_STEPS, super().num_steps)


KERNELS = {"nuts": NUTS, "hmc": BoundedHMC}


def mcmc(
    model: DeepONet,
    data: OperatorData,
    kernel: str = "nuts",
    *,
    warmup: int = 300,
    samples: int = 300,
    chains: int = 2,
    warm_start: int = 8_000,
    batch_size: int = 100,
    lr: float = 3e-3,
    progress: bool = True,
    seed: int = 0,
    **kernel_options: Any,
) -> Posterior:
    r"""Draw weights from the posterior itself by Hamiltonian Monte Carlo.

    No guide stands between, and given time enough the samples are exact. Each one takes up to a
    thousand gradients of the likelihood of *all* the data, so this is for small networks and data,
    or to see how far a guide is off.

    The chains start where the warm start of `fit` ends, all at the same weights, and run one after
    the other in this process: no model has to be pickled, and Ctrl-C works. Weights that are plain
    parameters, and the noise level of `Homoscedastic`, keep the values of the warm start; they are
    better learnt by `fit(model, data)` first, and then `mcmc(posterior.model, data, warm_start=0)`.

    `posterior.diagnostics` says how far to trust the samples:

    - `r_hat_max`, `r_hat_median`, `ess_min`: split R-hat (1 for chains that agree, up to 1.1 is
      accepted) and effective sample size of the network's outputs `mu`, `delta` at up to 400 data
      points: what predictions rest on. NaN with fewer than four samples a chain.
    - `weight_r_hat_max`, `weight_r_hat_median`, `weight_ess_min`: the same of the single weights,
      and of sites of the prior. Units of a layer can change places, and their scales move from
      layer to layer, with no change of the outputs: these are often far worse, which does not
      matter.
    - `divergences`: Number of trajectories that left the level set of their energy.
    - `acceptance`: Mean rate at which proposals were accepted.

    As all chains start together, these tell whether they agree about one mode of the posterior, not
    that there is no other. To see others, take another `seed`, or `ensemble`.

    Args:
        model: The model. It needs a prior on some weight at least.
        data: Training data.
        kernel: `"nuts"`: the No-U-Turn sampler. `"hmc"`: with trajectories of one length.
        warmup: Steps of each chain in which step size and mass matrix adapt; their samples are
            dropped.
        samples: Samples that are kept of each chain.
        chains: How many chains.
        warm_start: Steps of the warm start.
        batch_size: Functions a step of the warm start.
        lr: Its learning rate, as in `fit`.
        progress: Whether to show progress bars.
        seed: Chooses the start and the random numbers of the chains.
        **kernel_options: As `pyro.infer.NUTS` or `pyro.infer.HMC` takes them, such as
            `target_accept_prob=0.9`, `max_tree_depth=6`, `full_mass=True`, `step_size`, and for HMC
            `trajectory_length` (over 1024 steps at most).

    Returns:
        The posterior, with `chains * samples` samples of each site. `predict` takes as many as it
        is asked for, evenly spread over all chains, each once at most. After Ctrl-C, with a
        warning, those drawn so far; there is nothing to return before the first, and the interrupt
        goes on.

    Raises:
        ValueError: An argument that cannot work, or a model without a prior.

    Examples:
        >>> from pyro_deeponet import DeepONet, OperatorData, mcmc
        >>> data = OperatorData(u=[[0.0], [1.0]], y=[[0.0], [1.0]], s=[[0.0, 0.0], [0.0, 1.0]])
        >>> model = DeepONet.for_data(data, branch=(2,), trunk=(2,))
        >>> posterior = mcmc(model, data, warmup=2, samples=3, chains=1, max_tree_depth=2,
        ...                  warm_start=10, progress=False)
        >>> posterior.predict(data.u, data.y)
        Prediction(2 functions x 2 points, mixture of 3 weight samples)
    """
    _check(model, kernel, {"warmup": warmup, "samples": samples, "chains": chains}, kernel_options)
    start = fit(
        model, data, "delta", steps=0, warm_start=warm_start, batch_size=batch_size, lr=lr,
        seed=seed, progress=progress,
    )  # fmt: skip
    if len(start.history.warm_start) < warm_start:
        raise KeyboardInterrupt
    model, like = start.model, start.model.head.like
    data = data.to(dtype=like.dtype, device=like.device)
    arguments = data.u, data.y, data.s, data.index, data.mask
    began, drawn = time.perf_counter(), []
    with (
        isolated(like.device, seed),
        defaults_of(like),
        threads_for(model.cost(len(data.u), len(data.y))),
        tqdm(total=chains * (warmup + samples), disable=not progress) as bar,
    ):
        values = {name: value.detach() for name, value in start.guide.median().items()}
        for i in range(chains):
            chosen = _kernel(KERNELS[kernel], kernel_options, start, values, arguments)
            chain = Chain(*chosen, bar, f"chain {i + 1} of {chains}")
            drawn.append(chain)
            if not chain.run(warmup, samples, arguments):
                break
    drawn = [chain for chain in drawn if chain.samples]
    if not drawn:
        raise KeyboardInterrupt
    start.history.seconds += time.perf_counter() - began
    start.history.diagnostics = _diagnose(model, data, drawn)
    _warn(start.history.diagnostics, sum(len(c.samples) for c in drawn), chains * samples)
    weights = {name: torch.cat([c.stacked()[name] for c in drawn]) for name in values}
    return Posterior(model, weights=weights, history=start.history)


def _kernel(
    kind: Any,
    options: Mapping[str, Any],
    start: Posterior,
    values: dict[str, Tensor],
    arguments: tuple[Any, ...],
) -> tuple[Any, dict[str, Tensor] | None]:
    """A kernel of Pyro that starts at these values, and the first state of its chain if needed.

    Where the prior is made of plain distributions on the real line, the potential is computed
    without a Pyro message per site, which takes half the time for small data. Otherwise Pyro
    runs the model.
    """
    model, sampled = start.model, start.model.sampled_shapes()
    plain = flat_sampler(start.guide, sampled) is not None
    divergence = flat_divergence(model, start.guide, sampled) if plain else None
    if divergence is None:
        return kind(model, init_strategy=init_to_value(values=values), **options), None
    fixed = {name: w.detach() for name, w in model.plain_weights().items()}

    def potential(z: dict[str, Tensor]) -> Tensor:
        flat = flatten(z, sampled)[None]
        fitted = gaussian_log_likelihood(model, fixed | z, *arguments)
        return divergence(flat, flat.new_zeros(1)) - fitted

    return kind(potential_fn=potential, **options), values


class Chain:
    """One chain, and what it has drawn so far.

    Args:
        kernel: One of Pyro's kernels over the model.
        first: Where it starts, unless the kernel knows.
        bar: Where progress is shown.
        title: What the chain is called there.

    Attributes:
        samples: Values by site, of each sample.
        divergences: How many samples came by a trajectory that diverged.
        acceptance: Mean acceptance probability.
    """

    def __init__(self, kernel: Any, first: dict[str, Tensor] | None, bar: tqdm, title: str) -> None:
        self.kernel, self.first, self.bar, self.title = kernel, first, bar, title
        self.samples: list[dict[str, Tensor]] = []
        self.divergences, self.acceptance = 0, 0.0

    def run(self, warmup: int, samples: int, arguments: tuple[Any, ...]) -> bool:
        """Draw samples; whether it came to its end, without an interrupt."""
        run = MCMC(
            self.kernel, samples, warmup, self.first, hook_fn=self._record, disable_progbar=True
        )
        try:
            run.run(*arguments)
        except KeyboardInterrupt:
            return False
        return True

    def _record(self, kernel: Any, values: Mapping[str, Tensor], stage: str, i: int) -> None:
        told = kernel.logging()
        self.bar.set_description(f"{self.title}, {stage.lower()}", refresh=False)
        self.bar.set_postfix(told, refresh=False)
        self.bar.update()
        if stage != "Sample":
            return
        back = {name: transform.inv for name, transform in (kernel.transforms or {}).items()}
        drawn = {name: back[name](z) if name in back else z for name, z in values.items()}
        self.samples.append({name: value.detach().clone() for name, value in drawn.items()})
        self.divergences = len(kernel.diagnostics()["divergences"])
        self.acceptance = float(told["acc. prob"])

    def stacked(self) -> dict[str, Tensor]:
        """The samples by site, each `(S, ...)`."""
        names = self.samples[0]
        return {name: torch.stack([sample[name] for sample in self.samples]) for name in names}


@torch.no_grad()
def _diagnose(model: DeepONet, data: OperatorData, drawn: list[Chain]) -> dict[str, float]:
    """The summary that `mcmc` documents."""
    longest = max(len(chain.samples) for chain in drawn)
    whole = [chain for chain in drawn if len(chain.samples) > longest // 2]
    length = min(len(chain.samples) for chain in whole)
    sites = [{k: v[:length] for k, v in chain.stacked().items()} for chain in whole]
    outputs = torch.stack([_outputs(model, weights, data) for weights in sites])
    weights = torch.stack(
        [torch.cat([v.reshape(length, -1) for v in values.values()], 1) for values in sites]
    )
    return {
        **_agreement("", outputs),
        **_agreement("weight_", weights),
        "divergences": float(sum(chain.divergences for chain in drawn)),
        "acceptance": sum(chain.acceptance for chain in drawn) / len(drawn),
    }


def _outputs(model: DeepONet, weights: dict[str, Tensor], data: OperatorData) -> Tensor:
    """The network's outputs at some of the data, `(S, points)`."""
    n, m = data.s.shape[:2]
    rows, columns = (
        torch.linspace(0, size - 1, min(size, most), device=data.s.device).round().long()
        for size, most in ((n, FUNCTIONS), (m, POINTS))
    )
    y, index = data.y, data.index
    y, index = (y[columns], None) if index is None else (y, index[rows][:, columns])
    nodes = model.nodes(model.plain_weights() | weights, data.u[rows], y, index)
    return torch.cat([node.flatten(1) for node in nodes if node is not None], 1)


def _agreement(prefix: str, values: Tensor) -> dict[str, float]:
    """R-hat and effective sample size of quantities `(chains, S, quantities)`.

    A quantity that never changes has none. All are NaN where samples are too few to tell.
    """
    changing = values.flatten(0, 1)
    values = values[..., (changing != changing[0]).any(0)]
    told = [torch.full((1,), torch.nan)] * 2
    if values.shape[1] >= FEWEST and values.shape[2]:
        told = [split_gelman_rubin(values), effective_sample_size(values)]
    r_hat, ess = told
    # Of short chains the estimate may be huge, or negative; Stan bounds it in this way.
    most = len(changing) * math.log10(len(changing))
    ess = torch.where(ess <= 0, most, ess.clamp(max=most))
    return {
        f"{prefix}r_hat_max": r_hat.max().item(),
        f"{prefix}r_hat_median": r_hat.median().item(),
        f"{prefix}ess_min": ess.min().item(),
    }


def _warn(diagnostics: Mapping[str, float], found: int, wanted: int) -> None:
    if found < wanted:
        warnings.warn(
            f"interrupted after {found} of {wanted} samples; returning these", stacklevel=3
        )
    if diagnostics["r_hat_max"] > WORST_R_HAT:
        warnings.warn(
            f"the chains disagree: R-hat of the network's outputs is up to "
            f"{diagnostics['r_hat_max']:.2f} (1 is agreement, {WORST_R_HAT} the most to accept), "
            f"with {diagnostics['ess_min']:.0f} effective samples of {found} and "
            f"{diagnostics['divergences']:.0f} divergences. Draw more (warmup=, samples=), pass "
            "target_accept_prob=0.95 against divergences, a longer warm_start or a larger "
            "max_tree_depth, or take a smaller network",
            stacklevel=3,
        )


def _check(
    model: DeepONet, kernel: str, counts: Mapping[str, int], options: Mapping[str, Any]
) -> None:
    if kernel not in KERNELS:
        names = ", ".join(map(repr, KERNELS))
        raise ValueError(f"kernel is {kernel!r}, expected one of {names}")
    for name, count in counts.items():
        least = 0 if name == "warmup" else 1
        if not isinstance(count, int) or count < least:
            raise ValueError(f"{name} is {count}, expected a whole number from {least} on")
    known = sorted(set(inspect.signature(KERNELS[kernel]).parameters) - TAKEN)
    if unknown := sorted(set(options) - set(known)):
        raise TypeError(f"kernel {kernel!r} takes no {unknown[0]}; it takes {', '.join(known)}")
    if isinstance(model, DeepONet) and not model.sampled_shapes():
        raise ValueError(
            "the model is deterministic, with nothing to sample: build it with a prior, such as "
            "prior=pdo.priors.Normal(), or take pdo.fit or pdo.ensemble"
        )
