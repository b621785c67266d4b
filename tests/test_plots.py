"""Every figure drawn, and what it shows compared with what it was given."""

import io

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from fakes import FakePrediction
from matplotlib.axes import Axes
from scipy.integrate import trapezoid
from scipy.stats import binom, gaussian_kde, norm

from pyro_deeponet import metrics, plots
from pyro_deeponet.history import History
from pyro_deeponet.plots.densities import kernel_density


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch):
    """No figure is shown, no setting changed; every figure can be saved in both formats."""
    before = dict(mpl.rcParams)
    monkeypatch.setattr(plt, "show", lambda *_, **__: pytest.fail("plt.show was called"))
    yield
    for number in plt.get_fignums():
        plt.figure(number).savefig(io.BytesIO(), format="png", dpi=40)
    plt.close("all")
    assert dict(mpl.rcParams) == before


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def line(ax, label):
    (found,) = [x for x in ax.lines if x.get_label() == label]
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def labelled(ax):
    return bool(ax.get_xlabel()) and bool(ax.get_ylabel())


def prediction(n=6, q=20, samples=9, **kwargs):
    generator = torch.Generator().manual_seed(0)
    mu = torch.randn(samples, n, q, generator=generator)
    sigma = 0.2 + torch.rand(samples, n, q, generator=generator)
    return FakePrediction(mu, sigma, **kwargs)


@pytest.mark.parametrize("cast", [lambda t: t, lambda t: t.numpy(), lambda t: t.double()])
def test_inputs(cast):
    u = torch.randn(50, 12)
    ax = plots.inputs(cast(torch.linspace(0, 1, 12)), cast(u), n=7)
    assert len(ax.lines) == 8
    np.testing.assert_allclose(line(ax, "mean of 50")[1], u.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ax.lines[3].get_ydata(), u[3], rtol=1e-6)
    assert legend(ax) == ["7 of 50 inputs", "mean of 50"]
    assert labelled(ax)


def test_inputs_of_unsorted_sensors_and_of_fewer_functions():
    x = torch.tensor([[0.5], [0.0], [1.0]])
    ax = plots.inputs(x, torch.tensor([[5.0, 0.0, 10.0]], requires_grad=True), n=30)
    assert ax.lines[0].get_xdata().tolist() == [0.0, 0.5, 1.0]
    assert ax.lines[0].get_ydata().tolist() == [0.0, 5.0, 10.0]
    with pytest.raises(ValueError, match=r"u has shape \(1, 2\), expected \(n, 3\)"):
        plots.inputs(x, torch.zeros(1, 2))


def test_band_contains_the_data():
    y = torch.rand(30)
    mean, half = torch.sin(5 * y), 0.1 + torch.rand(30)
    observed = (torch.tensor([0.2, 0.4]), torch.tensor([1.0, 2.0]))
    _, given = plt.subplots()
    ax = plots.band(
        y, mean, mean - half, mean + half, mean + 0.1, observed, mean - 0.1, ax=given, label="90 %"
    )
    assert ax is given
    assert legend(ax) == ["90 %", "mean", "deterministic", "truth", "observed"]
    order = y.argsort()
    for name, shift in (("mean", 0.0), ("truth", 0.1), ("deterministic", -0.1)):
        x, values = line(ax, name)
        np.testing.assert_allclose(x, y[order], rtol=1e-6)
        np.testing.assert_allclose(values, (mean + shift)[order], rtol=1e-5, atol=1e-6)
    assert line(ax, "observed")[1].tolist() == [1.0, 2.0]
    vertices = ax.collections[0].get_paths()[0].vertices
    points = {(round(float(a), 5), round(float(b), 5)) for a, b in vertices}
    for edge in (mean - half, mean + half):
        expected = zip(y.tolist(), edge.tolist(), strict=True)
        assert {(round(a, 5), round(b, 5)) for a, b in expected} <= points
    low, high = ax.get_ylim()
    assert low <= (mean - half).min()
    assert high >= (mean + half).max()
    assert labelled(ax)


