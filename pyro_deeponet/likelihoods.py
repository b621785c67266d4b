r"""What an observation is drawn from, :math:`s \sim \mathcal N(\mu, \sigma^2)`.

The network works in its own units, in which outputs are about one; `unit` is the size of one
network unit in physical units.
"""

from __future__ import annotations

import math

import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["FixedNoise", "Heteroscedastic", "Homoscedastic", "Likelihood"]


class Likelihood(PyroModule):
    """A Gaussian whose standard deviation is told by `sigma`; subclass it for another one.

    Attributes:
        nodes: How many output nodes the network needs: 2 for `mu` and `delta`, 1 for `mu` alone.
    """

    nodes: int = 1

    def sigma(self, delta: Tensor | None, unit: Tensor) -> Tensor:
        """Standard deviation of an observation in network units; it must broadcast with `mu`.

        Args:
            delta: The second output node, of the shape of `mu`, or `None` with one node.
            unit: Size of one network unit of the outputs.
        """
        raise NotImplementedError

    def start_at(self, sigma: float) -> float | None:
        """Begin with this standard deviation (network units).

        Returns:
            The value to give the bias of the node `delta`, or `None` where there is no such node.
        """
        return None


class Heteroscedastic(Likelihood):
    r"""A noise level for every point, :math:`\sigma = \text{floor} + \log(1 + e^\delta)`.

    Args:
        floor: Smallest standard deviation, in network units. The paper has none; a millionth of
            the outputs' spread keeps the density finite for any weights the prior may draw.

    Examples:
        >>> Heteroscedastic().sigma(torch.tensor(0.0), unit=torch.tensor(1.0))
        tensor(0.6931)
    """

    nodes = 2

    def __init__(self, floor: float = 1e-6) -> None:
        super().__init__()
        if not floor >= 0:
            raise ValueError(f"floor is {floor}, expected zero or more")
        self.floor = float(floor)

    def sigma(self, delta: Tensor | None, unit: Tensor) -> Tensor:
        """Standard deviation in network units, of the shape of `delta`."""
        if delta is None:
            raise ValueError("Heteroscedastic needs the second output node, delta")
        return softplus(delta) + self.floor

    def start_at(self, sigma: float) -> float | None:
        """The `delta` at which the standard deviation is `sigma`."""
        return _inverse_softplus(max(sigma - self.floor, 1e-6))


class Homoscedastic(Likelihood):
    r"""One noise level for all, :math:`\sigma = \log(1 + e^\rho)` with a learned :math:`\rho`.

    Args:
        initial: Where it starts, in network units.

    Examples:
        >>> Homoscedastic(initial=0.1).sigma(None, unit=torch.tensor(1.0)).item()
        0.1...
    """

    def __init__(self, initial: float = 0.1) -> None:
        super().__init__()
        if not initial > 0:
            raise ValueError(f"initial is {initial}, expected a positive number")
        self.initial = float(initial)
        self.rho = torch.nn.Parameter(torch.tensor(_inverse_softplus(initial)))

    def sigma(self, delta: Tensor | None, unit: Tensor) -> Tensor:
        """The one standard deviation, in network units."""
        return softplus(self.rho)

    def start_at(self, sigma: float) -> float | None:
        """Set the parameter."""
        with torch.no_grad():
            self.rho.fill_(_inverse_softplus(max(sigma, 1e-6)))
        return None


class FixedNoise(Likelihood):
    """A known noise level.

    Args:
        sigma: Standard deviation of an observation in physical units. `None`: one network unit,
            about the spread of the outputs, which makes the loss the mean squared error.

    Examples:
        >>> FixedNoise(0.5).sigma(None, unit=torch.tensor(10.0))
        tensor(0.0500)
    """

    def __init__(self, sigma: float | None = None) -> None:
        super().__init__()
        if sigma is not None and not sigma > 0:
            raise ValueError(f"sigma is {sigma}, expected a positive number, or None")
        self.fixed = None if sigma is None else float(sigma)

    def sigma(self, delta: Tensor | None, unit: Tensor) -> Tensor:
        """The known standard deviation, in network units."""
        return torch.ones_like(unit) if self.fixed is None else self.fixed / unit


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))
