"""The loss against stock Pyro on the paper's repeated rows, and against analytic posteriors."""

import math
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoNormal
from pyro.optim import Adam

from pyro_deeponet import (
    DeepONet,
    DeepONetELBO,
    OperatorData,
    contraction,
    fit,
    likelihoods,
    priors,
)
from pyro_deeponet import elbo as elbo_module
from pyro_deeponet.elbo import gaussian_log_likelihood, unflatten
from pyro_deeponet.guides import GUIDES, flat_sampler, make_guide, site_names, start_guide
from pyro_deeponet.layers import defaults_of


def paper_model(model, u, y, s):
    """The model as in the paper: a row a data point, the input function repeated in each."""

    def weight(name):
        shape = model.shapes[name]
        zeros = torch.zeros(shape, dtype=u.dtype)
        return pyro.sample(name, dist.Normal(zeros, torch.ones_like(zeros)).to_event(len(shape)))

    def net(name, x, depth):
        for i in range(depth):
            x = x @ weight(f"{name}.{i}.weight").T + weight(f"{name}.{i}.bias")
            x = torch.relu(x) if i < depth - 1 or model.final_activation else x
        return x

    b = net("branch", model.scaling.u(u), len(model.branch_sizes))
    t = net("trunk", model.scaling.y(y), len(model.trunk_sizes))
    joint = (b * t).sum(1, keepdim=True) if model.head.kind == "dot" else b * t
    mu, delta = (joint @ weight("head.weight").T + weight("head.bias")).unbind(1)
    unit = model.scaling.s.scale
    sigma = unit * (torch.nn.functional.softplus(delta) + model.likelihood.floor)
    with pyro.plate("rows", len(s)):
        pyro.sample("s", dist.Normal(model.scaling.s.inverse(mu), sigma), obs=s)


def fixed_guide(values, log_q):
    """A guide that draws given weights with a given log density."""

    def guide(*args):
        for i, (name, value) in enumerate(values.items()):
            density = log_q if i == 0 else torch.zeros_like(log_q)
            pyro.sample(name, dist.Delta(value, log_density=density, event_dim=value.dim()))

    return guide


def case(dtype, head, equal=False, final=False):
    torch.manual_seed(1)
    n, k, q, m, width, particles = (5,) * 6 if equal else (4, 6, 9, 3, 7, 2)
    index = torch.stack([torch.randperm(q)[:m] for _ in range(n)])
    data = OperatorData(
        torch.randn(n, k, dtype=dtype), torch.rand(q, 2, dtype=dtype),
        5 + 2 * torch.randn(n, m, dtype=dtype), index,
    )  # fmt: skip
    model = DeepONet.for_data(
        data, branch=(6, width), trunk=(5, 4, width), head=head, final_activation=final,
        likelihood=likelihoods.Heteroscedastic(floor=0.1),
    ).to(dtype)  # fmt: skip
    guide = make_guide(partial(AutoNormal, init_scale=0.1), model)
    start_guide(guide, model.start(seed=2))
    return model, guide, data, particles


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("head", ["dot", "features"])
@pytest.mark.parametrize("route", ["grid", "points"])
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("final", [False, True])
def test_loss_and_gradients_are_those_of_trace_elbo_on_repeated_rows(
    monkeypatch, dtype, head, route, equal, final
):
    model, guide, data, particles = case(dtype, head, equal, final)
    monkeypatch.setattr(contraction, "_grid_is_cheaper", lambda *_: route == "grid")
    parameters = list(guide.parameters())
    elbo = DeepONetELBO(particles)
    draw = flat_sampler(guide, model.shapes)
    torch.manual_seed(3)
    loss = elbo.differentiable_loss(model, guide, data.u, data.y, data.s, data.index, data.mask)
    fast = torch.autograd.grad(loss, parameters)

    torch.manual_seed(3)  # the same draws again, given to stock Pyro one by one
    flat, log_q = draw(particles)
    weights = unflatten(flat, {name: model.shapes[name] for name in site_names(guide)})
    rows = data.to_rows()
    stock = 0.0
    for i in range(particles):
        one = fixed_guide({k: w[i] for k, w in weights.items()}, log_q[i])
        stock = stock + Trace_ELBO().differentiable_loss(partial(paper_model, model), one, *rows)
    stock = stock / particles
    slow = torch.autograd.grad(stock, parameters)

    torch.testing.assert_close(loss, stock, rtol=1e-5, atol=0)
    top = max(g.abs().max() for g in slow)
    for mine, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * top.item())
    expected, divergence = elbo.terms
    assert divergence - expected == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "diagonal", "mvn", "lowrank", "delta", "iaf"])
