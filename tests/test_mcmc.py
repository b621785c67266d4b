"""Sampling against analytic posteriors, and what is said about the chains."""

import random

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS
from pyro.infer.mcmc.util import initialize_model
from test_elbo import linear_problem
from test_ensemble import ragged
from test_fit import sums

import pyro_deeponet as pdo
from pyro_deeponet import DeepONet, Posterior, likelihoods, priors
from pyro_deeponet.guides import make_guide, start_guide
from pyro_deeponet.mcmc import Chain, _kernel
from pyro_deeponet.training import isolated

FEW = {"warmup": 4, "samples": 5, "chains": 2, "warm_start": 20, "progress": False}
NUMBERS = {
    "r_hat_max", "r_hat_median", "ess_min", "weight_r_hat_max", "weight_r_hat_median",
    "weight_ess_min", "divergences", "acceptance",
}  # fmt: skip

# Chains as short as in these tests may well disagree.
pytestmark = pytest.mark.filterwarnings("ignore:the chains disagree")


def network(data, **kwargs):
    return DeepONet.for_data(data, branch=(4, 3), trunk=(4, 3), **kwargs)


def few(model, data, kernel="nuts", **kwargs):
    depth = {"max_tree_depth": 3} if kernel == "nuts" else {"trajectory_length": 0.02}
    return pdo.mcmc(model, data, kernel, **(FEW | depth | kwargs))


def test_nuts_draws_from_the_analytic_posterior_of_a_linear_model():
    model, data, mean, precision, shapes = linear_problem("features")
    posterior = pdo.mcmc(
        model, data, warmup=80, samples=300, chains=2, warm_start=0, progress=False
    )
    found = torch.cat([posterior.weights[name].flatten(1) for name in shapes], 1).double()
    std = torch.linalg.inv(precision).diagonal().sqrt()
    assert torch.linalg.norm(found.mean(0) - mean) < 0.1 * torch.linalg.norm(mean)
    torch.testing.assert_close(found.std(0), std, rtol=0.1, atol=0)
    told = posterior.diagnostics
    assert told.keys() == NUMBERS
    assert told["r_hat_max"] < 1.05
    assert told["weight_r_hat_max"] < 1.05
    assert told["ess_min"] > 200
    assert told["divergences"] == 0
    assert 0.6 < told["acceptance"] <= 1


@pytest.mark.parametrize("head", ["dot", "features"])
@pytest.mark.parametrize("masked", [True, False])
def test_the_potential_computed_at_once_is_that_of_pyro(head, masked):
    data = ragged() if masked else sums(10)
    prior = priors.ByLayer({"head.*": None, "*.bias": priors.StudentT(), "*": priors.Normal()})
    model = network(data, head=head, prior=prior).double()
    data = data.to(torch.float64)
    arguments = data.u, data.y, data.s, data.index, data.mask
    start = Posterior(model, make_guide("delta", model))
    start_guide(start.guide, model.start(seed=1))
    with isolated(torch.device("cpu"), 0):
        values = {name: value.detach() for name, value in start.guide.median().items()}
        quick, first = _kernel(NUTS, {}, start, values, arguments)
        stock = initialize_model(model, arguments)[1]
        a, b = quick.potential_fn(values), stock(values)
    assert first is values
    torch.testing.assert_close(a.detach(), b.detach())


