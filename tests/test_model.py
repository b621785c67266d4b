"""The network against a plain evaluation row by row, and the shapes and units it keeps."""

import copy
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample

from pyro_deeponet import DeepONet, OperatorData, Scaling, contraction, likelihoods, priors
from pyro_deeponet.layers import linear

DTYPES = [torch.float32, torch.float64]


def tolerance(dtype):
    size = 1e-4 if dtype == torch.float32 else 1e-10
    return {"rtol": size, "atol": size}


def row_by_row(model, weights, u, y):
    """The output nodes of one network at the rows of u and y, written down as in the paper."""

    def net(name, x, depth):
        for i in range(depth):
            x = x @ weights[f"{name}.{i}.weight"].T + weights[f"{name}.{i}.bias"]
            if i < depth - 1 or model.final_activation:
                x = torch.relu(x)
        return x

    b = net("branch", (u - model.scaling.u.shift) / model.scaling.u.scale, len(model.branch_sizes))
    t = net("trunk", (y - model.scaling.y.shift) / model.scaling.y.scale, len(model.trunk_sizes))
    joint = (b * t).sum(1, keepdim=True) if model.head.kind == "dot" else b * t
    return (joint @ weights["head.weight"].T + weights["head.bias"]).unbind(1)


def latent_sites(trace):
    return [n for n, site in trace.iter_stochastic_nodes() if not site_is_subsample(site)]


def random_case(dtype, head="dot", final=False, n=4, k=6, q=9, d=2, m=3, samples=5, width=7):
    torch.manual_seed(0)
    u, y = torch.randn(n, k, dtype=dtype), torch.rand(q, d, dtype=dtype)
    data = OperatorData(u, y, 3 * torch.randn(n, q, dtype=dtype) + 10)
    model = DeepONet.for_data(
        data, branch=(8, width), trunk=(5, 6, width), head=head, final_activation=final
    ).to(dtype)
    index = torch.randint(0, q, (n, m))
    weights = {k: torch.randn(samples, *v, dtype=dtype) for k, v in model.shapes.items()}
    return model, weights, u, y, index


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head", ["dot", "features"])
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("lead", ["none", "samples", "particles"])
@pytest.mark.parametrize("route", ["grid", "points", "no index"])
def test_nodes_are_those_of_the_network_row_by_row(monkeypatch, dtype, head, final, lead, route):
    model, weights, u, y, index = random_case(dtype, head, final)
    monkeypatch.setattr(contraction, "_grid_is_cheaper", lambda *_: route == "grid")
    if route == "no index":
        index = None
    given = {
        "none": {k: w[0] for k, w in weights.items()},
        "samples": weights,
        "particles": {k: w[:, None, None] for k, w in weights.items()},
    }[lead]
    mu, delta = model.nodes(given, u, y, index)
    columns = torch.arange(len(y)).expand(len(u), -1) if index is None else index
    shape = columns.shape if lead == "none" else (5, *columns.shape)
    assert mu.shape == delta.shape == shape
    for sample in range(1 if lead == "none" else 5):
        rows_u = u.repeat_interleave(columns.shape[1], 0)
        one = {k: w[sample] for k, w in weights.items()}
        expected = row_by_row(model, one, rows_u, y[columns.flatten()])
        for found, want in zip((mu, delta), expected, strict=True):
            found = found if lead == "none" else found[sample]
            torch.testing.assert_close(found.flatten(), want, **tolerance(dtype))


def test_equal_sizes_everywhere_are_not_confused():
    """S = n = q = width: a broadcast over the wrong axis would go unnoticed elsewhere."""
    model, weights, u, y, _ = random_case(torch.float64, n=5, q=5, samples=5, width=5, k=5)
    mu, _ = model.nodes(weights, u, y)
    rows_u, rows_y = u.repeat_interleave(5, 0), y.repeat(5, 1)
    for sample in range(5):
        one = {k: w[sample] for k, w in weights.items()}
        torch.testing.assert_close(mu[sample].flatten(), row_by_row(model, one, rows_u, rows_y)[0])


def test_moments_are_in_physical_units():
    model, weights, u, y, _ = random_case(torch.float64)
    mu, delta = model.nodes(weights, u, y)
    mean, sigma = model.moments(weights, u, y)
    scale = model.scaling.s
    torch.testing.assert_close(mean, scale.shift + scale.scale * mu)
    torch.testing.assert_close(sigma, scale.scale * (torch.log1p(delta.exp()) + 1e-6))


