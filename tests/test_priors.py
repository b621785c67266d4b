"""Priors: their densities, what they do for each layer, and the way of each through everything."""

import copy
import dataclasses
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam
from pyro.poutine.util import prune_subsample_sites
from scipy import stats

from pyro_deeponet import DeepONet, DeepONetELBO, OperatorData, Posterior, fit, priors
from pyro_deeponet.elbo import unflatten
from pyro_deeponet.guides import flat_sampler, make_guide, site_names, start_guide
from pyro_deeponet.priors import ByLayer, FanIn, Horseshoe, Laplace, Normal, ScaleMixture, StudentT

SHAPE = torch.Size([4, 3])
W = torch.linspace(-2, 3, 12, dtype=torch.float64).reshape(SHAPE)

PRIORS = {
    "normal": Normal(0.1, 0.7),
    "fan in": FanIn(2.0),
    "laplace": Laplace(0.2, 0.5),
    "student": StudentT(4.0, -0.1, 0.6),
    "mixture": ScaleMixture(0.3, 1.5, 0.2),
    "horseshoe": Horseshoe(0.1),
    "by layer": ByLayer({
        "trunk.*": None, "branch.0.*": Horseshoe(0.5), "*.bias": Laplace(),
        "*": ByLayer({"head.*": ScaleMixture(), "*": Normal()}),
    }),
    "biases": ByLayer({"*.bias": Normal(), "*": None}),
}  # fmt: skip
HIERARCHICAL = ("horseshoe", "by layer")

each_prior = pytest.mark.parametrize("kind", PRIORS)


