r"""What an observation is drawn from, :math:`s \sim \mathcal N(\mu, \sigma^2)`.

The network works in its own units, in which outputs are about one; `unit` is the size of one
network unit in physical units.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from pyro.nn import PyroModule
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["FixedNoise", "Heteroscedastic", "Homoscedastic", "Likelihood"]

#: Beyond this degree a polynomial costs more than a logarithm.
MAX_DEGREE = 8
#: Up to here the power in `log(1 + 2^bits)` cannot overflow; beyond, it is left to torch.
LARGEST = 20.0
#: The least power of two for which there is a polynomial: one for all that are smaller.
SMALLEST = -24


class Likelihood(PyroModule):
    """A Gaussian whose standard deviation is told by `sigma`; subclass it for another one.

    Attributes:
        nodes: How many output nodes the network needs: 2 for `mu` and `delta`, 1 for `mu` alone.

    Examples:
        A noise level that cannot leave an interval:

        >>> class Bounded(Likelihood):
        ...     nodes = 2
        ...     def sigma(self, delta, unit):
        ...         return 0.01 + 0.1 * delta.sigmoid()
        >>> from pyro_deeponet import DeepONet
        >>> model = DeepONet(sensors=4, coordinates=1, likelihood=Bounded())
        >>> u, y, _ = model.example()
        >>> mu, sigma = model.moments(model.start(), u, y)
        >>> sigma
        tensor([[0.0600]])
    """

    nodes: int = 1

    def sigma(self, delta: Tensor | None, unit: Tensor) -> Tensor:
        """Standard deviation of an observation in network units; it must broadcast with `mu`.

        Args:
            delta: The second output node, of the shape of `mu`, or `None` with one node.
            unit: Size of one network unit of the outputs.
        """
        raise NotImplementedError

    def sigma_(self, bits: Tensor | None, unit: Tensor, out: Tensor | None = None) -> Tensor:
        """What `sigma` gives, for predictions: without gradients, overwriting what it is given.

        Args:
            bits: The second output node divided by `log(2)`, for powers of two.
            unit: As in `sigma`.
            out: Memory of the shape of `bits`, which may be used for the result.
        """
        return self.sigma(None if bits is None else bits.mul_(math.log(2)), unit)

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

    def sigma_(self, bits: Tensor | None, unit: Tensor, out: Tensor | None = None) -> Tensor:
        """As `sigma`, without gradients and faster."""
        if bits is None or type(self).sigma is not Heteroscedastic.sigma:
            return super().sigma_(bits, unit)  # a subclass has a formula of its own
        return softplus2_(bits, self.floor, out)

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


def softplus2_(bits: Tensor, floor: float = 0.0, out: Tensor | None = None) -> Tensor:
    r"""`floor + log(1 + 2^bits)`: the softplus of `bits * log(2)`, without gradients.

    Torch's softplus is slow on a CPU. There, in float32, this is made of a power of two, cheaper
    than one of :math:`e`, and of a polynomial in place of the logarithm where that is exact, see
    `log1p_polynomial`.

    Args:
        bits: Any shape. It is overwritten.
        floor: What is added.
        out: Memory of the same shape for the result, which may be used.

    Examples:
        >>> softplus2_(torch.tensor([-9.0, -7.0])), softplus2_(torch.tensor([0.0, 50.0]))
        (tensor([0.0020, 0.0078]), tensor([ 0.6931, 34.6574]))
    """
    quick = bits.device.type == "cpu" and bits.dtype == torch.float32 and bits.numel()
    if not quick or not (largest := bits.amax().item()) < LARGEST:  # NaN comes here too
        return softplus(bits.mul_(math.log(2))).add_(floor)
    e = bits.exp2_()
    polynomial = log1p_polynomial(math.ceil(max(largest, SMALLEST)))
    if polynomial is None:
        return e.log1p_().add_(floor)
    *others, second, first = e.new_tensor([floor, *polynomial]).unbind()
    out = torch.add(second, e, alpha=first.item(), out=out)
    for coefficient in reversed(others):  # Horner's scheme
        torch.addcmul(coefficient, out, e, out=out)
    return out


@cache
def log1p_polynomial(power: int) -> tuple[float, ...] | None:
    r"""The polynomial that is :math:`\log(1 + e) / e` in float32 for `0 <= e <= 2**power`.

    That which agrees with it at the :math:`d + 1` Chebyshev points of :math:`[0, E]` is within
    :math:`2 (E/4)^{d+1} / (d + 2)` of it; the lowest degree :math:`d` is taken with which this is
    below a quarter of the float type's epsilon.

    Returns:
        Coefficients, that of degree zero first; `None` where the logarithm itself costs less.

    Examples:
        >>> log1p_polynomial(-6)
        (0.99999..., -0.4999..., 0.32...)
    """
    end, tolerance = 2.0**power, torch.finfo(torch.float32).eps / 4
    for degree in range(1, MAX_DEGREE + 1):
        if 2 * (end / 4) ** (degree + 1) / (degree + 2) <= tolerance:
            fit = Chebyshev.interpolate(lambda e: np.log1p(e) / e, degree, domain=[0.0, end])
            return tuple(fit.convert(kind=Polynomial).coef.tolist())
    return None


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))
