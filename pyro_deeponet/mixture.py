r"""The equal-weight Gaussian mixture that weight samples make of a prediction.

With weights :math:`\theta_1, \dots, \theta_S` drawn from the posterior, the predictive distribution
of an output is

.. math:: p(s) = \frac{1}{S} \sum_{i=1}^S \mathcal{N}(s \mid \mu_i, \sigma_i^2).

Everything here is exact for that mixture: no function draws random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["cdf", "crps", "log_prob", "mean_and_variances", "quantile"]

# Numbers of a block of components worked on at once: small enough for the cache of a core.
_BLOCK = 1 << 17
# Ends a search that rounding keeps from converging. Halving the bracket alone needs 24 rounds
# in float32 and 53 in float64 to reach the last bit.
_MAX_ROUNDS = 80
# Rounds after which points that have not converged get a narrower bracket.
_PATIENCE = 4
_SQRT_HALF = math.sqrt(0.5)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def mean_and_variances(
    mu: Tensor, sigma: Tensor, overwrite: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Mean of the mixture and the two parts of its variance, by the law of total variance.

    .. math::

        \bar\mu = \frac{1}{S} \sum_i \mu_i, \qquad
        \operatorname{Var}[s] =
        \underbrace{\frac{1}{S} \sum_i (\mu_i - \bar\mu)^2}_{\text{epistemic}}
        + \underbrace{\frac{1}{S} \sum_i \sigma_i^2}_{\text{aleatoric}}

    Args:
        mu: Means of the components, `(S, ...)`.
        sigma: Their standard deviations, `(S, ...)` or of a shape that broadcasts to it.
        overwrite: Whether the memory of `mu` may be used, which is faster.

    Returns:
        Mean, epistemic variance and aleatoric variance, each of shape `(...)`.

    Examples:
        >>> mu, sigma = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [2.0]])
        >>> [moment.item() for moment in mean_and_variances(mu, sigma)]
        [2.0, 1.0, 2.0]
    """
    sigma = _broadcast(mu, sigma)
    mean = mu.mean(0)
    # Few passes over memory at hand; torch's own variance over the first dimension is far slower.
    spread = mu.sub_(mean) if overwrite else mu - mean
    epistemic = spread.square_().mean(0)
    return mean, epistemic, torch.mul(sigma, sigma, out=spread).mean(0)


def cdf(mu: Tensor, sigma: Tensor, s: Tensor) -> Tensor:
    r"""Distribution function of the mixture, :math:`F(s) = \frac{1}{S} \sum_i \Phi(z_i)`.

    Here :math:`z_i = (s - \mu_i) / \sigma_i` and :math:`\Phi` is that of the standard normal.

    Args:
        mu: Means of the components, `(S, ...)`.
        sigma: Their standard deviations, `(S, ...)` or of a shape that broadcasts to it.
        s: Values, `(...)`.

    Returns:
        Probabilities of shape `(...)`.

    Examples:
        >>> mu, sigma = torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1)
        >>> cdf(mu, sigma, torch.zeros(1))
        tensor([0.5000])
    """
    sigma = _broadcast(mu, sigma, s)
    return _normal_cdf_((s - mu).div_(sigma)).mean(0)


def log_prob(mu: Tensor, sigma: Tensor, s: Tensor) -> Tensor:
    r"""Log-density of the mixture.

    .. math:: \log p(s) = \operatorname{logsumexp}_i
        \left[ -\tfrac12 z_i^2 - \log \sigma_i \right] - \log S - \tfrac12 \log 2\pi,
        \qquad z_i = (s - \mu_i) / \sigma_i

    Args:
        mu: Means of the components, `(S, ...)`.
        sigma: Their standard deviations, `(S, ...)` or of a shape that broadcasts to it.
        s: Values, `(...)`.

    Returns:
        Log-densities of shape `(...)`.

    Examples:
        >>> mu, sigma = torch.zeros(3, 1), torch.ones(3, 1)
        >>> log_prob(mu, sigma, torch.zeros(1))
        tensor([-0.9189])
    """
    sigma = _broadcast(mu, sigma, s)
    terms = (s - mu).div_(sigma).square_().mul_(-0.5).sub_(sigma.log())
    return torch.logsumexp(terms, 0) - (math.log(mu.shape[0]) + _LOG_SQRT_2PI)


