"""What all figures share: colours, new axes, and arrays from whatever the user holds."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pyro_deeponet.arrays import ArrayLike, to_tensor

__all__ = ["COLOURS", "array", "new_axes", "vector"]

#: Okabe and Ito's palette, which the colour-blind can tell apart, by what a line stands for.
COLOURS = {
    "truth": "#000000",
    "prediction": "#0072B2",
    "deterministic": "#D55E00",
    "data": "#009E73",
    "reference": "#7F7F7F",
}
#: Opacity of an uncertainty band: seen on white and on paper, without hiding what lies below.
BAND_ALPHA = 0.28

_STYLE: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelsize": 11,
    "axes.titlesize": 11,
    "font.size": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
}


def new_axes(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (5.0, 3.4), **kwargs: Any
) -> NDArray[Any]:
    """Axes `(rows, columns)` of a new figure, each of `size` inches, in the style of the package.

    Examples:
        >>> axes = new_axes(1, 2)
        >>> axes.shape
        (1, 2)
        >>> plt.close(axes[0, 0].figure)
    """
    figsize = (size[0] * columns, size[1] * rows)
    with plt.rc_context(_STYLE):  # type: ignore[arg-type, unused-ignore]
        _, axes = plt.subplots(
            rows, columns, figsize=figsize, squeeze=False, layout="constrained", **kwargs
        )
        return np.asarray(axes)


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (5.0, 3.4)) -> Axes:
    """The axes given, or those of a new figure."""
    if ax is not None:
        return ax
    axes: Axes = new_axes(size=size)[0, 0]
    return axes


def array(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Numbers in main memory as float64, from a tensor on any device, an array or a list.

    Examples:
        >>> import torch
        >>> array("u", torch.ones(2, requires_grad=True))
        array([1., 1.])
    """
    return to_tensor(name, values).cpu().double().numpy()


def vector(name: str, values: ArrayLike, length: int | None = None) -> NDArray[np.float64]:
    """As `array`, for one value a point; a second dimension of size one is dropped.

    Examples:
        >>> vector("y", [[0.0], [1.0]], length=2)
        array([0., 1.])
    """
    numbers = array(name, values)
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.ndim != 1 or (length is not None and len(numbers) != length):
        expected = "one dimension" if length is None else f"({length},)"
        raise ValueError(
            f"{name} has shape {numbers.shape}, expected {expected}: one value for each point"
        )
    return numbers
