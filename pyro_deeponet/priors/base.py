"""What all priors share: their type, their shapes, and checks of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["Prior", "check_number", "check_positive", "expanded", "of_shape", "start_of"]

#: What `DeepONet` takes for a prior: from a weight's name and shape to its distribution, or `None`.
Prior = Callable[[str, torch.Size], Any]


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
        return of_shape(given, shape)
    if given.shape() == shape:
        return given.to_event(len(shape) - given.event_dim)
    raise ValueError(
        f"the prior gave a distribution of shape {tuple(given.shape())} for {name!r}, "
        f"expected {tuple(shape)}, or () for independent equal weights"
    )


def start_of(prior: Prior | None, name: str, weight: Tensor) -> dict[str, Tensor]:
    """Where the sites that a prior has beside its weight start, of a prior that says so."""
    start = getattr(prior, "start", None)
    return {} if start is None else start(name, weight)


def of_shape(one: Any, shape: torch.Size) -> Any:
    """As many independent weights as the shape has."""
    return one.expand(shape).to_event(len(shape))


def check_number(name: str, value: Any) -> None:
    """Refuse what is no finite number."""
    if not (isinstance(value, Real) and math.isfinite(value)):
        raise ValueError(f"{name} is {value!r}, expected a finite number")


def check_positive(name: str, value: Any) -> None:
    """Refuse what is no finite number above zero."""
    if not (isinstance(value, Real) and 0 < float(value) < math.inf):
        raise ValueError(f"{name} is {value!r}, expected a positive number")
