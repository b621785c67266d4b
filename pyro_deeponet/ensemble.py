"""Deep ensembles: several networks from different starts, trained as one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pyro_deeponet.data import OperatorData
from pyro_deeponet.divergence import flat_divergence
from pyro_deeponet.elbo import DeepONetELBO, gaussian_log_likelihood
from pyro_deeponet.fit import launch
from pyro_deeponet.inference import Optimizer, Run, State, flatten
from pyro_deeponet.model import DeepONet, likelihood_scale
from pyro_deeponet.posterior import Posterior
from pyro_deeponet.training import FINAL_LR

__all__ = ["ensemble"]


def ensemble(
    model: DeepONet,
    data: OperatorData,
    members: int = 10,
    *,
    steps: int = 3000,
    batch_size: int = 100,
    batch_points: int | None = None,
    lr: float = 3e-3,
    warm_start: int = 8_000,
    validation: OperatorData | None = None,
    patience: int | None = None,
    callback: Callable[[State], Any] | None = None,
    progress: bool = True,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    optimizer: str | Optimizer = "adam",
    final_lr: float = FINAL_LR,
    clip_norm: float | None = None,
) -> Posterior:
    r"""Train several networks from different starts: a deep ensemble (Lakshminarayanan, 2017).

    Each member goes through the two stages of `fit`: a warm start by least squares, then descent on

    .. math:: -\log p(s \mid \theta_m) - \log p(\theta_m),

    the second term for the weights that have a prior. So it is the network of
    `fit(model, data, guide="delta")`, or of `fit(model, data)` with `prior=None`. All members are
    one batched computation on the same batches, far faster than one after another. Weights are the
    members' own, frozen ones excepted; what a likelihood learns, the noise level of
    `Homoscedastic`, is one for all.

    The result is a mixture of equal parts. `predict` takes every member once, however many samples
    it is asked for, and for fewer than there are members so many of them, evenly spread; `sample`
    takes them in turn.

    There is no `guide`, `num_particles`, `elbo` or `kl_weight`: nothing is drawn.

    Args:
        model: The model, with or without a prior.
        data: Training data.
        members: How many networks, `M`.
        steps: As in `fit`, like all that follow.
        batch_size: Functions a step, the same for all members.
        batch_points: Points of each function a step.
        lr: Learning rate at its peak.
        warm_start: Steps of the warm start. With 0 too every member has a random start of its own.
        validation: Held-out data, which the ensemble as a whole predicts fifty times.
        patience: Stop after so many scores without a better one; the members stop together.
        callback: Called with a `State`, whose losses are means over the members.
        progress: Whether to show a progress bar.
        seed: Chooses the batches, and with `seed + i` the start of member `i`.
        checkpoint: A file from which a broken run goes on.
        optimizer: As in `fit`. A callable is given parameters with a leading dimension of members;
            one that treats each number by itself, as Adam does, keeps the members independent.
        final_lr: As in `fit`.
        clip_norm: Largest norm of the gradient of the loss per observation, in the root mean
            square over the members.

    Returns:
        The posterior, its weights `(M, ...)`. `history.loss` holds means over the members of the
        loss above, `history.kl` of its second term.

    Raises:
        Diverged: The loss of a member became NaN; the exception carries the last good posterior.
        ValueError: An argument that cannot work, such as a prior with sites of its own.

    Examples:
        >>> from pyro_deeponet import DeepONet, OperatorData, ensemble
        >>> data = OperatorData(u=[[0.0], [1.0]], y=[[0.0], [1.0]], s=[[0.0, 0.0], [0.0, 1.0]])
        >>> model = DeepONet.for_data(data, prior=None)
        >>> posterior = ensemble(model, data, members=3, steps=20, warm_start=20, progress=False)
        >>> posterior.predict(data.u, data.y)
        Prediction(2 functions x 2 points, mixture of 3 weight samples)
    """
    if not isinstance(members, int) or members < 1:
        raise ValueError(f"members is {members}, expected a whole number from 1 on")
    counts = {
        "steps": steps, "warm_start": warm_start, "batch_size": batch_size,
        "num_particles": members,
    }  # fmt: skip
    return launch(
        EnsembleRun, model, data, counts,
        guide="ensemble",
        elbo=lambda model: JointLoss(model, members),
        kl_weight=lambda progress: 1.0,
        lr=lr, final_lr=final_lr, batch_points=batch_points,
        validation=validation, patience=patience,
        callback=callback, progress=progress, seed=seed, checkpoint=checkpoint,
        optimizer=optimizer,
        clip_norm=None if clip_norm is None else clip_norm * math.sqrt(members),
    )  # fmt: skip


class Members(nn.Module):
    """The weights of all members.

    Args:
        weights: By name, each `(M, ...)`.
    """

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = list(weights)
        self.values = nn.ParameterList([w.clone() for w in weights.values()])

    def forward(self) -> dict[str, Tensor]:
        """The weights by name, each `(M, ...)`."""
        return dict(zip(self.names, self.values, strict=True))


class JointLoss(DeepONetELBO):
    """The losses of all members at once, in the place of an ELBO and with `Members` for a guide.

    Args:
        model: The model.
        members: How many, `M`.

    Raises:
        ValueError: The prior has sites or parameters of its own.
    """

    def __init__(self, model: DeepONet, members: int) -> None:
        super().__init__(members)
        self.sampled = model.sampled_shapes()
        self.divergence = flat_divergence(model, None, self.sampled) if self.sampled else None
        if self.sampled and self.divergence is None:
            raise ValueError(
                "the prior has sites or parameters of its own, for which the best value is no "
                "sensible one; take another prior for an ensemble, prior=None, or pdo.mcmc"
            )

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """The mean of the losses; the gradients are those of their sum, so each member's own."""
        return self._accumulate(model, guide, *args, **kwargs)

    def _accumulate(
        self,
        model: DeepONet,
        members: Members,
        u: Tensor,
        y: Tensor,
        s: Tensor,
        index: Tensor | None = None,
        mask: Tensor | None = None,
        size: int | tuple[int, int] | None = None,
    ) -> float:
        weights, count = members(), self.num_particles
        scale = likelihood_scale(size, s) / count
        every = model.plain_weights() | weights
        expected = scale * gaussian_log_likelihood(model, every, u, y, s, index, mask)
        divergence = expected.new_zeros(())
        if self.divergence is not None:
            flat = flatten(weights, self.sampled)
            divergence = self.divergence(flat, flat.new_zeros(count))
        (count * (divergence - expected)).backward()
        self.terms = expected.item(), divergence.item()
        return self.terms[1] - self.terms[0]


class EnsembleRun(Run):
    """A fit whose weights have a leading dimension of members, and `Members` for a guide."""

    networks = 1

    def _start(self, seed: int) -> dict[str, Tensor]:
        starts = [self.model.start(seed + i) for i in range(self.elbo.num_particles)]
        stacked = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}
        return stacked | self._fixed()

    def _set_parameters(self) -> None:
        """Leave the model's own parameters; the members have theirs."""

    def _make_guide(self) -> Members:
        fixed = self._fixed()
        return Members({k: self.weights[k] for k in self.model.shapes if k not in fixed})

    def _learnt(self) -> Posterior:
        weights = {name: w.detach().clone() for name, w in self.fitted().items()}
        self.model.set_parameters({name: w[0] for name, w in weights.items()} | self._fixed())
        return Posterior(self.model, weights=weights, history=self.history)
