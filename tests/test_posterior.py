"""Predictions against stock Pyro and brute force, in any chunks; calibration."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.nn import PyroModule, PyroParam

from pyro_deeponet import (
    Calibration,
    DeepONet,
    OperatorData,
    Posterior,
    fit,
    likelihoods,
    mixture,
    priors,
)
from pyro_deeponet.guides import make_guide

CASES = {  # sensors, coordinates, functions, locations, samples
    "1-D": (6, 1, 5, 9, 7),
    "2-D": (4, 2, 3, 8, 6),
    "equal": (5, 2, 5, 5, 5),
}


def random_data(k, d, n, q, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(n, k, generator=generator, dtype=dtype)
    y = torch.rand(q, d, generator=generator, dtype=dtype)
    return OperatorData(u, y, 5 + 3 * torch.randn(n, q, generator=generator, dtype=dtype))


def with_samples(data, count, scale=0.5, dtype=torch.float32, **kwargs):
    """A posterior whose networks are random and kept."""
    model = DeepONet.for_data(data, branch=(8, 7), trunk=(6, 7), **kwargs).to(dtype)
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: scale * torch.randn(count, *shape, generator=generator, dtype=dtype)
        for name, shape in model.sampled_shapes().items()
    }
    return Posterior(model, weights=weights)


def indexed(data, m=4, ragged=False):
    n, q = len(data), len(data.y)
    generator = torch.Generator().manual_seed(2)
    index = torch.stack([torch.randperm(q, generator=generator)[:m] for _ in range(n)])
    mask = torch.arange(m) < 1 + torch.arange(n)[:, None] % m if ragged else None
    return OperatorData(data.u, data.y, data.s.gather(1, index), index, mask)


@pytest.fixture(params=CASES)
def case(request):
    k, d, n, q, samples = CASES[request.param]
    data = random_data(k, d, n, q, torch.float64)
    return data, with_samples(data, samples, dtype=torch.float64)


@pytest.fixture(scope="session")
def fitted():
    """The posterior of a small problem."""
    data = random_data(3, 1, 20, 6)
    model = DeepONet.for_data(data, branch=(4,), trunk=(4,))
    settings = {"steps": 60, "warm_start": 60, "num_particles": 3, "progress": False}
    return fit(model, data, **settings)


def traced(posterior, u, y):
    """The observation's distribution under each weight sample, by stock Pyro."""
    weights = posterior.sample_weights(posterior_size(posterior))
    for i in range(posterior_size(posterior)):
        conditioned = poutine.condition(posterior.model, {k: w[i] for k, w in weights.items()})
        yield poutine.trace(conditioned).get_trace(u, y).nodes["s"]["fn"]


def posterior_size(posterior):
    return next(iter(posterior.weights.values())).shape[0]


def test_moments_and_densities_are_those_of_stock_pyro_on_the_same_weights(case):
    data, posterior = case
    parts = list(traced(posterior, data.u, data.y))
    mu, sigma = (torch.stack([getattr(p, a) for p in parts]) for a in ("loc", "scale"))
    p = posterior.predict(data.u, data.y)
    torch.testing.assert_close(p.mean, mu.mean(0))
    torch.testing.assert_close(p.epistemic_std, mu.std(0, correction=0))
    torch.testing.assert_close(p.aleatoric_std, sigma.square().mean(0).sqrt())
    total = mu.var(0, correction=0) + sigma.square().mean(0)
    torch.testing.assert_close(p.std, total.sqrt())
    log_prob = torch.stack([part.log_prob(data.s) for part in parts])
    expected = log_prob.logsumexp(0) - math.log(len(parts))
    torch.testing.assert_close(p.log_prob(data.s), expected)
    cdf = torch.stack([part.cdf(data.s) for part in parts]).mean(0)
    torch.testing.assert_close(p.cdf(data.s), cdf)
    torch.testing.assert_close(p.cdf(p.quantile(0.3)), torch.full_like(cdf, 0.3))
    low, high = p.interval(0.9, method="gaussian")
    torch.testing.assert_close(high - low, 2 * 1.6448536269514722 * total.sqrt())
    low, high = p.interval(0.9, method="mixture")
    torch.testing.assert_close(p.cdf(high) - p.cdf(low), torch.full_like(cdf, 0.9))
    low, high = p.interval(0.5, "epistemic", "mixture")
    torch.testing.assert_close(high, mu.quantile(0.75, dim=0))


