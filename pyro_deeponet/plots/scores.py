"""How good and how honest: calibration, PIT, error against spread, error against data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter
from scipy import stats

from pyro_deeponet.arrays import ArrayLike, to_booleans
from pyro_deeponet.plots.style import BAND_ALPHA, COLOURS, array, axes_or_new, vector

if TYPE_CHECKING:
    from pyro_deeponet.metrics import Kind
    from pyro_deeponet.prediction import Prediction

__all__ = ["calibration", "error_against_std", "nmse_against_functions", "pit_histogram"]

_SQUARE = (3.8, 3.6)
# With more counts than this the axis keeps its powers of ten.
_MAX_TICKS = 8


def calibration(
    levels: ArrayLike,
    empirical: ArrayLike,
    ax: Axes | None = None,
    label: str | None = None,
) -> Axes:
    """Coverage found against coverage asked for, beside the diagonal of a calibrated prediction.

    Above the diagonal intervals are too wide, below it too narrow. Draw several on the same `ax`
    to compare them.

    Args:
        levels: Nominal coverages, `(L,)`.
        empirical: Coverages found, `(L,)`, as from `metrics.calibration_curve`.
        ax: Where to draw; a new figure unless given.
        label: Name in the legend.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> ax = calibration([0.5, 0.9], [0.6, 0.95], label="before")
        >>> ax = calibration([0.5, 0.9], [0.51, 0.9], ax=ax, label="after")
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['ideal', 'before', 'after']
        >>> plt.close(ax.figure)
    """
    nominal = vector("levels", levels)
    found = vector("empirical", empirical, len(nominal))
    ax = axes_or_new(ax, _SQUARE)
    if not any(line.get_gid() == "ideal" for line in ax.lines):
        ax.plot(
            [0, 1], [0, 1], color=COLOURS["reference"], lw=1.2, ls="--", label="ideal", gid="ideal"
        )
    order = np.argsort(nominal)
    style = _next_curve(ax)
    ax.plot(nominal[order], found[order], ms=4, lw=1.8, label=label, clip_on=False, **style)
    ax.set(xlabel="nominal coverage", ylabel="empirical coverage", xlim=(0, 1), ylim=(0, 1))
    ax.set_aspect("equal")
    if label is not None:
        ax.legend(frameon=True, framealpha=0.8, edgecolor="none")
    return ax


def pit_histogram(
    pit: ArrayLike, ax: Axes | None = None, bins: int = 20, draws: int | None = None
) -> Axes:
    """Histogram of the probability integral transform, flat for a calibrated prediction.

    The grey band holds 95 % of the bars that uniform draws would give. Points of one function are
    not independent, so that a two-dimensional `pit` counts as one draw a function: with fewer
    draws the band is wider, and a bar outside of it means something.

    Args:
        pit: Values in [0, 1] of any shape, `(n, q)` from `metrics.pit`; NaN is left out.
        ax: Where to draw; a new figure unless given.
        bins: Number of bars.
        draws: Number of independent draws that the band supposes; `len(pit)` unless told.

    Examples:
        >>> import matplotlib.pyplot as plt, torch
        >>> ax = pit_histogram(torch.rand(200, 10), bins=10)
        >>> len(ax.patches) >= 10
        True
        >>> plt.close(ax.figure)
    """
    numbers = array("pit", pit)
    values = numbers[~np.isnan(numbers)]
    if values.size == 0 or values.min() < 0 or values.max() > 1:
        raise ValueError("pit must hold probabilities between 0 and 1, as from metrics.pit")
    ax = axes_or_new(ax)
    n = len(numbers) if draws is None else draws
    low, high = (float(stats.binom.ppf(p, n, 1 / bins)) * bins / n for p in (0.025, 0.975))
    label = "95 % of uniform draws"
    ax.axhspan(low, high, color=COLOURS["reference"], alpha=0.3, lw=0, label=label, zorder=2)
    ax.axhline(1, color=COLOURS["reference"], lw=1, zorder=2.1)
    height, edges = np.histogram(values, bins, (0, 1), density=True)
    colour = COLOURS["prediction"]
    ax.bar(
        edges[:-1],
        height,
        1 / bins,
        align="edge",
        color=colour,
        alpha=0.75,
        edgecolor="white",
        lw=0.6,
        zorder=1,
    )
    top = 1.15 * max(high, float(height.max()))
    ax.set(xlabel="F(s), predictive CDF at the truth", ylabel="density", xlim=(0, 1), ylim=(0, top))
    ax.legend(frameon=True, framealpha=0.8, edgecolor="none")
    return ax


def error_against_std(
    prediction: Prediction,
    truth: ArrayLike,
    ax: Axes | None = None,
    kind: Kind = "predictive",
    bins: int = 20,
) -> Axes:
    """Root mean squared error of points with similar predicted std, against that std.

    Bins hold equally many points. On the diagonal the spread is as large as the error; above it
    the prediction is too sure.

    Args:
        prediction: What was predicted, for `n` functions at `q` points.
        truth: True values, `(n, q)`.
        ax: Where to draw; a new figure unless given.
        kind: `"predictive"`, the std of an observation, or `"epistemic"`, of the function.
        bins: Number of bins, at most a tenth of the number of points.

    Examples:
        >>> import matplotlib.pyplot as plt, torch
        >>> from types import SimpleNamespace
        >>> std = 0.1 + torch.rand(100, 10)
        >>> p = SimpleNamespace(mean=torch.zeros(100, 10), std=std, mask=None)
        >>> ax = error_against_std(p, std * torch.randn(100, 10))
        >>> ax.get_xlabel()
        'predicted standard deviation'
        >>> plt.close(ax.figure)
    """
    mean, s = array("mean", prediction.mean), array("truth", truth)
    if s.shape != mean.shape:
        raise ValueError(f"truth has shape {s.shape}, expected that of the prediction {mean.shape}")
    if kind not in ("predictive", "epistemic"):
        raise ValueError(f"kind must be 'predictive' or 'epistemic', got {kind!r}")
    std = array("std", prediction.std if kind == "predictive" else prediction.epistemic_std)
    real = np.ones(s.shape, dtype=bool)
    if prediction.mask is not None:
        real = to_booleans("mask", prediction.mask).cpu().numpy()
    spread, square = std[real], (s - mean)[real] ** 2
    if not (np.isfinite(spread).all() and np.isfinite(square).all()):
        raise ValueError("truth, mean or std hold NaN or infinite values; remove or mask them")
    order = np.argsort(spread)
    groups = np.array_split(order, max(1, min(bins, len(order) // 10)))
    x = np.array([np.sqrt(np.mean(spread[group] ** 2)) for group in groups])
    rmse = np.array([np.sqrt(np.mean(square[group])) for group in groups])
    ax = axes_or_new(ax, _SQUARE)
    positive = np.concatenate([x, rmse])
    positive = positive[positive > 0]
    if positive.size == 0:
        raise ValueError("both the error and the standard deviation are zero everywhere")
    ends = np.array([positive.min() / 1.3, positive.max() * 1.3])
    ax.plot(ends, ends, color=COLOURS["reference"], lw=1.2, ls="--", label="error = std")
    ax.plot(x, rmse, "o-", color=COLOURS["prediction"], ms=4, lw=1.5, label="binned points")
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    # Within a decade or two matplotlib labels every minor tick, one over the other.
    subs = (1.0,) if ends[1] > 100 * ends[0] else (1.0, 2.0, 5.0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    name = "predicted" if kind == "predictive" else "epistemic"
    ax.set(xlabel=f"{name} standard deviation", ylabel="root mean squared error")
    ax.set_aspect("equal")
    ax.legend(frameon=False, loc="upper left")
    return ax


def nmse_against_functions(
    n_functions: ArrayLike,
    nmse: ArrayLike,
    ax: Axes | None = None,
    label: str | None = None,
) -> Axes:
    """Error against the number of training functions, both axes logarithmic.

    Args:
        n_functions: Numbers of training functions, `(m,)`.
        nmse: Errors, `(m,)`, or `(seeds, m)`: the line is then their median, the band their range.
        ax: Where to draw; a new figure unless given.
        label: Name in the legend.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> ax = nmse_against_functions([100, 1000], [[1e-2, 1e-4], [2e-2, 2e-4]], label="VB")
        >>> ax.get_yscale()
        'log'
        >>> plt.close(ax.figure)
    """
    counts, errors = vector("n_functions", n_functions), np.atleast_2d(array("nmse", nmse))
    if errors.ndim != 2 or errors.shape[1] != len(counts):
        raise ValueError(
            f"nmse has shape {np.shape(nmse)}, expected ({len(counts)},) or (seeds, {len(counts)})"
        )
    if not ((errors > 0).all() and (counts > 0).all()):
        raise ValueError("n_functions and nmse must be positive to show on logarithmic axes")
    ax = axes_or_new(ax)
    style = _next_curve(ax)
    order = np.argsort(counts)
    x, y = counts[order], errors[:, order]
    if len(y) > 1:
        ax.fill_between(x, y.min(0), y.max(0), color=style["color"], alpha=BAND_ALPHA, lw=0)
    ax.plot(x, np.median(y, 0), ms=5, lw=1.8, label=label, **style)
    ax.set(xscale="log", yscale="log", xlabel="number of training functions", ylabel="NMSE")
    curves = [np.asarray(line.get_xdata()) for line in ax.lines if line.get_gid() == "curve"]
    ticks = np.unique(np.concatenate(curves))
    if len(ticks) <= _MAX_TICKS:
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(True, which="major", alpha=0.3, lw=0.6)
    if label is not None:
        ax.legend(frameon=True, framealpha=0.8, edgecolor="none")
    return ax


def _next_curve(ax: Axes) -> dict[str, Any]:
    """Colour and marker that tell a curve from those drawn on `ax` before."""
    drawn = sum(line.get_gid() == "curve" for line in ax.lines)
    names = ("prediction", "deterministic", "data", "truth")
    # Line2D has no other place for a mark of our own than its group id.
    return {"color": COLOURS[names[drawn % 4]], "marker": "os^D"[drawn % 4], "gid": "curve"}