def test_band_checks_lengths():
    with pytest.raises(ValueError, match=r"lower has shape \(2,\), expected \(3,\)"):
        plots.band([0.0, 1.0, 2.0], [0.0] * 3, [0.0] * 2, [1.0] * 3)
    with pytest.raises(ValueError, match="truth has shape"):
        plots.band([0.0, 1.0], [0.0] * 2, [0.0] * 2, [1.0] * 2, truth=[[0.0, 1.0]])


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("kind", ["predictive", "epistemic"])
def test_function_shows_the_interval_of_one_row(kind, numpy):
    p = prediction(numpy=numpy)
    y, truth = torch.linspace(0, 1, 20)[:, None], torch.randn(6, 20)
    ax = plots.function(p, 2, y, truth=truth, deterministic=truth[2] + 1, level=0.9, kind=kind)
    assert legend(ax)[0] == ("90 % interval" if kind == "predictive" else "90 % epistemic interval")
    std = p.std if kind == "predictive" else p.epistemic_std
    upper = ax.collections[0].get_paths()[0].vertices[:, 1].max()
    expected = np.asarray(p.mean)[2] + norm.ppf(0.95) * np.asarray(std)[2]
    assert upper == pytest.approx(expected.max(), rel=1e-5)
    np.testing.assert_allclose(line(ax, "truth")[1], truth[2], rtol=1e-6)
    np.testing.assert_allclose(line(ax, "deterministic")[1], truth[2] + 1, rtol=1e-6)


def test_function_leaves_out_masked_points():
    mask = torch.ones(6, 20, dtype=torch.bool)
    mask[1, 15:] = False
    ax = plots.function(prediction(mask=mask), 1, torch.arange(20.0), method="mixture")
    assert line(ax, "mean")[0].tolist() == list(range(15))
    with pytest.raises(ValueError, match="i is 6, but the prediction has 6 functions"):
        plots.function(prediction(), 6, torch.arange(20.0))


def space_time(nx=5, nt=4):
    grid = torch.cartesian_prod(torch.linspace(0, 1, nx), torch.linspace(0, 2, nt))
    return grid, grid[:, 0] + 10 * grid[:, 1]


def test_fields_have_the_right_values_and_scales():
    grid, s = space_time()
    mean, std, other = s + 0.1 * torch.randn(20), torch.rand(20), s - 0.5
    axes = plots.fields(grid, s, mean, std, deterministic=other)
    assert axes.shape == (2, 4)
    titles = [[ax.get_title() for ax in row if ax.axison] for row in axes]
    assert titles[0] == ["truth", "mean", "|truth - mean|", "standard deviation"]
    assert titles[1] == ["deterministic", "|truth - deterministic|"]
    shown = {ax.get_title(): ax.collections[0] for ax in axes.flat if ax.axison}
    expected = {
        "truth": s,
        "mean": mean,
        "|truth - mean|": (s - mean).abs(),
        "standard deviation": std,
        "deterministic": other,
        "|truth - deterministic|": (s - other).abs(),
    }
    for title, values in expected.items():
        image = np.asarray(shown[title].get_array()).reshape(4, 5)  # t upwards, x to the right
        np.testing.assert_allclose(image, values.reshape(5, 4).T, rtol=1e-5)
    scales = {title: mesh.get_clim() for title, mesh in shown.items()}
    assert scales["truth"] == scales["mean"] == scales["deterministic"]
    assert scales["|truth - mean|"] == scales["|truth - deterministic|"]
    assert scales["truth"][0] == pytest.approx(min(s.min(), mean.min(), other.min()).item())
    assert scales["|truth - mean|"] == pytest.approx((0, 0.5), abs=0.2)
    bars = [ax for ax in axes[0, 0].figure.axes if ax.get_label() == "<colorbar>"]
    assert [bar.get_ylabel() for bar in bars] == ["s", "s", "error", "std", "s", "error"]
    assert all(labelled(ax) for ax in axes.flat if ax.axison)


def test_fields_take_a_shuffled_grid_and_given_axes():
    grid, s = space_time()
    order = torch.randperm(20)
    _, given = plt.subplots(1, 4)
    axes = plots.fields(grid[order].numpy(), s[order].numpy(), s[order], 0 * s, axes=given)
    assert axes[0, 3] is given[3]
    image = np.asarray(given[0].collections[0].get_array()).reshape(4, 5)
    np.testing.assert_allclose(image, s.reshape(5, 4).T)


def test_fields_refuse_what_is_no_grid():
    grid, s = space_time()
    with pytest.raises(ValueError, match="not a full grid"):
        plots.fields(grid[:-1], s[:-1], s[:-1], s[:-1])
    with pytest.raises(ValueError, match=r"expected \(q, 2\)"):
        plots.fields(grid[:, :1], s, s, s)
    with pytest.raises(ValueError, match="mean has shape"):
        plots.fields(grid, s, s[:-1], s)
    with pytest.raises(ValueError, match=r"axes has 3 axes, expected 4: plt\.subplots\(1, 4\)"):
        plots.fields(grid, s, s, s, axes=plt.subplots(1, 3)[1])