def test_stock_predictive_draws_the_same_functions(case):
    data, posterior = case
    posterior.model.likelihood = likelihoods.FixedNoise(1e-9)
    posterior.model.likelihood.nodes = 2
    drawn = posterior.predictive(posterior_size(posterior))(data.u, data.y)["s"]
    functions = posterior.sample(
        data.u, data.y, num_samples=posterior_size(posterior), kind="function"
    )
    torch.testing.assert_close(drawn, functions, atol=1e-6, rtol=0)


@pytest.mark.parametrize("factor", [1.0, 1.7])
def test_moments_and_quantiles_agree_with_brute_force(case, factor):
    data, posterior = case
    calibration = Calibration(factor, 0.95, 100)
    posterior = Posterior(posterior.model, weights=posterior.weights, calibration=calibration)
    kept, draws = posterior_size(posterior), 6000
    p = posterior.predict(data.u, data.y)
    s = posterior.sample(data.u, data.y, num_samples=kept * draws, seed=0)
    assert s.shape == (kept * draws, *data.s.shape)
    error = p.std / math.sqrt(len(s))
    z = torch.stack([(s.mean(0) - p.mean) / error])
    fourth = (s - s.mean(0)).pow(4).mean(0)
    variance = s.var(0)
    z = torch.cat([z, ((variance - p.std**2) / ((fourth - variance**2) / len(s)).sqrt())[None]])
    low, high = p.interval(0.9, method="mixture")
    inside = ((s >= low) & (s <= high)).double().mean(0)
    z = torch.cat([z, ((inside - 0.9) / math.sqrt(0.09 / len(s)))[None]])
    # Over some 150 scores, 3 standard errors are passed by 0.3 % of them.
    assert (z.abs() > 3).double().mean() < 0.03
    assert z.abs().max() < 5


@settings(max_examples=40, deadline=None)
@given(
    max_memory=st.integers(1, 200_000),
    kind=st.sampled_from(["grid", "indexed", "ragged"]),
    name=st.sampled_from(list(CASES)),
)
def test_any_chunks_give_the_same(max_memory, kind, name):
    k, d, n, q, samples = CASES[name]
    data = random_data(k, d, n, q)
    posterior = with_samples(data, samples, prior=partly_plain if kind == "ragged" else PRIOR)
    if kind != "grid":
        data = indexed(data, ragged=kind == "ragged")
    whole = posterior.predict(data, max_memory=2**40)
    parts = posterior.predict(data, max_memory=max_memory)
    for name in ("mean", "std", "epistemic_std", "aleatoric_std"):
        same(getattr(parts, name), getattr(whole, name))
    same(parts.log_prob(data.s), whole.log_prob(data.s), 1e-5)
    same(parts.quantile(0.9), whole.quantile(0.9), 1e-5)


def test_points_of_one_function_and_locations_of_one_block_are_chunked_too():
    """More points a function than fit, at locations that are all distinct."""
    data = random_data(3, 1, 2, 40)
    ragged = indexed(data, m=30, ragged=True)
    posterior = with_samples(data, 5)
    network = posterior.predict(ragged, max_memory=2000)._network
    sizes = [mu.shape[1:].numel() for _, mu, _ in network.blocks("test")]
    assert max(sizes) < 10
    assert sum(sizes) == 60


PRIOR = priors.Normal()


def partly_plain(name, shape):
    return PRIOR(name, shape) if name.startswith("branch") else None


def same(found, expected, tolerance=1e-6):
    scale = expected.abs().max().clamp_min(1)
    torch.testing.assert_close(found / scale, expected / scale, rtol=tolerance, atol=tolerance)


def test_indexed_and_ragged_data_are_predicted_at_their_own_points(case):
    data, posterior = case
    for ragged in (False, True):
        part = indexed(data, ragged=ragged)
        p, grid = posterior.predict(part), posterior.predict(data.u, data.y)
        for name in ("mean", "std"):
            expected = getattr(grid, name).gather(1, part.index)
            found = getattr(p, name)
            real = slice(None) if part.mask is None else part.mask
            torch.testing.assert_close(found[real], expected[real])
        assert (p.mask is None) == (not ragged)


