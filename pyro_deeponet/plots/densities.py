"""Densities of the output at one location over many input functions."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pyro_deeponet.arrays import ArrayLike
from pyro_deeponet.plots.style import BAND_ALPHA, COLOURS, array, axes_or_new, vector

__all__ = ["density"]

_GRID = 1024
# Bandwidths the grid reaches beyond the data. The transform is periodic: a kernel that leaves
# at one end comes back at the other, after 2 * 4 bandwidths, with nothing left of it.
_MARGIN = 4.0


def density(
    samples: ArrayLike,
    truth: ArrayLike | None = None,
    deterministic: ArrayLike | None = None,
    ax: Axes | None = None,
    level: float = 0.95,
) -> Axes:
    r"""Density of `s` at a location over many input functions, with its credible band.

    Each posterior sample `i` has its own density over the functions, a Gaussian kernel estimate

    .. math:: p_i(s) = \frac{1}{n} \sum_{j=1}^n \mathcal{N}(s \mid s_{ij}, h_i^2), \qquad
        h_i = 0.9 \min(\mathrm{std}_i, \mathrm{IQR}_i / 1.34)\, n^{-1/5}.

    The line is its mean over the samples, the band its pointwise quantiles.

    Args:
        samples: Posterior samples of `n` functions at the location, `(S, n)`; a row comes from one
            set of weights, as in `posterior.sample(...)[:, :, j]`.
        truth: True values, `(n,)` or of another set of functions.
        deterministic: Values of a deterministic network, `(n,)` likewise.
        ax: Where to draw; a new figure unless given.
        level: Probability of the credible band.

    Examples:
        >>> import matplotlib.pyplot as plt, torch
        >>> ax = density(torch.randn(20, 500), truth=torch.randn(500))
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['95 % credible band', 'posterior mean', 'truth']
        >>> plt.close(ax.figure)
    """
    drawn = array("samples", samples)
    if drawn.ndim != 2 or drawn.shape[1] < 2:
        raise ValueError(
            f"samples has shape {drawn.shape}, expected (S, n): a row for each posterior sample, "
            "a column for each of two or more functions"
        )
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level!r}")
    given = {"truth": truth, "deterministic": deterministic}
    others = {k: vector(k, v) for k, v in given.items() if v is not None}
    everything = [drawn, *(values[None] for values in others.values())]
    widths = [_bandwidth(rows) for rows in everything]
    pad = _MARGIN * max(float(h.max()) for h in widths)
    low = min(float(rows.min()) for rows in everything) - pad
    high = max(float(rows.max()) for rows in everything) + pad
    if not (np.isfinite(low) and np.isfinite(high)) or high <= low:
        raise ValueError(
            f"the values run from {low:g} to {high:g}; a density needs finite values that vary. "
            "At this location the output may be fixed, by an initial or boundary condition"
        )
    ax = axes_or_new(ax)
    s = np.linspace(low, high, _GRID)
    estimates = [kernel_density(rows, s, h) for rows, h in zip(everything, widths, strict=True)]
    colour = COLOURS["prediction"]
    edges = np.quantile(estimates[0], [(1 - level) / 2, (1 + level) / 2], axis=0)
    label = f"{100 * level:g} % credible band"
    ax.fill_between(s, *edges, color=colour, alpha=BAND_ALPHA, lw=0, label=label)
    ax.plot(s, estimates[0].mean(0), color=colour, lw=2, label="posterior mean")
    for name, curve in zip(reversed(others), reversed(estimates[1:]), strict=True):
        style = (0, (4, 2)) if name == "truth" else (0, (1, 1.2))
        ax.plot(s, curve[0], color=COLOURS[name], lw=1.5, ls=style, label=name)
    top = np.maximum(edges[1], np.max([curve.mean(0) for curve in estimates], 0))
    seen = s[top > 2e-3 * top.max()]  # far tails would squeeze the rest
    # The legend gets room of its own above the curves.
    ax.set(xlabel="s", ylabel="density", xlim=(seen[0], seen[-1]), ylim=(0, 1.35 * top.max()))
    ax.legend(loc="upper center", ncols=2, frameon=False)
    return ax


def kernel_density(
    samples: NDArray[np.float64], s: NDArray[np.float64], bandwidth: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Gaussian kernel estimates of several samples on a uniform grid, by FFT of their histograms.

    A sample's weight is shared between its two neighbours on the grid, so that the cost grows with
    the number of samples and not with its product with the grid.

    Args:
        samples: Samples of each density, `(S, n)`, inside the grid.
        s: Uniform grid `(G,)` that reaches four bandwidths beyond the samples.
        bandwidth: Standard deviation of the kernel of each density, `(S,)`.

    Returns:
        Densities `(S, G)`.

    Examples:
        >>> import numpy as np
        >>> s = np.linspace(-8, 8, 65)
        >>> round(float(kernel_density(np.zeros((1, 1)), s, np.ones(1))[0, 32]), 3)
        0.399
    """
    (S, n), size = samples.shape, len(s)
    spacing = (s[-1] - s[0]) / (size - 1)
    position = np.clip((samples - s[0]) / spacing, 0, size - 1)
    left = np.minimum(position.astype(np.int64), size - 2)
    share = position - left
    left += size * np.arange(S)[:, None]
    counts = np.bincount(left.ravel(), (1 - share).ravel(), S * size)
    counts += np.bincount(left.ravel() + 1, share.ravel(), S * size)
    frequency = 2 * np.pi * np.fft.rfftfreq(size, spacing)
    # A kernel narrower than the grid can show would ring.
    width = np.maximum(bandwidth, spacing)[:, None]
    transform = np.fft.rfft(counts.reshape(S, size), axis=1)
    transform *= np.exp(-0.5 * (width * frequency) ** 2)
    return np.maximum(np.fft.irfft(transform, size, axis=1) / (n * spacing), 0.0)


def _bandwidth(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Silverman's rule for each row."""
    quartiles = np.quantile(rows, [0.25, 0.75], axis=1)
    spread = rows.std(1)
    range_ = (quartiles[1] - quartiles[0]) / 1.34
    # More than half of the values equal: the range says nothing.
    robust = np.where(range_ > 0, np.minimum(spread, range_), spread)
    return np.asarray(0.9 * robust * rows.shape[1] ** -0.2)
