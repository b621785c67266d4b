"""Gaussian random fields that the inputs of an operator are drawn from."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["GaussianRandomField"]

Points = Tensor | NDArray[np.floating] | Sequence[float]

# Correlation as a function of r, the distance in length scales.
_CORRELATIONS: dict[str, Callable[[NDArray], NDArray]] = {
    "rbf": lambda r: np.exp(-0.5 * r**2),
    "matern32": lambda r: (1 + math.sqrt(3) * r) * np.exp(-math.sqrt(3) * r),
    "matern52": lambda r: (1 + math.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-math.sqrt(5) * r),
    "periodic": lambda r: np.exp(-2 * r**2),
}

_POINTS_PER_LENGTH_SCALE = 16
_MIN_REFERENCE, _MAX_REFERENCE = 257, 2049
# Eigenvalues of a smooth kernel sink below rounding error. Modes under this fraction of the
# largest eigenvalue change a sample by about 1e-5 standard deviations, its covariance by 1e-11.
_EIGENVALUE_FLOOR = 1e-12
# Rows of white noise held at once.
_CHUNK = 4096


@dataclass(frozen=True)
class GaussianRandomField:
    r"""A stationary Gaussian random field with zero mean on an interval.

    With :math:`r = |x - x'| / \ell` the covariance is :math:`\sigma^2` times

    ============  =======================================================
    `rbf`         :math:`\exp(-r^2 / 2)`
    `matern32`    :math:`(1 + \sqrt 3 r) \exp(-\sqrt 3 r)`
    `matern52`    :math:`(1 + \sqrt 5 r + 5 r^2 / 3) \exp(-\sqrt 5 r)`
    `periodic`    :math:`\exp(-2 \sin^2(\pi (x - x') / p) / \ell^2)`
    ============  =======================================================

    where the period :math:`p` is the length of the domain. A sample is a function, not a vector:
    with white noise :math:`z` on a fine reference grid :math:`X` it is

    .. math:: f(x) = z^\top K(X, X)^{-1/2} K(X, x),

    so one seed gives the same functions wherever they are evaluated. The symmetric root depends
    neither on the signs of eigenvectors nor on a choice among degenerate ones, so that it is the
    same on every machine up to rounding, about 1e-9. It is computed at the first sample and kept:
    milliseconds for length scales above a twentieth of the domain, seconds below a hundredth.

    Args:
        length_scale: Distance :math:`\ell` over which the field varies, in units of `x`
            (for `periodic`, as in the formula, without units).
        variance: Variance :math:`\sigma^2` at every point.
        kernel: `"rbf"`, `"matern32"`, `"matern52"` or `"periodic"`.
        domain: Ends of the interval.

    Examples:
        >>> import torch
        >>> field = GaussianRandomField(length_scale=0.2)
        >>> u = field.sample(3, [0.0, 0.5, 1.0], seed=0)
        >>> u.shape, u.dtype
        (torch.Size([3, 3]), torch.float64)
        >>> finer = field.sample(3, torch.linspace(0, 1, 5), seed=0)
        >>> torch.allclose(finer[:, ::2], u)
        True
    """

    length_scale: float = 0.5
    variance: float = 1.0
    kernel: str = "rbf"
    domain: tuple[float, float] = field(default=(0.0, 1.0), kw_only=True)

    def __post_init__(self) -> None:
        check_positive("length_scale", self.length_scale)
        check_positive("variance", self.variance)
        if self.kernel not in _CORRELATIONS:
            known = ", ".join(repr(name) for name in _CORRELATIONS)
            raise ValueError(f"unknown kernel {self.kernel!r}; choose one of {known}")
        try:
            low, high = (float(end) for end in self.domain)
        except (TypeError, ValueError):
            raise TypeError(
                f"domain must be two numbers (low, high), got {self.domain!r}"
            ) from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"domain must be finite with low < high, got {self.domain!r}")
        object.__setattr__(self, "domain", (low, high))  # a list would not hash

    def covariance(self, x: Points, z: Points) -> Tensor:
        """Covariance of the field between two sets of points.

        Args:
            x: Points of shape `(a,)`.
            z: Points of shape `(b,)`.

        Returns:
            Covariances of shape `(a, b)`, float64.

        Examples:
            >>> GaussianRandomField(length_scale=1.0, variance=2.0).covariance([0.0], [0.0, 1.0])
            tensor([[2.0000, 1.2131]], dtype=torch.float64)
        """
        return torch.from_numpy(self._covariance(_points("x", x), _points("z", z)))

    def sample(self, n: int, x: Points, seed: int) -> Tensor:
        """Draw functions and evaluate them.

        Args:
            n: Number of functions.
            x: Points of shape `(k,)` inside the domain, in any order.
            seed: Non-negative integer; the functions depend on it and not on `x`, and the first
                ones not on `n`.

        Returns:
            Values of shape `(n, k)`, float64.

        Examples:
            >>> few, many = (GaussianRandomField().sample(n, [0.0, 1.0], seed=0) for n in (2, 5))
            >>> torch.allclose(many[:2], few)
            True
        """
        n = check_integer("n", n, minimum=1)
        seed = check_integer("seed", seed, minimum=0)
        points = _points("x", x)
        low, high = self.domain
        slack = 1e-6 * (high - low)  # points computed in float32 may miss an end by this much
        outside = ~((points >= low - slack) & (points <= high + slack))
        if outside.any():
            raise ValueError(
                f"x must lie in the domain [{low:g}, {high:g}], got {points[outside][0]:g}; "
                f"build the field with GaussianRandomField(..., domain=(low, high)) to widen it"
            )
        grid, inverse_root = self._reference
        weights = inverse_root @ self._covariance(grid, points)
        rng = np.random.default_rng(seed)
        values = np.empty((n, len(points)))
        for start in range(0, n, _CHUNK):
            rows = values[start : start + _CHUNK]
            rows[:] = rng.standard_normal((len(rows), len(grid))) @ weights
        return torch.from_numpy(values)

    def _covariance(self, x: NDArray, z: NDArray) -> NDArray:
        distance = np.abs(x[:, None] - z)
        if self.kernel == "periodic":
            distance = np.sin(np.pi / (self.domain[1] - self.domain[0]) * distance)
        return self.variance * _CORRELATIONS[self.kernel](distance / self.length_scale)

    @cached_property
    def _reference(self) -> tuple[NDArray, NDArray]:
        """The reference grid `(N,)` and the symmetric `K^{-1/2}` of shape `(N, N)` on it."""
        low, high = self.domain
        lengths = (high - low) / self.length_scale
        if self.kernel == "periodic":
            lengths = 2 * math.pi / self.length_scale
        size = max(_MIN_REFERENCE, math.ceil(_POINTS_PER_LENGTH_SCALE * lengths) + 1)
        if size > _MAX_REFERENCE:
            smallest = 1.01 * self.length_scale * size / _MAX_REFERENCE  # survives rounding
            raise ValueError(
                f"length_scale={self.length_scale:g} is too small for the domain "
                f"[{low:g}, {high:g}]: take at least {smallest:.3g} or a shorter domain"
            )
        # The two ends are one point to a periodic field, so that its grid leaves out the last.
        grid = np.linspace(low, high, size, endpoint=self.kernel != "periodic")
        eigenvalues, vectors = np.linalg.eigh(self._covariance(grid, grid))
        # lambda^{-1/2}, brought smoothly to zero below the floor: a sharp cut could fall on
        # either side of an eigenvalue from machine to machine, jitter would roughen the samples.
        values = np.maximum(eigenvalues, 0.0)
        inverse = values**1.5 / (values**2 + (_EIGENVALUE_FLOOR * values[-1]) ** 2)
        return grid, (vectors * inverse) @ vectors.T


def check_number(name: str, value: object) -> None:
    """Refuse what is not a finite real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")


def check_positive(name: str, value: float) -> None:
    """Refuse what is not a finite positive number."""
    check_number(name, value)
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}")


def check_integer(name: str, value: SupportsIndex, minimum: int) -> int:
    """Return `value` as an `int`; refuse what is no integer or below `minimum`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer >= {minimum}, got {value!r}") from None
    if number < minimum:
        raise ValueError(f"{name} must be an integer >= {minimum}, got {number}")
    return number


def _points(name: str, x: Points) -> NDArray:
    array = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    if array.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional, got shape {array.shape}; flatten it, for instance "
            f"{name}.reshape(-1)"
        )
    return array.astype(np.float64)