def test_bounds_share_one_scale():
    grid, s = space_time()
    axes = plots.bounds(grid, s - 1, s, s + 2, level=0.9)
    assert axes.shape == (1, 3)
    titles = [ax.get_title() for ax in axes[0]]
    assert titles == ["lower end of 90 % interval", "mean", "upper end of 90 % interval"]
    limits = {ax.collections[0].get_clim() for ax in axes[0]}
    assert limits == {((s - 1).min().item(), (s + 2).max().item())}
    assert np.asarray(axes[0, 0].collections[0].get_array()).max() == (s - 1).max()


def test_kernel_density_is_that_of_scipy():
    samples = np.random.default_rng(0).gamma(2.0, size=(3, 400))
    s = np.linspace(-4, samples.max() + 4, 1024)
    widths = np.array([0.3, 0.2, 0.5])
    found = kernel_density(samples, s, widths)
    for row, h, density in zip(samples, widths, found, strict=True):
        expected = gaussian_kde(row, bw_method=h / row.std(ddof=1))(s)
        np.testing.assert_allclose(density, expected, atol=1e-4 * expected.max() + 1e-4)
    np.testing.assert_allclose(found.sum(1) * (s[1] - s[0]), 1, rtol=1e-6)


def test_density_of_the_prior_and_its_band():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(5000, generator=generator)
    shift = 0.2 * torch.randn(40, 1, generator=generator)
    ax = plots.density(truth + shift, truth, truth + 3)
    assert legend(ax) == ["95 % credible band", "posterior mean", "deterministic", "truth"]
    s, mean = line(ax, "posterior mean")
    assert trapezoid(mean, s) == pytest.approx(1, abs=0.01)
    s, true = line(ax, "truth")
    assert np.abs(true - norm.pdf(s)).max() < 0.03
    assert s[line(ax, "deterministic")[1].argmax()] == pytest.approx(3, abs=0.3)
    vertices = ax.collections[0].get_paths()[0].vertices
    at_zero = vertices[np.abs(vertices[:, 0] - 1.0) < 0.02, 1]
    value = np.interp(1.0, s, mean)
    assert at_zero.min() < value < at_zero.max()
    # The density at 1 moves with the shift as the normal density does.
    expected = np.quantile(norm.pdf(1 - shift.numpy()), [0.025, 0.975])
    assert at_zero.min() == pytest.approx(expected[0], abs=0.03)
    assert at_zero.max() == pytest.approx(expected[1], abs=0.03)
    assert ax.get_ylim()[0] == 0
    assert labelled(ax)


def test_density_alone_and_of_what_does_not_vary():
    ax = plots.density(np.random.default_rng(0).normal(size=(5, 100)), level=0.5)
    assert legend(ax) == ["50 % credible band", "posterior mean"]
    with pytest.raises(ValueError, match="values that vary"):
        plots.density(torch.zeros(3, 10))
    with pytest.raises(ValueError, match=r"expected \(S, n\)"):
        plots.density(torch.zeros(10))


def test_calibration_curves_differ_and_the_diagonal_comes_once():
    levels = torch.linspace(0.05, 0.95, 19)
    ax = plots.calibration(levels, levels.sqrt(), label="before")
    assert plots.calibration(levels, levels, ax=ax, label="after") is ax
    assert legend(ax) == ["ideal", "before", "after"]
    np.testing.assert_allclose(line(ax, "before")[1], levels.sqrt(), rtol=1e-6)
    assert len({curve.get_color() for curve in ax.lines}) == 3
    assert ax.get_xlim() == ax.get_ylim() == (0, 1)
    assert labelled(ax)
    assert plots.calibration(levels, levels).get_legend() is None
    with pytest.raises(ValueError, match="empirical has shape"):
        plots.calibration(levels, levels[:3])


def test_pit_histogram_and_its_band():
    p, truth = prediction(n=300, q=10), torch.randn(300, 10)
    values = metrics.pit(p, truth)
    values[0] = torch.nan
    ax = plots.pit_histogram(values, bins=10)
    bars = list(ax.containers[0])
    expected = np.histogram(values[1:], 10, (0, 1))[0] / (299 * 10) * 10
    np.testing.assert_allclose([bar.get_height() for bar in bars], expected)
    (span,) = [patch for patch in ax.patches if patch.get_label() == "95 % of uniform draws"]
    low, high = span.get_y(), span.get_y() + span.get_height()
    assert low * 30 == pytest.approx(binom.ppf(0.025, 300, 0.1))
    assert high * 30 == pytest.approx(binom.ppf(0.975, 300, 0.1))
    assert legend(ax) == ["95 % of uniform draws"]
    assert labelled(ax)
    narrow = plots.pit_histogram(values, bins=10, draws=100_000)
    (other,) = [patch for patch in narrow.patches if patch.get_label()[:4] == "95 %"]
    assert other.get_height() < span.get_height() / 10
    with pytest.raises(ValueError, match="between 0 and 1"):
        plots.pit_histogram(2 * values)