def test_draws_and_densities_are_those_of_the_guide(dtype, kind):
    model, _, data, _ = case(dtype, "dot")
    guide = make_guide(kind, model)
    start_guide(guide, model.start(seed=2))
    torch.manual_seed(0)
    flat, log_q = flat_sampler(guide, model.shapes)(3)
    weights = unflatten(flat, {name: model.shapes[name] for name in site_names(guide)})
    assert flat.dtype == dtype
    arguments = data.u, data.y, data.s, data.index
    for i in range(3):
        given = {name: w[i] for name, w in weights.items()}
        given |= {f"{name}_unconstrained": w for name, w in given.items()}
        given |= {f"_{guide._pyro_name}_latent": flat[i]}
        with pyro.get_param_store().scope():
            trace = poutine.trace(poutine.condition(guide, data=given)).get_trace(*arguments)
        with defaults_of(flat):  # Pyro inverts a flow in torch's default type
            trace.compute_log_prob()
        expected = sum(site.get("log_prob_sum", 0.0) for site in trace.nodes.values())
        expected = torch.as_tensor(expected).to(dtype)
        torch.testing.assert_close(log_q[i], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", GUIDES)
def test_guides_start_at_the_weights_given(kind):
    model, *_ = case(torch.float32, "dot")
    guide = make_guide(kind, model)
    start = model.start(seed=7)
    start_guide(guide, start)
    flat, _ = flat_sampler(guide, model.shapes)(200)
    drawn = unflatten(flat, {name: model.shapes[name] for name in site_names(guide)})
    for name, value in start.items():
        spread = 0.2 if kind == "iaf" else 0.01
        torch.testing.assert_close(drawn[name].mean(0), value, atol=spread, rtol=0)


@pytest.mark.parametrize("wrapped", ["a callable guide", "a hierarchical prior", "a learned prior"])
def test_what_is_not_known_goes_through_stock_pyro(wrapped):
    scale = torch.nn.Parameter(torch.tensor(1.0))

    def hierarchical(name, shape):
        tau = pyro.sample(f"{name}_tau", dist.HalfNormal(1.0))
        tau = tau.reshape(*tau.shape, *[1] * len(shape))
        return dist.Normal(torch.zeros(shape), tau).to_event(len(shape))

    prior = {
        "a callable guide": priors.Normal(),
        "a hierarchical prior": hierarchical,
        "a learned prior": lambda name, shape: dist.Normal(torch.zeros(shape), scale),
    }[wrapped]
    data = OperatorData(torch.randn(4, 3), torch.rand(5, 1), torch.randn(4, 5))
    model = DeepONet.for_data(data, branch=(4, 3), trunk=(4, 3), prior=prior)
    with pyro.get_param_store().scope():
        guide = make_guide(partial(AutoNormal, init_scale=0.01), model)
        start_guide(guide, model.start())
        if wrapped == "a callable guide":
            guide = torch.nn.Sequential()
            guide.forward = make_guide("diagonal", model).forward
        elbo = DeepONetELBO(400)
        torch.manual_seed(0)
        loss = elbo.loss_and_grads(model, guide, data.u, data.y, data.s)
        assert elbo._plan is None
        stock = Trace_ELBO(400, vectorize_particles=True, max_plate_nesting=2)
        torch.manual_seed(0)
        assert loss == pytest.approx(stock.loss(model, guide, data.u, data.y, data.s), rel=1e-4)
    assert elbo.terms[1] - elbo.terms[0] == pytest.approx(loss, rel=1e-4)
    if wrapped == "a learned prior":
        assert scale.grad is not None


def test_priors_other_than_gaussians_are_right():
    laplace = DeepONet(3, 1, (4, 3), (4, 3), prior=lambda name, shape: dist.Laplace(0.0, 1.0))
    data = OperatorData(torch.randn(4, 3), torch.rand(5, 1), torch.randn(4, 5))
    guide = make_guide("diagonal", laplace)
    start_guide(guide, laplace.start())
    elbo = DeepONetELBO(3000)
    fast = elbo.loss(laplace, guide, data.u, data.y, data.s)
    assert elbo._plan is not None
    with pyro.get_param_store().scope():
        stock = Trace_ELBO(3000, vectorize_particles=True, max_plate_nesting=2)
        slow = stock.loss(laplace, guide, data.u, data.y, data.s)
    assert fast == pytest.approx(slow, rel=1e-3)


def test_minibatch_losses_average_to_the_full_one():
    model, guide, data, _ = case(torch.float64, "dot")
    elbo = DeepONetELBO(3)

    def loss(rows):
        torch.manual_seed(5)
        part = data.subset(rows)
        return elbo.loss(model, guide, part.u, part.y, part.s, part.index, None, len(data))

    batches = [loss([i, j]) for i in range(4) for j in range(i)]
    assert sum(batches) / len(batches) == pytest.approx(loss([0, 1, 2, 3]), rel=1e-10)


@pytest.mark.parametrize("chunk", [1, 30, 10**9])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
def test_gradients_of_functions_some_at_a_time_are_those_of_all(
    monkeypatch, chunk, masked, kl_weight
):
    model, guide, data, _ = case(torch.float64, "dot")
    monkeypatch.setattr(elbo_module, "CHUNK", chunk)
    mask = torch.rand(data.s.shape) < 0.5 if masked else None
    arguments = data.u, data.y, data.s, data.index, mask, 40
    elbo, parameters = DeepONetELBO(3, kl_weight), list(guide.parameters())
    torch.manual_seed(0)
    whole = elbo.differentiable_loss(model, guide, *arguments)
    expected, terms = torch.autograd.grad(whole, parameters), elbo.terms
    torch.manual_seed(0)
    assert elbo.loss_and_grads(model, guide, *arguments) == pytest.approx(whole.item())
    assert elbo.terms == pytest.approx(terms)
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("stock", [True, False])
def test_losses_of_some_points_average_to_the_full_one(indexed, stock):
    model, guide, data, _ = case(torch.float64, "dot")
    if not indexed:
        data = OperatorData(data.u, data.y[:3], data.s)
    elbo = (
        Trace_ELBO(3, vectorize_particles=True, max_plate_nesting=2) if stock else DeepONetELBO(3)
    )

    def loss(columns):
        torch.manual_seed(5)
        y, index = (data.y, data.index[:, columns]) if indexed else (data.y[columns], None)
        with pyro.get_param_store().scope():
            return elbo.loss(model, guide, data.u, y, data.s[:, columns], index, None, (4, 3))

    batches = [loss([0, 1]), loss([0, 2]), loss([1, 2])]
    assert sum(batches) / 3 == pytest.approx(loss([0, 1, 2]), rel=1e-10)


def test_kl_weight_scales_the_divergence_alone():
    model, guide, data, _ = case(torch.float64, "dot")
    arguments = data.u, data.y, data.s, data.index

    def loss(elbo, guide=guide):
        torch.manual_seed(5)
        return elbo.loss(model, guide, *arguments)

    plain = DeepONetELBO(3)
    full = loss(plain)
    tempered = loss(DeepONetELBO(3, kl_weight=0.1))
    assert full - tempered == pytest.approx(0.9 * plain.terms[1], rel=1e-9)
    with pyro.get_param_store().scope():  # and the same in the path through stock Pyro
        module = torch.nn.Sequential()
        module.forward = guide.forward
        slow, slow_tempered = DeepONetELBO(3), DeepONetELBO(3, kl_weight=0.1)
        difference = loss(slow, module) - loss(slow_tempered, module)
    assert slow._plan is None
    assert difference == pytest.approx(0.9 * slow.terms[1], rel=1e-9)


def linear_problem(head):
    """A network linear in its random weights, those of the branch, and its exact posterior."""
    torch.manual_seed(0)
    n, k, q, p, noise = 30, 2, 6, 2, 0.4
    u, y = torch.randn(n, k), torch.rand(q, 1)
    data = OperatorData(u, y, torch.randn(n, q))
    model = DeepONet(
        k, 1, branch=(p,), trunk=(p,), activation="identity", head=head,
        prior=lambda name, shape: dist.Normal(0.0, 1.0) if name.startswith("branch") else None,
        likelihood=likelihoods.FixedNoise(noise),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter)).requires_grad_(False)
    # mu is linear in the branch weights: read the design matrix off unit vectors.
    shapes = model.sampled_shapes()
    size = sum(s.numel() for s in shapes.values())
    weights = unflatten(torch.eye(size), shapes) | model.plain_weights()
    zero = unflatten(torch.zeros(size), shapes) | model.plain_weights()
    offset = model.moments(zero, u, y)[0]
    design = (model.moments(weights, u, y)[0] - offset).reshape(size, -1).double()
    precision = design @ design.T / noise**2 + torch.eye(size)
    mean = torch.linalg.solve(precision, design @ (data.s - offset).flatten().double() / noise**2)
    return model, data, mean, precision, shapes