def test_weights_that_are_plain_in_part_count_as_one_network_each():
    data = random_data(3, 1, 4, 5)
    posterior = with_samples(data, 8, prior=partly_plain)
    p = posterior.predict(data)
    assert "8 weight samples" in repr(p)
    mu, _ = posterior.model.moments(posterior.sample_weights(8), data.u, data.y)
    same(p.mean, mu.mean(0).detach())
    same(p.epistemic_std, mu.std(0, correction=0).detach())


@pytest.mark.parametrize("likelihood", [likelihoods.FixedNoise(0.3), likelihoods.Homoscedastic()])
def test_one_noise_level_for_all_points(likelihood):
    data = random_data(3, 1, 4, 5)
    posterior = with_samples(data, 8, likelihood=likelihood)
    level = (
        likelihood.sigma(None, posterior.model.scaling.s.scale) * posterior.model.scaling.s.scale
    )
    same(posterior.predict(data).aleatoric_std, level.detach().expand(4, 5))


def test_samples_are_coherent_functions_of_the_weights_that_predict_takes(fitted):
    posterior, data = fitted, random_data(3, 1, 30, 12)
    u, y = data.u, data.y
    functions = posterior.sample(u, y, num_samples=9, kind="function", seed=4)
    p = posterior.predict(u, y, num_samples=9, seed=4)
    same(functions.mean(0), p.mean)
    same(functions.std(0, correction=0), p.epistemic_std, 1e-5)
    weights = posterior.sample_weights(9, seed=4)
    for i in range(9):
        one = {name: w[i] for name, w in weights.items()}
        same(functions[i], posterior.model.moments(one, u, y)[0].detach())
    # The noise alone tells observations from functions.
    noise = posterior.sample(u, y, num_samples=9, seed=4) - functions
    assert 0.5 < (noise / p.aleatoric_std).std() < 1.5


class MeanField(PyroModule):
    """A guide written by hand."""

    def __init__(self, model, leave_out=()):
        super().__init__()
        self.shapes = {k: s for k, s in model.sampled_shapes().items() if k not in leave_out}
        for name, shape in self.shapes.items():
            setattr(self, name.replace(".", "_"), PyroParam(torch.randn(shape)))

    def forward(self, *args, **kwargs):
        for name, shape in self.shapes.items():
            loc = getattr(self, name.replace(".", "_"))
            pyro.sample(name, dist.Normal(loc, 0.1).to_event(len(shape)))


def scale_of_scales(name, shape):
    tau = pyro.sample("tau_" + name.replace(".", "_"), dist.HalfNormal(1.0))
    return (
        dist.Normal(0.0, tau[..., None, None] if len(shape) == 2 else tau[..., None])
        .expand([*tau.shape, *shape])
        .to_event(len(shape))
    )


@pytest.mark.parametrize("guide", ["normal", "mvn", "delta", "diagonal", MeanField])
@pytest.mark.parametrize("samples", [1, 4])
def test_shapes_of_drawn_weights(guide, samples):
    model = DeepONet(3, 1, branch=(4,), trunk=(4,))
    posterior = Posterior(model, make_guide(guide, model))
    weights = posterior.sample_weights(samples, seed=0)
    assert {k: w.shape for k, w in weights.items()} == {
        k: (samples, *s) for k, s in model.shapes.items()
    }
    again = posterior.sample_weights(samples, seed=0)
    assert all(torch.equal(weights[k], again[k]) for k in weights)
    distinct = weights["branch.0.weight"].unique(dim=0)
    assert len(distinct) == (1 if guide == "delta" else samples)


def test_a_guide_that_leaves_a_weight_out_is_told():
    model = DeepONet(3, 1, branch=(4,), trunk=(4,))
    posterior = Posterior(model, MeanField(model, leave_out=("head.bias",)))
    with pytest.raises(ValueError, match=r"no head\.bias"):
        posterior.predict(torch.zeros(1, 3), torch.zeros(1, 1))


def test_a_deterministic_posterior_has_one_network():
    posterior = Posterior(DeepONet(3, 1, branch=(4,), trunk=(4,), prior=None))
    u, y = torch.randn(2, 3), torch.rand(5, 1)
    p = posterior.predict(u, y)
    mu, sigma = posterior.model.moments(posterior.model.plain_weights(), u, y)
    same(p.mean, mu.detach())
    same(p.std, sigma.detach())
    assert not p.epistemic_std.any()
    assert posterior.sample_weights(6)["branch.0.weight"].shape == (6, 4, 3)
    functions = posterior.sample(u, y, num_samples=6, kind="function")
    assert functions.shape == (6, 2, 5)
    assert torch.equal(functions[0], functions[5])
    assert len(posterior.sample(u, y, num_samples=6).unique(dim=0)) == 6
    assert posterior.predictive(6)(u, y)["s"].shape == (6, 2, 5)
    pyro.clear_param_store()  # where stock Pyro puts the parameters of a model that it runs