@pytest.mark.parametrize("numpy", [False, True])
def test_error_against_std_lies_on_the_diagonal_of_an_honest_prediction(numpy):
    generator = torch.Generator().manual_seed(0)
    std = 10 ** (2 * torch.rand(400, 50, generator=generator) - 3)
    truth = std * torch.randn(400, 50, generator=generator)
    mask = torch.rand(400, 50, generator=generator) < 0.9
    p = FakePrediction(torch.zeros(1, 400, 50), std[None], mask=mask, numpy=numpy)
    if numpy:
        p.mask = mask.numpy()
    ax = plots.error_against_std(p, truth.masked_fill(~mask, torch.nan), bins=10)
    x, rmse = line(ax, "binned points")
    assert len(x) == 10
    assert (np.diff(x) > 0).all()
    np.testing.assert_allclose(rmse, x, rtol=0.15)
    (a, b) = line(ax, "error = std")
    assert (a == b).all()
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert labelled(ax)


def test_error_against_epistemic_std():
    p = prediction()
    ax = plots.error_against_std(p, torch.zeros(6, 20), kind="epistemic", bins=4)
    assert "epistemic" in ax.get_xlabel()
    squares = p.epistemic_std.square()
    x = line(ax, "binned points")[0]
    assert (x**2).mean() == pytest.approx(squares.mean().item(), rel=1e-5)
    with pytest.raises(ValueError, match="truth has shape"):
        plots.error_against_std(p, torch.zeros(20, 6))


def test_nmse_against_functions_with_spread_over_seeds():
    counts = [1000, 100, 300]
    errors = torch.tensor([[1e-4, 1e-2, 1e-3], [3e-4, 3e-2, 3e-3], [2e-4, 2e-2, 2e-3]])
    ax = plots.nmse_against_functions(counts, errors, label="VB")
    plots.nmse_against_functions(counts, errors[0], ax=ax, label="deterministic")
    x, y = line(ax, "VB")
    assert x.tolist() == [100, 300, 1000]
    np.testing.assert_allclose(y, [2e-2, 2e-3, 2e-4], rtol=1e-5)
    assert len(ax.collections) == 1  # a single seed has no band
    vertices = ax.collections[0].get_paths()[0].vertices
    assert vertices[:, 1].max() == pytest.approx(3e-2)
    assert vertices[:, 1].min() == pytest.approx(1e-4)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["100", "300", "1000"]
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert legend(ax) == ["VB", "deterministic"]
    with pytest.raises(ValueError, match="nmse has shape"):
        plots.nmse_against_functions(counts, errors[:, :2])
    with pytest.raises(ValueError, match="positive"):
        plots.nmse_against_functions(counts, 0 * errors)


def test_history_has_a_panel_for_each_record():
    steps = np.arange(1000)
    loss = 1e6 * np.exp(-steps / 20) + 100 - steps / 10
    history = History(
        warm_start=[1.0, 0.1, 0.01],
        loss=loss.tolist(),
        log_likelihood=(-loss).tolist(),
        kl=[float("nan")] * 1000,
        validation={"step": [500, 1000], "nmse": [0.1, 0.01], "nll": [1.0, -1.0]},
    )
    axes = plots.history(history)
    titles = [ax.get_title() for ax in axes]
    assert titles == ["warm start", "negative ELBO", "log-likelihood", "validation"]
    assert all(labelled(ax) for ax in axes)
    np.testing.assert_allclose(axes[1].lines[0].get_ydata(), loss)
    smooth = axes[1].lines[1]
    assert len(smooth.get_xdata()) == 100
    np.testing.assert_allclose(smooth.get_ydata()[-1], loss[-10:].mean())
    low, high = axes[1].get_ylim()
    assert low < loss[-1]
    assert high < 1e5  # the first steps do not flatten the rest
    assert legend(axes[3]) == ["nmse", "nll"]
    assert line(axes[3], "nmse")[0].tolist() == [500, 1000]


def test_history_on_given_axes():
    figure, given = plt.subplots(1, 1)
    axes = plots.history(History(loss=[3.0, 2.0, 1.0]), axes=given)
    assert axes.tolist() == [given]
    assert given.lines[0].get_ydata().tolist() == [3.0, 2.0, 1.0]
    with pytest.raises(ValueError, match="history is empty"):
        plots.history(History())
    with pytest.raises(ValueError, match="axes has 2 axes, but there are 1 panels"):
        plots.history(History(loss=[1.0]), axes=plt.subplots(1, 2)[1])
    assert isinstance(given, Axes)
    assert figure.axes == [given]