@pytest.mark.parametrize("head", ["dot", "features"])
@pytest.mark.parametrize("kind", ["normal", "mvn", "laplace"])
def test_the_posterior_of_a_linear_model_is_the_analytic_one(head, kind):
    model, data, mean, precision, shapes = linear_problem(head)
    posterior = fit(
        model, data, kind, steps=2500, warm_start=0, lr=2e-2, batch_size=1000, progress=False
    )
    if kind == "normal":
        locs = dict(posterior.guide.locs.named_parameters())
        found = torch.cat([locs[f"{name}_unconstrained"].flatten() for name in shapes]).double()
        scales = dict(posterior.guide.scales.named_parameters())
        scale = torch.cat([scales[f"{name}_unconstrained"].flatten() for name in shapes])
        scale = torch.nn.functional.softplus(scale).double()
        conditional = precision.diagonal().rsqrt()
        torch.testing.assert_close(scale, conditional, rtol=0.05, atol=0)
    else:
        gaussian = posterior.guide.get_posterior()
        found = gaussian.mean.detach().double()
        covariance = gaussian.covariance_matrix.detach().double()
        exact = torch.linalg.inv(precision)
        assert torch.linalg.norm(covariance - exact) < 0.1 * torch.linalg.norm(exact)
        torch.testing.assert_close(covariance.diagonal(), exact.diagonal(), rtol=0.1, atol=0)
    assert torch.linalg.norm(found - mean) < 0.02 * torch.linalg.norm(mean)


