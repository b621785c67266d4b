"""Bayesian layers whose weights may carry sample dimensions.

A weight `(*S, out, in)` stands for one network per entry of `S`, and all of them are evaluated by
one batched product per layer. `S` is empty for a single network, `(S, 1, 1)` under Pyro's
vectorised particles (two plates stand to the right), and `(S,)` for a stack of posterior samples.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from pyro_deeponet.priors import Prior, expanded

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "Activation",
    "Linear",
    "Weights",
    "add_weight",
    "defaults_of",
    "linear",
    "prior_of",
    "read_weight",
]

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "sine": torch.sin,
    "identity": nn.Identity(),
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The layer `x W^T + b`, or `x W^T`, for every sample of its weights.

    Args:
        x: Inputs `(n, in)`, shared by all samples, or `(*S, n, in)`.
        weight: `(*S, out, in)`.
        bias: `(*S, out)`, or `None`.

    Returns:
        `(*S, n, out)`.

    Examples:
        >>> linear(torch.ones(5, 3), torch.ones(7, 2, 3), torch.zeros(7, 2)).shape
        torch.Size([7, 5, 2])
    """
    if x.dim() == 2 and weight.dim() > 2:
        # The same x for all samples: one tall product is faster than a batch of small ones.
        *samples, out, inputs = weight.shape
        product = x @ weight.reshape(-1, inputs).mT
        stacked = product.unflatten(1, (-1, out)).transpose(0, 1)
        product = stacked.reshape(*samples, x.shape[0], out)
    else:
        product = torch.matmul(x, weight.mT)
    return product if bias is None else product + bias.unsqueeze(-2)


class Weights(PyroModule):
    """Holds weights: sites of the model where they have a prior, plain parameters where not.

    Attributes:
        like: An empty buffer that has the float type and device of the weights.
    """

    like: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("like", torch.empty(0), persistent=False)


