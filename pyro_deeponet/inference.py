"""The two stages of a fit: warm start and variational inference."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from pyro_deeponet.data import OperatorData
from pyro_deeponet.divergence import gaussian_prior
from pyro_deeponet.elbo import DeepONetELBO, Temper
from pyro_deeponet.exact import solve_last_layers
from pyro_deeponet.guides import (
    INIT_SCALE,
    Guide,
    is_point_guide,
    make_guide,
    scale_parameters,
    start_guide,
)
from pyro_deeponet.history import History
from pyro_deeponet.laplace import finish_guide
from pyro_deeponet.metrics import nll, nmse
from pyro_deeponet.model import DeepONet
from pyro_deeponet.optimizers import Soap
from pyro_deeponet.posterior import Posterior
from pyro_deeponet.training import (
    Batches,
    Checkpoint,
    NotFinite,
    Stage,
    restore,
    restore_random,
    snapshot,
    train,
)

__all__ = ["OPTIMIZERS", "Diverged", "Optimizer", "Run", "Schedule", "State", "flatten"]

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Schedule = Callable[[float], float]
#: Optimisers that have a name.
OPTIMIZERS = ("adam", "soap")

#: Learning rates as multiples of the user's. Least squares bear a higher one than the noisy ELBO;
#: after the warm start the centres of the guide need little, its scales have orders of magnitude
#: to go.
WARM_START_RATE = 2.0
CENTRE_RATE = 1 / 3
SCALE_RATE = 3.0
#: Most that the rate of the centres and the scales of a guide may be at first, as multiples of what
#: their start leaves unexplained: more would undo a good start. After exact updates the centres
#: stand where they should, and are to creep.
RATE_OF_LEVEL = 1.0
SOLVED_RATE_OF_LEVEL = 0.001
SCALE_OF_LEVEL = 0.1
#: Adam's memory of squared gradients in the warm start, shorter than usual: at a high rate a
#: sudden large gradient would otherwise throw the weights to where they stay.
WARM_START_BETAS = (0.9, 0.99)
#: How often the validation data are scored during inference.
VALIDATIONS = 50


class Diverged(ArithmeticError):
    """The loss became NaN or infinite.

    Attributes:
        posterior: The fit as it was at the last good state.

    Examples:
        >>> from pyro_deeponet import fit
        >>> data = OperatorData(u=[[0.0], [1.0]], y=[[0.0], [1.0]], s=[[0.0, 0.0], [0.0, 1.0]])
        >>> try:
        ...     fit(DeepONet.for_data(data), data, lr=1e30, steps=20, warm_start=20, progress=False)
        ... except Diverged as error:
        ...     error.posterior
        Posterior(DeepONet(...), guide AutoNormal)
    """

    def __init__(self, message: str, posterior: Posterior) -> None:
        super().__init__(message)
        self.posterior = posterior


@dataclass(frozen=True)
class State:
    """What a callback is told after each step.

    Attributes:
        step: Steps done in this stage.
        steps: Steps the stage has.
        stage: `"warm start"` or `"inference"`.
        loss: Loss of the step: mean squared error in the warm start, then the negative ELBO.
        history: All that was recorded so far.
        model: The model being fitted.
        guide: Its guide; `None` during the warm start and for a deterministic net.

    Examples:
        >>> from pyro_deeponet import fit
        >>> data = OperatorData(u=[[0.0], [1.0]], y=[[0.0], [1.0]], s=[[0.0, 0.0], [0.0, 1.0]])
        >>> def stop(state):            # a true answer ends the fit
        ...     return state.stage == "inference" and state.step == 5
        >>> posterior = fit(DeepONet.for_data(data), data, callback=stop, warm_start=20,
        ...                 progress=False)
        >>> len(posterior.history.loss)
        5
    """

    step: int
    steps: int
    stage: str
    loss: float
    history: History
    model: DeepONet
    guide: Any


@dataclass
class Run:
    """One fit: its arguments, and what has been learnt so far."""

    networks: ClassVar[int] = 0  # leading dimensions of weights, which count networks

    model: DeepONet
    data: OperatorData
    guide: Guide
    elbo: Any  # a Pyro ELBO
    kl_weight: Schedule
    steps: dict[str, int]
    batches: Batches
    lr: float
    final_lr: float
    optimizer: str | Optimizer
    clip_norm: float | None
    validation: OperatorData | None
    patience: int | None
    callback: Callable[[State], Any] | None
    map_start: bool = False  # whether the warm start knows the prior
    solve: int = 0  # rounds of exact updates between the stages
    checkpoint: Checkpoint | None = None
    history: History = field(default_factory=History)
    fitted: Any = None  # the guide, once there is one
    weights: dict[str, Tensor] = field(default_factory=dict)  # where the guide starts
    losses: list[Tensor] = field(default_factory=list)  # of the warm start, of each network
    level: float = math.inf  # what the start of the inference leaves unexplained, network units
    best: dict[str, Any] | None = None
    stopped: bool = False

    def __call__(self, seed: int, bar: tqdm) -> Posterior:
        """Run both stages, from the checkpoint where there is one."""
        saved = self.checkpoint.load() if self.checkpoint else None
        if saved is not None:
            self.history = History(**saved["history"])
            self.best = saved["extra"]["best"]
            self.stopped = saved["extra"]["stopped"]
            self.losses = list(saved["extra"].get("losses", []))
        try:
            self._warm_start(seed, bar, saved)
            self._solve(bar, saved)
            self._infer(bar, saved)
        except KeyboardInterrupt:
            warnings.warn(
                f"interrupted after {len(self.history.warm_start)} of {self.steps['warm start']} "
                f"steps of the warm start and {len(self.history.loss)} of "
                f"{self.steps['inference']} of the inference; returning what has been learnt",
                stacklevel=3,
            )
        except NotFinite as error:
            raise Diverged(
                f"the loss became {error.loss} at step {error.step} of the {error.stage}. "
                "Try a lower lr (a third), clip_norm=1.0, a longer warm_start, scaling='standard' "
                "or Heteroscedastic(floor=1e-3); the exception's .posterior is the last good state",
                self._posterior(),
            ) from None
        return self._posterior()

    def _posterior(self) -> Posterior:
        if self.best is not None:
            restore(self._modules(), self.best["state"])
        if self.fitted is None:  # stopped within the warm start
            self.fitted = self._make_guide()
        self.fitted = finish_guide(self.fitted, self.model, self.data)
        return self._learnt()

    def _learnt(self) -> Posterior:
        """The posterior as it is now."""
        return Posterior(self.model, self.fitted, history=self.history)

    def _fixed(self) -> dict[str, Tensor]:
        """The weights that no training may change."""
        plain = self.model.plain_weights()
        return {name: w.detach().clone() for name, w in plain.items() if not w.requires_grad}

    def _start(self, seed: int) -> dict[str, Tensor]:
        """Weights from which the warm start sets out; they may have a leading dimension."""
        plain = {name: w.detach().clone() for name, w in self.model.plain_weights().items()}
        return self.model.start(seed) | (self._fixed() if self.steps["warm start"] else plain)

    def _warm_start(self, seed: int, bar: tqdm, saved: dict[str, Any] | None) -> None:
        """Train all weights as plain parameters, by least squares in network units."""
        model, fixed = self.model, self._fixed()
        self.weights = self._start(seed)
        if saved is not None and saved["stage"] == "inference":
            bar.update(self.steps["warm start"])
            return
        names = [name for name in model.shapes if name not in fixed]
        learnt = nn.ParameterList([self.weights[name].clone() for name in names])

        def weights() -> dict[str, Tensor]:
            return dict(zip(names, learnt, strict=True)) | fixed

        known = [gaussian_prior(model, name) if self.map_start else None for name in names]

        def pull(mse: float) -> None:
            """Add what the prior pulls at the weights of a network with the best noise level.

            Minus the log posterior is then N/2 log(mse) - log p(w), with the gradient of
            mse - (2 mse / N) log p(w).
            """
            for weight, prior in zip(learnt, known, strict=True):
                if prior is not None and weight.grad is not None:
                    mean, scale = prior
                    factor = 2 * mse / self.data.num_observations
                    weight.grad.addcdiv_(weight.detach() - mean, scale.square(), value=factor)

        def backward(step: int) -> float:
            u, y, s, index, mask, *_ = self.batches(step)
            mu, _ = model.nodes(weights(), u, y, index)
            error = (mu - model.scaling.s(s)).square()
            real = torch.ones_like(s) if mask is None else mask.to(s)
            losses = (error * real).flatten(self.networks).sum(-1) / real.sum().clamp_min(1)
            losses.sum().backward()
            self.losses.append(losses.detach())
            self.history.warm_start.append(losses.mean().item())
            pull(self.history.warm_start[-1])
            return self.history.warm_start[-1]

        stage = Stage(
            "warm start",
            self.steps["warm start"],
            self._optimizer(list(learnt), WARM_START_RATE, WARM_START_BETAS),
            backward,
            {"weights": learnt},
            postfix=lambda: {"mse": f"{self.history.warm_start[-1]:.3g}"},
            final_lr=self.final_lr,
            after=lambda step: self._tell("warm start", step, self.history.warm_start[-1]),
        )
        try:
            self._train(stage, self._resume(stage, saved, bar), bar)
        finally:
            self.weights = {name: w.detach() for name, w in weights().items()}
            self._end_warm_start(fixed)

    def _end_warm_start(self, fixed: Mapping[str, Tensor]) -> None:
        """Hand the weights over, with a noise level that fits what they leave unexplained."""
        if self.losses:
            recent = torch.stack(self.losses[-max(1, len(self.losses) // 20) :])
            self._start_noise(recent.mean(0).sqrt(), fixed)
            self.losses = []
        self._set_parameters()

    def _start_noise(self, level: Tensor, fixed: Mapping[str, Tensor]) -> None:
        """Start from this noise level, one for each network."""
        self.level = max(level.mean().item(), torch.finfo(level.dtype).eps)
        deltas = [self.model.likelihood.start_at(x) for x in level.flatten().tolist()]
        # What the likelihood keeps is one for all networks.
        self.model.likelihood.start_at(self.level)
        if deltas[0] is not None and not fixed.keys() & {"head.weight", "head.bias"}:
            weight, bias = self.weights["head.weight"], self.weights["head.bias"]
            at = bias.new_tensor(deltas).view(*level.shape, 1, 1)
            self.model.head.rows(bias[..., None], 1).copy_(at)
            self.model.head.rows(weight, 1).zero_()

    def _solve(self, bar: tqdm, saved: dict[str, Any] | None) -> None:
        """Move the last layers to the means of their conditional posteriors."""
        if not self.solve or self.stopped or (saved and saved["stage"] == "inference"):
            return
        bar.set_description("exact updates")
        began = time.perf_counter()

        def tell(net: str, level: float) -> None:
            bar.set_postfix({net: f"mse {level**2:.3g}"})

        self.weights, level = solve_last_layers(
            self.model, self.weights, self.data, self.solve, tell
        )
        self._start_noise(self.weights["head.bias"].new_tensor(level), self._fixed())
        self._set_parameters()
        self.history.seconds += time.perf_counter() - began

    def _set_parameters(self) -> None:
        self.model.set_parameters(self.weights)

    def _make_guide(self) -> Any:
        if not self.model.sampled_shapes():
            return None
        guide = make_guide(self.guide, self.model, min(INIT_SCALE, SCALE_OF_LEVEL * self.level))
        start_guide(guide, self.weights)
        return guide

    def _modules(self) -> dict[str, nn.Module]:
        modules: dict[str, nn.Module] = {"model": self.model}
        return modules if self.fitted is None else modules | {"guide": self.fitted}

    def _infer(self, bar: tqdm, saved: dict[str, Any] | None) -> None:
        """Maximise the evidence lower bound."""
        self.fitted = self._make_guide()
        if is_point_guide(self.fitted) and isinstance(self.elbo, DeepONetELBO):
            self.elbo.num_particles = 1
        modules = self._modules()
        parameters = [p for m in modules.values() for p in m.parameters() if p.requires_grad]
        per_point = self.data.num_observations
        history, steps = self.history, self.steps["inference"]
        rate = CENTRE_RATE if self.steps["warm start"] else 1.0
        of_level = SOLVED_RATE_OF_LEVEL if self.solve else RATE_OF_LEVEL
        rate = min(rate, of_level * self.level / self.lr)

        def backward(step: int) -> float:
            weight = self.kl_weight(step / max(1, steps))
            loss = self._loss_and_grads(weight, *self.batches(step))
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, self.clip_norm * per_point)
            history.loss.append(loss)
            expected, divergence = getattr(self.elbo, "terms", (math.nan, math.nan))
            history.log_likelihood.append(expected)
            history.kl.append(divergence)
            history.lr.append(stage.optimizer.param_groups[0]["lr"])
            return loss

        def postfix() -> dict[str, str]:
            shown = {
                "loss": history.loss[-1] / per_point,
                "loglik": history.log_likelihood[-1] / per_point,
                "kl": history.kl[-1] / per_point,
                "lr": history.lr[-1],
            }
            shown |= {k: v[-1] for k, v in history.validation.items() if k != "step"}
            return {name: f"{value:.3g}" for name, value in shown.items()}

        stage = Stage(
            "inference", steps, self._optimizer(parameters, rate), backward, modules, postfix,
            final_lr=self.final_lr, after=self._after_inference_step,
        )  # fmt: skip
        self._train(stage, self._resume(stage, saved, bar), bar)

    def _optimizer(
        self,
        parameters: list[nn.Parameter],
        rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> torch.optim.Optimizer:
        """The optimiser, with a rate of its own for the scales of the guide."""
        if callable(self.optimizer):
            return self.optimizer(parameters)
        wide = {id(p) for p in (scale_parameters(self.fitted) if self.fitted is not None else ())}
        centres = [p for p in parameters if id(p) not in wide]
        scales = {"params": [p for p in parameters if id(p) in wide], "lr": SCALE_RATE * self.lr}
        if self.optimizer == "adam":
            groups = [{"params": centres, "lr": rate * self.lr}, scales]
            return torch.optim.Adam([g for g in groups if g["params"]], betas=betas, fused=True)
        matrices = [p for p in centres if p.dim() - self.networks >= 2]
        others = [p for p in centres if p.dim() - self.networks < 2]
        groups = [
            {"params": matrices, "lr": rate * self.lr},
            {"params": others, "lr": rate * self.lr, "rotate": False},
            scales | {"rotate": False},
        ]
        return Soap([g for g in groups if g["params"]])

    def _loss_and_grads(self, kl_weight: float, *args: Any) -> float:
        if isinstance(self.elbo, DeepONetELBO):
            self.elbo.kl_weight = kl_weight
            return self.elbo.loss_and_grads(self.model, self.fitted, *args)
        guide = self.fitted or (lambda *args: None)
        with Temper(kl_weight):
            return float(self.elbo.loss_and_grads(self.model, guide, *args))

    def _after_inference_step(self, step: int) -> bool:
        stop = self._tell("inference", step, self.history.loss[-1])
        every = max(1, self.steps["inference"] // VALIDATIONS)
        if step % every == 0:
            stop |= self._validate(step)
        self.stopped = stop
        return stop

    def _validate(self, step: int) -> bool:
        """Score the validation data; whether patience is at its end."""
        if self.validation is None:
            return False
        held_out = self.validation.to(dtype=self.data.s.dtype, device=self.data.s.device)
        prediction = self._learnt().predict(held_out, num_samples=20, seed=0)
        scores = {
            "step": step,
            "nmse": nmse(prediction.mean, held_out.s, held_out.mask),
            "nll": nll(prediction, held_out.s),
        }
        for name, value in scores.items():
            self.history.validation.setdefault(name, []).append(value)
        if self.patience is None:
            return False
        if self.best is None or scores["nll"] < self.best["nll"]:
            self.best = {"nll": scores["nll"], "step": step, "state": snapshot(self._modules())}
        checks = (step - self.best["step"]) // max(1, self.steps["inference"] // VALIDATIONS)
        return checks >= self.patience

    def _tell(self, stage: str, step: int, loss: float) -> bool:
        if self.callback is None:
            return False
        state = State(step, self.steps[stage], stage, loss, self.history, self.model, self.fitted)
        self.stopped |= bool(self.callback(state))
        return self.stopped

    def _train(self, stage: Stage, start: int, bar: tqdm) -> None:
        if self.stopped:
            return
        bar.set_description(stage.name)
        train(stage, self.history, start, bar, self.checkpoint, self._extra)

    def _extra(self) -> dict[str, Any]:
        return {"best": self.best, "stopped": self.stopped, "losses": self.losses}

    def _resume(self, stage: Stage, saved: dict[str, Any] | None, bar: tqdm) -> int:
        """Put a stage into the state of the checkpoint, if it is of this stage."""
        if saved is None or saved["stage"] != stage.name:
            return 0
        restore(stage.modules, saved["modules"])
        stage.optimizer.load_state_dict(saved["optimizer"])
        restore_random(saved)
        bar.update(saved["step"])
        return int(saved["step"])

    def fingerprint(self) -> dict[str, Any]:
        """What makes this fit another one than that of a checkpoint."""
        return {
            "model": repr(self.model),
            "data": [repr(self.data), float(self.data.s.double().sum())],
            "guide": _named(self.guide),
            "optimizer": _named(self.optimizer),
            "prior": _named(self.model.prior),
        }


def _named(given: Any) -> str:
    """What can be compared with a checkpoint: a user's callable says nothing about itself."""
    return repr(given) if isinstance(given, str) or is_dataclass(given) else "a callable"


def flatten(weights: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> Tensor:
    """All weights in one vector, a row a network where they are of several; see `unflatten`."""
    parts = []
    for name, shape in shapes.items():
        several = weights[name].shape[: weights[name].dim() - len(shape)]
        parts.append(weights[name].reshape(*several, -1))
    return torch.cat(parts, -1)
