"""The optimisation loop that the stages of a fit share."""

from __future__ import annotations

import contextlib
import math
import pickle
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from pyro_deeponet.data import OperatorData
from pyro_deeponet.history import History
from pyro_deeponet.storage import write_atomically

__all__ = [
    "FINAL_LR",
    "Batches",
    "Checkpoint",
    "NotFinite",
    "Stage",
    "isolated",
    "restore",
    "restore_random",
    "snapshot",
    "train",
]

#: Where the learning rate ends, as a fraction of its peak, unless told.
FINAL_LR = 0.01
#: Part of a stage in which the learning rate rises. Adam's first steps move every weight by the
#: whole rate, whatever its gradient: without the rise one of them undoes a warm start.
WARM_UP = 0.05
#: Most observations in a batch unless told: more would cost time and tell little more.
BATCH_POINTS = 20_000
#: How often a checkpoint is written in a stage.
CHECKPOINTS = 10
CHECKPOINT_FORMAT = "pyro_deeponet.checkpoint.1"


class NotFinite(ArithmeticError):
    """The loss of a step was NaN or infinite; the parameters are those of the last good step."""

    def __init__(self, stage: str, step: int, loss: float) -> None:
        super().__init__(stage, step, loss)
        self.stage, self.step, self.loss = stage, step, loss