def problem(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(12, 3, generator=generator, dtype=dtype)
    y = torch.linspace(0, 1, 5, dtype=dtype)[:, None]
    return OperatorData(u, y, u.sum(1, keepdim=True) * y[:, 0])


def network(kind, data):
    prior = PRIORS[kind] if isinstance(kind, str) else kind
    model = DeepONet.for_data(data, branch=(4, 3), trunk=(4, 3), activation="tanh", prior=prior)
    return model.to(data.u.dtype)


def arguments(data):
    return data.u, data.y, data.s


def extra_sites(model):
    """The sites that a prior has beside the weights, with their shapes."""
    with pyro.get_param_store().scope():
        trace = prune_subsample_sites(poutine.trace(model).get_trace(*model.example()))
    sites = {name: site["value"].shape for name, site in trace.iter_stochastic_nodes()}
    return {name: shape for name, shape in sites.items() if name not in model.shapes}


def log_mixture(pi, scale_1, scale_2, w):
    first, second = (stats.norm(0, scale).pdf(w) for scale in (scale_1, scale_2))
    return np.log(pi * first + (1 - pi) * second)


@pytest.mark.parametrize(
    ("prior", "log_density"),
    [
        (Normal(0.1, 0.7), stats.norm(0.1, 0.7).logpdf),
        (FanIn(2.0), stats.norm(0, 2 / math.sqrt(3)).logpdf),
        (Laplace(0.2, 0.5), stats.laplace(0.2, 0.5).logpdf),
        (StudentT(4.0, -0.1, 0.6), stats.t(4.0, -0.1, 0.6).logpdf),
        (ScaleMixture(0.3, 1.5, 0.2), lambda w: log_mixture(0.3, 1.5, 0.2, w)),
        (ScaleMixture(np.float64(0.3), np.float64(1.5), np.float64(0.2)),
         lambda w: log_mixture(0.3, 1.5, 0.2, w)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_densities_are_those_of_scipy(prior, log_density, dtype):
    model = DeepONet(3, 1, (4, 3), (4, 3), prior=prior).to(dtype)
    distribution = model.prior_of("branch.0.weight")
    assert distribution.event_shape == SHAPE
    found = distribution.log_prob(W.to(dtype))
    assert found.dtype == dtype
    assert found.item() == pytest.approx(log_density(W.numpy()).sum(), rel=1e-5)
    many = distribution.expand(torch.Size([7, 1])).sample(torch.Size([5]))
    assert many.shape == (5, 7, 1, *SHAPE)
    assert many.dtype == dtype


def test_a_mixture_has_its_moments_and_a_smooth_density_far_out():
    mixture = ScaleMixture(0.25, 2.0, 0.1)("w", torch.Size([]))
    torch.manual_seed(0)
    draws = mixture.sample(torch.Size([40_000]))
    assert draws.var().item() == pytest.approx(mixture.variance.item(), rel=0.05)
    assert (draws.abs() > 0.4).float().mean().item() == pytest.approx(
        2 * (0.25 * stats.norm(0, 2).sf(0.4) + 0.75 * stats.norm(0, 0.1).sf(0.4)), abs=0.01
    )
    far = torch.tensor([-200.0, 0.0, 200.0], requires_grad=True)
    (slope,) = torch.autograd.grad(mixture.log_prob(far).sum(), far)
    torch.testing.assert_close(slope, torch.tensor([50.0, 0.0, -50.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_horseshoe_has_scales_of_its_own(dtype):
    data = problem(dtype)
    model = network("horseshoe", data)
    trace = poutine.trace(model).get_trace(*arguments(data))
    for name, shape in model.shapes.items():
        tau, local = (trace.nodes[f"{name}_{scale}"] for scale in ("tau", "lambda"))
        assert tau["value"].shape == ()
        assert local["value"].shape == local["fn"].event_shape == shape
        assert trace.nodes[name]["fn"].event_shape == shape
        assert {site["value"].dtype for site in (tau, local, trace.nodes[name])} == {dtype}
    trace.compute_log_prob()
    sites = {name: site["value"].double().numpy() for name, site in trace.iter_stochastic_nodes()}
    expected = sum(
        stats.halfcauchy(scale=0.1).logpdf(sites[f"{name}_tau"])
        + stats.halfcauchy.logpdf(sites[f"{name}_lambda"]).sum()
        + stats.norm(0, sites[f"{name}_tau"] * sites[f"{name}_lambda"]).logpdf(sites[name]).sum()
        for name in model.shapes
    )
    found = sum(trace.nodes[name]["log_prob_sum"].item() for name in sites)
    assert found == pytest.approx(expected, rel=1e-5)


def test_each_particle_has_a_horseshoe_of_its_own():
    size = 3  # particles, rows and columns alike, where a wrong broadcast would go unnoticed
    with poutine.trace() as tracer, pyro.plate("particles", size, dim=-3):
        pyro.sample("w", Horseshoe(0.2)("w", torch.Size([size, size])))
    tracer.trace.compute_log_prob()
    w, tau, local = (tracer.trace.nodes[name] for name in ("w", "w_tau", "w_lambda"))
    assert tau["value"].shape == tau["log_prob"].shape == (size, 1, 1)
    for i in range(size):
        scale = tau["value"][i].item() * local["value"][i].squeeze().double().numpy()
        expected = stats.norm(0, scale).logpdf(w["value"][i].squeeze().double().numpy())
        assert w["log_prob"][i].item() == pytest.approx(expected.sum(), rel=1e-5)


def test_scales_that_underflow_still_have_a_density():
    tiny = {"w_tau": torch.tensor(1e-30), "w_lambda": torch.full(SHAPE, 1e-30)}
    drawn = poutine.condition(lambda: Horseshoe()("w", SHAPE), data=tiny)()
    assert math.isfinite(drawn.log_prob(torch.zeros(SHAPE)))


@pytest.mark.parametrize("kind", ["normal", "diagonal", "delta"])
@pytest.mark.parametrize("prior", [Horseshoe(1e-3), ByLayer({"*": Horseshoe(1e-3)})])
def test_the_scales_of_a_horseshoe_start_where_the_weights_fit(kind, prior):
    model = network(prior, problem())
    guide, weights = make_guide(kind, model), model.start(seed=1)
    start_guide(guide, weights)
    with pyro.get_param_store().scope():
        found = guide.median(*model.example())
    for name, weight in weights.items():
        tau = math.sqrt(1e-6 + weight.square().mean())
        assert found[f"{name}_tau"].item() == pytest.approx(tau, rel=1e-4)
        torch.testing.assert_close(found[f"{name}_lambda"], torch.ones_like(weight))
        torch.testing.assert_close(found[name], weight)


def test_the_first_pattern_that_fits_wins():
    def scale(prior, name):
        return prior(name, torch.Size([2])).base_dist.scale[0].item()

    patterns = {"branch.0.*": Normal(0, 1), "branch.*": Normal(0, 2), "*.bias": Normal(0, 3)}
    prior = ByLayer(patterns | {"*": Normal(0, 4)})
    names = ("branch.0.bias", "branch.1.bias", "trunk.0.bias", "head.weight")
    assert [scale(prior, name) for name in names] == [1, 2, 3, 4]
    swapped = ByLayer(dict(reversed(prior.patterns.items())))
    assert [scale(swapped, name) for name in names] == [4, 4, 4, 4]
    patterns.clear()  # what was passed is the user's
    assert scale(prior, "branch.0.bias") == 1
    assert scale(copy.deepcopy(prior), "head.weight") == 4
    own = ByLayer({"head.*": lambda name, shape: dist.Laplace(0.0, 9.0), "*": None})
    head = DeepONet(3, 1, (2,), (2,), prior=own).prior_of("head.weight")
    assert head.base_dist.scale.unique().item() == 9


@pytest.mark.parametrize(
    ("patterns", "plain"),
    [
        ({"trunk.*": None, "*": Normal()}, lambda name: name.startswith("trunk")),
        ({"*.bias": Normal(), "*": None}, lambda name: not name.endswith("bias")),
        ({"head.*": Normal(), "*": None}, lambda name: not name.startswith("head")),
        ({"*.1.*": Normal(), "head.*": Normal(), "*": None}, lambda name: ".0." in name),
        ({"*": None}, lambda name: True),
    ],
)
def test_weights_without_a_prior_stay_parameters(patterns, plain):
    model = network(ByLayer(patterns), problem())
    assert set(model.plain_weights()) == {name for name in model.shapes if plain(name)}
    assert set(model.sampled_shapes()) == {name for name in model.shapes if not plain(name)}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Laplace(0.0, 0.0), ValueError, "scale is 0.0, expected a positive number"),
        (lambda: Laplace("zero"), ValueError, "loc is 'zero', expected a finite number"),
        (lambda: Normal(math.nan), ValueError, "loc is nan"),
        (lambda: StudentT(df=-1), ValueError, "df is -1, expected a positive"),
        (lambda: StudentT(scale=math.inf), ValueError, "scale is inf"),
        (lambda: ScaleMixture(1.0), ValueError, "pi is 1.0, expected a number between 0 and 1"),
        (lambda: ScaleMixture(scale_2=0.0), ValueError, "scale_2 is 0.0"),
        (lambda: Horseshoe(None), ValueError, "scale is None"),
        (lambda: ByLayer(Normal()), TypeError, "patterns is Normal"),
        (lambda: ByLayer({}), TypeError, "patterns is {}, expected"),
        (lambda: ByLayer({0: Normal()}), TypeError, "the pattern 0 is no text"),
        (lambda: ByLayer({"*": 1.0}), TypeError, r"prior for '\*' is 1.0, expected"),
        (lambda: ByLayer({"*": dist.Normal(0, 1)}), TypeError, r"prior for '\*' is Normal\(loc"),
        (lambda: DeepONet(3, 1, prior=ByLayer({"branch.*": None, "head": Normal()})),
         ValueError, "no pattern fits 'trunk.0.weight': 'branch.*', 'head'"),
        (lambda: make_guide("laplace", DeepONet(3, 1, (2,), (2,), prior=Horseshoe())),
         ValueError, "sites of its own, such as 'branch.0.weight_tau'"),
    ],
)  # fmt: skip
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


@each_prior
def test_priors_are_values(kind):
    prior = PRIORS[kind]
    assert eval(repr(prior), vars(priors)) == prior
    with pytest.raises(dataclasses.FrozenInstanceError):
        prior.scale = 3.0


@each_prior
@pytest.mark.parametrize("guide", ["normal", "diagonal", "delta"])
def test_from_fit_to_predictions_that_come_back(tmp_path, kind, guide):
    data = problem()
    posterior = fit(
        network(kind, data), data, guide, num_particles=3, steps=8, warm_start=20, lr=1e-3,
        progress=False,
    )  # fmt: skip
    loaded = Posterior.load(posterior.save(tmp_path / "posterior.pt"))
    assert loaded.model.prior == PRIORS[kind]
    assert set(loaded.model.plain_weights()) == set(posterior.model.plain_weights())
    p, q = (x.predict(data, num_samples=6, seed=0) for x in (posterior, loaded))
    assert torch.isfinite(p.mean).all()
    assert torch.isfinite(p.std).all()
    assert torch.equal(p.mean, q.mean)
    assert torch.equal(p.std, q.std)
    drawn = posterior.sample_weights(6)
    for name, shape in (posterior.model.shapes | extra_sites(posterior.model)).items():
        assert drawn[name].shape == (6, *shape)
    with pyro.get_param_store().scope():
        assert posterior.predictive(2)(data.u, data.y)["s"].shape == (2, 12, 5)


@each_prior
@pytest.mark.parametrize("guide", ["normal", "diagonal", "delta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_is_that_of_stock_trace_elbo(kind, guide, dtype):
    data, particles = problem(dtype), 3
    model = network(kind, data)
    made = make_guide(guide, model)
    start_guide(made, model.start())
    mine = DeepONetELBO(particles)
    with pyro.get_param_store().scope():
        torch.manual_seed(0)
        loss = mine.loss_and_grads(model, made, *arguments(data))
        assert (mine._plan is None) == (kind in HIERARCHICAL)
        torch.manual_seed(0)  # the same draws again
        if mine._plan is None:
            stock = Trace_ELBO(particles, vectorize_particles=True, max_plate_nesting=2)
            expected = stock.loss(model, made, *arguments(data))
        else:
            flat, log_q = flat_sampler(made, model.sampled_shapes())(particles)
            shapes = {name: model.shapes[name] for name in site_names(made)}
            draws = zip(flat.detach(), log_q.detach(), strict=True)
            losses = [
                Trace_ELBO().loss(model, given(unflatten(w, shapes), log), *arguments(data))
                for w, log in draws
            ]
            expected = sum(losses) / particles
    assert loss == pytest.approx(expected, rel=1e-4 if dtype == torch.float32 else 1e-10)
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in made.parameters())


def given(weights, log_q):
    """A guide that draws these weights, with this log density."""

    def guide(*args):
        density = log_q / len(weights)
        for name, value in weights.items():
            pyro.sample(name, dist.Delta(value, log_density=density, event_dim=value.dim()))

    return guide


@each_prior
@pytest.mark.parametrize("vectorize", [False, True])
def test_stock_svi_and_draws_from_the_prior(kind, vectorize):
    data = problem(torch.float64)
    model = network(kind, data)
    with pyro.get_param_store().scope():
        guide = AutoNormal(model)
        elbo = Trace_ELBO(2, vectorize_particles=vectorize)
        svi = SVI(model, guide, Adam({"lr": 1e-3}), elbo)
        assert all(math.isfinite(svi.step(*arguments(data))) for _ in range(3))
        draws = Predictive(model, num_samples=4, parallel=vectorize)(data.u, data.y)
    for name, shape in (model.sampled_shapes() | extra_sites(model)).items():
        assert draws[name].numel() == 4 * shape.numel()
        assert draws[name].dtype == torch.float64
    assert draws["s"].shape[-2:] == (12, 5)


@pytest.mark.parametrize("kind", ["laplace", "student", "mixture", "horseshoe"])
def test_nuts_runs(kind):
    torch.manual_seed(0)
    data = problem()
    model = network(kind, data)
    mcmc = MCMC(NUTS(model, max_tree_depth=3), 5, warmup_steps=5, disable_progbar=True)
    mcmc.run(*arguments(data))
    samples = mcmc.get_samples()
    posterior = Posterior(model, weights=samples)
    assert torch.isfinite(posterior.predict(data).mean).all()
    assert samples.keys() == model.shapes.keys() | extra_sites(model).keys()


@pytest.mark.parametrize("guide", ["normal", "diagonal", "lowrank", "delta"])
def test_a_prior_of_positive_weights_is_started_within_its_support(guide):
    """The warm start knows nothing of the prior, and half of its weights are negative."""
    torch.manual_seed(0)
    data = OperatorData(torch.randn(20, 3), torch.rand(6, 1), torch.rand(20, 6))
    model = DeepONet.for_data(
        data, branch=(4,), trunk=(4,), prior=lambda name, shape: dist.LogNormal(-1.0, 0.5)
    )
    posterior = fit(model, data, guide, steps=5, warm_start=5, progress=False)
    weights = posterior.sample_weights(10, seed=0)
    assert all((w > 0).all() for w in weights.values())
    assert posterior.predict(data, seed=0).std.isfinite().all()
