r"""Scores of predictions: how far from the truth, and how honest about it.

Every score runs over the real entries of a prediction; what its mask leaves out is not read, in
the prediction nor in the truth. With several outputs arrays are `(n, q, c)`, and all outputs are
pooled, the large ones weighing most; `prediction.output(i)` is one of them. Where the truth is free
of noise, `kind="epistemic"` judges the interval of the function itself, `kind="predictive"` that of
a noisy observation of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from pyro_deeponet import mixture
from pyro_deeponet.arrays import ArrayLike, to_booleans, to_tensor

if TYPE_CHECKING:
    from pyro_deeponet.prediction import Prediction

__all__ = [
    "calibration_curve",
    "calibration_error",
    "coverage",
    "crps",
    "evaluate",
    "interval_width",
    "nll",
    "nmse",
    "pit",
    "relative_l2",
]

Kind = Literal["predictive", "epistemic"]
Method = Literal["gaussian", "mixture"]

#: Nominal coverages that `calibration_error` compares with what is found.
LEVELS = tuple(round(0.05 * i, 2) for i in range(1, 20))

# Entries looked at once, so that a large prediction needs no temporary of its own size.
_CHUNK = 1 << 22


def nmse(mean: ArrayLike, truth: ArrayLike, mask: ArrayLike | None = None) -> float:
    r"""Normalised mean squared error, pooled over all functions and points.

    .. math:: \mathrm{NMSE} = \frac{\sum_{ij} (s_{ij} - \hat s_{ij})^2}{\sum_{ij} s_{ij}^2}

    Args:
        mean: Predictions :math:`\hat s`, `(n, q)`.
        truth: True values :math:`s`, `(n, q)`.
        mask: Which entries are real, `(n, q)`; all of them unless told.

    Examples:
        >>> nmse([[1.0, 2.0]], [[1.0, 3.0]])
        0.1
    """
    errors, squares = _row_sums(mean, truth, mask)
    if not squares.sum() > 0:
        raise ValueError(
            "the truth is zero everywhere, so that no error is small or large against it; "
            "score the root mean squared error instead"
        )
    return (errors.sum() / squares.sum()).item()


def relative_l2(mean: ArrayLike, truth: ArrayLike, mask: ArrayLike | None = None) -> float:
    r"""Relative error of a function, averaged over the functions.

    .. math:: \frac{1}{n} \sum_i \frac{\lVert s_i - \hat s_i \rVert_2}{\lVert s_i \rVert_2}

    Args:
        mean: Predictions :math:`\hat s`, `(n, q)`.
        truth: True values :math:`s`, `(n, q)`.
        mask: Which entries are real, `(n, q)`; all of them unless told. A function without a
            real entry does not count.

    Examples:
        >>> relative_l2([[3.0, 4.0], [0.0, 2.0]], [[3.0, 4.0], [0.0, 1.0]])
        0.5
    """
    errors, squares = _row_sums(mean, truth, mask)
    if mask is not None:
        some = to_booleans("mask", mask).cpu().flatten(1).any(1)
        errors, squares = errors[some], squares[some]
    zero = (squares == 0).nonzero()[:, 0]
    if len(zero):
        raise ValueError(
            f"the truth of {len(zero)} functions is zero everywhere, the first in row "
            f"{int(zero[0])}, and their relative error is not defined; leave them out, or use nmse"
        )
    return (errors / squares).sqrt().mean().item()


def coverage(
    prediction: Prediction,
    truth: ArrayLike,
    level: float = 0.95,
    kind: Kind = "predictive",
    method: Method = "gaussian",
) -> float:
    r"""Fraction of true values inside their interval, :math:`\#\{l \le s \le h\} / \# s`.

    Args:
        prediction: What was predicted, for `n` functions at `q` points.
        truth: True values, `(n, q)`.
        level: Nominal coverage of the interval, between 0 and 1.
        kind: `"predictive"`, the interval of an observation, or `"epistemic"`, of the function.
        method: `"gaussian"`, mean +- z std, or `"mixture"`, quantiles of the mixture.

    Examples:
        >>> from types import SimpleNamespace
        >>> p = SimpleNamespace(mean=torch.zeros(1, 4), mask=None,
        ...                     interval=lambda *_, **__: (-torch.ones(1, 4), torch.ones(1, 4)))
        >>> coverage(p, torch.tensor([[0.0, 0.5, -0.9, 2.0]]))
        0.75
    """
    s, mask = _checked(prediction, truth)
    lower, upper = (_cpu(end) for end in prediction.interval(level, kind=kind, method=method))
    inside = total = 0
    for rows in _rows(s):
        hit = (s[rows] >= lower[rows]) & (s[rows] <= upper[rows])
        inside += int((hit if mask is None else hit & mask[rows]).sum())
        total += hit.numel() if mask is None else int(mask[rows].sum())
    return inside / total


def interval_width(
    prediction: Prediction,
    level: float = 0.95,
    kind: Kind = "predictive",
    method: Method = "gaussian",
) -> float:
    r"""Mean width of the intervals, :math:`\operatorname{mean}(h - l)`, in the units of `s`.

    Args:
        prediction: What was predicted.
        level: Nominal coverage of the interval, between 0 and 1.
        kind: `"predictive"`, the interval of an observation, or `"epistemic"`, of the function.
        method: `"gaussian"`, mean +- z std, or `"mixture"`, quantiles of the mixture.

    Examples:
        >>> from types import SimpleNamespace
        >>> p = SimpleNamespace(mask=None,
        ...                     interval=lambda *_, **__: (torch.zeros(1, 4), torch.ones(1, 4)))
        >>> interval_width(p)
        1.0
    """
    lower, upper = (_cpu(end) for end in prediction.interval(level, kind=kind, method=method))
    return _mean(upper - lower, _mask(prediction))


def nll(prediction: Prediction, truth: ArrayLike) -> float:
    r"""Mean negative log-density of the truth under the mixture, in nats per point.

    .. math:: -\operatorname{mean}_{ij} \log \frac{1}{S} \sum_{k=1}^S
        \mathcal{N}(s_{ij} \mid \mu_{kij}, \sigma_{kij}^2)

    Args:
        prediction: What was predicted, for `n` functions at `q` points.
        truth: True values, `(n, q)`.

    Examples:
        >>> from types import SimpleNamespace
        >>> p = SimpleNamespace(mean=torch.zeros(1, 2), mask=None,
        ...                     log_prob=torch.distributions.Normal(0.0, 1.0).log_prob)
        >>> round(nll(p, torch.zeros(1, 2)), 4)
        0.9189
    """
    s, mask = _checked(prediction, truth)
    return -_mean(_cpu(prediction.log_prob(s)), mask)


def crps(prediction: Prediction, truth: ArrayLike, lags: int | None = None) -> float:
    r"""Mean continuous ranked probability score of the mixture, in the units of `s`.

    .. math:: \operatorname{mean}_{ij} \int (F_{ij}(x) - 1[x \ge s_{ij}])^2 \, dx

    It is the absolute error of a prediction that has no spread, and rewards honest spread. The
    closed form, `mixture.crps`, takes time in proportion to the square of the number of samples.

    Args:
        prediction: What was predicted, for `n` functions at `q` points.
        truth: True values, `(n, q)`.
        lags: Estimate the sum over pairs of samples from this many pairs a sample, for
            predictions so large that all pairs take too long.

    Examples:
        >>> from types import SimpleNamespace
        >>> block = ((slice(0, 1), slice(0, 2)), torch.zeros(3, 1, 2), torch.ones(3, 1, 2))
        >>> p = SimpleNamespace(mean=torch.zeros(1, 2), mask=None, components=lambda: [block])
        >>> round(crps(p, torch.zeros(1, 2)), 4)
        0.2337
    """
    s, mask = _checked(prediction, truth)
    total = 0.0
    for where, mu, sigma in prediction.components():
        scores = mixture.crps(mu, sigma, s[where].to(mu), lags=lags)
        total += _total(scores.cpu(), None if mask is None else mask[where])
    return total / _count(s, mask)


def pit(prediction: Prediction, truth: ArrayLike) -> Tensor:
    r"""Probability integral transform, :math:`F_{ij}(s_{ij})` with the CDF of the mixture.

    Values of a calibrated prediction are uniform on [0, 1]: a histogram with a hump tells of
    intervals too wide, a valley of intervals too narrow, a slope of a bias.

    Args:
        prediction: What was predicted, for `n` functions at `q` points.
        truth: True values, `(n, q)`.

    Returns:
        Probabilities `(n, q)`, NaN at entries that the mask leaves out.

    Examples:
        >>> from types import SimpleNamespace
        >>> p = SimpleNamespace(mean=torch.zeros(1, 2), mask=None,
        ...                     cdf=torch.distributions.Normal(0.0, 1.0).cdf)
        >>> pit(p, torch.tensor([[0.0, 1.0]]))
        tensor([[0.5000, 0.8413]])
    """
    s, mask = _checked(prediction, truth)
    values = _cpu(prediction.cdf(s))
    return values if mask is None else values.masked_fill(~mask, torch.nan)


def calibration_curve(
    prediction: Prediction,
    truth: ArrayLike,
    levels: Sequence[float] = LEVELS,
    kind: Kind = "predictive",
    method: Method = "gaussian",
) -> tuple[Tensor, Tensor]:
    r"""Coverage found against coverage asked for.

    The central interval of a level covers :math:`s` if :math:`|s - \hat s| \le z\, \mathrm{std}`
    (`"gaussian"`) or :math:`|2 F(s) - 1| \le` level, that is, if the probability integral transform
    falls in it (`"mixture"`).

    Args:
        prediction: What was predicted, for `n` functions at `q` points.
        truth: True values, `(n, q)`.
        levels: Nominal coverages, between 0 and 1.
        kind: `"predictive"`, the interval of an observation, or `"epistemic"`, of the function.
        method: `"gaussian"`, mean +- z std, or `"mixture"`, quantiles of the mixture.

    Returns:
        The levels and the coverages found, float64, of the length of `levels`.

    Examples:
        >>> from types import SimpleNamespace
        >>> p = SimpleNamespace(mean=torch.zeros(1, 4), std=torch.ones(1, 4), mask=None)
        >>> truth = torch.tensor([[0.1, -0.5, 1.0, 2.5]])
        >>> calibration_curve(p, truth, levels=[0.5, 0.9])[1].tolist()
        [0.5, 0.75]
    """
    nominal = torch.as_tensor(levels, dtype=torch.float64)
    if nominal.dim() != 1 or not nominal.numel() or not ((nominal > 0) & (nominal < 1)).all():
        raise ValueError(f"levels must be numbers strictly between 0 and 1, got {levels!r}")
    if kind not in ("predictive", "epistemic") or method not in ("gaussian", "mixture"):
        raise ValueError(
            f"kind must be 'predictive' or 'epistemic' and method 'gaussian' or 'mixture', "
            f"got {kind!r} and {method!r}"
        )
    if method == "mixture" and kind == "epistemic":  # the PIT knows only the predictive mixture
        found = [coverage(prediction, truth, level, kind, method) for level in nominal.tolist()]
        return nominal, torch.tensor(found, dtype=torch.float64)
    s, mask = _checked(prediction, truth)
    if method == "mixture":
        return nominal, _central(_cpu(prediction.cdf(s)), mask, nominal)
    std = _cpu(prediction.std if kind == "predictive" else prediction.epistemic_std)
    mean, z = _cpu(prediction.mean), torch.special.ndtri(0.5 + 0.5 * nominal)
    hits = torch.zeros_like(nominal)
    for rows in _rows(s):
        error, scale = (s[rows] - mean[rows]).abs_(), std[rows]
        # A prediction without spread covers only what it hits; 0 / 0 would be NaN.
        ratio = torch.where(error == 0, 0.0, error / scale)
        hits += _at_most(ratio if mask is None else ratio[mask[rows]], z)
    return nominal, hits / _count(s, mask)


def calibration_error(
    prediction: Prediction,
    truth: ArrayLike,
    levels: Sequence[float] = LEVELS,
    kind: Kind = "predictive",
    method: Method = "gaussian",
) -> float:
    r"""Mean absolute difference between coverage found and coverage asked for.

    .. math:: \frac{1}{L} \sum_{l=1}^L |\text{coverage}(p_l) - p_l|,
        \qquad p_l = 0.05, 0.10, \dots, 0.95

    Judged on the intervals mean +- z std unless told, those that `coverage` judges.

    Args:
        prediction: What was predicted, for `n` functions at `q` points.
        truth: True values, `(n, q)`.
        levels: Nominal coverages, between 0 and 1.
        kind: `"predictive"`, the interval of an observation, or `"epistemic"`, of the function.
        method: `"gaussian"`, mean +- z std, or `"mixture"`, quantiles of the mixture.

    Examples:
        >>> from types import SimpleNamespace
        >>> p = SimpleNamespace(mean=torch.zeros(1, 4), std=torch.ones(1, 4), mask=None)
        >>> truth = torch.tensor([[0.1, -0.5, 1.0, 2.5]])
        >>> round(calibration_error(p, truth, levels=[0.5, 0.9]), 3)
        0.075
    """
    nominal, found = calibration_curve(prediction, truth, levels, kind, method)
    return (found - nominal).abs().mean().item()


def evaluate(
    prediction: Prediction,
    truth: ArrayLike,
    level: float = 0.95,
    kind: Kind = "predictive",
    lags: int | None = None,
) -> dict[str, float]:
    """All scores of a prediction, the mixture passed through once.

    `nll` and `crps` are those of the predictive mixture; `kind` says which interval coverage,
    width and calibration error judge, in its form mean +- z std.

    Args:
        prediction: What was predicted, for `n` functions at `q` points.
        truth: True values, `(n, q)`.
        level: Nominal coverage of the interval, between 0 and 1.
        kind: `"predictive"`, the interval of an observation, or `"epistemic"`, of the function.
        lags: As in `crps`.

    Returns:
        `nmse`, `relative_l2`, `coverage_95`, `width_95`, `nll`, `crps` and `calibration_error`;
        the number in the two names follows `level`, in percent.

    Examples:
        >>> from types import SimpleNamespace
        >>> zero, one = torch.zeros(1, 2), torch.ones(1, 2)
        >>> block = ((slice(0, 1), slice(0, 2)), torch.zeros(3, 1, 2), torch.ones(3, 1, 2))
        >>> p = SimpleNamespace(mean=zero, std=one, mask=None, components=lambda: [block],
        ...                     interval=lambda *_, **__: (-2 * one, 2 * one))
        >>> list(evaluate(p, one, level=0.9))
        ['nmse', 'relative_l2', 'coverage_90', 'width_90', 'nll', 'crps', 'calibration_error']
    """
    s, mask = _checked(prediction, truth)
    percent = f"{100 * level:.10g}"
    scores = {
        "nmse": nmse(prediction.mean, s, mask),
        "relative_l2": relative_l2(prediction.mean, s, mask),
        f"coverage_{percent}": coverage(prediction, s, level, kind),
        f"width_{percent}": interval_width(prediction, level, kind),
    }
    log_density = ranked = 0.0
    for where, mu, sigma in prediction.components():
        block, real = s[where].to(mu), None if mask is None else mask[where]
        log_density += _total(mixture.log_prob(mu, sigma, block).cpu(), real)
        ranked += _total(mixture.crps(mu, sigma, block, lags=lags).cpu(), real)
    count = _count(s, mask)
    scores |= {"nll": -log_density / count, "crps": ranked / count}
    return scores | {"calibration_error": calibration_error(prediction, s, kind=kind)}


def _row_sums(mean: ArrayLike, truth: ArrayLike, mask: ArrayLike | None) -> tuple[Tensor, Tensor]:
    """Sums of squared errors and of squared truth, one of each a function, float64."""
    prediction = to_tensor("mean", mean).cpu()
    real = None if mask is None else to_booleans("mask", mask).cpu()
    s = _check_truth(to_tensor("truth", truth).cpu(), tuple(prediction.shape), real)
    errors, squares = [], []
    for rows in _rows(s):
        error, value = (s[rows] - prediction[rows]).square_(), s[rows].square()
        if real is not None:
            error, value = (w.masked_fill_(~real[rows], 0) for w in (error, value))
        errors.append(error.flatten(1).sum(1, dtype=torch.float64))
        squares.append(value.flatten(1).sum(1, dtype=torch.float64))
    if not torch.isfinite(torch.cat(errors)).all():
        raise ValueError("mean holds NaN or infinite values, or its squared error overflows")
    return torch.cat(errors), torch.cat(squares)


def _checked(prediction: Prediction, truth: ArrayLike) -> tuple[Tensor, Tensor | None]:
    """The truth as a tensor in main memory, zero where masked, and the mask."""
    mask = _mask(prediction)
    s = to_tensor("truth", truth).cpu()
    return _check_truth(s, tuple(prediction.mean.shape), mask), mask


def _check_truth(s: Tensor, expected: tuple[int, ...], mask: Tensor | None) -> Tensor:
    if tuple(s.shape) != expected:
        turned = len(expected) == 2 and tuple(s.shape) == expected[::-1]
        hint = "; take its transpose" if turned else ""
        raise ValueError(
            f"truth has shape {tuple(s.shape)}, expected that of the prediction, {expected}: "
            f"a row for each function, a column for each point{hint}"
        )
    if len(expected) not in (2, 3) or 0 in expected:
        raise ValueError(
            f"the prediction has shape {expected}, expected (n, q) or (n, q, c), not empty"
        )
    if mask is not None:
        if tuple(mask.shape) != expected:
            raise ValueError(f"mask has shape {tuple(mask.shape)}, expected {expected}, as truth")
        if not mask.any():
            raise ValueError("mask is False everywhere: there is nothing to score")
        s = s.masked_fill(~mask, 0)
    bad = ~torch.isfinite(s)
    if bad.any():
        where = ", ".join(map(str, bad.nonzero()[0].tolist()))
        raise ValueError(
            f"truth has {int(bad.sum())} NaN or infinite values among its real entries, the first "
            f"at [{where}]; remove or mask them"
        )
    return s if s.is_floating_point() else s.to(torch.get_default_dtype())


def _mask(prediction: Prediction) -> Tensor | None:
    mask = prediction.mask
    return None if mask is None else to_booleans("mask", mask).cpu()


def _cpu(values: ArrayLike) -> Tensor:
    return torch.as_tensor(values).detach().cpu()


def _rows(s: Tensor) -> Iterator[slice]:
    """Slices of functions that hold about `_CHUNK` entries."""
    width = max(1, _CHUNK // s[0].numel())
    for start in range(0, s.shape[0], width):
        yield slice(start, start + width)


def _count(s: Tensor, mask: Tensor | None) -> int:
    return s.numel() if mask is None else int(mask.sum())


def _total(values: Tensor, mask: Tensor | None) -> float:
    real = values if mask is None else values[mask]
    return real.sum(dtype=torch.float64).item()


def _mean(values: Tensor, mask: Tensor | None) -> float:
    return _total(values, mask) / _count(values, mask)


def _central(probabilities: Tensor, mask: Tensor | None, levels: Tensor) -> Tensor:
    """Fraction of PIT values inside the central interval of each level."""
    hits = torch.zeros_like(levels)
    for rows in _rows(probabilities):
        depth = (2 * probabilities[rows] - 1).abs_()
        hits += _at_most(depth if mask is None else depth[mask[rows]], levels)
    return hits / _count(probabilities, mask)


def _at_most(values: Tensor, limits: Tensor) -> Tensor:
    """How many values do not exceed each of some limits, float64."""
    return torch.stack([(values <= limit).sum() for limit in limits.tolist()]).double()