@pytest.mark.parametrize("samples", [(), (7,), (7, 1, 1), (2, 3)])
def test_linear_with_any_leading_dimensions(samples):
    x = torch.randn(5, 3, dtype=torch.float64)
    weight, bias = torch.randn(*samples, 4, 3).double(), torch.randn(*samples, 4).double()
    out = linear(x, weight, bias)
    assert out.shape == (*samples, 5, 4)
    torch.testing.assert_close(out, torch.einsum("ni,...oi->...no", x, weight) + bias[..., None, :])
    deeper = linear(out, weight.mT, x.new_zeros(*samples, 3))
    torch.testing.assert_close(deeper, torch.einsum("...ni,...io->...no", out, weight))


def test_one_weight_may_be_shared_by_all_samples():
    model, weights, u, y, _ = random_case(torch.float64)
    mixed = weights | {"trunk.0.weight": weights["trunk.0.weight"][0]}
    same = weights | {
        "trunk.0.weight": weights["trunk.0.weight"][:1].expand_as(weights["trunk.0.weight"])
    }
    torch.testing.assert_close(model.nodes(mixed, u, y)[0], model.nodes(same, u, y)[0])


def test_sites_and_plates():
    model, _, u, y, index = random_case(torch.float32)
    s = torch.zeros(4, 3)
    trace = poutine.trace(model).get_trace(u, y, s, index, size=40)
    latent = latent_sites(trace)
    assert latent == list(model.shapes)
    assert latent[0] == "branch.0.weight"
    site = trace.nodes["s"]
    plates = {(frame.name, frame.dim) for frame in site["cond_indep_stack"]}
    assert plates == {("functions", -2), ("points", -1)}
    assert site["scale"] == pytest.approx(10.0)
    assert all(trace.nodes[name]["fn"].batch_shape == () for name in latent)


def test_masked_outputs_do_not_count():
    model, weights, u, y, index = random_case(torch.float64)
    one = {k: w[0] for k, w in weights.items()}
    s, mask = torch.randn(4, 3).double(), torch.tensor([[True, False, True]] * 4)
    conditioned = poutine.condition(model, data=one)
    masked = poutine.trace(conditioned).get_trace(u, y, s, index, mask)
    free = poutine.trace(conditioned).get_trace(u, y, s[:, [0, 2]], index[:, [0, 2]])
    masked.compute_log_prob(), free.compute_log_prob()
    torch.testing.assert_close(masked.nodes["s"]["log_prob_sum"], free.nodes["s"]["log_prob_sum"])


@pytest.mark.parametrize(
    "prior",
    [
        priors.Normal(0.0, 2.0),
        priors.FanIn(1.0),
        lambda name, shape: dist.Laplace(0.0, 1.0),
        lambda name, shape: dist.Normal(torch.zeros(shape), 1.0).to_event(len(shape)),
        lambda name, shape: dist.StudentT(4.0, torch.zeros(shape), 1.0),
    ],
)
def test_any_prior_in_any_float_type(prior):
    model = DeepONet(6, 2, (4, 3), (4, 3), prior=prior)
    for dtype in DTYPES:
        model = model.to(dtype)
        inputs = torch.zeros(2, 6, dtype=dtype), torch.zeros(5, 2, dtype=dtype)
        trace = poutine.trace(model).get_trace(*inputs)
        for name, shape in model.shapes.items():
            assert trace.nodes[name]["value"].shape == shape
            assert trace.nodes[name]["fn"].event_shape == shape
        assert trace.nodes["s"]["value"].dtype == dtype
    assert torch.get_default_dtype() == torch.float32


def test_fan_in_scales():
    prior = priors.FanIn(2.0)
    assert prior("w", torch.Size([5, 16])).base_dist.scale.unique().item() == pytest.approx(0.5)
    assert prior("b", torch.Size([5])).base_dist.scale.unique().item() == pytest.approx(2.0)


