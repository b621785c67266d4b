"""Priors made of other distributions: with scales of their own, or another one a layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_deeponet.priors.base import Prior, check_positive, of_shape, start_of

__all__ = ["ByLayer", "Horseshoe"]


@dataclass(frozen=True)
class Horseshoe:
    r"""Gaussians with random scales, :math:`w_i \sim \mathcal N(0, \tau^2 \lambda_i^2)`.

    The scales are half-Cauchy, :math:`\tau \sim C^+(\text{scale})` for the whole tensor and
    :math:`\lambda_i \sim C^+(1)` for each weight (Carvalho et al., 2010). They are sites of their
    own, `<name>_tau` and `<name>_lambda`, and are inferred with the weights.

    Where the data shall find out which weights matter. It doubles what a guide has to learn, and a
    step goes through Pyro site by site, which takes several times as long. There is no point in
    `guide="delta"`: the density is unbounded where weight and scale vanish together.

    Args:
        scale: Median of :math:`\tau`; the smaller, the fewer weights are expected to matter.

    Examples:
        >>> from pyro import poutine
        >>> with poutine.trace() as tracer:
        ...     weight = pyro.sample("w", Horseshoe(0.1)("w", torch.Size([4, 3])))
        >>> {name: tuple(site["value"].shape) for name, site in tracer.trace.nodes.items()}
        {'w_tau': (), 'w_lambda': (4, 3), 'w': (4, 3)}
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)

    def __call__(self, name: str, shape: torch.Size) -> dist.Distribution:
        """The prior of one weight, given scales that are drawn here."""
        tau = pyro.sample(f"{name}_tau", dist.HalfCauchy(self.scale))
        local = pyro.sample(f"{name}_lambda", of_shape(dist.HalfCauchy(1.0), shape))
        scale = tau.reshape(*tau.shape, *[1] * len(shape)) * local
        # A sampler may step to scales whose square is zero, and the density there no number.
        least = math.sqrt(torch.finfo(scale.dtype).tiny)
        return dist.Normal(0.0, scale.clamp_min(least)).to_event(len(shape))

    def start(self, name: str, weight: Tensor) -> dict[str, Tensor]:
        r"""Where the scales start with this weight: :math:`\lambda_i = 1` and a fitting tau.

        It is :math:`\tau^2 = \text{scale}^2 + \overline{w^2}`: the median, and more where trained
        weights are larger, which would be driven to zero before the scales could follow.
        """
        tau = (self.scale**2 + weight.square().mean()).sqrt()
        return {f"{name}_tau": tau, f"{name}_lambda": torch.ones_like(weight)}


@dataclass(frozen=True)
class ByLayer:
    r"""A prior for each part of the network: :math:`w \sim` the first whose pattern fits its name.

    Where only some weights shall be random, or of different sizes. The names are
    `branch.<layer>.weight`, `trunk.<layer>.bias`, `head.weight` and their like.

    Args:
        patterns: Priors by pattern (`*`: anything, `?`: a character, `[01]`: one of these), tried
            in the order given. `None`: these weights are plain parameters.

    Examples:
        >>> from pyro_deeponet.priors import FanIn, Normal
        >>> biases = ByLayer({"*.bias": Normal(0.0, 0.5), "*": None})
        >>> biases("trunk.0.bias", torch.Size([30])).base_dist.scale[0]
        tensor(0.5000)
        >>> biases("trunk.0.weight", torch.Size([30, 1])) is None
        True
        >>> last = ByLayer({"head.*": Normal(), "*": None})
        >>> mixed = ByLayer({"trunk.*": None, "*.bias": Normal(), "branch.0.*": Horseshoe(0.1),
        ...                  "*": FanIn()})
    """

    patterns: Mapping[str, Prior | None]

    def __post_init__(self) -> None:
        given: Any = self.patterns
        if not isinstance(given, Mapping) or not given:
            raise TypeError(
                f'patterns is {given!r}, expected priors by pattern, such as {{"trunk.*": None, '
                '"*": Normal()}'
            )
        for pattern, prior in given.items():
            if not isinstance(pattern, str):
                raise TypeError(f"the pattern {pattern!r} is no text, expected one like 'trunk.*'")
            # Pyro's distributions can be called too, which draws from them.
            is_prior = callable(prior) and not isinstance(prior, dist.Distribution)
            if prior is not None and not is_prior:
                raise TypeError(
                    f"the prior for {pattern!r} is {prior!r}, expected one of this module, a "
                    "callable (name, shape) -> Distribution, or None for plain parameters"
                )
        object.__setattr__(self, "patterns", dict(given))  # nobody else's to change

    def __call__(self, name: str, shape: torch.Size) -> Any:
        """The prior of one weight, or `None`.

        Raises:
            ValueError: No pattern fits the name.
        """
        prior = self._fitting(name)
        return None if prior is None else prior(name, shape)

    def start(self, name: str, weight: Tensor) -> dict[str, Tensor]:
        """Where the sites of the fitting prior start, if it has any of its own."""
        return start_of(self._fitting(name), name, weight)

    def _fitting(self, name: str) -> Prior | None:
        for pattern, prior in self.patterns.items():
            if fnmatchcase(name, pattern):
                return prior
        raise ValueError(
            f"no pattern fits {name!r}: {', '.join(map(repr, self.patterns))}; end them with '*' "
            "for all the other weights, None being its prior where these are plain parameters"
        )
