"""Scores against theory, scipy and loops."""

import math

import numpy as np
import pytest
import torch
from fakes import FakePrediction
from scipy.stats import kstest, norm

from pyro_deeponet import metrics, mixture


def prediction(shape=(5, 4, 7), dtype=torch.float64, seed=0, **kwargs):
    generator = torch.Generator().manual_seed(seed)
    mu = torch.randn(shape, generator=generator, dtype=torch.float64)
    sigma = 0.2 + torch.rand(shape, generator=generator, dtype=torch.float64)
    truth = 0.5 + torch.randn(shape[1:], generator=generator, dtype=torch.float64)
    return FakePrediction(mu.to(dtype), sigma.to(dtype), **kwargs), truth.to(dtype)


def gaussian(n=400, q=100, error=1.0, spread=1.0, seed=0):
    """A truth whose error has standard deviation `error`, where the prediction says `spread`."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, q, generator=generator, dtype=torch.float64)
    truth = mean + error * torch.randn(n, q, generator=generator, dtype=torch.float64)
    mu = torch.stack([mean, mean])
    return FakePrediction(mu, torch.full_like(mu, spread), block=(n, q)), truth


def within(fraction, expected, count):
    return abs(fraction - expected) < 4 * math.sqrt(expected * (1 - expected) / count)


@pytest.mark.parametrize("shape", [(4, 7), (5, 5), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_errors_against_loops(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    mean, truth = torch.randn(2, *shape, generator=generator).to(dtype)
    a, b = mean.double().numpy(), truth.double().numpy()
    rows = [np.linalg.norm(b[i] - a[i]) / np.linalg.norm(b[i]) for i in range(shape[0])]
    for cast in (lambda t: t, lambda t: t.numpy()):
        nmse = metrics.nmse(cast(mean), cast(truth))
        relative = metrics.relative_l2(cast(mean), cast(truth))
        assert isinstance(nmse, float)
        assert isinstance(relative, float)
        assert nmse == pytest.approx(((b - a) ** 2).sum() / (b**2).sum(), rel=1e-6)
        assert relative == pytest.approx(np.mean(rows), rel=1e-6)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("method", ["gaussian", "mixture"])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_coverage_of_known_error(level, method, ratio):
    p, truth = gaussian(spread=ratio)
    expected = 2 * norm.cdf(ratio * norm.ppf(0.5 + level / 2)) - 1
    found = metrics.coverage(p, truth, level, method=method)
    assert within(found, expected, truth.numel())
    width = metrics.interval_width(p, level, method=method)
    assert width == pytest.approx(2 * ratio * norm.ppf(0.5 + level / 2), rel=1e-6)
    levels, curve = metrics.calibration_curve(p, truth, [level], method=method)
    assert levels.tolist() == [level]
    assert curve.item() == pytest.approx(found, abs=1e-12)


def test_kind_says_which_interval_is_judged():
    p, _ = prediction((9, 6, 5))
    truth = p.mu[0]
    spread = {"epistemic": p.epistemic_std, "predictive": p.std}
    for kind, std in spread.items():
        inside = ((truth - p.mean).abs() <= norm.ppf(0.975) * std).double().mean().item()
        assert metrics.coverage(p, truth, kind=kind) == pytest.approx(inside)
        _, curve = metrics.calibration_curve(p, truth, [0.95], kind=kind)
        assert curve.item() == pytest.approx(inside)
        width = (2 * norm.ppf(0.975) * std).mean().item()
        assert metrics.interval_width(p, kind=kind) == pytest.approx(width)
    _, curve = metrics.calibration_curve(p, truth, [0.3, 0.9], "epistemic", "mixture")
    for level, found in zip((0.3, 0.9), curve.tolist(), strict=True):
        assert found == metrics.coverage(p, truth, level, "epistemic", "mixture")


def test_calibration_error_of_known_error():
    p, truth = gaussian()
    for method in ("gaussian", "mixture"):
        assert metrics.calibration_error(p, truth, method=method) < 0.005
    wide, truth = gaussian(spread=2.0)
    levels = np.arange(1, 20) / 20
    expected = np.mean(2 * norm.cdf(2 * norm.ppf(0.5 + levels / 2)) - 1 - levels)
    for method in ("gaussian", "mixture"):
        error = metrics.calibration_error(wide, truth, method=method)
        assert error == pytest.approx(expected, abs=0.005)


def test_a_prediction_without_spread_covers_what_it_hits():
    mu = torch.zeros(2, 1, 4)
    p = FakePrediction(mu, torch.zeros_like(mu))
    truth = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    assert metrics.calibration_curve(p, truth, [0.5])[1].item() == 0.75
    assert metrics.coverage(p, truth) == 0.75


def test_nll_and_crps_of_a_gaussian():
    p, truth = gaussian(n=30, q=20, spread=1.5)
    z = ((truth - p.mean) / 1.5).numpy()
    assert metrics.nll(p, truth) == pytest.approx(-norm.logpdf(z, scale=1).mean() + math.log(1.5))
    expected = 1.5 * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert metrics.crps(p, truth) == pytest.approx(expected.mean())


@pytest.mark.parametrize("shape", [(5, 4, 7), (4, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_crps_and_nll_do_not_depend_on_blocks(shape, dtype):
    p, truth = prediction(shape, dtype)
    crps, nll = (f(p.mu, p.sigma, truth).mean().item() for f in (mixture.crps, mixture.log_prob))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for block in [(1, 1), (3, 2), (100, 100)]:
        p.block = block
        assert metrics.crps(p, truth) == pytest.approx(crps, rel=tolerance)
        assert metrics.evaluate(p, truth)["nll"] == pytest.approx(-nll, rel=tolerance)


def test_crps_rewards_the_right_spread():
    scores = {}
    for spread in (0.5, 1.0, 2.0):
        p, truth = gaussian(n=50, spread=spread)
        scores[spread] = metrics.crps(p, truth), metrics.nll(p, truth)
    assert scores[1.0] == (min(s[0] for s in scores.values()), min(s[1] for s in scores.values()))


def test_pit_of_the_right_distribution_is_uniform():
    p, _ = prediction((6, 50, 40))
    which = torch.randint(6, (1, 50, 40), generator=torch.Generator().manual_seed(3))
    noise = torch.randn(50, 40, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    truth = p.mu.gather(0, which)[0] + p.sigma.gather(0, which)[0] * noise
    values = metrics.pit(p, truth)
    assert values.shape == (50, 40)
    assert kstest(values.flatten().numpy(), "uniform").pvalue > 0.01
    assert metrics.calibration_error(p, truth, method="mixture") < 0.02


@pytest.mark.parametrize("numpy", [False, True])
def test_masked_entries_are_never_read(numpy):
    p, truth = prediction((5, 4, 7))
    mask = torch.rand(4, 7, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[2] = False  # a function without a real entry counts nowhere
    p.mask, p.numpy = mask, numpy
    if numpy:
        p.mask = mask.numpy()
    holes = truth.masked_fill(~mask, math.nan)
    # The same real entries as functions of one point each.
    flat = FakePrediction(p.mu[:, mask][..., None], p.sigma[:, mask][..., None])
    s = truth[mask][:, None]
    masked, direct = metrics.evaluate(p, holes.numpy() if numpy else holes), {}
    direct = metrics.evaluate(flat, s)
    for name in masked:
        if name != "relative_l2":
            assert masked[name] == pytest.approx(direct[name], rel=1e-12), name
    rows = [0, 1, 3]
    mean = p.mu.mean(0)
    relative = [((truth - mean)[i][mask[i]].norm() / truth[i][mask[i]].norm()).item() for i in rows]
    assert masked["relative_l2"] == pytest.approx(np.mean(relative))
    values = metrics.pit(p, holes)
    assert torch.isnan(values).equal(~mask)
    torch.testing.assert_close(values[mask], metrics.pit(flat, s)[:, 0])
    for function in (metrics.nll, metrics.crps, metrics.coverage, metrics.calibration_error):
        assert function(p, holes) == pytest.approx(function(flat, s))


def test_evaluate_is_its_parts():
    p, truth = prediction()
    for level, kind, name in [(0.95, "predictive", "95"), (0.9, "epistemic", "90")]:
        scores = metrics.evaluate(p, truth, level, kind)
        assert scores == {
            "nmse": metrics.nmse(p.mean, truth),
            "relative_l2": metrics.relative_l2(p.mean, truth),
            f"coverage_{name}": metrics.coverage(p, truth, level, kind),
            f"width_{name}": metrics.interval_width(p, level, kind),
            "nll": pytest.approx(metrics.nll(p, truth)),
            "crps": pytest.approx(metrics.crps(p, truth)),
            "calibration_error": metrics.calibration_error(p, truth, kind=kind),
        }
        assert all(type(value) is float for value in scores.values())
    assert "coverage_99.5" in metrics.evaluate(p, truth, level=0.995)


def test_chunks_of_functions_do_not_change_scores(monkeypatch):
    p, truth = prediction((5, 9, 7))
    whole = metrics.evaluate(p, truth), metrics.calibration_error(p, truth, method="mixture")
    monkeypatch.setattr(metrics, "_CHUNK", 15)
    parts = metrics.evaluate(p, truth), metrics.calibration_error(p, truth, method="mixture")
    assert parts[0] == pytest.approx(whole[0])
    assert parts[1] == pytest.approx(whole[1])


def test_wrong_truth_is_refused():
    p, truth = prediction((5, 4, 7))
    scores = [metrics.coverage, metrics.nll, metrics.crps, metrics.pit, metrics.evaluate]
    for score in [*scores, metrics.calibration_error, lambda p, s: metrics.nmse(p.mean, s)]:
        with pytest.raises(ValueError, match=r"\(7, 4\).*\(4, 7\).*transpose"):
            score(p, truth.T)
        with pytest.raises(ValueError, match=r"\(7,\)"):
            score(p, truth[0])
        bad = truth.clone()
        bad[1, 2] = math.nan
        with pytest.raises(ValueError, match=r"1 NaN or infinite values.*\[1, 2\]"):
            score(p, bad)


def test_zero_truth_is_refused():
    ones = torch.ones(3, 4)
    with pytest.raises(ValueError, match="zero everywhere"):
        metrics.nmse(ones, 0 * ones)
    truth = ones.clone()
    truth[1] = 0
    assert metrics.nmse(ones, truth) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="1 functions is zero everywhere, the first in row 1"):
        metrics.relative_l2(ones, truth)


def test_wrong_arguments_are_refused():
    p, truth = prediction()
    with pytest.raises(ValueError, match="levels must be numbers strictly between 0 and 1"):
        metrics.calibration_curve(p, truth, [0.5, 1.0])
    with pytest.raises(ValueError, match="kind must be"):
        metrics.calibration_curve(p, truth, kind="total")
    with pytest.raises(ValueError, match="mean holds NaN"):
        metrics.nmse(truth * math.nan, truth)
    with pytest.raises(ValueError, match="mask is False everywhere"):
        metrics.nmse(truth, truth, torch.zeros_like(truth, dtype=torch.bool))
    with pytest.raises(ValueError, match="mask has shape"):
        metrics.nmse(truth, truth, torch.ones(2, 2, dtype=torch.bool))
