"""Ensembles against networks that are trained alone, and what they share with other posteriors."""

import pyro.distributions as dist
import pytest
import torch
from test_fit import sums

import pyro_deeponet as pdo
from pyro_deeponet import DeepONet, OperatorData, Posterior, fit, likelihoods, priors
from pyro_deeponet.metrics import nmse

SHORT = {"steps": 50, "warm_start": 80, "lr": 1e-2, "batch_size": 15, "progress": False}
PRIORS = {
    "none": None,
    "normal": priors.Normal(0.0, 0.5),
    "laplace": lambda name, shape: dist.Laplace(0.0, 1.0),
    "some": priors.ByLayer({"trunk.*": None, "*": priors.Normal()}),
}


def network(data, **kwargs):
    return DeepONet.for_data(data, branch=(8, 4), trunk=(8, 4), **kwargs)


def ragged(n=40):
    """Functions at different locations, some of them missing."""
    data, generator = sums(n), torch.Generator().manual_seed(0)
    index = torch.stack([torch.randperm(8, generator=generator)[:5] for _ in range(n)])
    mask = torch.rand(n, 5, generator=generator) < 0.8
    return OperatorData(data.u, data.y, data.s.gather(1, index), index, mask)


def differences(posterior, member, alone):
    weights = alone.sample_weights(1)
    return max((w[member] - weights[name][0]).abs().max() for name, w in posterior.weights.items())


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("kind", ["grid", "ragged"])
def test_members_are_the_networks_trained_alone_on_the_same_batches(monkeypatch, prior, kind):
    data = sums(40) if kind == "grid" else ragged()
    model = network(data, prior=PRIORS[prior]).double()
    posterior = pdo.ensemble(model, data, members=10, **SHORT)
    start = DeepONet.start
    for member in (0, 9):
        monkeypatch.setattr(DeepONet, "start", lambda self, seed=0, i=member: start(self, seed + i))
        alone = fit(model, data, "delta", **SHORT)
        assert differences(posterior, member, alone) < 1e-9
        monkeypatch.undo()
    assert posterior.weights["head.bias"].dtype == torch.float64


def test_members_differ_and_together_err_less_than_each():
    data, test = sums(noise=0.2), sums(seed=1)
    model = network(data, prior=None)
    posterior = pdo.ensemble(model, data, members=8, **SHORT)
    means = [
        Posterior(model, weights={k: w[i : i + 1] for k, w in posterior.weights.items()})
        .predict(test).mean
        for i in range(8)
    ]  # fmt: skip
    assert min((a - b).abs().max() for i, a in enumerate(means) for b in means[:i]) > 0.01
    mixture = posterior.predict(test)
    torch.testing.assert_close(mixture.mean, torch.stack(means).mean(0))
    errors = [nmse(mean, test.s) for mean in means]
    assert nmse(mixture.mean, test.s) <= sum(errors) / len(errors)
    assert mixture.epistemic_std.min() > 0
    assert len(posterior.history.warm_start) == 80
    assert len(posterior.history.loss) == 50


def test_a_prediction_takes_every_member_once():
    data = sums(20)
    posterior = pdo.ensemble(network(data, prior=None), data, 5, **SHORT | {"steps": 0})
    for count, taken in ((100, 5), (5, 5), (3, 3)):
        assert f"mixture of {taken} weight" in repr(posterior.predict(data, num_samples=count))
    assert posterior.sample(data, num_samples=7, kind="function").shape == (7, 20, 8)
    again = posterior.sample_weights(10)
    assert all(torch.equal(w[:5], w[5:]) for w in again.values())


def test_stock_predictive_calibration_and_files(tmp_path):
    data = sums(40, noise=0.1)
    for prior in (None, priors.Normal()):
        posterior = pdo.ensemble(network(data, prior=prior), data, 4, validation=data, **SHORT)
        drawn = posterior.predictive(400)(data.u, data.y)["s"]
        predicted = posterior.predict(data)
        assert ((drawn.mean(0) - predicted.mean) / predicted.std).abs().max() < 0.3
        calibrated = posterior.calibrate(data, level=0.9)
        loaded = Posterior.load(calibrated.save(tmp_path / "ensemble.pt"))
        one, other = (x.predict(data, seed=0) for x in (calibrated, loaded))
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.std, other.std)
        assert loaded.history == posterior.history
        assert repr(loaded) == repr(calibrated)
        assert len(posterior.history.validation["nll"]) > 0


@pytest.mark.parametrize("likelihood", [likelihoods.Homoscedastic(), likelihoods.FixedNoise(0.1)])
def test_other_likelihoods(likelihood):
    data = sums(noise=0.1)
    model = network(data, prior=None, likelihood=likelihood)
    posterior = pdo.ensemble(model, data, 3, **SHORT | {"steps": 300, "warm_start": 300})
    prediction = posterior.predict(data)
    assert nmse(prediction.mean, data.s) < 0.05
    noise = prediction.aleatoric_std.mean().item()
    assert noise == pytest.approx(0.1 * data.s.std().item(), rel=0.6)


def test_frozen_weights_are_all_members_own():
    data = sums(20)
    model = network(data, prior=None)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith("trunk"))
    posterior = pdo.ensemble(model, data, 3, **SHORT)
    assert not any(name.startswith("trunk") for name in posterior.weights)
    drawn = posterior.sample_weights(3)["trunk.0.weight"]
    assert torch.equal(drawn, model.plain_weights()["trunk.0.weight"].expand_as(drawn))
    assert posterior.predictive(3)(data.u, data.y)["s"].shape == (3, 20, 8)


@pytest.mark.parametrize("stop", [("warm start", 37), ("inference", 25)])
def test_a_broken_run_goes_on_from_its_checkpoint(tmp_path, stop):
    data = sums(30)
    model = network(data, prior=None)

    def interrupt(state):
        if (state.stage, state.step) == stop:
            raise KeyboardInterrupt

    whole = pdo.ensemble(model, data, 3, **SHORT)
    path = tmp_path / "ensemble.ckpt"
    with pytest.warns(UserWarning, match="interrupted"):
        broken = pdo.ensemble(model, data, 3, checkpoint=path, callback=interrupt, **SHORT)
    assert len(broken.weights["head.bias"]) == 3
    resumed = pdo.ensemble(model, data, 3, checkpoint=path, **SHORT)
    assert all(torch.equal(w, resumed.weights[name]) for name, w in whole.weights.items())
    assert resumed.history.loss == whole.history.loss
    with pytest.raises(ValueError, match="of another fit"):
        pdo.ensemble(model, data, 4, checkpoint=path, **SHORT)


def test_without_a_warm_start_members_still_differ():
    data = sums(20)
    posterior = pdo.ensemble(network(data, prior=None), data, 2, **SHORT | {"warm_start": 0})
    assert not torch.equal(*posterior.weights["branch.0.weight"])


def test_wrong_arguments():
    data = sums(20)
    with pytest.raises(ValueError, match="members is 0, expected a whole number from 1"):
        pdo.ensemble(network(data), data, 0)
    with pytest.raises(ValueError, match=r"prior=None, or pdo\.mcmc"):
        pdo.ensemble(network(data, prior=priors.Horseshoe()), data)
    with pytest.raises(TypeError, match="expected a DeepONet"):
        pdo.ensemble("net", data)