@pytest.mark.parametrize("kernel", ["nuts", "hmc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_kernels_in_both_float_types(tmp_path, kernel, dtype):
    data = sums(10)
    posterior = few(network(data).to(dtype), data, kernel, warmup=15)
    assert posterior.diagnostics.keys() == NUMBERS
    assert not np.isnan(list(posterior.diagnostics.values())).any()
    weight = posterior.weights["branch.0.weight"]
    assert weight.shape == (10, 4, 3)
    assert weight.dtype == dtype
    assert weight.std(0).min() > 0
    assert len(posterior.history.warm_start) == 20
    for count, taken in ((100, 10), (4, 4)):
        assert f"mixture of {taken} weight" in repr(posterior.predict(data, num_samples=count))
    assert posterior.sample(data, num_samples=25).shape == (25, 10, 8)
    assert posterior.predictive(3)(data.u.to(dtype), data.y.to(dtype))["s"].shape == (3, 10, 8)
    loaded = Posterior.load(posterior.save(tmp_path / "chains.pt"))
    one, other = (x.predict(data, seed=0) for x in (posterior, loaded))
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.std, other.std)
    assert loaded.diagnostics == posterior.diagnostics
    assert posterior.calibrate(data, level=0.9).diagnostics == posterior.diagnostics


def bounded(name, shape):
    """A prior that keeps some weights within bounds."""
    return dist.Uniform(-5.0, 5.0) if name == "branch.0.weight" else dist.Normal(0.0, 1.0)


@pytest.mark.parametrize("prior", [priors.Horseshoe(), bounded])
def test_sites_of_the_prior_and_bounded_weights_are_sampled_too(prior):
    data = sums(10)
    model = network(data, prior=prior, likelihood=likelihoods.FixedNoise(0.5)).double()
    posterior = few(model, data, max_tree_depth=2)
    if prior is bounded:
        assert posterior.weights["branch.0.weight"].abs().max() < 5
    else:
        assert posterior.weights["head.bias_tau"].shape == (10,)
        assert posterior.weights["branch.0.weight_lambda"].shape == (10, 4, 3)
        assert posterior.weights["branch.0.weight_lambda"].min() > 0
    assert posterior.weights["branch.0.weight"].std(0).min() > 0
    assert posterior.diagnostics["weight_ess_min"] > 0
    assert posterior.predict(data).mean.isfinite().all()


def test_plain_weights_keep_the_values_of_the_warm_start():
    data = sums(10)
    prior = priors.ByLayer({"trunk.*": None, "*": priors.Normal()})
    model = network(data, prior=prior, likelihood=likelihoods.Homoscedastic())
    posterior = few(model, data)
    warm = pdo.fit(model, data, steps=0, warm_start=20, progress=False).model
    for name, weight in posterior.model.plain_weights().items():
        assert torch.equal(weight, warm.plain_weights()[name])
        assert name not in posterior.weights
    assert posterior.model.likelihood.rho == warm.likelihood.rho


def test_a_seed_tells_the_samples_and_nothing_global_changes():
    data = sums(10)
    pyro.param("mine", torch.tensor(7.0))
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    runs = [few(network(data).double(), data, seed=seed, chains=1) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert random.getstate() == before[2]
    assert list(pyro.get_param_store().keys()) == ["mine"]
    pyro.clear_param_store()
    weights = [run.weights["head.bias"] for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_an_interrupt_returns_what_has_been_drawn(monkeypatch):
    data = sums(10)
    model = network(data)

    def interrupted_after(count):
        steps = []

        def record(self, *args):
            steps.append(1)
            if len(steps) > count:
                raise KeyboardInterrupt
            original(self, *args)

        monkeypatch.setattr(Chain, "_record", record)

    original = Chain._record
    interrupted_after(15)  # in the second chain, after 4 + 5 + 4 + 2 steps
    with pytest.warns(UserWarning, match="interrupted after 7 of 10 samples"):
        posterior = few(model, data)
    assert len(posterior.weights["head.bias"]) == 7
    interrupted_after(2)
    with pytest.raises(KeyboardInterrupt):
        few(model, data)


def test_chains_that_disagree_are_reported():
    data = sums(10)
    with pytest.warns(UserWarning, match=r"R-hat .* up to .* Draw more \(warmup=, samples=\)"):
        few(
            network(data), data, samples=20, max_tree_depth=1, adapt_step_size=False, step_size=1e-5
        )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kernel": "gibbs"}, ValueError, "'gibbs', expected one of 'nuts', 'hmc'"),
        ({"samples": 0}, ValueError, "samples is 0, expected a whole number from 1"),
        ({"warmup": -1}, ValueError, "warmup is -1"),
        ({"chains": 1.5}, ValueError, "chains is 1.5"),
        (
            {"target_accept": 0.9},
            TypeError,
            "takes no target_accept; it takes .*target_accept_prob",
        ),
        ({"kernel": "hmc", "max_tree_depth": 3}, TypeError, "'hmc' takes no max_tree_depth"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    data = sums(10)
    with pytest.raises(error, match=message):
        pdo.mcmc(network(data), data, **arguments)


def test_a_deterministic_model_has_nothing_to_sample():
    data = sums(10)
    with pytest.raises(ValueError, match=r"build it with a prior, such as prior=pdo\.priors"):
        pdo.mcmc(network(data, prior=None), data)
    with pytest.raises(TypeError, match="expected a DeepONet"):
        pdo.mcmc("net", data)
