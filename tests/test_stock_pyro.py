"""The model with nothing of ours around it: every line the design promises runs, and learns."""

import copy

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.optim import Adam

from pyro_deeponet import DeepONet, OperatorData, likelihoods
from pyro_deeponet.metrics import nmse


@pytest.fixture(autouse=True)
def own_parameter_store():
    with pyro.get_param_store().scope():
        yield


def sums(n=40, dtype=torch.float32, seed=0):
    """s(y) = y times the sum of u: small, and nothing a network could not learn."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(n, 3, generator=generator, dtype=dtype)
    y = torch.linspace(0, 1, 6, dtype=dtype)[:, None]
    return OperatorData(u, y, u.sum(1, keepdim=True) * y[:, 0])


def network(data, **kwargs):
    return DeepONet.for_data(data, branch=(12, 8), trunk=(12, 8), **kwargs)


@pytest.mark.parametrize(
    ("vectorize", "dtype"), [(False, torch.float32), (True, torch.float32), (True, torch.float64)]
)
def test_svi_and_predictive(vectorize, dtype):
    torch.manual_seed(0)
    data, test = sums(dtype=dtype), sums(seed=1, dtype=dtype)
    model = network(data).to(dtype)
    start = init_to_value(values=model.start())
    guide = AutoNormal(model, init_loc_fn=start, init_scale=1e-3)
    particles, steps = (10, 250) if vectorize else (1, 250)
    elbo = Trace_ELBO(num_particles=particles, vectorize_particles=vectorize)
    svi = SVI(model, guide, Adam({"lr": 1e-2}), elbo)
    losses = [svi.step(data.u, data.y, data.s) for _ in range(steps)]
    assert sum(losses[-20:]) < sum(losses[:20])
    samples = Predictive(model, guide=guide, num_samples=50)(test.u, test.y)["s"]
    assert samples.shape == (50, 40, 6)
    assert samples.dtype == dtype
    assert nmse(samples.mean(0), test.s) < 0.05


def test_the_recipe_of_the_paper_word_for_word():
    data = sums()
    model = network(data)
    guide = AutoNormal(model)
    svi = SVI(model, guide, Adam({"lr": 1e-2}), Trace_ELBO(num_particles=25))
    first = svi.step(data.u, data.y, data.s)
    for _ in range(5):
        last = svi.step(data.u, data.y, data.s)
    assert last < first


def test_trace_condition_and_replay():
    data = sums()
    model = network(data)
    torch.manual_seed(0)
    trace = poutine.trace(model).get_trace(data.u, data.y)
    replayed = poutine.trace(poutine.replay(model, trace=trace)).get_trace(data.u, data.y)
    weights = {name: trace.nodes[name]["value"] for name in model.shapes}
    for name, value in weights.items():
        assert torch.equal(replayed.nodes[name]["value"], value)
    assert torch.equal(replayed.nodes["s"]["fn"].loc, trace.nodes["s"]["fn"].loc)
    conditioned = poutine.trace(poutine.condition(model, data=weights)).get_trace(data.u, data.y)
    assert torch.equal(conditioned.nodes["s"]["fn"].loc, trace.nodes["s"]["fn"].loc)
    assert conditioned.nodes["head.bias"]["is_observed"]
    mean, sigma = model.moments(weights, data.u, data.y)
    torch.testing.assert_close(trace.nodes["s"]["fn"].loc, mean)
    torch.testing.assert_close(trace.nodes["s"]["fn"].scale, sigma)


def test_predictive_with_given_weights_even_where_all_sizes_are_equal():
    """S = n = q, where a sample dimension taken for a plate would go unnoticed."""
    u, y = torch.randn(6, 3), torch.rand(6, 1)
    model = DeepONet(3, 1, (6, 6), (6, 6), likelihood=likelihoods.FixedNoise(1e-6))
    weights = {name: torch.randn(6, *shape) for name, shape in model.shapes.items()}
    samples = Predictive(model, posterior_samples=weights)(u, y)["s"]
    mean, _ = model.moments(weights, u, y)
    torch.testing.assert_close(samples, mean, atol=1e-4, rtol=1e-5)


def test_nuts_learns():
    torch.manual_seed(0)
    data, test = sums(n=15), sums(n=20, seed=1)
    model = DeepONet.for_data(
        data, branch=(4,), trunk=(4,), activation="identity", likelihood=likelihoods.FixedNoise(0.1)
    )
    kernel = NUTS(model, max_tree_depth=4)
    mcmc = MCMC(kernel, num_samples=40, warmup_steps=40, disable_progbar=True)
    mcmc.run(data.u, data.y, data.s)
    samples = Predictive(model, mcmc.get_samples())(test.u, test.y)["s"]
    assert nmse(samples.mean(0), test.s) < 0.05


def test_a_learned_noise_level_and_plain_weights_are_optimised_too():
    data = sums()
    likelihood = likelihoods.Homoscedastic(initial=1.0)
    model = network(data, prior=None, likelihood=likelihood)
    svi = SVI(model, lambda *args: None, Adam({"lr": 1e-2}), Trace_ELBO())
    for _ in range(500):
        svi.step(data.u, data.y, data.s)
    mean, sigma = model.moments(model.plain_weights(), data.u, data.y)
    assert nmse(mean.detach(), data.s) < 0.01
    assert sigma.mean() < 0.3 * data.s.std()


def test_state_dict_and_copies():
    data = sums()
    model = network(data, prior=None)
    other = network(sums(seed=9), prior=None)
    other.load_state_dict(model.state_dict())
    expected = model.moments(model.plain_weights(), data.u, data.y)[0]
    for same in (other, copy.deepcopy(model)):
        assert torch.equal(same.moments(same.plain_weights(), data.u, data.y)[0], expected)
    double = model.double()
    mean, _ = double.moments(double.plain_weights(), data.u.double(), data.y.double())
    assert mean.dtype == torch.float64


def test_moving_to_a_device_moves_everything():
    model = DeepONet(3, 1, (4, 2), (4, 2)).to("meta")
    u, y = torch.ones(2, 3, device="meta"), torch.ones(5, 1, device="meta")
    with pyro.validation_enabled(False):  # checking values is not possible on this device
        trace = poutine.trace(model).get_trace(u, y)
    assert trace.nodes["s"]["value"].device.type == "meta"


def test_a_data_set_in_minibatches_with_stock_svi():
    torch.manual_seed(0)
    data = sums()
    model = network(data)
    guide = AutoNormal(model, init_loc_fn=init_to_value(values=model.start()), init_scale=1e-3)
    elbo = Trace_ELBO(num_particles=5, vectorize_particles=True)
    svi = SVI(model, guide, Adam({"lr": 1e-2}), elbo)
    for step in range(250):
        rows = torch.randperm(40, generator=torch.Generator().manual_seed(step))[:10]
        svi.step(data.u[rows], data.y, data.s[rows], size=40)
    posterior = Predictive(model, guide=guide, num_samples=50)(data.u, data.y)["s"]
    assert nmse(posterior.mean(0), data.s) < 0.05
