"""Functions of space and time as heat maps."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pyro_deeponet.arrays import ArrayLike
from pyro_deeponet.plots.style import array, new_axes, vector

__all__ = ["bounds", "fields"]

_VALUES, _ERRORS = "viridis", "magma"


def fields(
    grid: ArrayLike,
    truth: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    deterministic: ArrayLike | None = None,
    axes: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Truth, predicted mean, absolute error and standard deviation of one function of (x, t).

    With `deterministic` a second row shows that prediction and its error. The truth and the
    predictions share one colour scale, the errors another.

    Args:
        grid: Locations `(x, t)` of a full grid, `(q, 2)`, in any order.
        truth: True values, `(q,)`.
        mean: Predicted mean, `(q,)`.
        std: Predicted standard deviation, `(q,)`.
        deterministic: Prediction of another network, `(q,)`, to compare with.
        axes: Where to draw, `(1, 4)` or `(4,)`, with `deterministic` `(2, 4)`; a new figure unless
            given.

    Returns:
        The axes, `(1, 4)` or `(2, 4)`; those of the second row that show nothing are off.

    Examples:
        >>> import matplotlib.pyplot as plt, torch
        >>> grid = torch.cartesian_prod(torch.linspace(0, 1, 3), torch.linspace(0, 1, 4))
        >>> s = grid.prod(1)
        >>> axes = fields(grid, truth=s, mean=s + 0.1, std=0.2 * torch.ones(12))
        >>> [ax.get_title() for ax in axes[0]]
        ['truth', 'mean', '|truth - mean|', 'standard deviation']
        >>> plt.close(axes[0, 0].figure)
    """
    lattice = _Lattice(grid)
    s, m, v = lattice("truth", truth), lattice("mean", mean), lattice("std", std)
    d = None if deterministic is None else lattice("deterministic", deterministic)
    axes = _axes(axes, 1 if d is None else 2, 4)
    error = np.abs(s - m)
    values, errors = [s, m], [error]
    if d is not None:
        values.append(d)
        errors.append(np.abs(s - d))
    scale, error_scale = _limits(values), (0.0, _limits(errors)[1])
    lattice.draw(axes[0, 0], s, "truth", _VALUES, scale, "s")
    lattice.draw(axes[0, 1], m, "mean", _VALUES, scale, "s")
    lattice.draw(axes[0, 2], error, "|truth - mean|", _ERRORS, error_scale, "error")
    lattice.draw(axes[0, 3], v, "standard deviation", _ERRORS, (0.0, _limits([v])[1]), "std")
    if d is not None:
        lattice.draw(axes[1, 1], d, "deterministic", _VALUES, scale, "s")
        title = "|truth - deterministic|"
        lattice.draw(axes[1, 2], errors[1], title, _ERRORS, error_scale, "error")
        for ax in (axes[1, 0], axes[1, 3]):
            ax.set_axis_off()
    return axes


def bounds(
    grid: ArrayLike,
    lower: ArrayLike,
    mean: ArrayLike,
    upper: ArrayLike,
    axes: NDArray[Any] | None = None,
    level: float = 0.95,
) -> NDArray[Any]:
    """Lower bound, mean and upper bound of one function of (x, t), on one colour scale.

    Args:
        grid: Locations `(x, t)` of a full grid, `(q, 2)`, in any order.
        lower: Lower end of the interval, `(q,)`.
        mean: Predicted mean, `(q,)`.
        upper: Upper end of the interval, `(q,)`.
        axes: Where to draw, three of them; a new figure unless given.
        level: Nominal coverage of the interval, for the titles.

    Returns:
        The axes, `(1, 3)`.

    Examples:
        >>> import matplotlib.pyplot as plt, torch
        >>> grid = torch.cartesian_prod(torch.linspace(0, 1, 3), torch.linspace(0, 1, 4))
        >>> s = grid.prod(1)
        >>> axes = bounds(grid, s - 1, s, s + 1)
        >>> axes[0, 0].get_title()
        'lower end of 95 % interval'
        >>> plt.close(axes[0, 0].figure)
    """
    lattice = _Lattice(grid)
    maps = [lattice("lower", lower), lattice("mean", mean), lattice("upper", upper)]
    interval = f"{100 * level:g} % interval"
    titles = [f"lower end of {interval}", "mean", f"upper end of {interval}"]
    axes = _axes(axes, 1, 3)
    scale = _limits(maps)
    for ax, values, title in zip(axes[0], maps, titles, strict=True):
        lattice.draw(ax, values, title, _VALUES, scale, "s")
    return axes


class _Lattice:
    """The full grid that scattered locations `(q, 2)` make, and the map of values onto it."""

    def __init__(self, grid: ArrayLike) -> None:
        points = array("grid", grid)
        if points.ndim != 2 or points.shape[1] != 2:
            raise ValueError(
                f"grid has shape {points.shape}, expected (q, 2): x and t of each location"
            )
        self.x, column = np.unique(points[:, 0], return_inverse=True)
        self.t, row = np.unique(points[:, 1], return_inverse=True)
        self.position = row * len(self.x) + column
        if len(points) != len(self.x) * len(self.t) or len(np.unique(self.position)) != len(points):
            raise ValueError(
                f"grid has {len(points)} locations, with {len(self.x)} different x and "
                f"{len(self.t)} different t, so it is not a full grid; pass every x with every t, "
                "as in problem.grid"
            )

    def __call__(self, name: str, values: ArrayLike) -> NDArray[np.float64]:
        image = np.empty(len(self.position))
        image[self.position] = vector(name, values, len(self.position))
        return image.reshape(len(self.t), len(self.x))

    def draw(
        self,
        ax: Axes,
        image: NDArray[np.float64],
        title: str,
        cmap: str,
        limits: tuple[float, float],
        label: str,
    ) -> None:
        mesh = ax.pcolormesh(
            self.x,
            self.t,
            image,
            shading="nearest",
            cmap=cmap,
            vmin=limits[0],
            vmax=limits[1],
            rasterized=True,  # a vector file would hold a rectangle for every grid point
        )
        ax.set(title=title, xlabel="x", ylabel="t")
        ax.figure.colorbar(mesh, ax=ax, label=label)


def _limits(images: list[NDArray[np.float64]]) -> tuple[float, float]:
    low, high = min(float(i.min()) for i in images), max(float(i.max()) for i in images)
    return (low, high) if high > low else (low, low + 1e-12 + 1e-6 * abs(low))


def _axes(axes: NDArray[Any] | None, rows: int, columns: int) -> NDArray[Any]:
    if axes is None:
        return new_axes(rows, columns, size=(3.4, 2.7))
    given = np.asarray(axes, dtype=object)
    if given.size != rows * columns:
        raise ValueError(
            f"axes has {given.size} axes, expected {rows * columns}: "
            f"plt.subplots({rows}, {columns})[1]"
        )
    return given.reshape(rows, columns)
