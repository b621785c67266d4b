"""Any torch module as a Bayesian net, its parameters drawn from a prior."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pyro_deeponet.layers import Weights, add_weight, read_weight
from pyro_deeponet.priors import Prior

__all__ = ["BayesianModule"]

#: Rows with which a module is tried out.
ROWS = 3


class BayesianModule(Weights):
    """Any torch module as a net, with a prior on each of its parameters.

    A parameter becomes a site `<name>.<its name in the module>`; one that the module has frozen
    (`requires_grad=False`) has no prior and stays frozen. Weights with sample dimensions go through
    `torch.func.vmap`. The module is copied, and keeps its buffers.

    Args:
        module: From inputs `(rows, inputs)` to features `(rows, width)`, each row by itself and
            without randomness; or a callable that makes such a module.
        inputs: Number of inputs.
        prior: As in `Linear`.
        name: Where the net stands in the model.

    Attributes:
        sizes: Numbers that a row has after each part of the module; the last is the width.
        cost: About how many multiplications a row takes.

    Raises:
        TypeError: No module, or one with parameters that cannot have a prior.
        ValueError: A module that does not do what is said above.

    Examples:
        >>> from pyro_deeponet import priors
        >>> field = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.Flatten())
        >>> net = BayesianModule(field, 16, priors.Normal(), "branch")
        >>> net(torch.ones(5, 16)).shape
        torch.Size([5, 8])
        >>> net.shapes
        {'branch.1.weight': torch.Size([2, 1, 3, 3]), 'branch.1.bias': torch.Size([2])}
    """

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        inputs: int,
        prior: Prior | None,
        name: str,
    ) -> None:
        super().__init__()
        self.name = name
        self._make: Callable[[], nn.Module] = (
            partial(copy.deepcopy, copy.deepcopy(module))
            if isinstance(module, nn.Module)
            else module
        )
        made = _made(self._make, 0, name)
        _check_parameters(made, name)
        skeleton = copy.deepcopy(made).to(self.like)
        self.kind = type(made).__name__
        self.sizes, self.cost = _try_out(skeleton, inputs, name)
        first = {id(p): path for path, p in made.named_parameters()}
        # A parameter that stands in two parts has one site, a part that stands in two places is
        # told its parameters once.
        self._sites = {
            f"{path}.{attribute}".lstrip("."): f"{name}.{first[id(p)]}"
            for path, part in made.named_modules()
            for attribute, p in part._parameters.items()
            if p is not None
        }
        self.shapes = {f"{name}.{path}": p.shape for path, p in made.named_parameters()}
        for path, parameter in made.named_parameters():
            self._add(path, parameter, prior)
        for path in self._sites:
            owner, _, attribute = path.rpartition(".")
            skeleton.get_submodule(owner).register_parameter(attribute, None)
        self._skeleton = skeleton  # without parameters, which are passed in when it runs
        self._try_samples(made, inputs)

    def _add(self, path: str, parameter: nn.Parameter, prior: Prior | None) -> None:
        owner: Weights = self
        *parents, attribute = path.split(".")
        for part in parents:
            self._check_free(owner, part, path)
            if not hasattr(owner, part):
                setattr(owner, part, Weights())
            owner = getattr(owner, part)
        self._check_free(owner, attribute, path)
        frozen = not parameter.requires_grad
        add_weight(owner, f"{self.name}.{path}", parameter.shape, None if frozen else prior)
        if frozen:
            getattr(owner, attribute).requires_grad_(False)

    def _check_free(self, owner: Weights, attribute: str, path: str) -> None:
        if not isinstance(getattr(owner, attribute, Weights()), Weights):
            raise ValueError(
                f"{self.name} has a parameter {path!r}, and {attribute!r} is a name the model "
                "uses itself; rename it in the module"
            )

    def _try_samples(self, made: nn.Module, inputs: int) -> None:
        """Run two samples at once, for a clear message now rather than in the midst of a fit."""
        two = {
            site: p.detach().to(self.like).expand(2, *p.shape)
            for site, p in zip(self.shapes, made.parameters(), strict=True)
        }
        try:
            with torch.no_grad():
                self.evaluate(_rows(inputs, self.like), two)
        except Exception as error:  # whatever a module of the user's own raises
            raise ValueError(
                f"{self.name} cannot be run with several weights at once, which torch.func.vmap "
                f"does: {error}"
            ) from error

    def weights(self) -> dict[str, Tensor]:
        """Read the weights, which samples them inside a running Pyro model."""
        return {site: read_weight(self._owner(site), site) for site in self.shapes}

    def _owner(self, site: str) -> Weights:
        owner: Weights = self
        for part in site.removeprefix(f"{self.name}.").split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    def start(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Weights from which training sets out.

        Those that the module came with, whatever the seed; a callable makes a new module with
        torch's random state set by the generator.
        """
        seed = int(torch.randint(2**31, (), generator=generator))
        made = _made(self._make, seed, self.name)
        return {
            f"{self.name}.{path}": p.detach().clone().to(self.like)
            for path, p in made.named_parameters()
        }

    def evaluate(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """The net with weights given by the names of their sites, `(*S, n, width)`."""
        leads = {
            site: weights[site].shape[: weights[site].dim() - len(shape)]
            for site, shape in self.shapes.items()
        }
        samples = torch.broadcast_shapes(*leads.values())
        given: dict[str, Tensor] = {}
        dims: dict[str, int | None] = {}
        for site, shape in self.shapes.items():
            shared = leads[site].numel() == 1
            lead = [] if shared else [samples.numel()]
            whole = weights[site] if shared else weights[site].expand(*samples, *shape)
            given[site], dims[site] = whole.reshape(*lead, *shape), None if shared else 0
        if samples.numel() == 1:
            return self._run(given, x).reshape(*samples, len(x), self.sizes[-1])
        out = torch.vmap(self._run, in_dims=(dims, None))(given, x)
        return out.reshape(*samples, *out.shape[1:])

    def _run(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        parameters = {path: weights[site] for path, site in self._sites.items()}
        out: Tensor = torch.func.functional_call(self._skeleton, parameters, (x,))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """The net, `(n, inputs) -> (*S, n, width)`."""
        return self.evaluate(x, self.weights())


def _made(make: Callable[[], nn.Module], seed: int, name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module: Any = make()
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"the callable given as {name} made {type(module).__name__}, expected a torch.nn.Module"
        )
    return module


def _check_parameters(module: nn.Module, name: str) -> None:
    if any(isinstance(part, PyroModule) for part in module.modules()):
        raise TypeError(
            f"{name} is or has a PyroModule; pass a plain torch.nn.Module, whose parameters get "
            "the model's prior"
        )
    for path, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise TypeError(f"{name} has a lazy parameter {path!r}; run the module once first")
        if not parameter.is_floating_point():
            raise TypeError(
                f"{name} has a parameter {path!r} of type {parameter.dtype}, and priors are over "
                "real numbers; hold a complex weight as two real ones (torch.view_as_complex)"
            )


def _rows(inputs: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, inputs, generator=generator).to(like)


@torch.no_grad()
def _try_out(module: nn.Module, inputs: int, name: str) -> tuple[tuple[int, ...], int]:
    """Run a module as in training, refuse it if need be, and measure it: its sizes and cost."""
    x = _rows(inputs, torch.empty(0))
    sizes: list[int] = []

    def note(part: nn.Module, args: Any, out: Any) -> None:
        if isinstance(out, Tensor):
            sizes.append(out.numel() // ROWS)

    leaves = [part for part in module.modules() if not any(True for _ in part.children())]
    hooks = [part.register_forward_hook(note) for part in leaves]
    before = {path: buffer.clone() for path, buffer in module.named_buffers()}
    try:
        with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
            state = torch.get_rng_state()
            out: Any = module.train()(x)
            random = not torch.equal(state, torch.get_rng_state())
    except Exception as error:  # whatever a module of the user's own raises
        raise ValueError(
            f"{name} cannot be run at inputs of shape {tuple(x.shape)}, a row each: {error}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != ROWS or not out.shape[1]:
        found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"{name} made {found} of inputs {tuple(x.shape)}, expected ({ROWS}, p): p features "
            "for each row; end it with torch.nn.Flatten(), say"
        )
    if random:
        raise ValueError(
            f"{name} draws random numbers when it runs, as Dropout does; the weights are random "
            "already, and the same weights must make the same function: leave it out"
        )
    for path, buffer in module.named_buffers():
        if not torch.equal(buffer, before[path]):
            raise ValueError(
                f"{name} changes its buffer {path!r} when it runs, as BatchNorm does, and the "
                "posterior, over weights alone, would not know: take LayerNorm or GroupNorm"
            )
    size = out.abs().max().item()
    if not torch.allclose(module(x[:2]), out[:2], 1e-3, 1e-3 * size, equal_nan=True):
        raise ValueError(
            f"{name} makes something else of a row when other rows stand beside it, as BatchNorm "
            "does; every function must be seen by itself: take LayerNorm or GroupNorm"
        )
    return (*sizes, out.shape[1]), counter.get_total_flops() // (2 * ROWS)