def test_the_gaussian_log_likelihood_in_physical_units():
    model, _, data, _ = case(torch.float64, "dot")
    weights = {name: torch.randn(2, *shape).double() for name, shape in model.shapes.items()}
    mu, sigma = model.moments(weights, data.u, data.y, data.index)
    found = gaussian_log_likelihood(model, weights, data.u, data.y, data.s, data.index)
    torch.testing.assert_close(found, dist.Normal(mu, sigma).log_prob(data.s).sum())
    mask = torch.rand(data.s.shape) < 0.5
    masked = gaussian_log_likelihood(model, weights, data.u, data.y, data.s, data.index, mask)
    torch.testing.assert_close(masked, dist.Normal(mu, sigma).log_prob(data.s)[:, mask].sum())


def test_a_guide_of_another_class_with_its_own_start():
    model, _, data, _ = case(torch.float32, "dot")
    guide = make_guide(partial(AutoDiagonalNormal, init_scale=0.05), model)
    start_guide(guide, model.start())
    assert math.isfinite(DeepONetELBO(2).loss(model, guide, data.u, data.y, data.s, data.index))
    with pytest.raises(ValueError, match="'normal', 'diagonal'"):
        make_guide("gaussian", model)
    with pytest.raises(TypeError, match="expected a guide that is a module"):
        make_guide(lambda model: 3, model)
    large = DeepONet(100, 1)
    with pytest.raises(ValueError, match="'lowrank'"):
        make_guide("mvn", large)


def test_stock_svi_moves_the_parameters_of_a_guide_that_was_never_called():
    """Pyro's optimisers learn of parameters by messages, which the fast path does not send."""
    model, _, data, particles = case(torch.float32, "dot")
    arguments = data.u, data.y, data.s, data.index
    losses = []
    stock = Trace_ELBO(particles, vectorize_particles=True, max_plate_nesting=2)
    for elbo in (DeepONetELBO(particles), stock):
        with pyro.get_param_store().scope():
            torch.manual_seed(0)
            guide = AutoNormal(model)
            svi = SVI(model, guide, Adam({"lr": 1e-2}), elbo)
            losses.append([svi.step(*arguments) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0][0] != losses[0][1]


def test_a_guide_that_was_never_called_has_a_loss():
    model, _, data, _ = case(torch.float32, "dot")
    with pyro.get_param_store().scope():
        guide, elbo = AutoNormal(model), DeepONetELBO(3)
        found = [elbo.loss(model, guide, data.u, data.y, data.s, data.index) for _ in range(2)]
    assert all(math.isfinite(loss) for loss in found)
    assert elbo._plan is not None
