"""Functions of one variable: inputs, and predictions with their bands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from pyro_deeponet.arrays import ArrayLike, to_booleans
from pyro_deeponet.plots.style import BAND_ALPHA, COLOURS, array, axes_or_new, vector

if TYPE_CHECKING:
    from pyro_deeponet.metrics import Kind, Method
    from pyro_deeponet.prediction import Prediction

__all__ = ["band", "function", "inputs"]


def inputs(sensors: ArrayLike, u: ArrayLike, ax: Axes | None = None, n: int = 30) -> Axes:
    """Some input functions and the mean of all of them.

    Args:
        sensors: Locations of the sensors, `(k,)` or `(k, 1)`.
        u: Input functions, `(n_functions, k)`.
        ax: Where to draw; a new figure unless given.
        n: How many of the functions to draw, the first ones.

    Examples:
        >>> import matplotlib.pyplot as plt, torch
        >>> ax = inputs(torch.linspace(0, 1, 5), torch.randn(8, 5), n=3)
        >>> len(ax.lines)
        4
        >>> plt.close(ax.figure)
    """
    x, values = vector("sensors", sensors), array("u", u)
    if values.ndim != 2 or values.shape[1] != len(x):
        raise ValueError(
            f"u has shape {values.shape}, expected (n, {len(x)}): a column for each sensor"
        )
    ax = axes_or_new(ax)
    order = np.argsort(x)
    shown = values[: max(1, n), order]
    for i, row in enumerate(shown):
        label = f"{len(shown)} of {len(values)} inputs" if i == 0 else None
        ax.plot(x[order], row, color=COLOURS["prediction"], alpha=0.35, lw=0.8, label=label)
    mean = values.mean(0)[order]
    ax.plot(x[order], mean, color=COLOURS["truth"], lw=2, label=f"mean of {len(values)}")
    ax.set(xlabel="sensor location", ylabel="input u")
    ax.margins(x=0)
    _legend(ax)
    return ax


def band(
    y: ArrayLike,
    mean: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    truth: ArrayLike | None = None,
    observed: tuple[ArrayLike, ArrayLike] | None = None,
    deterministic: ArrayLike | None = None,
    ax: Axes | None = None,
    label: str = "interval",
) -> Axes:
    """A predicted function with its uncertainty band, against the truth.

    Args:
        y: Locations, `(q,)` or `(q, 1)`, in any order.
        mean: Predicted mean, `(q,)`.
        lower: Lower end of the band, `(q,)`.
        upper: Upper end of the band, `(q,)`.
        truth: True values, `(q,)`.
        observed: Locations `(m,)` and values `(m,)` of observations.
        deterministic: Prediction of another network, `(q,)`, to compare with.
        ax: Where to draw; a new figure unless given.
        label: What the legend calls the band.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> ax = band([0.0, 1.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 2.0], truth=[0.1, 0.9])
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['interval', 'mean', 'truth']
        >>> plt.close(ax.figure)
    """
    x = vector("y", y)
    order = np.argsort(x)
    low, high = vector("lower", lower, len(x)), vector("upper", upper, len(x))
    centre = vector("mean", mean, len(x))
    lines = {"deterministic": deterministic, "truth": truth}
    others = {k: vector(k, v, len(x)) for k, v in lines.items() if v is not None}
    points = None if observed is None else [vector("observed", part) for part in observed]
    ax = axes_or_new(ax)
    colour = COLOURS["prediction"]
    ax.fill_between(
        x[order], low[order], high[order], color=colour, alpha=BAND_ALPHA, lw=0, label=label
    )
    # The edges keep a band visible that is narrower than the line of the mean.
    for edge in (low, high):
        ax.plot(x[order], edge[order], color=colour, alpha=0.6, lw=0.6)
    ax.plot(x[order], centre[order], color=colour, lw=2, label="mean")
    for name, values in others.items():
        style = (0, (4, 2)) if name == "truth" else (0, (1, 1.2))
        ax.plot(x[order], values[order], color=COLOURS[name], lw=1.5, ls=style, label=name)
    if points is not None:
        ax.plot(*points, "o", ms=4, mec="white", mew=0.5, color=COLOURS["data"], label="observed")
    ax.set(xlabel="y", ylabel="s")
    ax.margins(x=0)
    _legend(ax)
    return ax


def function(
    prediction: Prediction,
    i: int,
    y: ArrayLike,
    truth: ArrayLike | None = None,
    observed: tuple[ArrayLike, ArrayLike] | None = None,
    deterministic: ArrayLike | None = None,
    level: float = 0.95,
    kind: Kind = "predictive",
    method: Method = "gaussian",
    ax: Axes | None = None,
) -> Axes:
    """One function of a prediction with its interval, against the truth.

    Args:
        prediction: What was predicted, for `n` functions at `q` points; `prediction.output(j)`
            where there are several outputs.
        i: Which function.
        y: Locations, `(q,)` or `(q, 1)`; for a prediction at indexed points, those of function `i`.
        truth: True values, `(q,)`, or `(n, q)` of all functions.
        observed: Locations `(m,)` and values `(m,)` of observations.
        deterministic: Prediction of another network, `(q,)` or `(n, q)`.
        level: Nominal coverage of the interval.
        kind: `"predictive"`, the interval of an observation, or `"epistemic"`, of the function.
        method: `"gaussian"`, mean +- z std, or `"mixture"`, quantiles of the mixture.
        ax: Where to draw; a new figure unless given.

    Examples:
        >>> import matplotlib.pyplot as plt, torch
        >>> from types import SimpleNamespace
        >>> mean = torch.zeros(2, 3)
        >>> p = SimpleNamespace(mean=mean, mask=None,
        ...                     interval=lambda *_, **__: (mean - 1, mean + 1))
        >>> ax = function(p, 1, torch.linspace(0, 1, 3), truth=mean)
        >>> ax.get_legend().get_texts()[0].get_text()
        '95 % interval'
        >>> plt.close(ax.figure)
    """
    mean = array("mean", prediction.mean)
    if mean.ndim != 2:
        raise ValueError(
            f"the prediction has {mean.shape[-1]} outputs at each point; pass one of them, such as "
            "prediction.output(0)"
        )
    if not -len(mean) <= i < len(mean):
        raise ValueError(f"i is {i}, but the prediction has {len(mean)} functions")
    ends = prediction.interval(level, kind=kind, method=method)
    lower, upper = array("lower", ends[0])[i], array("upper", ends[1])[i]
    q = mean.shape[1]
    rows = {"truth": truth, "deterministic": deterministic}
    lines = {k: None if v is None else _row(k, v, i, mean.shape) for k, v in rows.items()}
    x = vector("y", y, q)
    real = np.ones(q, dtype=bool)
    if prediction.mask is not None:
        real = to_booleans("mask", prediction.mask).cpu().numpy()[i]
    name = f"{100 * level:g} % {'epistemic ' if kind == 'epistemic' else ''}interval"
    return band(
        x[real],
        mean[i][real],
        lower[real],
        upper[real],
        truth=None if lines["truth"] is None else lines["truth"][real],
        observed=observed,
        deterministic=None if lines["deterministic"] is None else lines["deterministic"][real],
        ax=ax,
        label=name,
    )


def _row(name: str, values: ArrayLike, i: int, shape: tuple[int, ...]) -> np.ndarray:
    numbers = array(name, values)
    return vector(name, numbers[i] if numbers.shape == shape else numbers, shape[1])


def _legend(ax: Axes) -> None:
    ax.legend(frameon=True, framealpha=0.8, edgecolor="none")
