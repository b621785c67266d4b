"""Operators with several outputs at a location: the same in every part as one output at a time."""

import copy
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam

import pyro_deeponet as pdo
from pyro_deeponet import DeepONet, DeepONetELBO, OperatorData, Posterior, likelihoods, metrics
from pyro_deeponet.elbo import gaussian_log_likelihood, unflatten
from pyro_deeponet.guides import flat_sampler, make_guide, site_names, start_guide

HEADS = ["dot", "features"]
LAYOUTS = ["grid", "indexed", "ragged"]


def vectors(layout="grid", n=5, q=7, c=2, dtype=torch.float64, seed=0):
    """Data with outputs of very different sizes, some of them missing in the layout 'ragged'."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(n, 3, generator=generator, dtype=dtype)
    y = torch.rand(q, 2, generator=generator, dtype=dtype)
    sizes = torch.tensor([1.0, 1000.0, 1e-3][:c], dtype=dtype)
    index = mask = None
    m = q
    if layout != "grid":
        m = 4
        index = torch.stack([torch.randperm(q, generator=generator)[:m] for _ in range(n)])
    s = sizes * (3 + torch.randn(n, m, c, generator=generator, dtype=dtype))
    if layout == "ragged":
        mask = torch.rand(n, m, c, generator=generator) < 0.7
        mask[:, 0] = True
    return OperatorData(u, y, s, index, mask)


def network(data, head="dot", **kwargs):
    model = DeepONet.for_data(data, branch=(5, 6), trunk=(4, 6), head=head, **kwargs)
    return model.to(data.s.dtype)


def of_samples(data, samples=4, **kwargs):
    model = network(data, **kwargs)
    generator = torch.Generator().manual_seed(1)
    start = model.start(seed=1)
    weights = {
        name: w + 0.3 * torch.randn(samples, *w.shape, generator=generator, dtype=w.dtype)
        for name, w in start.items()
    }
    return Posterior(model, weights=weights)


def single(model, i):
    """The model of output `i` alone, made of the parts of the other that it uses."""
    alone = DeepONet(
        model.sensors, model.coordinates, branch=model.branch_sizes, trunk=model.trunk_sizes,
        head="features", likelihood=model.likelihood,
        scaling=pdo.Scaling(
            model.scaling.u, model.scaling.y,
            pdo.Affine(model.scaling.s.shift[i], model.scaling.s.scale[i]),
        ),
    )  # fmt: skip
    return alone.to(model.head.like.dtype)


def weights_of_single(model, weights, i):
    """For a head of features: an output of the head 'dot' has the same weight on its share."""
    rows = [i, i + model.outputs] if model.likelihood.nodes == 2 else [i]
    weight = weights["head.weight"][..., rows, :]
    if model.head.kind == "dot":
        share = torch.zeros(model.branch_sizes[-1], dtype=weight.dtype)
        share[model.head.shares[i]] = 1.0
        weight = weight * share
    return dict(weights) | {"head.weight": weight, "head.bias": weights["head.bias"][..., rows]}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(5, 7, 2, 4), (3, 3, 3, 3)])
def test_each_output_is_predicted_as_by_a_model_of_its_own(head, layout, sizes):
    n, q, c, samples = sizes
    data = vectors(layout, n, max(q, 4), c)
    posterior = of_samples(data, samples, head=head)
    p = posterior.predict(data)
    assert p.mean.shape == p.std.shape == data.s.shape
    for i in range(c):
        alone = Posterior(
            single(posterior.model, i),
            weights=weights_of_single(posterior.model, posterior.weights, i),
        )
        part = data.output(i)
        real = torch.ones_like(part.s, dtype=torch.bool) if part.mask is None else part.mask
        expected, found = alone.predict(part), p.output(i)

        def same(x, y, real=real):
            torch.testing.assert_close(x[real], y[real])

        for name in ("mean", "std", "epistemic_std", "aleatoric_std"):
            same(getattr(found, name), getattr(expected, name))
        same(found.quantile(0.9), expected.quantile(0.9))
        same(p.quantile(0.9)[..., i], expected.quantile(0.9))
        same(found.log_prob(part.s), expected.log_prob(part.s))
        same(p.interval(0.5)[0][..., i], expected.interval(0.5)[0])
        assert pdo.evaluate(found, part.s) == pytest.approx(pdo.evaluate(expected, part.s))


@pytest.mark.parametrize(
    "likelihood",
    [None, likelihoods.Homoscedastic(), likelihoods.FixedNoise(0.5), likelihoods.FixedNoise()],
)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_likelihood_is_the_sum_of_those_of_the_outputs(head, layout, likelihood):
    data = vectors(layout, c=3)
    posterior = of_samples(data, head=head, likelihood=copy.deepcopy(likelihood))
    model, weights = posterior.model, posterior.weights
    arguments = data.u, data.y, data.s, data.index, data.mask
    found = gaussian_log_likelihood(model, weights, *arguments)
    expected = 0.0
    for i in range(3):
        alone, part = single(model, i), data.output(i)
        arguments = part.u, part.y, part.s, part.index, part.mask
        own = weights_of_single(model, weights, i)
        expected += gaussian_log_likelihood(alone, own, *arguments)
    torch.testing.assert_close(found, expected)


def given_draws(weights, log_q):
    """A guide that draws given weights, all particles at once, with given log densities."""

    def guide(*args):
        for i, (name, value) in enumerate(weights.items()):
            density = log_q if i == 0 else torch.zeros_like(log_q)
            site = dist.Delta(value, log_density=density, event_dim=value.dim() - log_q.dim())
            pyro.sample(name, site)

    return guide


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [None, (50, 20)])
@pytest.mark.parametrize("particles", [1, 2, 5])
def test_the_loss_is_that_of_stock_pyro_on_the_same_draws(head, layout, size, particles):
    data = vectors(layout)
    model = network(data, head)
    guide = make_guide(partial(AutoNormal, init_scale=0.1), model)
    start_guide(guide, model.start())
    arguments = data.u, data.y, data.s, data.index, data.mask, size
    torch.manual_seed(3)
    ours = DeepONetELBO(particles).loss(model, guide, *arguments)
    torch.manual_seed(3)
    flat, log_q = flat_sampler(guide, model.shapes)(particles)
    weights = unflatten(flat, {name: model.shapes[name] for name in site_names(guide)})
    # Two dimensions for the plates stand between the particles and the weights.
    stacked = {name: w[:, None, None] for name, w in weights.items()}
    stock = Trace_ELBO(particles, vectorize_particles=True, max_plate_nesting=2)
    found = stock.loss(model, given_draws(stacked, log_q[:, None, None]), *arguments)
    assert ours == pytest.approx(found)
    each = [
        Trace_ELBO().loss(
            model, given_draws({name: w[i] for name, w in weights.items()}, log_q[i]), *arguments
        )
        for i in range(particles)
    ]
    assert ours == pytest.approx(np.mean(each))


def test_stock_pyro_takes_the_model():
    data = vectors(n=4, q=3)
    model = network(data)
    with pyro.get_param_store().scope():
        for vectorize in (False, True):
            pyro.clear_param_store()
            guide = AutoNormal(model)
            elbo = Trace_ELBO(num_particles=3, vectorize_particles=vectorize)
            svi = SVI(model, guide, Adam({"lr": 1e-2}), elbo)
            assert np.isfinite(svi.step(data.u, data.y, data.s))
        drawn = Predictive(model, guide=guide, num_samples=6)(data.u, data.y)["s"]
    assert drawn.shape == (6, 4, 3, 2)
    chain = MCMC(NUTS(model, max_tree_depth=1), 2, 1, disable_progbar=True)
    chain.run(data.u, data.y, data.s)
    assert chain.get_samples()["head.bias"].shape == (2, 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_moments_are_those_of_stock_predictive_on_the_same_weights(layout):
    data = vectors(layout)
    posterior = of_samples(data, 5)
    with torch.no_grad():
        mu, sigma = posterior.model.moments(posterior.weights, data.u, data.y, data.index)
    p = posterior.predict(data, max_memory=3000)
    torch.testing.assert_close(p.mean, mu.mean(0))
    torch.testing.assert_close(p.epistemic_std, mu.std(0, correction=0))
    torch.testing.assert_close(p.aleatoric_std, sigma.square().mean(0).sqrt())
    drawn = posterior.sample(data, num_samples=5, kind="function")
    torch.testing.assert_close(drawn, mu)
    noisy = posterior.predictive(5)(data.u, data.y, index=data.index)["s"]
    assert noisy.shape == mu.shape
    assert ((noisy - mu) / sigma).abs().mean() < 2


def test_numpy_comes_back_and_any_memory_will_do():
    data = vectors(n=6, q=9)
    posterior = of_samples(data)
    p = posterior.predict(data.u.numpy(), data.y.numpy())
    parts = posterior.predict(data.u.numpy(), data.y.numpy(), max_memory=2000)
    assert isinstance(p.output(1).mean, np.ndarray)
    np.testing.assert_allclose(parts.std, p.std, rtol=1e-5)
    np.testing.assert_allclose(parts.quantile(0.2), p.quantile(0.2), rtol=1e-5)
    assert repr(p) == "Prediction(6 functions x 9 points x 2 outputs, mixture of 4 weight samples)"
    for i in (2, -3):
        with pytest.raises(ValueError, match=f"no output {i}"):
            p.output(i)
    with pytest.raises(ValueError, match="no output 0"):
        p.output(0).output(0)


@pytest.mark.parametrize("guide", ["normal", "meanfield", "laplace", "lowrank", "delta"])
@pytest.mark.parametrize("head", HEADS)
def test_guides_fit_save_and_load(tmp_path, guide, head):
    data = vectors("ragged", n=30)
    posterior = pdo.fit(network(data, head), data, guide, steps=20, warm_start=20, progress=False)
    p = posterior.predict(data, seed=0)
    assert all(x.isfinite().all() for x in (p.mean, p.std))
    again = Posterior.load(posterior.save(tmp_path / "net.pt"))
    assert torch.equal(again.predict(data, seed=0).mean, p.mean)
    assert again.model.outputs == 2
    wide = posterior.calibrate(data, level=0.9)
    torch.testing.assert_close(
        wide.predict(data, seed=0).std, p.std * wide.calibration.factor, rtol=1e-4, atol=0
    )


def test_ensembles_and_chains(tmp_path):
    data = vectors("indexed", n=10)
    model = network(data)
    members = pdo.ensemble(model, data, members=3, steps=10, warm_start=10, progress=False)
    assert members.predict(data).mean.shape == data.s.shape
    chain = pdo.mcmc(
        model, data, warmup=2, samples=4, chains=1, max_tree_depth=2, warm_start=10, progress=False
    )
    assert chain.predict(data).mean.shape == data.s.shape


def test_both_states_of_the_pendulum_are_learnt_at_once():
    problem = pdo.problems.GravityPendulum(speed=True)
    train, test = problem.dataset(300, n_points=20, seed=0), problem.dataset(50, seed=1)
    model = DeepONet.for_data(
        train, branch=(40, 40), trunk=(40, 40), activation="gelu", prior=pdo.priors.Normal(0.0, 0.1)
    )
    posterior = pdo.fit(model, train, steps=300, warm_start=2000, progress=False)
    p = posterior.predict(test, seed=0)
    for i in range(2):
        assert metrics.nmse(p.output(i).mean, test.output(i).s) < 1e-3
        assert metrics.coverage(p.output(i), test.output(i).s) > 0.9


def test_the_speed_of_the_pendulum_is_the_derivative_of_its_angle():
    problem = pdo.problems.GravityPendulum(speed=True, n_times=400)
    u = problem.draw(3, seed=0)
    angle, speed = problem.solve(u).unbind(-1)
    torch.testing.assert_close(angle, pdo.problems.GravityPendulum(n_times=400).solve(u))
    t = problem.grid[:, 0]
    slope = torch.gradient(angle, spacing=(t,), dim=1, edge_order=2)[0]
    torch.testing.assert_close(slope, speed, atol=2e-5, rtol=0)


def test_noise_is_a_fraction_of_each_outputs_own_spread():
    class Two(pdo.problems.Problem):
        sensors = torch.zeros(2)
        grid = torch.linspace(0, 1, 50)[:, None]

        def draw(self, n, seed):
            return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))

        def solve(self, u):
            return torch.stack([u[:, :1] + 0 * self.grid.T, 1000 * (u[:, 1:] * self.grid.T)], -1)

    clean, noisy = (Two().dataset(200, 20, noise=noise) for noise in (0.0, 0.1))
    error = (noisy.s - clean.s).std((0, 1))
    torch.testing.assert_close(error, 0.1 * clean.s.std((0, 1)), rtol=0.05, atol=0)


def test_each_output_has_a_scale_of_its_own():
    data = vectors("ragged", n=50, c=3)
    for kind in ("standard", "minmax"):
        model = DeepONet.for_data(data, branch=(6,), trunk=(6,), scaling=kind)
        for i in range(3):
            real = data.output(i).s[data.mask[..., i]]
            z = (real - model.scaling.s.shift[i]) / model.scaling.s.scale[i]
            ends = (z.mean(), z.std(correction=0)) if kind == "standard" else (z.min(), z.max())
            assert [end.item() for end in ends] == pytest.approx([0, 1], abs=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_and_files_give_the_same_data_back(tmp_path, layout):
    data = vectors(layout)
    assert OperatorData.load(data.save(tmp_path / "data.npz")) == data
    u, y, s = data.to_rows()
    assert s.shape == (len(u), 2)
    if layout != "ragged":
        assert OperatorData.from_rows(u, y, s) == data
    assert data.subset([1, 0]).s.shape == (2, *data.s.shape[1:])
    changed = data.s.clone()
    changed[0, 0, 1] += 1
    assert OperatorData(data.u, data.y, changed, data.index, data.mask) != data


def test_deepxde_files_with_several_outputs(tmp_path):
    data = vectors()
    np.savez(tmp_path / "aligned.npz", X0=data.u, X1=data.y, y=data.s)
    assert OperatorData.from_npz(tmp_path / "aligned.npz") == data
    u, y, s = data.to_rows()
    np.savez(tmp_path / "unaligned.npz", X0=u, X1=y, y=s)
    assert OperatorData.from_npz(tmp_path / "unaligned.npz") == data


def test_a_point_is_missing_with_all_its_outputs():
    s = torch.ones(2, 3, 2)
    s[0, 1] = torch.nan
    data = OperatorData(torch.ones(2, 1), torch.ones(3, 1), s, mask=~s.isnan().any(-1))
    assert data.mask.shape == (2, 3, 2)
    assert data.num_observations == 10
    assert "2 to 3 points x 2 outputs" in repr(data)


def test_wrong_numbers_of_outputs_are_refused():
    two, one = vectors(), vectors().output(0)
    model = network(two)
    with pytest.raises(ValueError, match=r"built for \(n, q, 2\)"):
        pdo.fit(model, one, steps=1, warm_start=1, progress=False)
    with pytest.raises(ValueError, match=r"built for \(n, q\)"):
        pdo.fit(network(one), two, steps=1, warm_start=1, progress=False)
    with pytest.raises(ValueError, match=r"s has shape \(5, 7\), expected \(5, 7, 2\)"):
        model(one.u, one.y, one.s)
    with pytest.raises(ValueError, match="6 features, which 4 outputs"):
        DeepONet(3, 1, branch=(6,), trunk=(6,), outputs=4)
    with pytest.raises(ValueError, match="outputs"):
        DeepONet(3, 1, outputs=0)
    with pytest.raises(TypeError, match="reads outputs off the data"):
        DeepONet.for_data(two, outputs=2)
    with pytest.raises(ValueError, match=r"scaling\.s is for 2 columns"):
        DeepONet(3, 2, scaling=model.scaling)
    p = of_samples(two).predict(two)
    with pytest.raises(ValueError, match=r"expected that of the prediction, \(5, 7, 2\)"):
        metrics.nmse(p.mean, one.s)
    with pytest.raises(ValueError, match="2 outputs at each point; pass one of them"):
        pdo.plots.function(p, 0, torch.linspace(0, 1, 7))
    with pytest.raises(ValueError, match=r"expected \(functions, points"):
        OperatorData(two.u, two.y, two.s[..., None])


def test_scores_pool_all_outputs():
    data = vectors(c=2)
    p = of_samples(data).predict(data)
    scores = pdo.evaluate(p, data.s)
    errors = (p.mean - data.s).square().sum((0, 1))
    assert scores["nmse"] == pytest.approx((errors.sum() / data.s.square().sum()).item())
    each = [pdo.evaluate(p.output(i), data.output(i).s) for i in range(2)]
    for name in ("coverage_95", "width_95", "nll", "crps"):
        assert scores[name] == pytest.approx(np.mean([found[name] for found in each]), rel=1e-4)
    assert metrics.pit(p, data.s).shape == data.s.shape


def test_figures_of_one_output():
    problem = pdo.problems.GravityPendulum(speed=True, n_times=10)
    data = problem.dataset(30)
    p = of_samples(OperatorData(data.u[:, :3], data.y.repeat(1, 2), data.s)).predict(
        data.u[:, :3], data.y.repeat(1, 2)
    )
    for i in range(2):
        ax = pdo.plots.function(p.output(i), 0, data.y, truth=data.output(i).s)
        assert ax.lines
        assert pdo.plots.error_against_std(p.output(i), data.output(i).s).lines
    assert pdo.plots.calibration(*metrics.calibration_curve(p, data.s)).lines
    plt.close("all")
