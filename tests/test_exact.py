"""Exact updates of last layers, and warm starts that know the prior."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyro_deeponet import DeepONet, OperatorData, fit, priors
from pyro_deeponet.exact import MAX_UNKNOWNS, normal_equations, solve_last_layers
from pyro_deeponet.metrics import nmse
from pyro_deeponet.networks import Fourier
from tests.test_ensemble import ragged
from tests.test_fit import error, quickly, sums

MODELS = {
    "dot": {"head": "dot"},
    "features": {"head": "features"},
    "skip": {"head": "features", "branch_skip": True},
    "trunk features": {"head": "features", "trunk_features": Fourier((2.0,), 2)},
    "fan-in": {"head": "features", "prior": priors.FanIn(0.5)},
}


def network(data, **kwargs):
    settings = {"branch": (6, 4), "trunk": (5, 4), "activation": "tanh"} | kwargs
    return DeepONet.for_data(data, **settings).double()


def indexed():
    data = ragged(20)
    return OperatorData(data.u, data.y, data.s.nan_to_num(0.0), data.index)


DATA = {"grid": lambda: sums(20), "indexed": indexed, "masked": lambda: ragged(20)}


def log_posterior(model, weights, data, sigma, sites):
    """Of some weights given the others, in network units, by the distributions themselves."""
    mu, _ = model.nodes(weights, data.u, data.y, data.index)
    each = dist.Normal(mu, sigma).log_prob(model.scaling.s(data.s))
    each = each if data.mask is None else torch.where(data.mask, each, 0.0)
    return each.sum() + sum(model.prior_of(site).log_prob(weights[site]) for site in sites)


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("case", MODELS)
def test_a_solved_layer_is_the_most_probable_one_given_the_rest(case, kind):
    data = DATA[kind]().to(torch.float64)
    model = network(data, **MODELS[case])
    told = []
    start = {k: w + 0.1 for k, w in model.start(3).items()}
    weights, level = solve_last_layers(model, start, data, 1, lambda *x: told.append(x))
    assert [net for net, _ in told] == ["branch", "trunk"]
    assert level == told[-1][1] < told[0][1]
    # The trunk came last, with the noise level that the branch left.
    sites = ["trunk.1.weight", "trunk.1.bias"]
    point = {k: w.clone().requires_grad_(k in sites) for k, w in weights.items()}
    slopes = torch.autograd.grad(
        log_posterior(model, point, data, told[0][1], sites), [point[s] for s in sites]
    )
    at_start = {k: w.clone().requires_grad_(k in sites) for k, w in start.items()}
    before = torch.autograd.grad(
        log_posterior(model, at_start, data, told[0][1], sites), [at_start[s] for s in sites]
    )
    for slope, old in zip(slopes, before, strict=True):
        assert slope.abs().max() < 1e-7 * old.abs().max()
    solved = {"branch.1.weight", "branch.1.bias", "branch.skip.weight", *sites}
    assert {k for k, w in weights.items() if not torch.equal(w, start[k])} == solved & set(start)


def test_the_equations_are_those_of_the_rows(monkeypatch):
    monkeypatch.setattr("pyro_deeponet.exact.CHUNK", 100)  # some functions at a time
    torch.manual_seed(0)
    f, g = torch.randn(7, 3).double(), torch.randn(9, 2).double()
    index = torch.stack([torch.randperm(9)[:4] for _ in range(7)])
    mask = torch.rand(7, 4) < 0.7
    z = torch.where(mask, torch.randn(7, 4).double(), 0.0)
    matrix, right = normal_equations(f, g, z, index, mask)
    rows = torch.einsum("na,nmb->nmab", f, g[index]).flatten(2)[mask]
    torch.testing.assert_close(matrix, rows.T @ rows)
    torch.testing.assert_close(right, rows.T @ z[mask])


def test_a_fit_with_exact_updates_errs_less():
    data = sums(40)
    model = DeepONet.for_data(
        data, branch=(16, 8), trunk=(16, 8), activation="gelu", head="features"
    )
    plain, start, solved = (
        quickly(data, model, solve=rounds, warm_start=300, steps=steps)
        for rounds, steps in ((0, 0), (1, 0), (1, 100))
    )
    assert error(start, data) < 0.1 * error(plain, data)
    # The guide starts there, and inference leaves it near.
    assert error(solved, data) < 1.2 * error(start, data)


def test_noise_is_not_fitted():
    """With more weights than observations, exact updates must follow the prior, not the noise."""
    data, test = sums(6, noise=0.3), sums(seed=1)
    model = DeepONet.for_data(data, branch=(16, 16), trunk=(16, 16), head="features")
    solved = quickly(data, model, solve=1, warm_start=50, steps=100)
    assert error(solved, test) < 1.0
    assert all(torch.isfinite(w).all() for w in solved.sample_weights(3, seed=0).values())


def test_an_exact_update_of_data_without_noise_is_finite():
    data = OperatorData(u=np.ones((3, 2)), y=[[0.0], [1.0]], s=np.zeros((3, 2)))
    model = network(data)
    weights, level = solve_last_layers(model, model.start(0), data.to(torch.float64), 3)
    assert all(torch.isfinite(w).all() for w in weights.values())
    assert 0 < level < 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prior": None}, "last layer of the branch has no Gaussian prior"),
        ({"prior": priors.Laplace(0.0, 1.0)}, "no Gaussian prior"),
        ({"prior": priors.Horseshoe(0.1)}, "no Gaussian prior"),
        ({"final_activation": True}, "does not end with a linear layer"),
        ({"branch": nn.Linear(3, 4), "trunk": nn.Linear(1, 4)}, "does not end with a linear layer"),
        ({"branch": (200, 200), "trunk": (200, 200)}, f"40200 weights, over {MAX_UNKNOWNS}"),
    ],
)
def test_models_without_a_layer_to_solve_for_are_refused(arguments, message):
    data = sums(10)
    model = DeepONet.for_data(data, **({"branch": (4,), "trunk": (4,)} | arguments))
    with pytest.raises(ValueError, match=message):
        fit(model, data, solve=1, steps=1, warm_start=1, progress=False)


def test_one_net_with_a_linear_layer_is_enough():
    data = sums(10).to(torch.float64)
    model = DeepONet.for_data(data, branch=nn.Linear(3, 4), trunk=(5, 4)).double()
    told = []
    solve_last_layers(model, model.start(0), data, 2, lambda *x: told.append(x))
    assert [net for net, _ in told] == ["trunk", "trunk"]
    assert told[1][1] <= told[0][1]


def test_several_outputs_are_refused():
    data = sums(10)
    data = OperatorData(data.u, data.y, torch.stack([data.s, data.s], -1))
    with pytest.raises(ValueError, match="one output at a location, the model has 2"):
        fit(DeepONet.for_data(data), data, solve=1, steps=1, warm_start=1, progress=False)


def test_a_warm_start_that_knows_the_prior_finds_more_probable_weights():
    """Under the posterior whose noise level is the best for each weights' error."""
    data = sums(12, noise=0.2).to(torch.float64)

    def minus_log_posterior(posterior):
        weights = posterior.sample_weights(1, seed=0)
        model = posterior.model
        centres = {k.removesuffix("_unconstrained"): w for k, w in
                   posterior.guide.locs.named_parameters()}  # fmt: skip
        weights = {name: centres[name].detach() for name in weights}
        mu, _ = model.nodes(weights, data.u, data.y)
        mse = (mu - model.scaling.s(data.s)).square().mean().item()
        prior = sum(model.prior_of(name).log_prob(w).item() for name, w in weights.items())
        return data.num_observations / 2 * math.log(mse) - prior, mse

    model = network(data, prior=priors.Normal(0.0, 0.3), head="features")
    settings = {"warm_start": 3000, "steps": 0, "batch_size": 12, "lr": 3e-3}
    (least, mse), (probable, higher) = (
        minus_log_posterior(quickly(data, model, map_start=known, **settings))
        for known in (False, True)
    )
    assert higher > mse
    assert probable < least - 20


def test_a_warm_start_cannot_know_a_prior_that_is_not_there():
    data = sums(10)
    for prior in (None, priors.Horseshoe(0.1), priors.Laplace(0.0, 1.0)):
        model = DeepONet.for_data(data, branch=(4,), trunk=(4,), prior=prior)
        with pytest.raises(ValueError, match="map_start=True needs Gaussian priors"):
            fit(model, data, map_start=True, progress=False)


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop", [("warm start", 30), ("inference", 3)])
def test_a_broken_fit_with_exact_updates_goes_on_to_the_same_numbers(tmp_path, stop):
    data, path = sums(20), tmp_path / "fit.pt"
    settings = {"warm_start": 40, "steps": 20, "solve": 1, "map_start": True, "optimizer": "soap"}
    whole = quickly(data, **settings)

    def kill(state):
        if (state.stage, state.step) == stop:
            raise Stop

    with pytest.raises(Stop):
        quickly(data, **settings, checkpoint=path, callback=kill)
    resumed = quickly(data, **settings, checkpoint=path)
    assert resumed.history.loss == whole.history.loss
    assert nmse(resumed.predict(data, seed=0).mean, data.s) == nmse(
        whole.predict(data, seed=0).mean, data.s
    )