def quantile(mu: Tensor, sigma: Tensor, q: float) -> Tensor:
    r"""Quantile of the mixture: the root :math:`s` of :math:`F(s) = q`.

    The root lies between the least and the greatest :math:`q`-quantile of a component. Inside
    that bracket Newton's method solves :math:`\Phi^{-1}(F(s)) = \Phi^{-1}(q)`, which is linear in
    :math:`s` for a single Gaussian and nearly so for most mixtures; a step that leaves the bracket
    or shrinks too little becomes a bisection. A step is the last one when it is down to the
    rounding of the mixture's standard deviation. Where components are so narrow that
    :math:`F` is flat at :math:`q`, any point of the flat stretch is a quantile.

    Args:
        mu: Means of the components, `(S, ...)`.
        sigma: Their standard deviations, `(S, ...)` or of a shape that broadcasts to it. Zero
            is allowed, and leaves the quantile of the means.
        q: Probability, strictly between 0 and 1.

    Returns:
        Quantiles of shape `(...)`.

    Examples:
        >>> mu, sigma = torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1)
        >>> quantile(mu, sigma, 0.5).abs() < 1e-6
        tensor([True])
        >>> round(quantile(torch.zeros(1, 1), torch.ones(1, 1), 0.975).item(), 4)
        1.96
    """
    if not 0 < q < 1:
        raise ValueError(f"q must lie strictly between 0 and 1, got {q!r}")
    sigma = _broadcast(mu, sigma)
    result = torch.empty(mu.shape[1:], dtype=mu.dtype, device=mu.device)
    flat = result.view(-1)
    for block, m, v in _blocks(mu, sigma):
        # In the upper tail F is close to 1 and loses its digits; mirrored, it is the lower tail.
        flat[block] = _solve(m, v, q) if q <= 0.5 else -_solve(-m, v, 1 - q)
    return result


def crps(mu: Tensor, sigma: Tensor, s: Tensor, lags: int | None = None) -> Tensor:
    r"""Continuous ranked probability score of the mixture, in closed form.

    .. math::

        \mathrm{CRPS} = \int (F(x) - 1[x \ge s])^2 \, dx
        = \frac{1}{S} \sum_i A(s - \mu_i, \sigma_i)
        - \frac{1}{2 S^2} \sum_{i, j} A\left(\mu_i - \mu_j, \sqrt{\sigma_i^2 + \sigma_j^2}\right)

    with :math:`A(m, v) = m (2 \Phi(m / v) - 1) + 2 v \varphi(m / v)`, the mean absolute value of
    :math:`\mathcal{N}(m, v^2)`. The double sum runs over the pairs :math:`(i, i + r \bmod S)`
    for :math:`r = 1, \dots, \lfloor S / 2 \rfloor`, so that memory grows with `S` and not with its
    square.

    Args:
        mu: Means of the components, `(S, ...)`.
        sigma: Their standard deviations, `(S, ...)` or of a shape that broadcasts to it.
        s: Values, `(...)`.
        lags: Take this many values of `r`, evenly spaced, instead of all. Weight samples are
            exchangeable, so that this estimates the double sum without bias, `S / (2 lags)` times
            faster.

    Returns:
        Scores of shape `(...)`, in the units of `s`; smaller is better.

    Examples:
        >>> mu, sigma = torch.zeros(2, 1), torch.ones(2, 1)
        >>> crps(mu, sigma, torch.zeros(1))
        tensor([0.2337])
    """
    if lags is not None and lags < 1:
        raise ValueError(f"lags must be at least 1, or None for all pairs, got {lags!r}")
    sigma = _broadcast(mu, sigma, s)
    result = torch.empty_like(s, dtype=mu.dtype, memory_format=torch.contiguous_format)
    flat, truth = result.view(-1), s.reshape(-1)
    for block, m, v in _blocks(mu, sigma):
        flat[block] = _mean_absolute(truth[block] - m, v).mean(0) - 0.5 * _mean_gap(m, v, lags)
    return result


