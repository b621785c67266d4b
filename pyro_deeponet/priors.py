"""What a weight is drawn from.

A prior is any callable `(name, shape) -> Distribution`. It is called with the name of the site
(`"branch.0.weight"`, `"trunk.2.bias"`, `"head.weight"`) and the shape of the weight, each time the
model runs, so that a prior may depend on either, and may itself contain sample statements. For a
weight that shall be a plain parameter it gives `None`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pyro.distributions as dist
import torch

__all__ = ["FanIn", "Normal", "Prior", "expanded"]

Prior = Callable[[str, torch.Size], Any]


@dataclass(frozen=True)
class Normal:
    r"""Independent Gaussians, :math:`w \sim \mathcal N(\text{loc}, \text{scale}^2)`.

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
        _check_positive("scale", self.scale)

    def __call__(self, name: str, shape: torch.Size) -> dist.Distribution:
        """The prior of one weight."""
        return dist.Normal(self.loc, self.scale).expand(shape).to_event(len(shape))


@dataclass(frozen=True)
class FanIn:
    r"""Gaussians narrower in wider layers, :math:`\sigma = \text{gain} / \sqrt{\text{fan-in}}`.

    The outputs of a layer then have the same size whatever its width. Biases have scale `gain`.

    Args:
        gain: Scale at a fan-in of one.

    Examples:
        >>> FanIn(1.0)("branch.0.weight", torch.Size([30, 100])).base_dist.scale[0, 0]
        tensor(0.1000)
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("gain", self.gain)

    def __call__(self, name: str, shape: torch.Size) -> dist.Distribution:
        """The prior of one weight."""
        fan_in = shape[-1] if len(shape) > 1 else 1
        return dist.Normal(0.0, self.gain / math.sqrt(fan_in)).expand(shape).to_event(len(shape))


def expanded(prior: Prior, name: str, shape: torch.Size) -> Any:
    """Ask a prior for one weight and bring the answer to that weight's shape.

    A distribution of one number stands for that many independent ones, so that a user may write
    `lambda name, shape: dist.Laplace(0.0, 1.0)`.

    Raises:
        TypeError: The prior gave something that is no distribution.
        ValueError: The distribution has another shape.
    """
    given: Any = prior(name, shape)
    if not isinstance(given, torch.distributions.Distribution):
        raise TypeError(
            f"the prior gave {type(given).__name__} for {name!r}, "
            "expected a pyro.distributions.Distribution"
        )
    given = cast(Any, given)  # Pyro's distributions have more than torch's, untyped
    if given.event_shape == shape:  # perhaps with particles to the left, from sites of its own
        return given
    if given.shape() == ():
        return given.expand(shape).to_event(len(shape))
    if given.shape() == shape:
        return given.to_event(len(shape) - given.event_dim)
    raise ValueError(
        f"the prior gave a distribution of shape {tuple(given.shape())} for {name!r}, "
        f"expected {tuple(shape)}, or () for independent equal weights"
    )


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} is {value}, expected a positive number")
