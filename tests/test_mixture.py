"""The Gaussian mixture against scipy, numerical integration and brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize
from scipy.special import logsumexp
from scipy.stats import norm

from pyro_deeponet import mixture

SHAPES = [(7, 3, 5), (4, 4, 4), (1, 2, 3), (2, 3), (6,)]
DTYPES = [torch.float32, torch.float64]


def components(shape, dtype=torch.float64, narrow=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mu = torch.randn(shape, generator=generator, dtype=torch.float64)
    sigma = narrow * (0.3 + torch.rand(shape, generator=generator, dtype=torch.float64))
    return mu.to(dtype), sigma.to(dtype)


def reference_quantile(mu, sigma, q):
    mu, sigma = mu.double().numpy(), sigma.double().numpy()
    ends = norm.ppf(q, mu, sigma)
    low, high = ends.min() - 1e-9, ends.max() + 1e-9
    return optimize.brentq(
        lambda s: norm.cdf(s, mu, sigma).mean() - q, low, high, xtol=1e-15, rtol=1e-14
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_moments_cdf_and_log_prob(shape, dtype):
    mu, sigma = components(shape, dtype)
    s = components((2, *shape), dtype, seed=1)[0][0, 0]
    a, b, c = (w.double().numpy() for w in (mu, sigma, s))
    mean, epistemic, aleatoric = mixture.mean_and_variances(mu, sigma)
    cdf, log_prob = mixture.cdf(mu, sigma, s), mixture.log_prob(mu, sigma, s)
    for result in (mean, epistemic, aleatoric, cdf, log_prob):
        assert result.dtype == dtype
        assert result.shape == shape[1:]
    tolerance = {"atol": 2e-6, "rtol": 2e-6} if dtype == torch.float32 else {"atol": 1e-12}
    np.testing.assert_allclose(mean, a.mean(0), **tolerance)
    np.testing.assert_allclose(epistemic, a.var(0), **tolerance)
    np.testing.assert_allclose(aleatoric, (b**2).mean(0), **tolerance)
    np.testing.assert_allclose(cdf, norm.cdf(c, a, b).mean(0), **tolerance)
    density = logsumexp(norm.logpdf(c, a, b), axis=0) - np.log(shape[0])
    np.testing.assert_allclose(log_prob, density, **tolerance)


def test_total_variance_is_that_of_many_draws():
    mu, sigma = components((5,))
    draws = (mu + sigma * torch.randn(200_000, 5, dtype=torch.float64)).flatten()
    mean, epistemic, aleatoric = mixture.mean_and_variances(mu, sigma)
    error = 4 * draws.std() / len(draws) ** 0.5
    assert abs(draws.mean() - mean) < error
    assert draws.var().item() == pytest.approx((epistemic + aleatoric).item(), rel=0.02)


def test_log_prob_far_away_is_finite():
    mu, sigma = components((3, 2), torch.float32, narrow=1e-3)
    value = mixture.log_prob(mu, sigma, torch.full((2,), 50.0))
    assert torch.isfinite(value).all()
    assert (value < -1e5).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("narrow", [10.0, 1.0, 0.1, 0.01])
@pytest.mark.parametrize("q", [1e-4, 0.025, 0.5, 0.77, 0.975])
def test_quantile_against_root_of_cdf(q, narrow, dtype):
    mu, sigma = components((37, 3, 5), dtype, narrow)  # 37 q is no whole number: F is not flat
    found = mixture.quantile(mu, sigma, q)
    assert found.shape == (3, 5)
    assert found.dtype == dtype
    _, epistemic, aleatoric = mixture.mean_and_variances(mu, sigma)
    spread = (epistemic + aleatoric).sqrt().double().numpy()
    expected = np.array(
        [[reference_quantile(mu[:, i, j], sigma[:, i, j], q) for j in range(5)] for i in range(3)]
    )
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    assert (np.abs(found.numpy() - expected) / spread).max() < tolerance


@pytest.mark.parametrize("q", [0.025, 0.5, 0.9])
@pytest.mark.parametrize("narrow", [1e-3, 1e-5])
def test_quantile_of_very_narrow_components(narrow, q):
    mu, sigma = components((100, 40), torch.float64, narrow)
    found = mixture.quantile(mu, sigma, q)
    # At q S = 50 the CDF is flat between the 50th and the 51st component: compare probabilities.
    assert (mixture.cdf(mu, sigma, found) - q).abs().max() < 1e-9
    for j in range(40):
        if q == 0.025:
            assert found[j].item() == pytest.approx(
                reference_quantile(mu[:, j], sigma[:, j], q), abs=1e-11
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantile_without_width_is_that_of_the_means(dtype):
    mu, _ = components((99, 4), dtype)
    found = mixture.quantile(mu, torch.zeros_like(mu), 0.3)
    expected = mu.sort(0).values[29]  # the 30th of 99: 29 / 99 < 0.3 < 30 / 99
    torch.testing.assert_close(found, expected, rtol=0, atol=20 * torch.finfo(dtype).eps)
    constant = torch.full((5, 3), 2.5, dtype=dtype)
    assert mixture.quantile(constant, torch.zeros_like(constant), 0.9).eq(2.5).all()
    assert mixture.quantile(0 * constant, 0 * constant, 0.1).eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantile_of_one_component_is_exact(dtype):
    mu, sigma = components((1, 50), dtype)
    for q in (0.01, 0.5, 0.975):
        expected = mu[0] + norm.ppf(q) * sigma[0]
        torch.testing.assert_close(mixture.quantile(mu, sigma, q), expected)


def test_quantile_far_from_zero_and_between_two_modes():
    mu = torch.tensor([[1000.0], [1001.0]])
    sigma = torch.full_like(mu, 0.01)
    found = mixture.quantile(mu, sigma, 0.25)  # the median of the first mode
    assert found.item() == pytest.approx(1000.0, abs=3e-4)
    assert 1000 < mixture.quantile(mu, sigma, 0.5).item() < 1001


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 12),
    q=st.floats(0.001, 0.999),
    scale=st.floats(-4, 2),
    offset=st.floats(-100, 100),
    seed=st.integers(0, 10_000),
)
def test_quantile_inverts_the_cdf(samples, q, scale, offset, seed):
    mu, sigma = components((samples, 3), torch.float64, 10**scale, seed)
    found = mixture.quantile(mu + offset, sigma, q)
    # F is as steep as 1 / sigma, and numbers near 100 are 1e-14 apart.
    torch.testing.assert_close(
        mixture.cdf(mu + offset, sigma, found),
        torch.full((3,), q, dtype=torch.float64),
        rtol=0,
        atol=1e-9,
    )


def test_quantiles_grow_and_mirror():
    mu, sigma = components((20, 30), torch.float64, 0.2)
    levels = [0.01, 0.2, 0.5, 0.8, 0.99]
    found = torch.stack([mixture.quantile(mu, sigma, q) for q in levels])
    assert (found.diff(dim=0) > 0).all()
    mirrored = -mixture.quantile(-mu, sigma, 0.2)
    torch.testing.assert_close(mirrored, found[3], rtol=0, atol=1e-11)


def test_quantile_evaluates_the_cdf_few_times(monkeypatch):
    evaluated = 0
    original = mixture._cdf_and_density

    def counted(mu, sigma, x):
        nonlocal evaluated
        evaluated += mu.numel()
        return original(mu, sigma, x)

    monkeypatch.setattr(mixture, "_cdf_and_density", counted)
    for narrow in (3.0, 0.3, 0.03, 0.003):
        evaluated = 0
        mu, sigma = components((100, 500), torch.float32, narrow)
        mixture.quantile(mu, sigma, 0.025)
        assert evaluated <= 12 * mu.numel()


@pytest.mark.parametrize("shape", [(1,), (2,), (5,), (6,)])
def test_crps_against_integral(shape):
    mu, sigma = components(shape, narrow=0.5)
    a, b = mu.numpy(), sigma.numpy()
    for s in (-2.0, 0.1, 3.0):
        low, high = min(s, (a - 9 * b).min()), max(s, (a + 9 * b).max())
        parts = [
            integrate.quad(lambda x: norm.cdf(x, a, b).mean() ** 2, low, s, limit=200)[0],
            integrate.quad(lambda x: norm.sf(x, a, b).mean() ** 2, s, high, limit=200)[0],
        ]
        found = mixture.crps(mu, sigma, torch.tensor(s, dtype=torch.float64))
        assert found.item() == pytest.approx(sum(parts), abs=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_crps_against_all_pairs(shape, dtype):
    mu, sigma = components(shape, dtype)
    s = components((2, *shape), dtype, seed=1)[0][0, 0]
    a, b, c = (w.double().numpy() for w in (mu, sigma, s))

    def absolute(m, v):
        return m * (2 * norm.cdf(m / v) - 1) + 2 * v * norm.pdf(m / v)

    first = absolute(c - a, b).mean(0)
    second = absolute(a[:, None] - a, np.sqrt(b[:, None] ** 2 + b**2)).mean((0, 1))
    found = mixture.crps(mu, sigma, s)
    assert found.dtype == dtype
    assert found.shape == shape[1:]
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(found, first - 0.5 * second, atol=tolerance)


def test_crps_of_some_lags_is_close_and_of_all_lags_the_same():
    mu, sigma = components((100, 200))
    s = torch.zeros(200, dtype=torch.float64)
    exact = mixture.crps(mu, sigma, s)
    torch.testing.assert_close(mixture.crps(mu, sigma, s, lags=50), exact)
    some = mixture.crps(mu, sigma, s, lags=5)
    assert some.mean().item() == pytest.approx(exact.mean().item(), rel=0.01)


@pytest.mark.parametrize("block", [1, 7, 1 << 17])
def test_blocks_do_not_change_results(block, monkeypatch):
    mu, sigma = components((5, 3, 4))
    s = mu[0]
    whole = mixture.quantile(mu, sigma, 0.1), mixture.crps(mu, sigma, s)
    monkeypatch.setattr(mixture, "_BLOCK", block)
    torch.testing.assert_close(mixture.quantile(mu, sigma, 0.1), whole[0], rtol=0, atol=1e-13)
    torch.testing.assert_close(mixture.crps(mu, sigma, s), whole[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("narrow", [(), (4,), (5, 1, 1), (1, 3, 4), (1, 1, 1)])
def test_sigma_broadcasts_and_inputs_stay(narrow):
    mu, sigma = components((5, 3, 4))[0], 0.7 * torch.ones(narrow, dtype=torch.float64)
    wide = sigma.expand(5, 3, 4).contiguous()
    s, kept = mu[0] + 0.1, (mu.clone(), sigma.clone())
    for name, rest in [("cdf", (s,)), ("log_prob", (s,)), ("crps", (s,)), ("quantile", (0.9,))]:
        function = getattr(mixture, name)
        torch.testing.assert_close(function(mu, sigma, *rest), function(mu, wide, *rest))
    for short, full in zip(
        mixture.mean_and_variances(mu, sigma), mixture.mean_and_variances(mu, wide), strict=True
    ):
        torch.testing.assert_close(short, full)
    torch.testing.assert_close((mu, sigma), kept, rtol=0, atol=0)


def test_layout_of_memory_does_not_matter():
    mu, sigma = components((6, 3, 4))
    turned = mu.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    torch.testing.assert_close(
        mixture.quantile(turned, sigma, 0.9), mixture.quantile(mu, sigma, 0.9), rtol=0, atol=1e-13
    )
    torch.testing.assert_close(
        mixture.crps(turned, sigma, turned[0]), mixture.crps(mu, sigma, mu[0]), rtol=0, atol=1e-13
    )


def test_errors_say_what_to_do():
    mu, sigma = components((5, 3))
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 1"):
        mixture.quantile(mu, sigma, 1)
    with pytest.raises(ValueError, match=r"sigma has shape \(4, 3\).*\(5, 3\)"):
        mixture.cdf(mu, sigma[:4], mu[0])
    with pytest.raises(ValueError, match=r"s has shape \(5, 3\), expected \(3,\)"):
        mixture.log_prob(mu, sigma, mu)
    with pytest.raises(ValueError, match="at least one sample"):
        mixture.quantile(mu[:0], sigma[:0], 0.5)
    with pytest.raises(TypeError, match=r"float64 and sigma torch\.float32"):
        mixture.mean_and_variances(mu, sigma.float())
    with pytest.raises(ValueError, match="lags must be at least 1"):
        mixture.crps(mu, sigma, mu[0], lags=0)