def _mean_gap(mu: Tensor, sigma: Tensor, lags: int | None) -> Tensor:
    """Mean absolute difference of two independent draws from the mixture, `(points,)`."""
    S = mu.shape[0]
    same = sigma.mean(0) * (2 / math.sqrt(math.pi))  # A(0, sqrt(2) sigma)
    if S == 1:
        return same
    half = S // 2
    if lags is None or lags >= half:
        chosen = list(range(1, half + 1))
    else:
        chosen = [1 + (half * j) // lags for j in range(lags)]
    variance = sigma.square()
    mu_twice, variance_twice = torch.cat([mu, mu]), torch.cat([variance, variance])
    total, weight = torch.zeros_like(same), 0.0
    for r in chosen:
        gap = mu_twice[r : r + S] - mu
        spread = (variance_twice[r : r + S] + variance).sqrt_()
        # At r = S / 2 every pair comes twice.
        share = 0.5 if 2 * r == S else 1.0
        total += share * _mean_absolute(gap, spread).mean(0)
        weight += share
    return same / S + (1 - 1 / S) * total / weight


def _mean_absolute(m: Tensor, v: Tensor) -> Tensor:
    r"""Mean absolute value of N(m, v^2). Overwrites `m`."""
    # With x = m / (v sqrt(2)): 2 Phi(m / v) - 1 = erf(x), phi(m / v) = exp(-x^2) / sqrt(2 pi).
    x = m.div(v).mul_(_SQRT_HALF)
    tail = torch.exp(-x.square()).mul_(v)
    return m.mul_(x.erf_()).add_(tail, alpha=math.sqrt(2 / math.pi))


def _solve(mu: Tensor, sigma: Tensor, q: float) -> Tensor:
    """Quantile of `(S, points)` components, `q <= 0.5`, by Newton's method inside a bracket."""
    z = _standard_quantile(q)
    if mu.shape[0] == 1:
        return torch.add(mu[0], sigma[0], alpha=z)
    lower, upper = torch.add(mu, sigma, alpha=z).aminmax(dim=0)
    mean, epistemic, aleatoric = mean_and_variances(mu, sigma)
    std = (epistemic + aleatoric).sqrt_()
    x = torch.clamp(mean + z * std, lower, upper)
    eps = torch.finfo(mu.dtype).eps
    # Samples last from here on: points that have converged are dropped, by rows of memory.
    mu, sigma = mu.t().contiguous(), sigma.t().contiguous()
    # A component narrower than the rounding of x is a step; give it a slope that x can find.
    sigma = torch.maximum(sigma, eps * torch.maximum(std, mean.abs())[:, None])
    bracket, step = (lower, upper), upper - lower
    root, rows = x.clone(), torch.arange(len(x), device=x.device)
    for turn in range(_MAX_ROUNDS):
        p, density = _cdf_and_density(mu, sigma, x)
        below = p < q
        lower, upper = torch.where(below, x, lower), torch.where(below, upper, x)
        g = torch.special.ndtri(p)
        newton = (z - g) / (density * (0.5 * g.square()).exp_() * math.sqrt(2 * math.pi))
        tolerance = 2 * eps * torch.maximum(std, x.abs())
        # Written so that NaN and infinity, from p = 0 or a density of 0, count as bad.
        inside = (x + newton >= lower) & (x + newton <= upper)
        good = (newton.abs() <= tolerance) | (inside & (newton.abs() <= 0.5 * step.abs()))
        step = torch.where(good, newton, lower + 0.5 * (upper - lower) - x)
        step = step.masked_fill(p == q, 0.0)
        x = x + step
        root[rows] = x
        rest = (step.abs() > tolerance).nonzero()[:, 0]
        if len(rest) == 0:
            break
        if 2 * len(rest) <= len(x) or turn == _PATIENCE:
            mu, sigma, rows = mu[rest], sigma[rest], rows[rest]
            x, step, std, lower, upper = (w[rest] for w in (x, step, std, lower, upper))
        if turn == _PATIENCE:
            low, high = _order_bracket(mu, sigma, q)
            lower, upper = torch.maximum(lower, low), torch.minimum(upper, high)
            x = torch.where((x >= lower) & (x <= upper), x, lower + 0.5 * (upper - lower))
            step = upper - lower
    return torch.clamp(root, *bracket)  # exact where all components agree


def _cdf_and_density(mu: Tensor, sigma: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Both of a mixture with components `(points, S)` at `x (points,)`."""
    # Further out, both would pass through subnormal numbers, which are slow and change nothing:
    # 12 sigma in float32, 35 in float64.
    far = 0.93 * math.sqrt(-2 * math.log(torch.finfo(mu.dtype).tiny))
    t = (x[:, None] - mu).div_(sigma).clamp_(-far, far)
    density = t.square().mul_(-0.5).exp_().div_(sigma).mean(1)
    return _normal_cdf_(t).mean(1), density.div_(math.sqrt(2 * math.pi))


def _order_bracket(mu: Tensor, sigma: Tensor, q: float) -> tuple[Tensor, Tensor]:
    r"""Bracket of the `q`-quantile between order statistics of components `(points, S)`.

    If `k` of the `S` components have their `p`-quantile below `x`, then :math:`k p / S \le F(x)
    \le (k + (S - k) p) / S`. Components much narrower than their distance make :math:`F` a
    staircase, on which Newton's method is lost; this finds the step that crosses `q`.
    """
    S = mu.shape[1]
    k, m = math.floor(q * S) + 1, math.ceil(q * S) - 1
    high = torch.add(mu, sigma, alpha=_standard_quantile(q * S / k))
    low = torch.add(mu, sigma, alpha=_standard_quantile((q * S - m) / (S - m)))
    return low.kthvalue(m + 1, 1).values, high.kthvalue(k, 1).values


def _standard_quantile(q: float) -> float:
    return torch.special.ndtri(torch.tensor(q, dtype=torch.float64)).item()


def _normal_cdf_(t: Tensor) -> Tensor:
    """Standard normal CDF, in place, with full relative precision in the lower tail."""
    return t.mul_(-_SQRT_HALF).erfc_().mul_(0.5)


def _blocks(mu: Tensor, sigma: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Slices of the flattened points, each with its `(S, points)` components."""
    S = mu.shape[0]
    mu, sigma = mu.reshape(S, -1), sigma.reshape(S, -1)
    width = max(1, _BLOCK // S)
    for start in range(0, mu.shape[1], width):
        block = slice(start, start + width)
        yield block, mu[:, block], sigma[:, block]


def _broadcast(mu: Tensor, sigma: Tensor, s: Tensor | None = None) -> Tensor:
    """`sigma` as wide as `mu`, after a check that shapes and types belong together."""
    if mu.dim() == 0 or mu.shape[0] == 0:
        raise ValueError(
            f"mu has shape {tuple(mu.shape)}, expected (S, ...) with at least one sample"
        )
    if not mu.is_floating_point() or sigma.dtype != mu.dtype:
        raise TypeError(
            f"mu is {mu.dtype} and sigma {sigma.dtype}, expected one float type; convert them"
        )
    try:
        wide = sigma.expand(mu.shape)
    except RuntimeError:
        raise ValueError(
            f"sigma has shape {tuple(sigma.shape)}, which does not broadcast to that of mu, "
            f"{tuple(mu.shape)}"
        ) from None
    if s is not None and s.shape != mu.shape[1:]:
        raise ValueError(
            f"s has shape {tuple(s.shape)}, expected {tuple(mu.shape[1:])}: "
            "one value for each point of mu, without its sample dimension"
        )
    return wide
