"""The course of a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pyro_deeponet.history import History
from pyro_deeponet.plots.style import COLOURS, new_axes

__all__ = ["history"]

# Points of the smooth line, a mean over a window of steps each.
_WINDOWS = 100


def history(history: History, axes: NDArray[Any] | None = None) -> NDArray[Any]:
    """Losses and scores of a fit, a panel for each kind that was recorded.

    The panels are, in this order: error of the warm start; negative ELBO; expected log-likelihood;
    KL divergence; scores on validation data. Single steps are pale, their running mean is dark. The
    vertical axes show the later nine tenths of a fit and let the start leave at the edge.

    Args:
        history: Of a fit, `posterior.history`.
        axes: Where to draw, one for each panel; a new figure unless given.

    Returns:
        The axes, `(panels,)`.

    Examples:
        >>> import matplotlib.pyplot as plt
        >>> axes = history(History(warm_start=[1.0, 0.5], loss=[3.0, 2.0]))
        >>> [ax.get_title() for ax in axes]
        ['warm start', 'negative ELBO']
        >>> plt.close(axes[0].figure)
    """
    panels: list[Callable[[Axes], None]] = []
    if history.warm_start:
        panels.append(lambda ax: _warm_start(ax, history.warm_start))
    steps = {
        "negative ELBO": history.loss,
        "log-likelihood": history.log_likelihood,
        "KL divergence": history.kl,
    }
    for title, values in steps.items():
        if np.isfinite(np.asarray(values, dtype=float)).any():
            panels.append(lambda ax, t=title, v=values: _steps(ax, t, v))  # type: ignore[misc]
    scores = {k: v for k, v in history.validation.items() if k != "step" and v}
    if scores:
        checks = history.validation.get("step", list(range(len(next(iter(scores.values()))))))
        panels.append(lambda ax: _validation(ax, checks, scores))
    if not panels:
        raise ValueError("the history is empty: nothing was recorded to draw")
    if axes is None:
        axes = new_axes(1, len(panels), size=(3.4, 2.8))
    axes = np.asarray(axes, dtype=object).reshape(-1)
    if len(axes) != len(panels):
        raise ValueError(
            f"axes has {len(axes)} axes, but there are {len(panels)} panels; "
            f"pass plt.subplots(1, {len(panels)})[1]"
        )
    for ax, draw in zip(axes, panels, strict=True):
        draw(ax)
    return axes


def _warm_start(ax: Axes, values: list[float]) -> None:
    _trace(ax, np.asarray(values, dtype=float), COLOURS["deterministic"])
    ax.set(title="warm start", xlabel="step", ylabel="squared error, network units", yscale="log")


def _steps(ax: Axes, title: str, values: list[float]) -> None:
    numbers = np.asarray(values, dtype=float)
    _trace(ax, numbers, COLOURS["prediction"])
    ax.set(title=title, xlabel="step", ylabel="nats")
    late = numbers[len(numbers) // 10 :]
    late = late[np.isfinite(late)]
    if late.size:
        low, high = np.quantile(late, [0.005, 0.995])
        pad = 0.08 * (high - low) or 1.0
        ax.set_ylim(low - pad, high + pad)


def _validation(ax: Axes, checks: list[float], scores: dict[str, list[float]]) -> None:
    """Scores against the step; a second axis where there are two of them."""
    ax.set(title="validation", xlabel="step")
    handles = []
    for i, (name, values) in enumerate(list(scores.items())[:2]):
        side = ax if i == 0 else ax.twinx()
        colour = COLOURS["data" if i == 0 else "deterministic"]
        handles += side.plot(checks, values, "os"[i] + "-", ms=3, lw=1.5, color=colour, label=name)
        side.set_ylabel(name.upper(), color=colour)
        side.tick_params(axis="y", colors=colour)
        if i == 1:  # made outside of the style of the other axes
            side.spines["top"].set_visible(ax.spines["top"].get_visible())
        if min(values) > 0:
            side.set_yscale("log")
    ax.legend(handles=handles, frameon=False)


def _trace(ax: Axes, values: NDArray[np.float64], colour: str) -> None:
    """Every step pale, its running mean dark."""
    step = np.arange(1, len(values) + 1)
    window = max(1, len(values) // _WINDOWS)
    if window == 1:
        ax.plot(step, values, color=colour, lw=1.5)
        return
    ax.plot(step, values, color=colour, alpha=0.3, lw=0.5)
    whole = len(values) // window * window
    # Non-overlapping windows, so that the line has no memory of the steps before.
    middle = step[:whole].reshape(-1, window).mean(1)
    ax.plot(middle, values[:whole].reshape(-1, window).mean(1), color=colour, lw=1.8)