@contextlib.contextmanager
def isolated(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Leave random states, Pyro's settings and its parameter store as they were.

    Inside, the parameter store starts empty, so that no parameter of the same name from elsewhere
    takes the place of a module's own, and Pyro does not check every distribution again.
    """
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        pyro.validation_enabled(False),
        pyro.get_param_store().scope(),
    ):
        if seed is not None:
            torch.manual_seed(seed)
        yield


class Batches:
    """Random minibatches of functions and of their points, told by the number of the step alone.

    Args:
        data: The training data.
        size: Functions in a batch.
        points: Points of each function in a batch; `None` for as many as `BATCH_POINTS` allows.
        seed: Chooses the order.
    """

    def __init__(self, data: OperatorData, size: int, points: int | None, seed: int) -> None:
        self.data, self.size, self.seed = data, min(size, len(data)), seed
        allowed = max(1, BATCH_POINTS // self.size) if points is None else points
        self.points = min(allowed, data.s.shape[1])
        self.per_epoch = len(data) // self.size
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.long)

    def __call__(self, step: int) -> tuple[Any, ...]:
        """The arguments of `DeepONet.forward` for one step."""
        d = self.data
        n, m = d.s.shape[:2]
        if (self.size, self.points) == (n, m):
            return d.u, d.y, d.s, d.index, d.mask
        rows = slice(None) if self.size == n else self._rows(step)
        u, y, s = d.u[rows], d.y, d.s[rows]
        index = None if d.index is None else d.index[rows]
        mask = None if d.mask is None else d.mask[rows]
        if self.points < m:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            columns = torch.randperm(m, generator=generator)[: self.points].to(s.device)
            s, mask = s[:, columns], None if mask is None else mask[:, columns]
            y, index = (y[columns], None) if index is None else (y, index[:, columns])
        return u, y, s, index, mask, (n, m)

    def _rows(self, step: int) -> Tensor:
        """The functions of a step: in each epoch a new random order is cut into batches."""
        d = self.data
        epoch, position = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order = torch.randperm(len(d), generator=generator).to(d.u.device)
            self._epoch = epoch
        return self._order[position * self.size : (position + 1) * self.size]


@dataclass
class Stage:
    """One run of an optimiser.

    Args:
        name: Shown in the progress bar and in messages.
        steps: How many.
        optimizer: A torch optimiser over the stage's parameters.
        backward: Given the step, computes the loss and adds its gradients.
        modules: What holds the parameters, by a name for the checkpoint.
        postfix: What the progress bar shows beside the loss.
        after: Called after each step with the step's number; `True` ends the stage.
    """

    name: str
    steps: int
    optimizer: torch.optim.Optimizer
    backward: Callable[[int], float]
    modules: dict[str, nn.Module]
    postfix: Callable[[], dict[str, str]] = dict
    final_lr: float = FINAL_LR
    after: Callable[[int], bool] = field(default=lambda step: False)


def snapshot(modules: Mapping[str, nn.Module]) -> dict[str, dict[str, Tensor]]:
    """A copy of all parameters and buffers."""
    return {
        name: {key: value.detach().clone() for key, value in module.state_dict().items()}
        for name, module in modules.items()
    }


def restore(modules: Mapping[str, nn.Module], state: Mapping[str, Any]) -> None:
    """Put back what `snapshot` gave."""
    for name, module in modules.items():
        module.load_state_dict(state[name])


@dataclass
class Checkpoint:
    """A file from which an interrupted fit goes on to the same numbers.

    Args:
        path: The file.
        arguments: What must be the same for the fit to go on.
    """

    path: Path
    arguments: dict[str, Any]

    def save(self, stage: Stage, step: int, history: History, extra: dict[str, Any]) -> None:
        """Write the state after `step` steps of a stage."""
        content = {
            "format": CHECKPOINT_FORMAT,
            "arguments": self.arguments,
            "stage": stage.name,
            "step": step,
            "modules": snapshot(stage.modules),
            "optimizer": stage.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
            "history": history.to_dict(),
            "extra": extra,
        }
        write_atomically(self.path, lambda file: torch.save(content, file))

    def load(self) -> dict[str, Any] | None:
        """The state written last, or `None` where there is no file yet."""
        if not self.path.exists():
            return None
        try:
            content = torch.load(self.path, weights_only=True)
        except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, RuntimeError) as error:
            raise ValueError(
                f"{self.path} is no checkpoint of a fit, or is damaged; "
                f"remove it or name another file ({error.__class__.__name__})"
            ) from None
        if not isinstance(content, dict) or content.get("format") != CHECKPOINT_FORMAT:
            raise ValueError(f"{self.path} is no checkpoint of a fit; name another file")
        found = content["arguments"]
        changed = [k for k in self.arguments if found.get(k) != self.arguments[k]]
        if changed:
            listing = ", ".join(
                f"{k}: {found.get(k)} there, {self.arguments[k]} now" for k in changed
            )
            raise ValueError(
                f"the checkpoint {self.path} is of another fit ({listing}); "
                "remove it to start anew, or pass the same arguments to go on"
            )
        return content


def restore_random(content: dict[str, Any]) -> None:
    """Set torch's random states to those of a checkpoint."""
    torch.set_rng_state(content["random"])
    if content["cuda"]:
        torch.cuda.set_rng_state_all(content["cuda"])


def train(
    stage: Stage,
    history: History,
    start: int = 0,
    bar: tqdm | None = None,
    checkpoint: Checkpoint | None = None,
    extra: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Run a stage from step `start`, with the learning rate rising shortly, then falling slowly.

    Raises:
        NotFinite: The loss was not finite; the last good parameters have been put back.
        KeyboardInterrupt: As it came, after the checkpoint was written.
    """
    for group in stage.optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    parameters = [p for group in stage.optimizer.param_groups for p in group["params"]]
    good = [p.detach().clone() for p in parameters]
    step, began, before = start, time.perf_counter(), history.seconds

    def save() -> None:
        history.seconds = before + time.perf_counter() - began
        if checkpoint is not None:
            checkpoint.save(stage, step, history, extra())

    try:
        while step < stage.steps:
            rate = schedule(step / stage.steps, stage.final_lr)
            for group in stage.optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate
            stage.optimizer.zero_grad()
            loss = stage.backward(step)
            if not math.isfinite(loss):
                with torch.no_grad():
                    for parameter, value in zip(parameters, good, strict=True):
                        parameter.copy_(value)
                raise NotFinite(stage.name, step, loss)
            if step % 100 == 0:
                good = [p.detach().clone() for p in parameters]
            stage.optimizer.step()
            step += 1
            if bar is not None:
                bar.update()
                if step % 20 == 0:
                    bar.set_postfix(stage.postfix(), refresh=False)
            if stage.after(step):
                break
            if step % max(1, stage.steps // CHECKPOINTS) == 0 and step < stage.steps:
                save()
    finally:
        save()


def schedule(progress: float, final: float = FINAL_LR) -> float:
    """Factor on the learning rate: a straight rise, then half a cosine down to `final`."""
    rise = final + (1 - final) * progress / WARM_UP
    return min(rise, final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)))
