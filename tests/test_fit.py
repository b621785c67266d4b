"""What a fit learns, records, survives and leaves behind."""

import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO

import pyro_deeponet as pdo
from pyro_deeponet import DeepONet, OperatorData, fit, likelihoods
from pyro_deeponet.elbo import unflatten
from pyro_deeponet.guides import GUIDES, site_names
from pyro_deeponet.metrics import nmse
from pyro_deeponet.training import Batches


def sums(n=60, seed=0, coordinates=1, noise=0.0):
    """s(y) = |y| times the sum of u."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(n, 3))
    y = rng.random((8, coordinates))
    s = u.sum(1, keepdims=True) * np.linalg.norm(y, axis=1)
    return OperatorData(u, y, s + noise * s.std() * rng.normal(size=s.shape)).to(torch.float32)


def network(data, **kwargs):
    return DeepONet.for_data(data, branch=(16, 8), trunk=(16, 8), **kwargs)


def quickly(data, model=None, guide="normal", **kwargs):
    settings = {"steps": 300, "warm_start": 300, "num_particles": 8, "lr": 1e-2, "progress": False}
    return fit(model or network(data), data, guide, **(settings | kwargs))


def error(posterior, test):
    """Squared error over the spread of the truth, so that an offset does not hide it."""
    mean = posterior.predict(test, num_samples=30, seed=0).mean
    return nmse(mean - test.s.mean(), test.s - test.s.mean())


def scaled(data, scale=1.0, offset=0.0):
    return OperatorData(data.u, data.y, offset + scale * data.s)


def test_it_learns_and_tells_how():
    data, test = sums(), sums(seed=1)
    posterior = quickly(data)
    assert error(posterior, test) < 0.01
    history = posterior.history
    assert len(history.warm_start) == len(history.loss) == len(history.kl) == 300
    total = np.array(history.kl) - np.array(history.log_likelihood)
    np.testing.assert_allclose(history.loss, total, rtol=1e-4)
    assert np.mean(history.loss[-20:]) < np.mean(history.loss[:20])
    # A third of lr for the centres: it rises for a twentieth of the steps, then falls.
    peak = np.argmax(history.lr)
    assert history.lr[0] == pytest.approx(1e-4 / 3)
    assert max(history.lr) == pytest.approx(1e-2 / 3, rel=0.02)
    assert 10 <= peak <= 16
    assert np.all(np.diff(history.lr[peak:]) < 0)
    assert history.lr[-1] == pytest.approx(1e-4 / 3, rel=0.01)
    assert history.seconds > 0


def test_the_same_seed_gives_the_same_numbers_and_another_other_ones():
    data = sums(20)
    runs = [quickly(data, steps=20, warm_start=20, seed=seed) for seed in (0, 0, 1)]
    assert runs[0].history.loss == runs[1].history.loss
    assert runs[0].history.loss[-1] != runs[2].history.loss[-1]


def test_the_model_passed_in_stays_as_it_was():
    data = sums(20)
    model = network(data, prior=None)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    quickly(data, model, steps=20, warm_start=20)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("elbo", [None, Trace_ELBO(2, vectorize_particles=True)])
def test_nothing_global_changes(elbo):
    data = sums(20)
    pyro.param("AutoNormal.locs.head.bias", torch.tensor([7.0, 7.0]))  # somebody else's
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    settings, dtype = pyro.settings.get(), torch.get_default_dtype()
    quickly(data, network(data).double(), steps=3, warm_start=3, elbo=elbo)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]
    assert pyro.settings.get() == settings
    assert torch.get_default_dtype() == dtype
    assert list(pyro.get_param_store().keys()) == ["AutoNormal.locs.head.bias"]
    assert pyro.param("AutoNormal.locs.head.bias").tolist() == [7.0, 7.0]
    pyro.clear_param_store()


@pytest.mark.parametrize("scale", [1e-4, 1e5])
@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_the_size_of_the_outputs_does_not_matter(scale, offset):
    data, test = sums(noise=0.1), sums(seed=1)
    plain = error(quickly(data), test)
    other = quickly(scaled(data, scale, offset * scale))
    assert error(other, scaled(test, scale, offset * scale)) < 3 * plain
    assert other.predict(test, num_samples=9, seed=0).std.mean() == pytest.approx(
        scale * quickly(data).predict(test, num_samples=9, seed=0).std.mean(), rel=0.5
    )


@pytest.mark.parametrize("coordinates", [1, 2, 3])
def test_any_number_of_coordinates(coordinates):
    data = sums(coordinates=coordinates)
    assert error(quickly(data), data) < 0.01


def test_ragged_points_and_missing_values():
    data = sums()
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(data.s.shape, generator=generator) < 0.7
    mask[:, 0] = True
    ragged = OperatorData.from_rows(*OperatorData(data.u, data.y, data.s, mask=mask).to_rows())
    assert ragged.index is not None
    assert ragged.mask is not None
    for observed in (ragged, OperatorData(data.u, data.y, data.s, mask=mask)):
        assert error(quickly(observed), sums(seed=0)) < 0.01


@pytest.mark.parametrize("indexed", [True, False])
def test_batches_of_functions_and_points(indexed):
    data = sums(20)
    if indexed:
        data = OperatorData(data.u, data.y, data.s[:, :6], torch.arange(6).expand(20, 6))
    m = data.s.shape[1]
    batches = Batches(data, 5, 4, seed=0)
    seen, columns = [], set()
    for step in range(8):
        u, y, s, index, mask, size = batches(step)
        assert (u.shape, s.shape, mask, size) == ((5, 3), (5, 4), None, (20, m))
        seen.append(u)
        where = y if index is None else y[index[0]]
        columns |= {tuple(row.tolist()) for row in where}
        rows = [int((data.u == row).all(1).nonzero()) for row in u]
        at = [int((data.y == row).all(1).nonzero()) for row in where]
        assert torch.equal(s, data.s[rows][:, at])
    for epoch in (torch.cat(seen[:4]), torch.cat(seen[4:])):  # every function once
        assert sorted(epoch.tolist()) == sorted(data.u.tolist())
    assert not torch.equal(torch.cat(seen[:4]), torch.cat(seen[4:]))
    assert len(columns) == m
    assert torch.equal(Batches(data, 5, 4, seed=0)(6)[2], batches(6)[2])


def test_data_on_a_large_grid_are_learnt_from_some_points_at_a_time():
    rng = np.random.default_rng(0)
    u, y = rng.normal(size=(100, 3)), rng.random((5000, 2))
    data = OperatorData(u, y, u.sum(1, keepdims=True) * np.linalg.norm(y, axis=1))
    data = data.to(torch.float32)
    assert Batches(data, 100, None, seed=0)(0)[2].shape == (100, 200)
    assert error(quickly(data), data.subset(slice(0, 20))) < 0.02


@pytest.mark.parametrize("prior", [None, pdo.priors.Normal(0.0, 1.0)])
def test_outputs_that_are_all_the_same(prior):
    data = sums(20)
    data = OperatorData(data.u, data.y, torch.full_like(data.s, 3.0))
    posterior = quickly(data, network(data, prior=prior), steps=20, warm_start=100)
    p = posterior.predict(data, seed=0)
    assert torch.isfinite(p.mean).all()
    assert (p.mean - 3).abs().max() < 0.3


def test_few_functions_and_large_batches():
    data = sums(7)
    posterior = quickly(data, batch_size=1000)
    assert error(posterior, data) < 0.01


@pytest.mark.parametrize("guide", GUIDES)
def test_every_guide_learns(guide):
    data = sums(40)
    model = DeepONet.for_data(data, branch=(6, 4), trunk=(6, 4))
    posterior = quickly(data, model, guide, steps=150)
    prediction = posterior.predict(data, num_samples=20, seed=0)
    assert (prediction.epistemic_std.max() < 1e-6) == (guide == "delta")
    if guide == "laplace":  # its draws scatter where the data say nothing; its centre must not
        shapes = {name: model.shapes[name] for name in site_names(posterior.guide)}
        weights = unflatten(posterior.guide.loc.detach(), shapes)
        assert nmse(posterior.model.moments(weights, data.u, data.y)[0], data.s) < 0.05
    else:
        assert error(posterior, sums(40, seed=1)) < 0.05


@pytest.mark.parametrize(
    "likelihood",
    [likelihoods.Heteroscedastic(1e-3), likelihoods.Homoscedastic(), likelihoods.FixedNoise(0.1)],
)
@pytest.mark.parametrize("bayesian", [True, False])
def test_every_likelihood_learns_with_and_without_a_prior(likelihood, bayesian):
    data = sums(noise=0.1)
    prior = pdo.priors.Normal() if bayesian else None
    posterior = quickly(data, network(data, likelihood=likelihood, prior=prior))
    assert error(posterior, sums(seed=0)) < 0.05
    noise = posterior.predict(data, num_samples=20, seed=0).aleatoric_std.mean().item()
    assert noise == pytest.approx(0.1 * data.s.std().item(), rel=0.6)
    assert (posterior.guide is not None) == bayesian


@pytest.mark.parametrize(
    "elbo",
    [
        Trace_ELBO(4, vectorize_particles=True),
        TraceMeanField_ELBO(4, vectorize_particles=True),
        RenyiELBO(alpha=0.5, num_particles=4, vectorize_particles=True),
    ],
)
def test_any_elbo_and_any_optimiser(elbo):
    data = sums(30)
    posterior = quickly(
        data, elbo=elbo, steps=60, clip_norm=10.0,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-3),
    )  # fmt: skip
    assert error(posterior, sums(30, seed=0)) < 0.1
    assert math.isfinite(posterior.history.loss[-1])
    assert max(posterior.history.lr) == pytest.approx(5e-3, rel=0.05)


@pytest.mark.parametrize(("final", "optimizer"), [(1e-4, "adam"), (0.5, "soap")])
def test_learning_rates_end_where_they_are_told_to(final, optimizer):
    lr = quickly(sums(20), final_lr=final, optimizer=optimizer, lr=3e-3).history.lr
    # The last step is taken just before the end.
    assert lr[-1] / max(lr) == pytest.approx(final, rel=0.01, abs=1e-4)
    with pytest.raises(ValueError, match="final_lr is 2, expected a fraction of lr"):
        quickly(sums(20), final_lr=2)


def test_kl_weight_may_follow_a_schedule():
    data = sums(20)
    seen = []
    quickly(
        data, steps=10, warm_start=0, kl_weight=lambda progress: seen.append(progress) or progress
    )
    assert seen == pytest.approx([i / 10 for i in range(10)])
    strong, weak = (quickly(data, kl_weight=weight) for weight in (1.0, 1e-3))
    assert weak.history.kl[-1] > strong.history.kl[-1]


def test_a_callback_sees_the_state_and_stops():
    states = []

    def callback(state):
        states.append(state)
        return state.stage == "inference" and state.step == 5

    posterior = quickly(sums(20), warm_start=10, callback=callback)
    assert [s.step for s in states] == [*range(1, 11), *range(1, 6)]
    assert len(posterior.history.loss) == 5
    assert states[-1].loss == posterior.history.loss[-1]
    assert states[-1].guide is not None
    assert states[0].guide is None


def test_stopping_in_the_warm_start_still_gives_a_posterior():
    data = sums(20)
    posterior = quickly(data, callback=lambda state: state.step == 3)
    assert len(posterior.history.warm_start) == 3
    assert posterior.predict(data, num_samples=3).mean.shape == (20, 8)


def test_validation_and_patience_keep_the_best():
    data, held_out = sums(15, noise=0.5), sums(15, seed=2)
    posterior = quickly(
        data, network(data, prior=None), validation=held_out, patience=3, steps=1000, warm_start=20
    )
    scores = posterior.history.validation
    assert set(scores) == {"step", "nmse", "nll"}
    best = int(np.argmin(scores["nll"]))
    assert len(scores["nll"]) == best + 1 + 3
    assert len(posterior.history.loss) < 1000
    again = posterior.predict(held_out, num_samples=20, seed=0)
    assert pdo.metrics.nll(again, held_out.s) == pytest.approx(scores["nll"][best], rel=1e-4)


def test_ctrl_c_returns_what_was_learnt():
    def interrupt(state):
        if state.stage == "inference" and state.step == 7:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted after 50 of 50 .* and 7 of 300"):
        posterior = quickly(sums(20), warm_start=50, callback=interrupt)
    assert len(posterior.history.loss) == 7


def test_a_loss_that_turns_nan_is_an_error_with_the_last_good_state():
    data = sums(20)

    def poison(state):
        if state.stage == "inference" and state.step == 120:
            next(state.guide.parameters()).data.fill_(math.nan)

    with pytest.raises(pdo.Diverged, match=r"nan at step 120 of the inference.*lower lr") as caught:
        quickly(data, callback=poison)
    assert torch.isfinite(caught.value.posterior.predict(data, num_samples=3).mean).all()


class Killed(Exception):
    """A stop that fit does not handle, as a crash would be."""


@pytest.mark.parametrize("stage", ["warm start", "inference"])
@pytest.mark.parametrize("guide", ["normal", "lowrank"])
def test_a_broken_fit_goes_on_to_the_same_numbers(tmp_path, stage, guide):
    data = sums(20)
    settings = {"steps": 40, "warm_start": 40, "batch_size": 6, "guide": guide}
    whole = quickly(data, **settings)

    def kill(state):
        if state.stage == stage and state.step == 27:
            raise Killed

    path = tmp_path / "fit.ckpt"
    with pytest.raises(Killed):
        quickly(data, **settings, checkpoint=path, callback=kill)
    resumed = quickly(data, **settings, checkpoint=path)
    assert resumed.history.loss == whole.history.loss
    assert resumed.history.warm_start == whole.history.warm_start
    expected = whole.predict(data, num_samples=5, seed=0)
    found = resumed.predict(data, num_samples=5, seed=0)
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.std, expected.std)
    done = quickly(data, **settings, checkpoint=path, callback=kill)  # nothing left to do
    assert torch.equal(done.predict(data, num_samples=5, seed=0).mean, expected.mean)


def fit_of_a_script(path, die=False):
    torch.manual_seed(0)
    data = OperatorData(torch.randn(9, 3), torch.rand(4, 1), torch.randn(9, 4))

    def callback(state):
        if die and state.stage == "inference" and state.step == 25:
            os.kill(os.getpid(), signal.SIGKILL)

    return quickly(data, steps=40, warm_start=20, checkpoint=path, callback=callback)


def test_a_checkpoint_of_a_killed_process(tmp_path):
    """Killed by a signal it cannot catch, a fit leaves a checkpoint from which it goes on."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import torch; torch.set_num_threads(1)\n"
        f"import test_fit; test_fit.fit_of_a_script({str(tmp_path / 'a')!r}, die=True)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -signal.SIGKILL
    resumed, whole = (fit_of_a_script(tmp_path / name) for name in "ab")
    assert resumed.history.loss == whole.history.loss


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    data, path = sums(20), tmp_path / "fit.ckpt"
    quickly(data, steps=4, warm_start=4, checkpoint=path)
    with pytest.raises(ValueError, match=r"another fit \(seed: 0 there, 1 now\)"):
        quickly(data, steps=4, warm_start=4, checkpoint=path, seed=1)
    with pytest.raises(ValueError, match=r"another fit \(data"):
        quickly(sums(20, seed=3), steps=4, warm_start=4, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        quickly(data, steps=4, warm_start=4, checkpoint=path)


def test_frozen_parameters_stay():
    data = sums(20)
    model = network(data, prior=None)
    model.trunk.requires_grad_(False)
    posterior = quickly(data, model, steps=20, warm_start=20)
    for name, value in posterior.model.plain_weights().items():
        assert torch.equal(value, model.plain_weights()[name]) == name.startswith("trunk")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"steps": -1}, ValueError, "steps is -1"),
        ({"batch_size": 0}, ValueError, "batch_size is 0"),
        ({"num_particles": 2.5}, ValueError, "num_particles is 2.5"),
        ({"patience": 3}, ValueError, "needs validation"),
        ({"guide": "gauss"}, ValueError, "'normal'"),
        ({"validation": 3}, TypeError, "validation is int"),
    ],
)
def test_bad_arguments(change, error, message):
    with pytest.raises(error, match=message):
        quickly(sums(10), **change)


def test_data_that_do_not_fit_the_model():
    with pytest.raises(ValueError, match="built for"):
        fit(DeepONet(5, 1), sums(10), progress=False)
    with pytest.raises(TypeError, match="expected OperatorData"):
        fit(DeepONet(5, 1), (1, 2, 3), progress=False)


def test_the_progress_bar_shows_losses(capsys):
    quickly(sums(10), steps=40, warm_start=40, progress=True)
    shown = capsys.readouterr().err
    for word in ("warm start", "inference", "mse=", "loss=", "loglik=", "kl=", "lr="):
        assert word in shown


def test_double_precision_throughout():
    data = sums(20).to(torch.float64)
    posterior = quickly(data, network(data).double(), steps=20, warm_start=20)
    assert posterior.predict(data, num_samples=2).mean.dtype == torch.float64