def test_kept_networks_come_again_in_turn_when_more_are_asked_for():
    data = random_data(3, 1, 2, 5)
    posterior = with_samples(data, 4)
    weights = posterior.sample_weights(10)
    assert torch.equal(weights["head.bias"][4:8], posterior.weights["head.bias"])
    s = posterior.sample(data.u, data.y, num_samples=10, kind="function")
    assert torch.equal(s[:4], s[4:8])
    assert "4 weight samples" in repr(posterior.predict(data, num_samples=10))
    assert "2 weight samples" in repr(posterior.predict(data, num_samples=2))


def test_numpy_in_numpy_out():
    data = random_data(3, 1, 4, 5)
    posterior = with_samples(data, 6)
    u, y = data.u.numpy().astype(np.float64), data.y.numpy()
    p, q = posterior.predict(u, y), posterior.predict(data.u, data.y)
    results = [p.mean, p.std, p.epistemic_std, p.aleatoric_std, *p.interval(), p.quantile(0.2)]
    results += [p.cdf(data.s.numpy()), p.log_prob(data.s), posterior.sample(u, y)]
    assert all(isinstance(r, np.ndarray) for r in results)
    assert isinstance(q.std, torch.Tensor)
    np.testing.assert_allclose(p.mean, q.mean.numpy(), rtol=1e-5)
    assert isinstance(posterior.predict(data).mean, torch.Tensor)


def test_predictions_need_no_gradients_and_stay_in_the_model_s_type():
    data = random_data(3, 1, 4, 5)
    p = with_samples(data, 6, dtype=torch.float64).predict(data)
    assert p.mean.dtype == torch.float64
    assert not p.mean.requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": torch.zeros(2, 4)}, "3 sensors; interpolate"),
        ({"y": torch.zeros(5, 2)}, "a location a row, 1 coordinates each"),
        ({"u": torch.zeros(3)}, r"u\[None, :\]"),
        ({"y": torch.zeros(3)}, r"y\[:, None\]"),
        ({"u": torch.full((2, 3), math.nan)}, "u "),
        ({"y": torch.full((2, 1), math.inf)}, "y "),
        ({"u": torch.zeros(0, 3)}, "u is empty"),
        ({"y": torch.zeros(0, 1)}, "y is empty"),
        ({"num_samples": 0}, "at least 1"),
        ({"y": None}, "y is missing"),
        ({"u": random_data(3, 1, 2, 5)}, "y comes with the data"),
    ],
)
def test_errors_say_how_to_mend_it(change, message):
    posterior = with_samples(random_data(3, 1, 4, 5), 2)
    arguments = {"u": torch.zeros(2, 3), "y": torch.zeros(5, 1)} | change
    with pytest.raises(ValueError, match=message):
        posterior.predict(**arguments)
    with pytest.raises(ValueError, match=message):
        posterior.sample(**arguments)


