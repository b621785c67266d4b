"""Fitting a DeepONet by stochastic variational inference."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyro.infer import ELBO
from tqdm.auto import tqdm

from pyro_deeponet.data import OperatorData
from pyro_deeponet.divergence import gaussian_prior
from pyro_deeponet.elbo import DeepONetELBO
from pyro_deeponet.exact import check_solvable
from pyro_deeponet.guides import Guide
from pyro_deeponet.inference import OPTIMIZERS, Diverged, Optimizer, Run, Schedule, State
from pyro_deeponet.model import DeepONet
from pyro_deeponet.posterior import Posterior
from pyro_deeponet.threads import threads_for
from pyro_deeponet.training import FINAL_LR, Batches, Checkpoint, isolated

__all__ = ["Diverged", "State", "fit", "launch"]


def fit(
    model: DeepONet,
    data: OperatorData,
    guide: Guide = "normal",
    *,
    num_particles: int = 25,
    steps: int = 3000,
    batch_size: int = 100,
    batch_points: int | None = None,
    lr: float = 3e-3,
    warm_start: int = 8_000,
    kl_weight: float | Schedule = 1.0,
    validation: OperatorData | None = None,
    patience: int | None = None,
    callback: Callable[[State], Any] | None = None,
    progress: bool = True,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    elbo: ELBO | None = None,
    optimizer: str | Optimizer = "adam",
    final_lr: float = FINAL_LR,
    map_start: bool = False,
    solve: int = 0,
    clip_norm: float | None = None,
) -> Posterior:
    r"""Learn the posterior of a DeepONet's weights from data.

    Two stages. The warm start trains all weights as plain parameters by least squares. Inference
    then maximises the evidence lower bound over the guide, which starts at those weights. Both
    use Adam unless told otherwise, random batches of functions and their points, and a learning
    rate that rises over the first twentieth of the steps and falls as half a cosine to a
    hundredth. A model with `prior=None` goes through the same two stages with no guide: its
    weights are trained by their likelihood. Parameters with `requires_grad=False` stay as they
    are.

    The model is copied, so that it can be fitted again; random states, Pyro's settings and its
    parameter store are afterwards as they were before.

    Args:
        model: The model, usually from `DeepONet.for_data(data)`.
        data: Training data.
        guide: A name (`"normal"`, `"diagonal"`, `"meanfield"`, `"lowrank"`, `"mvn"`, `"iaf"`,
            `"laplace"`, `"delta"`), `guides.LowRank(rank=20)`, or a callable `model -> guide`.
            `"meanfield"` is `"normal"` with the KL divergence in closed form where there is one.
        num_particles: Weight samples a step.
        steps: Steps of inference.
        batch_size: Functions a step; the likelihood is scaled by `n / batch_size`.
        batch_points: Points of each function a step, drawn anew each time, and the likelihood
            scaled accordingly. `None`: all, up to 20 000 observations a batch, which keeps data on
            a large grid affordable.
        lr: Learning rate at its peak. The warm start takes twice as much, the guide's scales three
            times, and its centres a third, unless there was no warm start, and at most what the
            warm start leaves unexplained.
        warm_start: Steps of the warm start; 0 for none, and then weights that are plain parameters
            start from the values they have.
        kl_weight: Factor on the KL divergence, or a function of the progress (0 to 1) of the
            inference. One is Bayes' rule; less is a tempered posterior. With `RenyiELBO(alpha)`
            it makes the bound one of order `1 - kl_weight * (1 - alpha)` on that posterior.
        validation: Held-out data, scored fifty times during inference.
        patience: Stop after so many scores without a better negative log-likelihood, and keep
            the best. Needs `validation`.
        callback: Called with a `State` after each step; a true answer ends the fit.
        progress: Whether to show a progress bar.
        seed: Chooses the start, the batches and the particles.
        checkpoint: A file to write the state to ten times a stage; when it exists, the fit goes
            on from there to the same result as an unbroken one.
        elbo: Any Pyro ELBO, such as `Trace_ELBO()` or `RenyiELBO()`; `num_particles` is then its
            own affair. `TraceMeanField_ELBO()` belongs with the guide `"meanfield"`: with others
            it gains nothing, and has wrong values for priors with scales of their own.
        optimizer: `"adam"`, or `"soap"`: Adam in a basis that turns with the gradients of each
            weight matrix. A step costs up to twice as much, and where data have little noise the
            error after as many steps is several times lower. Or a callable from a list of
            parameters to a torch optimiser, which then has its own learning rates; they rise and
            fall in the same way.
        final_lr: Where learning rates end, as a fraction of their peak. Less, such as 1e-4, brings
            a lower error where data have little noise and the steps are many.
        map_start: Whether the warm start seeks the most probable weights, under the prior and the
            noise level that fits them best, and not those of least squares: the errors at new
            functions are smaller where the training error is far below them. For Gaussian priors.
        solve: Rounds of exact updates after the warm start, for data with little noise. Given
            the rest, `mu` is linear in the last layer of a net, whose conditional posterior under
            a Gaussian prior is Gaussian too: the guide's centres there start at its mean. It takes
            all data at once, and seconds for layers of thousands of weights.
        clip_norm: Largest norm of the gradient of the loss per observation; `None` for no limit.

    Returns:
        The posterior. After Ctrl-C, with a warning, that of the steps done so far.

    Raises:
        Diverged: The loss became NaN; the exception carries the last good posterior.
        ValueError: An argument that cannot work, or a checkpoint of another fit.

    Examples:
        >>> from pyro_deeponet import DeepONet, OperatorData, fit
        >>> data = OperatorData(u=[[0.0], [1.0]], y=[[0.0], [1.0]], s=[[0.0, 0.0], [0.0, 1.0]])
        >>> posterior = fit(DeepONet.for_data(data), data, steps=20, warm_start=20, progress=False)
        >>> len(posterior.history.loss)
        20
    """
    counts = {
        "steps": steps, "warm_start": warm_start, "batch_size": batch_size,
        "num_particles": num_particles, "solve": solve, "map_start": map_start,
    }  # fmt: skip
    return launch(
        Run, model, data, counts,
        guide=guide,
        elbo=lambda model: elbo or DeepONetELBO(num_particles),
        kl_weight=kl_weight if callable(kl_weight) else lambda progress: float(kl_weight),
        lr=lr, final_lr=final_lr, batch_points=batch_points,
        validation=validation, patience=patience,
        callback=callback, progress=progress, seed=seed, checkpoint=checkpoint,
        optimizer=optimizer, clip_norm=clip_norm,
    )  # fmt: skip


def launch(
    kind: type[Run],
    model: DeepONet,
    data: OperatorData,
    counts: dict[str, int],
    *,
    guide: Guide,
    elbo: Callable[[DeepONet], Any],
    kl_weight: Schedule,
    lr: float,
    final_lr: float,
    batch_points: int | None,
    validation: OperatorData | None,
    patience: int | None,
    callback: Callable[[State], Any] | None,
    progress: bool,
    seed: int,
    checkpoint: str | os.PathLike[str] | None,
    optimizer: str | Optimizer,
    clip_norm: float | None,
) -> Posterior:
    """Check the arguments, and run the two stages on a copy of the model.

    Args:
        kind: What runs them.
        model: As in `fit`, like all that are not told here.
        data: Training data.
        counts: The arguments `steps`, `warm_start`, `batch_size` and `num_particles`, the last for
            the number of networks that a step evaluates; `solve` and `map_start` where there are.
        guide: A guide.
        elbo: Makes the loss for the copy of the model.
        kl_weight: A function of the progress.
        lr: Learning rate.
        final_lr: Where it ends.
        batch_points: Points a step.
        validation: Held-out data.
        patience: How long to wait.
        callback: What to call.
        progress: Whether to show a progress bar.
        seed: The seed.
        checkpoint: A file.
        optimizer: Makes an optimiser.
        clip_norm: Largest norm.
    """
    _check(model, data, counts, validation, patience)
    if not callable(optimizer) and optimizer not in OPTIMIZERS:
        names = ", ".join(map(repr, OPTIMIZERS))
        raise ValueError(f"optimizer is {optimizer!r}, expected {names}, or a callable")
    if not 0 <= final_lr <= 1:
        raise ValueError(f"final_lr is {final_lr}, expected a fraction of lr, from 0 to 1")
    if counts.get("solve"):
        check_solvable(model)
    if counts.get("map_start"):
        sampled = model.sampled_shapes()
        if not sampled or any(gaussian_prior(model, name) is None for name in sampled):
            raise ValueError("map_start=True needs Gaussian priors, such as priors.Normal or FanIn")
    model = copy.deepcopy(model)
    like = model.head.like
    data = data.to(dtype=like.dtype, device=like.device)
    run = kind(
        model=model,
        data=data,
        guide=guide,
        elbo=elbo(model),
        kl_weight=kl_weight,
        steps={"warm start": counts["warm_start"], "inference": counts["steps"]},
        batches=Batches(data, counts["batch_size"], batch_points, seed),
        lr=lr,
        final_lr=final_lr,
        optimizer=optimizer,
        clip_norm=clip_norm,
        validation=validation,
        patience=patience,
        callback=callback,
        map_start=bool(counts.get("map_start")),
        solve=counts.get("solve", 0),
    )
    if checkpoint is not None:
        told = (
            counts
            | {"lr": lr, "final_lr": final_lr, "seed": seed, "batch_points": batch_points}
            | run.fingerprint()
        )
        run.checkpoint = Checkpoint(Path(checkpoint), told)
    u, y, *_ = run.batches(0)
    with (
        isolated(like.device, seed),
        threads_for(counts["num_particles"] * model.cost(len(u), len(y))),
        tqdm(total=sum(run.steps.values()), disable=not progress) as bar,
    ):
        return run(seed, bar)


def _check(
    model: DeepONet,
    data: OperatorData,
    counts: dict[str, int],
    validation: OperatorData | None,
    patience: int | None,
) -> None:
    if not isinstance(model, DeepONet):
        raise TypeError(f"model is {type(model).__name__}, expected a DeepONet")
    for name, given in (("data", data), ("validation", validation)):
        if given is None and name == "validation":
            continue
        if not isinstance(given, OperatorData):
            raise TypeError(f"{name} is {type(given).__name__}, expected OperatorData(u, y, s)")
        model.check_data(given)
    least_counts = {"steps": 0, "warm_start": 0, "batch_size": 1, "num_particles": 1, "solve": 0}
    for name, least in least_counts.items():
        count = counts.get(name, least)
        if not isinstance(count, int) or count < least:
            raise ValueError(f"{name} is {count}, expected a whole number from {least} on")
    if patience is not None and (validation is None or patience < 1):
        raise ValueError(
            f"patience={patience} needs validation data to score and at least one score to wait; "
            "pass validation=..., for instance from train.split(0.9)"
        )