class Linear(Weights):
    """A linear layer with a prior on its weight and bias; without one they are plain parameters.

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        prior: See `pyro_deeponet.priors`. Where it is, or gives, `None`, a weight is an ordinary
            parameter.
        name: Where the layer stands in the model, for the names of its sites.
        bias: Whether it has one.

    Examples:
        >>> from pyro_deeponet import priors
        >>> Linear(3, 2, priors.Normal(0.0, 1.0), "branch.0")(torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self, inputs: int, outputs: int, prior: Prior | None, name: str, bias: bool = True
    ) -> None:
        super().__init__()
        self.name = name
        self.shapes = {f"{name}.weight": torch.Size([outputs, inputs])}
        if bias:
            self.shapes[f"{name}.bias"] = torch.Size([outputs])
        for site, shape in self.shapes.items():
            add_weight(self, site, shape, prior)

    def weights(self) -> dict[str, Tensor]:
        """Read the weights, which samples them inside a running Pyro model."""
        return {site: read_weight(self, site) for site in self.shapes}

    def start(self, generator: torch.Generator) -> dict[str, Tensor]:
        """He's random weights and zero biases, from which training sets out."""
        (weight, shape), *biases = self.shapes.items()
        normal = torch.randn(shape, generator=generator) * math.sqrt(2 / shape[1])
        zeros = {bias: torch.zeros(width).to(self.like) for bias, width in biases}
        return {weight: normal.to(self.like)} | zeros

    def evaluate(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """The layer with weights given by the names of their sites."""
        return linear(x, weights[f"{self.name}.weight"], weights.get(f"{self.name}.bias"))

    def forward(self, x: Tensor) -> Tensor:
        """The layer, `(n, in) -> (*S, n, out)`."""
        return self.evaluate(x, self.weights())


class MLP(PyroModule):
    """Bayesian linear layers with an activation between them.

    Args:
        sizes: Inputs, then the width of each layer.
        prior: As in `Linear`.
        activation: Applied after every layer but the last.
        final_activation: Whether the last layer has an activation too.
        name: Where the network stands in the model.

    Attributes:
        sizes: Numbers that a row has after each layer; the last is the width of the network.
        cost: About how many multiplications a row takes.

    Examples:
        >>> from pyro_deeponet import priors
        >>> net = MLP([3, 8, 4], priors.Normal(), torch.tanh, False, "trunk")
        >>> net(torch.ones(5, 3)).shape, list(net.shapes)[0]
        (torch.Size([5, 4]), 'trunk.0.weight')
    """

    def __init__(
        self,
        sizes: Sequence[int],
        prior: Prior | None,
        activation: Activation,
        final_activation: bool,
        name: str,
    ) -> None:
        super().__init__()
        self.activations = [activation] * (len(sizes) - 2) + [activation] * final_activation
        self.sizes = tuple(sizes[1:])
        self.shapes: dict[str, torch.Size] = {}
        for i, (inputs, outputs) in enumerate(pairwise(sizes)):
            layer = Linear(inputs, outputs, prior, f"{name}.{i}")
            setattr(self, str(i), layer)
            self.shapes |= layer.shapes
        self.cost = sum(shape.numel() for shape in self.shapes.values())

    def _layers(self) -> list[Linear]:
        return [getattr(self, str(i)) for i in range(len(self.sizes))]

    def weights(self) -> dict[str, Tensor]:
        """Read the weights of all layers, which samples them inside a running Pyro model."""
        return {site: w for layer in self._layers() for site, w in layer.weights().items()}

    def start(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Random weights from which training sets out."""
        return {site: w for layer in self._layers() for site, w in layer.start(generator).items()}

    def evaluate(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """The network with weights given by the names of their sites, `(*S, n, width)`."""
        last = len(self.sizes) - 1
        x = self._layers()[last].evaluate(self.hidden(x, weights), weights)
        return self.activations[last](x) if len(self.activations) > last else x

    def hidden(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """What the last layer reads, `(*S, n, inputs of the last layer)`."""
        for layer, activation in zip(self._layers()[:-1], self.activations, strict=False):
            x = activation(layer.evaluate(x, weights))
        return x

    def forward(self, x: Tensor) -> Tensor:
        """The network, `(n, inputs) -> (*S, n, width)`."""
        return self.evaluate(x, self.weights())


def add_weight(owner: Weights, site: str, shape: torch.Size, prior: Prior | None) -> None:
    """Give a module a weight under the last part of its name: drawn from the prior, if any."""
    attribute = site.rsplit(".", 1)[1]
    if prior is not None and _is_bayesian(prior, site, shape):
        drawn: Any = partial(_prior_of_owner, prior, site, shape)
        setattr(owner, attribute, PyroSample(drawn))
    else:
        setattr(owner, attribute, nn.Parameter(torch.zeros(shape)))


def read_weight(owner: Weights, site: str) -> Tensor:
    """Read a weight of a module, which samples it inside a running Pyro model."""
    attribute = site.rsplit(".", 1)[1]
    # Reading a parameter registers it with Pyro, which would make a frozen one learn.
    parameter = owner._parameters.get(attribute)
    if parameter is not None and not parameter.requires_grad:
        return parameter
    value: Tensor = getattr(owner, attribute)
    return value


def prior_of(prior: Prior, site: str, shape: torch.Size, like: Tensor) -> Any:
    """A prior, asked for so that `dist.Normal(0.0, 1.0)` follows `.double()` and `.to()`."""
    with defaults_of(like):
        return expanded(prior, site, shape)


@contextlib.contextmanager
def defaults_of(like: Tensor) -> Iterator[None]:
    """Make the float type and device of a tensor torch's defaults for a while."""
    default = torch.get_default_dtype()
    if like.dtype == default and like.device.type == "cpu":
        yield
        return
    torch.set_default_dtype(like.dtype)
    try:
        with torch.device(like.device):
            yield
    finally:
        torch.set_default_dtype(default)


def _is_bayesian(prior: Prior, site: str, shape: torch.Size) -> bool:
    with poutine.block():  # a prior's own sample statements are none of a model being built
        return prior(site, shape) is not None


def _prior_of_owner(prior: Prior, site: str, shape: torch.Size, owner: Weights) -> Any:
    return prior_of(prior, site, shape, owner.like)
