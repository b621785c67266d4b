"""Priors under which all weights are independent of each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.distributions import constraints

from pyro_deeponet.priors.base import check_number, check_positive, of_shape

__all__ = ["FanIn", "Laplace", "Normal", "ScaleMixture", "StudentT"]


@dataclass(frozen=True)
class Normal:
    r"""Independent Gaussians, :math:`w \sim \mathcal N(\text{loc}, \text{scale}^2)`.

    The paper's prior, and the one to start with.

    Args:
        loc: Mean of every weight.
        scale: Standard deviation of every weight.

    Examples:
        >>> Normal(0.0, 1.0)("head.bias", torch.Size([2])).event_shape
        torch.Size([2])
    """

    loc: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("loc", self.loc)
        check_positive("scale", self.scale)

    def __call__(self, name: str, shape: torch.Size) -> dist.Distribution:
        """The prior of one weight."""
        return of_shape(dist.Normal(self.loc, self.scale), shape)


@dataclass(frozen=True)
class FanIn:
    r"""Gaussians narrower in wider layers, :math:`\sigma = \text{gain} / \sqrt{\text{fan-in}}`.

    The outputs of a layer then have the same size whatever its width: for wide networks. Biases
    have scale `gain`.

    Args:
        gain: Scale at a fan-in of one.

    Examples:
        >>> FanIn(1.0)("branch.0.weight", torch.Size([30, 100])).base_dist.scale[0, 0]
        tensor(0.1000)
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        check_positive("gain", self.gain)

    def __call__(self, name: str, shape: torch.Size) -> dist.Distribution:
        """The prior of one weight."""
        fan_in = math.prod(shape[1:])  # of a matrix or a convolution; one for a bias
        return of_shape(dist.Normal(0.0, self.gain / math.sqrt(fan_in)), shape)


@dataclass(frozen=True)
class Laplace:
    r"""Double exponentials, :math:`p(w) = e^{-|w - \text{loc}| / b} / 2b` with scale :math:`b`.

    Where most weights should be small: the prior of the lasso, with the peak at `loc`.

    Args:
        loc: Centre of every weight.
        scale: Mean distance from it; the standard deviation is :math:`\sqrt 2` times this.

    Examples:
        >>> Laplace(scale=0.5)("head.bias", torch.Size([2])).log_prob(torch.zeros(2))
        tensor(0.)
    """

    loc: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("loc", self.loc)
        check_positive("scale", self.scale)

    def __call__(self, name: str, shape: torch.Size) -> dist.Distribution:
        """The prior of one weight."""
        return of_shape(dist.Laplace(self.loc, self.scale), shape)


@dataclass(frozen=True)
class StudentT:
    r"""Heavy tails, :math:`p(w) \propto (1 + z^2 / \text{df})^{-(\text{df} + 1) / 2}`.

    Here :math:`z = (w - \text{loc}) / \text{scale}`. Where a few weights may be far larger than
    the rest, as trained networks have them.

    Args:
        df: Degrees of freedom: 1 is a Cauchy distribution, many are a Gaussian.
        loc: Centre of every weight.
        scale: Its unit; the standard deviation is larger, and infinite for `df` of 2 or less.

    Examples:
        >>> StudentT(df=3.0)("head.bias", torch.Size([2])).variance
        tensor([3., 3.])
    """

    df: float = 3.0
    loc: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive("df", self.df)
        check_number("loc", self.loc)
        check_positive("scale", self.scale)

    def __call__(self, name: str, shape: torch.Size) -> dist.Distribution:
        """The prior of one weight."""
        return of_shape(dist.StudentT(self.df, self.loc, self.scale), shape)


@dataclass(frozen=True)
class ScaleMixture:
    r"""Two Gaussians, :math:`\pi \mathcal N(0, \sigma_1^2) + (1 - \pi) \mathcal N(0, \sigma_2^2)`.

    A smooth spike and slab (Blundell et al., 2015): where some weights matter, and others should
    all but vanish.

    Args:
        pi: Part of the weights that the first Gaussian has.
        scale_1: Standard deviation of the first.
        scale_2: Standard deviation of the second.

    Examples:
        >>> ScaleMixture(0.5, 1.0, 0.1)("head.bias", torch.Size([2])).variance
        tensor([0.5050, 0.5050])
    """

    pi: float = 0.5
    scale_1: float = 1.0
    scale_2: float = 0.1

    def __post_init__(self) -> None:
        check_number("pi", self.pi)
        if not 0 < self.pi < 1:
            raise ValueError(f"pi is {self.pi}, expected a number between 0 and 1")
        check_positive("scale_1", self.scale_1)
        check_positive("scale_2", self.scale_2)

    def __call__(self, name: str, shape: torch.Size) -> dist.Distribution:
        """The prior of one weight."""
        dtype = torch.get_default_dtype()  # a number of numpy would bring its own
        parts = torch.tensor([self.pi, 1 - self.pi], dtype=dtype)
        scales = torch.tensor([self.scale_1, self.scale_2], dtype=dtype)
        return of_shape(_Mixture(dist.Categorical(parts), dist.Normal(0.0, scales)), shape)


class _Mixture(dist.MixtureSameFamily):
    """A mixture of distributions on the real line; torch's own has no map to its support."""

    support = constraints.real
