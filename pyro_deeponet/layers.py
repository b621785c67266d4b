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

__all__ = ["ACTIVATIONS", "MLP", "Activation", "Linear", "defaults_of", "linear", "prior_of"]

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


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The layer `x W^T + b` for every sample of its weights.

    Args:
        x: Inputs `(n, in)`, shared by all samples, or `(*S, n, in)`.
        weight: `(*S, out, in)`.
        bias: `(*S, out)`.

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
        return stacked.reshape(*samples, x.shape[0], out) + bias.unsqueeze(-2)
    return torch.matmul(x, weight.mT) + bias.unsqueeze(-2)


class Linear(PyroModule):
    """A linear layer with a prior on its weight and bias; without one they are plain parameters.

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        prior: See `pyro_deeponet.priors`. Where it is, or gives, `None`, a weight is an ordinary
            parameter.
        name: Where the layer stands in the model, for the names of its sites.

    Examples:
        >>> from pyro_deeponet import priors
        >>> Linear(3, 2, priors.Normal(0.0, 1.0), "branch.0")(torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """

    like: Tensor

    def __init__(self, inputs: int, outputs: int, prior: Prior | None, name: str) -> None:
        super().__init__()
        self.name = name
        self.shapes = {
            f"{name}.weight": torch.Size([outputs, inputs]),
            f"{name}.bias": torch.Size([outputs]),
        }
        # A weight of this layer has the type and device of this buffer.
        self.register_buffer("like", torch.empty(0), persistent=False)
        for site, shape in self.shapes.items():
            attribute = site.rsplit(".", 1)[1]
            if prior is not None and _is_bayesian(prior, site, shape):
                drawn: Any = partial(_prior_of_layer, prior, site, shape)
                setattr(self, attribute, PyroSample(drawn))
            else:
                setattr(self, attribute, nn.Parameter(torch.zeros(shape)))

    def weights(self) -> dict[str, Tensor]:
        """Read the weights, which samples them inside a running Pyro model."""
        return {site: self._read(site.rsplit(".", 1)[1]) for site in self.shapes}

    def _read(self, attribute: str) -> Tensor:
        # Reading a parameter registers it with Pyro, which would make a frozen one learn.
        parameter = self._parameters.get(attribute)
        if parameter is not None and not parameter.requires_grad:
            return parameter
        value: Tensor = getattr(self, attribute)
        return value

    def start(self, generator: torch.Generator) -> dict[str, Tensor]:
        """He's random weights and zero biases, from which training sets out."""
        (weight, shape), (bias, width) = self.shapes.items()
        normal = torch.randn(shape, generator=generator) * math.sqrt(2 / shape[1])
        return {weight: normal.to(self.like), bias: torch.zeros(width).to(self.like)}

    def evaluate(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """The layer with weights given by the names of their sites."""
        return linear(x, weights[f"{self.name}.weight"], weights[f"{self.name}.bias"])

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
        self.depth = len(sizes) - 1
        self.shapes: dict[str, torch.Size] = {}
        for i, (inputs, outputs) in enumerate(pairwise(sizes)):
            layer = Linear(inputs, outputs, prior, f"{name}.{i}")
            setattr(self, str(i), layer)
            self.shapes |= layer.shapes

    def _layers(self) -> list[Linear]:
        return [getattr(self, str(i)) for i in range(self.depth)]

    def weights(self) -> dict[str, Tensor]:
        """Read the weights of all layers, which samples them inside a running Pyro model."""
        return {site: w for layer in self._layers() for site, w in layer.weights().items()}

    def start(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Random weights from which training sets out."""
        return {site: w for layer in self._layers() for site, w in layer.start(generator).items()}

    def evaluate(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """The network with weights given by the names of their sites, `(*S, n, width)`."""
        for i, layer in enumerate(self._layers()):
            x = layer.evaluate(x, weights)
            if i < len(self.activations):
                x = self.activations[i](x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """The network, `(n, inputs) -> (*S, n, width)`."""
        return self.evaluate(x, self.weights())


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


def _prior_of_layer(prior: Prior, site: str, shape: torch.Size, layer: Linear) -> Any:
    return prior_of(prior, site, shape, layer.like)