def test_a_prior_may_differ_from_layer_to_layer_and_leave_some_weights_plain():
    def prior(name, shape):
        if name.startswith("trunk"):
            return None
        return dist.Normal(0.0, 0.1 if name == "head.weight" else 1.0)

    model = DeepONet(6, 2, (4, 3), (4, 3), prior=prior)
    assert set(model.plain_weights()) == {n for n in model.shapes if n.startswith("trunk")}
    with pyro.get_param_store().scope():  # where Pyro registers the plain ones
        trace = poutine.trace(model).get_trace(torch.zeros(2, 6), torch.zeros(5, 2))
    assert set(latent_sites(trace)) == {*model.sampled_shapes(), "s"}
    assert trace.nodes["head.weight"]["fn"].base_dist.scale.unique().item() == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("prior", "error", "message"),
    [
        (lambda name, shape: 1.0, TypeError, "gave float for 'branch.0.weight'"),
        (lambda name, shape: dist.Normal(torch.zeros(9), 1.0), ValueError, r"shape \(9,\) for"),
    ],
)
def test_bad_priors(prior, error, message):
    model = DeepONet(6, 2, (4, 3), (4, 3), prior=prior)
    with pytest.raises(error, match=message):
        model(torch.zeros(2, 6), torch.zeros(5, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sensors": 0}, "sensors"),
        ({"branch": ()}, "branch"),
        ({"trunk": (4, 5)}, "branch ends with width 3 and the trunk with 5"),
        ({"head": "sum"}, "'dot', 'features'"),
        ({"activation": "rulu"}, "'relu', 'tanh'"),
        ({"scaling": "standard"}, "for_data"),
    ],
)
def test_bad_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        DeepONet(**({"sensors": 6, "coordinates": 2, "branch": (4, 3), "trunk": (4, 3)} | change))


def test_inputs_of_another_size_are_named():
    model = DeepONet(100, 2)
    with pytest.raises(ValueError, match=r"\(3, 64\), the model was built for \(n, 100\)"):
        model(torch.zeros(3, 64), torch.zeros(5, 2))
    with pytest.raises(ValueError, match=r"\(5, 1\), the model was built for \(q, 2\)"):
        model(torch.zeros(3, 100), torch.zeros(5, 1))


def test_unknown_scaling():
    data = OperatorData([[1.0], [2.0]], [[0.0]], [[1.0], [2.0]])
    with pytest.raises(ValueError, match="'standard', 'minmax', None or a Scaling"):
        DeepONet.for_data(data, scaling="whiten")


@pytest.mark.parametrize("kind", ["standard", "minmax"])
def test_scaling_of_data(kind):
    rng = np.random.default_rng(0)
    u, y = rng.normal(5, 3, (50, 4)), rng.uniform(-2, 7, (20, 2))
    u[:, 2] = 4.0  # a sensor that never changes
    s = 1e5 + 10 * rng.normal(size=(50, 20))
    data = OperatorData(u, y, s)
    scaling = getattr(Scaling, kind)(data).double()
    for part, x in (("u", data.u[:, [0, 1, 3]]), ("y", data.y), ("s", data.s.reshape(-1, 1))):
        mapped = getattr(scaling, part)(getattr(data, part))
        mapped = mapped[:, [0, 1, 3]] if part == "u" else mapped.reshape(len(x), -1)
        low, high = (mapped.mean(0), mapped.std(0, correction=0)) if kind == "standard" else (
            mapped.min(0).values, mapped.max(0).values)  # fmt: skip
        loose = 1e-3 if part == "s" else 1e-4  # a shift of 1e5 is known to 4e-3 in float32
        torch.testing.assert_close(low, torch.zeros_like(low), atol=loose, rtol=0)
        torch.testing.assert_close(high, torch.ones_like(high), atol=loose, rtol=0)
        back = getattr(scaling, part).inverse(getattr(scaling, part)(getattr(data, part)))
        torch.testing.assert_close(back, getattr(data, part))
    assert torch.equal(scaling.u(data.u)[:, 2], torch.zeros(50).double())


def test_scaling_reads_observed_values_only():
    s = [[1.0, 3.0], [5.0, 1e9]]
    data = OperatorData([[0.0], [1.0]], [[0.0], [1.0]], s, mask=[[True, True], [True, False]])
    assert Scaling.minmax(data).s.scale == 4.0


@pytest.mark.parametrize(
    ("likelihood", "sigma"),
    [
        (likelihoods.Heteroscedastic(floor=0.1), 0.1 + np.log(2)),
        (likelihoods.Homoscedastic(initial=0.3), 0.3),
        (likelihoods.FixedNoise(0.5), 0.5 / 4),
        (likelihoods.FixedNoise(), 1.0),
    ],
)
def test_likelihoods(likelihood, sigma):
    delta = torch.zeros(3, 5) if likelihood.nodes == 2 else None
    assert likelihood.sigma(delta, torch.tensor(4.0)).unique().item() == pytest.approx(sigma)
    start = likelihood.start_at(0.25)
    if likelihood.nodes == 2:
        found = likelihood.sigma(torch.tensor(start), torch.tensor(4.0))
        assert found.item() == pytest.approx(0.25)
    elif isinstance(likelihood, likelihoods.Homoscedastic):
        assert likelihood.sigma(None, torch.tensor(4.0)).item() == pytest.approx(0.25)