def test_other_errors():
    data = random_data(3, 1, 4, 5)
    posterior = with_samples(data, 2)
    p = posterior.predict(data)
    for wrong in (0, 1, 1.5, -0.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            p.interval(wrong)
    with pytest.raises(ValueError, match="expected 'predictive' or 'epistemic'"):
        p.interval(kind="both")
    with pytest.raises(ValueError, match="expected 'gaussian' or 'mixture'"):
        p.quantile(0.5, method="exact")
    with pytest.raises(ValueError, match="one value for each point"):
        p.cdf(torch.zeros(5))
    with pytest.raises(ValueError, match="'observation' or 'function'"):
        posterior.sample(data, kind="noise")
    with pytest.raises(ValueError, match="positive"):
        posterior.predict(data, max_memory=0)
    with pytest.raises(ValueError, match="at least 1"):
        posterior.sample_weights(0)
    model, weights = posterior.model, dict(posterior.weights)
    with pytest.raises(ValueError, match="have priors"):
        Posterior(model)
    with pytest.raises(ValueError, match="both were given"):
        Posterior(model, make_guide("normal", model), weights=weights)
    with pytest.raises(ValueError, match=r"lack head\.bias"):
        Posterior(model, weights={k: w for k, w in weights.items() if k != "head.bias"})
    with pytest.raises(ValueError, match=r"expected \(S, 2\)"):
        Posterior(model, weights=weights | {"head.bias": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match="as many of each"):
        Posterior(model, weights=weights | {"head.bias": torch.zeros(3, 2)})


def test_a_seed_tells_the_numbers_and_leaves_the_random_state_alone(fitted):
    posterior, data = fitted, random_data(3, 1, 4, 5)
    state = torch.get_rng_state()
    first = posterior.predict(data, seed=3).mean, posterior.sample(data, seed=3)
    torch.rand(5)
    torch.set_rng_state(state)
    second = posterior.predict(data, seed=3).mean, posterior.sample(data, seed=3)
    posterior.sample_weights(3, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, first, second))
    assert not torch.equal(first[0], posterior.predict(data, seed=4).mean)
    assert not torch.equal(posterior.predict(data).mean, posterior.predict(data).mean)
    torch.manual_seed(0)
    free = posterior.predict(data).mean
    torch.manual_seed(0)
    assert torch.equal(free, posterior.predict(data).mean)


def known_noise(heteroscedastic, width, n, seed, spread=0.0):
    """A posterior, and data whose noise is that of its network over `width`.

    Args:
        heteroscedastic: Whether the noise level varies from point to point.
        width: What the posterior's noise level is, times the true one.
        n: Functions.
        seed: Chooses the data.
        spread: Scatter of the networks of the posterior about the true one.
    """
    likelihood = likelihoods.Heteroscedastic() if heteroscedastic else likelihoods.FixedNoise(0.5)
    truth = DeepONet(4, 1, branch=(6, 6), trunk=(6, 6), prior=None, likelihood=likelihood)
    if heteroscedastic:
        with torch.no_grad():
            truth.head.weight[1] = 0.7
    model = DeepONet(4, 1, branch=(6, 6), trunk=(6, 6), likelihood=likelihood)
    torch.manual_seed(7)
    plain = {name: w.detach() for name, w in truth.plain_weights().items()}
    weights = {k: w + spread * torch.randn(20, *w.shape) for k, w in plain.items()}
    torch.manual_seed(seed)
    u, y = torch.randn(n, 4), torch.rand(15, 1)
    mu, sigma = (x.detach() for x in truth.moments(plain, u, y))
    s = mu + sigma / width * torch.randn_like(mu)
    return Posterior(model, weights=weights), OperatorData(u, y, s)


CALIBRATION_CASES = {
    "homoscedastic": {"heteroscedastic": False, "width": 1.0},
    "heteroscedastic": {"heteroscedastic": True, "width": 1.0},
    "too wide": {"heteroscedastic": True, "width": 3.0},
    "too narrow": {"heteroscedastic": False, "width": 0.3, "spread": 0.02},
}


@pytest.mark.parametrize("case", CALIBRATION_CASES)
def test_calibrated_intervals_cover_what_they_say(case):
    settings = CALIBRATION_CASES[case]
    posterior, held_out = known_noise(**settings, n=100, seed=1)
    _, test = known_noise(**settings, n=1000, seed=2)
    calibrated = posterior.calibrate(held_out, level=0.95)

    def covered(p):
        low, high = p.interval(0.95)
        return ((test.s >= low) & (test.s <= high)).double().mean()

    assert 0.93 <= covered(calibrated.predict(test)) <= 0.97
    assert calibrated.calibration.functions == 100
    assert calibrated.calibration.factor == pytest.approx(1 / settings["width"], rel=0.1)
    if settings["width"] != 1:
        assert not 0.93 <= covered(posterior.predict(test)) <= 0.97


def test_calibration_counts_functions_not_points():
    """Half of the functions are noisier and have one point; the others have all of theirs."""
    posterior, data = known_noise(False, 1.0, 200, 3)
    noisy = torch.arange(200) % 2 == 0
    mean = posterior.predict(data).mean
    s = mean + (data.s - mean) * torch.where(noisy, 4.0, 1.0)[:, None]
    mask = torch.ones_like(s, dtype=torch.bool)
    mask[noisy, 1:] = False
    ragged = posterior.calibrate(OperatorData(data.u, data.y, s, mask=mask))
    whole = posterior.calibrate(OperatorData(data.u, data.y, s))
    assert ragged.calibration.factor == pytest.approx(whole.calibration.factor, rel=0.25)
    pooled = posterior.calibrate(OperatorData(data.u[~noisy], data.y, s[~noisy]))
    assert ragged.calibration.factor > 2 * pooled.calibration.factor


def test_the_least_number_of_functions():
    posterior, data = known_noise(False, 1.0, 19, 0)
    assert posterior.calibrate(data, level=0.95).calibration.functions == 19
    fewer = OperatorData(data.u[:18], data.y, data.s[:18])
    with pytest.raises(ValueError, match="at least 19 are needed"):
        posterior.calibrate(fewer, level=0.95)
    with pytest.raises(ValueError, match="between 0 and 1"):
        posterior.calibrate(data, level=1.0)


def test_everything_spreads_by_the_factor_about_the_same_mean():
    posterior, data = known_noise(True, 1.0, 30, 0, spread=0.1)
    wide = Posterior(
        posterior.model, weights=posterior.weights, calibration=Calibration(2.0, 0.95, 100)
    )
    assert "std x 2 for 95% on 100 functions" in repr(wide)
    assert "calibrated" not in repr(posterior)
    p, q = posterior.predict(data), wide.predict(data)
    same(q.mean, p.mean)
    for name in ("std", "epistemic_std", "aleatoric_std"):
        same(getattr(q, name), 2 * getattr(p, name))

    def stretched(x):
        return p.mean + 2 * (x - p.mean)

    for method in ("gaussian", "mixture"):
        for kind in ("predictive", "epistemic"):
            same(q.quantile(0.9, kind, method), stretched(p.quantile(0.9, kind, method)), 1e-5)
    same(q.cdf(stretched(data.s)), p.cdf(data.s), 1e-5)
    same(q.log_prob(stretched(data.s)), p.log_prob(data.s) - math.log(2), 1e-5)
    for kind in ("function", "observation"):
        drawn = (x.sample(data, num_samples=20, kind=kind, seed=0) for x in (posterior, wide))
        narrow, broad = drawn
        same(broad, stretched(narrow), 1e-5)
    # Calibrating anew starts from the posterior itself.
    assert wide.calibrate(data).calibration == posterior.calibrate(data).calibration


def test_moments_of_blocks_are_those_of_the_mixture(case):
    """The one formula that is written twice, for speed."""
    data, posterior = case
    network = posterior.predict(data)._network
    whole = next(network.blocks("test"))
    mean, epistemic, aleatoric = mixture.mean_and_variances(*whole[1:])
    found = [x[whole[0]] for x in network.moments()]
    for x, y in zip(found, (mean, epistemic.sqrt(), aleatoric.sqrt()), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("head", ["dot", "features"])
@pytest.mark.parametrize("noise", [1e-3, 1.0])
def test_moments_where_the_mean_is_far_above_the_spread(head, noise):
    """Squares of the mean would drown the variance in rounding."""
    data = random_data(4, 2, 6, 11)
    posterior = with_samples(data, 50, scale=0.2, head=head, scaling=None)
    posterior.weights["head.bias"][:, 0] += 1000.0
    posterior.weights["head.bias"][:, 1] += math.log(math.expm1(noise))
    with torch.no_grad():
        mu, delta = posterior.model.nodes(posterior.weights, data.u, data.y)
    mu, sigma = mu.double(), torch.nn.functional.softplus(delta.double()) + 1e-6
    assert mu.std(0).max() < 1
    p = posterior.predict(data)
    close = {"check_dtype": False, "atol": 0}
    torch.testing.assert_close(p.mean, mu.mean(0), rtol=1e-6, **close)
    torch.testing.assert_close(p.epistemic_std, mu.std(0, correction=0), rtol=1e-4, **close)
    torch.testing.assert_close(p.aleatoric_std, sigma.square().mean(0).sqrt(), rtol=2e-6, **close)


def test_a_guide_with_more_sites_than_weights():
    """A prior with scales of its own: the guide draws them too, the network ignores them."""
    model = DeepONet(3, 1, branch=(4,), trunk=(4,), prior=scale_of_scales)
    posterior = Posterior(model, make_guide(AutoDiagonalNormal, model))
    weights = posterior.sample_weights(5, seed=0)
    assert weights["tau_head_bias"].shape == (5,)
    assert {k: weights[k].shape[1:] for k in model.shapes} == model.shapes
    assert posterior.predict(torch.zeros(2, 3), torch.zeros(4, 1)).mean.shape == (2, 4)