# Where the way to compute it changes: the degree of the polynomial, the logarithm, torch's own.
SWITCHES = [*range(likelihoods.SMALLEST - 2, 2), likelihoods.LARGEST, 70]


@pytest.mark.parametrize("floor", [0.0, 1e-6, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fast_softplus_is_exact_on_both_sides_of_every_switch(dtype, floor):
    for largest in (x + shift for x in SWITCHES for shift in (-1e-4, 0.0, 1e-4)):
        bits = torch.linspace(largest - 15, largest, 500, dtype=dtype)
        delta = math.log(2) * bits.double()
        exact = floor + delta.clamp_min(0) + torch.log1p(torch.exp(-delta.abs()))
        found = likelihoods.softplus2_(bits.clone(), floor).double()
        # In float64 the exact value has roundings too, that of delta among them.
        rtol = 3e-7 if dtype == torch.float32 else 2e-14
        torch.testing.assert_close(found, exact, rtol=rtol, atol=0)


def test_the_polynomial_is_the_logarithm_to_a_quarter_of_an_epsilon():
    for power in range(likelihoods.SMALLEST, 0):
        e = np.linspace(0, 2.0**power, 1001)[1:]
        found = np.polynomial.Polynomial(likelihoods.log1p_polynomial(power))(e)
        np.testing.assert_allclose(found, np.log1p(e) / e, rtol=0, atol=2.0**-25)
    assert likelihoods.log1p_polynomial(0) is None


def test_the_fast_noise_level_is_that_of_the_likelihood():
    class Doubled(likelihoods.Heteroscedastic):
        def sigma(self, delta, unit):
            return 2 * super().sigma(delta, unit)

    unit, delta = torch.tensor(4.0), torch.linspace(-9, 3, 50)
    for likelihood in (likelihoods.Heteroscedastic(0.1), Doubled()):
        found = likelihood.sigma_(delta / math.log(2), unit)
        torch.testing.assert_close(found, likelihood.sigma(delta, unit))
    odd = torch.tensor([math.nan, -3.0, -math.inf, math.inf])
    found = likelihoods.softplus2_(odd.clone())
    expected = torch.nn.functional.softplus(odd * math.log(2))
    torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(likelihoods.softplus2_(odd[1:3].clone()), expected[1:3])
    assert not likelihoods.softplus2_(odd[2:3].clone()).any()
    assert likelihoods.softplus2_(torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: likelihoods.FixedNoise(-1.0),
        lambda: likelihoods.Homoscedastic(0.0),
        lambda: likelihoods.Heteroscedastic(-0.1),
        lambda: priors.Normal(0.0, 0.0),
        lambda: priors.FanIn(-1.0),
    ],
)
def test_scales_must_be_positive(make):
    with pytest.raises(ValueError, match="expected"):
        make()


@pytest.mark.parametrize("activation", ["tanh", "gelu", "silu", "sigmoid", "sine", torch.nn.ELU()])
def test_activations(activation):
    model = DeepONet(3, 1, (4, 2), (4, 2), activation=activation)
    assert torch.isfinite(model(torch.ones(2, 3), torch.ones(5, 1))).all()


def test_a_deterministic_model_has_no_latent_sites():
    model = DeepONet(3, 1, (4, 2), (4, 2), prior=None, likelihood=likelihoods.FixedNoise(0.1))
    with pyro.get_param_store().scope():
        trace = poutine.trace(model).get_trace(torch.ones(2, 3), torch.ones(5, 1), torch.ones(2, 5))
    assert not latent_sites(trace)
    assert set(model.plain_weights()) == set(model.shapes)
    assert "deterministic" in repr(model)


def test_state_dict_carries_the_scaling():
    model, _, u, *_ = random_case(torch.float32)
    other = DeepONet(6, 2, (8, 7), (5, 6, 7))
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.scaling.s.shift, model.scaling.s.shift)
    torch.testing.assert_close(copy.deepcopy(model).scaling.u(u), model.scaling.u(u))
