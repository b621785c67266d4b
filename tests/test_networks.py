"""Modules as nets, features of the coordinates, the linear path: one model, which learns."""

import copy
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.nn import PyroModule
from pyro.optim import Adam
from torch import nn

from pyro_deeponet import (
    DeepONet,
    DeepONetELBO,
    OperatorData,
    Posterior,
    Scaling,
    fit,
    likelihoods,
    priors,
)
from pyro_deeponet.elbo import unflatten
from pyro_deeponet.guides import flat_sampler, make_guide, site_names, start_guide
from pyro_deeponet.metrics import nmse
from pyro_deeponet.networks import Decays, Fourier

SENSORS, WIDTH = 16, 6


class Convolution(nn.Module):
    """A 4 x 4 field to features, with a buffer, a layer and a weight in two places each."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 2)
        self.twice = nn.Linear(3, 3)
        self.again = self.twice
        self.third = nn.Linear(3, 3)
        self.third.weight = self.twice.weight
        self.last = nn.Linear(27, width)
        self.register_buffer("centre", torch.tensor(0.1))

    def forward(self, x):
        x = torch.tanh(self.conv(x.reshape(-1, 1, 4, 4) - self.centre)).flatten(2).mT
        x = self.third(self.again(torch.tanh(self.twice(x))))
        return self.last(x.flatten(1))


class Waves(nn.Module):
    """A trunk of sines with learned frequencies, held by the module itself."""

    def __init__(self, inputs, width=WIDTH):
        super().__init__()
        self.frequencies = nn.Parameter(torch.randn(5, inputs))
        self.out = nn.Linear(10, width)

    def forward(self, y):
        angles = y @ self.frequencies.T
        return self.out(torch.cat([angles.sin(), angles.cos()], 1))


def three(y):
    return torch.stack([y[:, 0], y[:, 1], y[:, 0] * y[:, 1]], 1)


CASES = {
    "modules": lambda: {"branch": Convolution(), "trunk": Waves(2)},
    "made": lambda: {"branch": Convolution, "trunk": (5, WIDTH)},
    "features": lambda: {"trunk_features": Fourier((1.0, None), harmonics=2)},
    "decays": lambda: {"trunk_features": Decays(((), (0.3, 1.0)), Fourier((1.0, None)))},
    "own features": lambda: {"trunk_features": three, "trunk": Waves(3)},
    "skip": lambda: {"branch_skip": True},
    "skip of a module": lambda: {"branch": Convolution(), "branch_skip": True, "head": "features"},
}


def random_data(dtype=torch.float32, n=7):
    torch.manual_seed(0)
    y = torch.rand(9, 2, dtype=dtype)
    index = torch.stack([torch.randperm(9)[:4] for _ in range(n)])
    u = 1 + torch.randn(n, SENSORS, dtype=dtype)
    return OperatorData(u, y, 5 + 2 * torch.randn(n, 4, dtype=dtype), index)


def build(case, data, **kwargs):
    torch.manual_seed(1)
    nets = {"branch": (5, WIDTH), "trunk": (5, WIDTH)} | CASES[case]() | kwargs
    return DeepONet.for_data(data, **nets).to(data.u.dtype)


def one_by_one(model, weights, u, y):
    """The output nodes of one network, by the torch modules themselves with these weights."""
    given = CASES.get(getattr(model, "case", None), dict)()

    def net(name, x):
        own = {k.removeprefix(f"{name}."): w for k, w in weights.items() if k.startswith(name)}
        own.pop("skip.weight", None)
        module = given.get(name)
        if module is None or isinstance(module, tuple):
            for i in range(len(own) // 2):
                x = torch.relu(x) if i else x
                x = x @ own[f"{i}.weight"].T + own[f"{i}.bias"]
            return x
        module = (module() if isinstance(module, type) else module).to(x.dtype)
        module.load_state_dict(own, strict=False)
        return module(x)

    x = (u - model.scaling.u.shift) / model.scaling.u.scale
    b = net("branch", x)
    if "branch.skip.weight" in weights:
        b = b + x @ weights["branch.skip.weight"].T
    features = given.get("trunk_features", lambda y: y)(y)
    t = net("trunk", (features - model.scaling.y.shift) / model.scaling.y.scale)
    w, c = weights["head.weight"], weights["head.bias"]
    products = b[:, None] * t
    if model.head.kind == "dot":
        products = products.sum(-1, keepdim=True)
    return (products @ w.T + c).unbind(-1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lead", ["none", "samples", "particles", "one shared"])
def test_all_samples_at_once_are_the_modules_one_after_the_other(case, lead):
    data = random_data(torch.float64)
    model = build(case, data)
    model.case = case
    weights = {k: torch.randn(3, *v, dtype=torch.float64) for k, v in model.shapes.items()}
    given = {
        "none": {k: w[0] for k, w in weights.items()},
        "samples": weights,
        "particles": {k: w[:, None, None] for k, w in weights.items()},
        "one shared": {k: w[:1] if i % 2 else w for i, (k, w) in enumerate(weights.items())},
    }[lead]
    nodes = model.nodes(given, data.u, data.y)
    for i in range(1 if lead == "none" else 3):
        one = {k: w if lead == "none" else w[min(i, len(w) - 1)] for k, w in given.items()}
        one = {k: w.reshape(model.shapes[k]) for k, w in one.items()}
        for found, want in zip(nodes, one_by_one(model, one, data.u, data.y), strict=True):
            torch.testing.assert_close(found if lead == "none" else found[i], want)


def test_sites_and_their_shapes():
    data = random_data()
    model = build("skip of a module", data)
    assert {k: tuple(v) for k, v in model.shapes.items() if k.startswith("branch")} == {
        "branch.conv.weight": (3, 1, 2, 2),
        "branch.conv.bias": (3,),
        "branch.twice.weight": (3, 3),
        "branch.twice.bias": (3,),
        "branch.third.bias": (3,),
        "branch.last.weight": (WIDTH, 27),
        "branch.last.bias": (WIDTH,),
        "branch.skip.weight": (WIDTH, SENSORS),
    }
    trace = poutine.trace(model).get_trace(data.u, data.y, None, data.index)
    drawn = {k: trace.nodes[k]["value"].shape for k in model.shapes}
    assert drawn == model.shapes
    assert not list(model.parameters())
    assert set(model.state_dict()) > {"branch._skeleton.centre"}
    assert model.branch_sizes[-1] == WIDTH
    assert max(model.branch_sizes) == 27


def test_the_module_passed_is_left_alone():
    module = Convolution()
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    model = DeepONet(SENSORS, 2, branch=module, trunk=(WIDTH,), prior=None)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_a_module_starts_with_its_own_values_and_a_maker_anew_for_each_seed():
    module = Convolution()
    model = DeepONet(SENSORS, 2, branch=module, trunk=(WIDTH,))
    assert torch.equal(model.start(0)["branch.conv.weight"], module.conv.weight)
    assert torch.equal(model.start(1)["branch.conv.weight"], module.conv.weight)
    made = DeepONet(SENSORS, 2, branch=Convolution, trunk=(WIDTH,))
    first, same, other = (made.start(seed)["branch.conv.weight"] for seed in (3, 3, 4))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    plain = DeepONet(SENSORS, 2, branch=module, trunk=(WIDTH,), prior=None)
    assert torch.equal(plain.branch.conv.weight, module.conv.weight)
    assert not build("skip", random_data()).start(5)["branch.skip.weight"].any()


def test_priors_by_name_and_frozen_parameters():
    module = Convolution()
    module.conv.requires_grad_(False)
    module.double()
    prior = priors.ByLayer({"branch.last.*": priors.Normal(0.0, 0.3), "*": None})
    model = DeepONet(SENSORS, 2, branch=module, trunk=(WIDTH,), prior=prior, branch_skip=True)
    assert list(model.sampled_shapes()) == ["branch.last.weight", "branch.last.bias"]
    assert model.prior_of("branch.last.bias").base_dist.scale[0] == pytest.approx(0.3)
    plain = model.plain_weights()
    assert not plain["branch.conv.weight"].requires_grad
    assert plain["branch.twice.weight"].requires_grad
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    data = random_data()
    short = {"steps": 5, "warm_start": 5, "num_particles": 2, "progress": False}
    fitted = fit(model, data, **short).model.plain_weights()
    assert torch.equal(fitted["branch.conv.weight"], module.conv.weight.float())
    assert not torch.equal(fitted["branch.twice.weight"], plain["branch.twice.weight"])


@pytest.mark.parametrize("case", CASES)
def test_the_fast_loss_is_that_of_stock_pyro(case):
    data = random_data(torch.float64)
    model = build(case, data, likelihood=likelihoods.Heteroscedastic(floor=0.1))
    guide = make_guide(partial(AutoNormal, init_scale=0.1), model)
    start_guide(guide, model.start(seed=2))
    parameters, arguments = list(guide.parameters()), (data.u, data.y, data.s, data.index)
    torch.manual_seed(3)
    flat, log_q = flat_sampler(guide, model.shapes)(4)
    weights = unflatten(flat, {name: model.shapes[name] for name in site_names(guide)})

    def drawn(*args):  # the same draws, as a guide with vectorised particles has them
        for i, (name, w) in enumerate(weights.items()):
            density = log_q if i == 0 else torch.zeros_like(log_q)
            value, density = w[:, None, None], density[:, None, None]
            event = w.dim() - 1
            pyro.sample(name, dist.Delta(value, log_density=density, event_dim=event))

    stock = Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=2)
    expected = stock.differentiable_loss(model, drawn, *arguments)
    torch.manual_seed(3)
    loss = DeepONetELBO(4).differentiable_loss(model, guide, *arguments)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    slow = torch.autograd.grad(expected, parameters)
    for mine, theirs in zip(torch.autograd.grad(loss, parameters), slow, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("vectorize", [False, True])
def test_stock_svi_and_predictive(vectorize):
    data = random_data()
    model = build("modules", data, branch_skip=True)
    with pyro.get_param_store().scope():
        start = init_to_value(values=model.start())
        guide = AutoNormal(model, init_loc_fn=start, init_scale=1e-3)
        elbo = Trace_ELBO(num_particles=3, vectorize_particles=vectorize)
        svi = SVI(model, guide, Adam({"lr": 1e-2}), elbo)
        losses = [svi.step(data.u, data.y, data.s, data.index) for _ in range(15)]
        assert losses[-1] < losses[0]
        samples = Predictive(model, guide=guide, num_samples=5)(data.u, data.y)["s"]
    assert samples.shape == (5, 7, 9)


def test_nuts_and_a_deterministic_net():
    data = random_data()
    noise = likelihoods.FixedNoise(1.0)
    tiny = {"branch": nn.Linear(SENSORS, 2), "trunk": (2,), "likelihood": noise}
    model = DeepONet.for_data(data, **tiny)
    mcmc = MCMC(NUTS(model, max_tree_depth=2), num_samples=3, warmup_steps=3, disable_progbar=True)
    mcmc.run(data.u, data.y, data.s, data.index)
    assert mcmc.get_samples()["branch.weight"].shape == (3, 2, SENSORS)
    plain = DeepONet.for_data(data, **tiny, prior=None)
    assert {"branch.weight", "branch.bias"} < plain.plain_weights().keys()
    before = plain.plain_weights()["branch.weight"].detach().clone()
    posterior = fit(plain, data, steps=5, warm_start=5, progress=False)
    assert not torch.equal(posterior.model.branch.weight, before)
    assert "deterministic" in repr(posterior.model)


def test_another_float_type_takes_buffers_and_priors_along():
    data = random_data(torch.float64)
    model = build("modules", data)
    assert model.state_dict()["branch._skeleton.centre"].dtype == torch.float64
    trace = poutine.trace(model).get_trace(data.u, data.y)
    assert trace.nodes["branch.conv.weight"]["value"].dtype == torch.float64
    assert trace.nodes["s"]["value"].dtype == torch.float64
    assert model.start()["trunk.frequencies"].dtype == torch.float64


def fields(n, seed):
    """Random 8 x 8 fields, and s(y) = (1 + y) times their mean squared difference along x."""
    generator = torch.Generator().manual_seed(seed)
    size = 0.2 + 1.3 * torch.rand(n, 1, 1, generator=generator)
    u = size * torch.randn(n, 8, 8, generator=generator)
    y = torch.linspace(0, 1, 5)[:, None]
    rough = u.diff(dim=2).square().mean((1, 2))
    return OperatorData(u.flatten(1), y, rough[:, None] * (1 + y[:, 0]))


def test_a_convolutional_branch_learns_a_functional_of_a_field():
    train, test = fields(300, 0), fields(200, 1)
    cnn = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.GELU(), nn.AvgPool2d(6), nn.Flatten(),
        nn.Linear(8, 6),
    )  # fmt: skip
    model = DeepONet.for_data(train, branch=lambda: copy.deepcopy(cnn), trunk=(8, 6))
    posterior = fit(
        model, train, steps=150, warm_start=500, num_particles=4, batch_size=50, lr=1e-2,
        progress=False,
    )  # fmt: skip
    prediction = posterior.predict(test.u, test.y, num_samples=20, seed=0)
    mean = nmse(train.s.mean(0).expand_as(test.s), test.s)
    assert mean > 0.3
    assert nmse(prediction.mean, test.s) < 0.05


def waves(n, seed, at):
    """Waves of two frequencies in x, whose amplitudes are u, growing in time."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(n, 4, generator=generator)
    x, time = at + torch.rand(30, generator=generator), torch.rand(30, generator=generator)
    angles = 2 * torch.pi * torch.stack([x, 2 * x])
    return OperatorData(
        u, torch.stack([x, time], 1), u @ torch.cat([angles.sin(), angles.cos()]) * (1 + time)
    )


def test_a_periodic_trunk_learns_one_period_and_knows_all_others():
    train, far = waves(100, 0, at=0.0), waves(100, 1, at=3.0)
    model = DeepONet.for_data(
        train, branch=(16, 10), trunk=(16, 10), trunk_features=Fourier((1.0, None), harmonics=2)
    )
    posterior = fit(
        model, train, steps=100, warm_start=600, num_particles=4, batch_size=50, progress=False
    )
    assert nmse(posterior.predict(far, num_samples=20, seed=0).mean, far.s) < 0.1


def averages(n, seed):
    """A linear operator: the input function, smoothed."""
    u = torch.randn(n, 20, generator=torch.Generator().manual_seed(seed))
    y = torch.linspace(0, 1, 12)[:, None]
    return OperatorData(u, y, u @ torch.exp(-((y - torch.linspace(0, 1, 20)) ** 2) / 0.05).T)


def test_the_linear_path_helps_with_a_linear_operator():
    train, test = averages(150, 0), averages(200, 1)
    errors = []
    for skip in (False, True):
        model = DeepONet.for_data(
            train, branch=(20, 12), trunk=(20, 12), activation="gelu", branch_skip=skip
        )
        posterior = fit(
            model, train, steps=100, warm_start=600, num_particles=4, batch_size=50, lr=5e-3,
            progress=False,
        )  # fmt: skip
        errors.append(nmse(posterior.predict(test, num_samples=20, seed=0).mean, test.s))
    assert errors[1] < 0.05
    assert errors[1] < 0.6 * errors[0]


def test_periodic_whatever_the_weights():
    model = build("features", random_data(torch.float64))
    weights = {k: torch.randn(2, *v, dtype=torch.float64) for k, v in model.shapes.items()}
    u, y = torch.randn(3, SENSORS).double(), torch.rand(5, 2).double()
    mu, _ = model.nodes(weights, u, y)
    torch.testing.assert_close(model.nodes(weights, u, y + torch.tensor([2.0, 0.0]))[0], mu)
    assert (model.nodes(weights, u, y + torch.tensor([0.0, 2.0]))[0] - mu).abs().max() > 0.1


def test_the_scaling_is_that_of_the_features():
    data = random_data()
    model = build("own features", data)
    scaled = model.scaling.y(three(data.y))
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3))
    assert build("own features", data, scaling=None).scaling.y.shift.shape == (3,)
    with pytest.raises(ValueError, match=r"scaling.y is for 2 columns, the model has 3 inputs"):
        build("own features", data, scaling=Scaling.standard(data))


@pytest.mark.parametrize("case", CASES)
def test_files(tmp_path, case):
    data = random_data()
    model = build(case, data)
    guide = make_guide("normal", model)
    start_guide(guide, {k: torch.randn(shape) for k, shape in model.shapes.items()})
    posterior = Posterior(model, guide)
    path = posterior.save(tmp_path / "posterior.pt")
    assert Convolution.__name__.encode() not in path.read_bytes()  # no code, no pickled class
    own = {
        k: v
        for k, v in CASES[case]().items()
        if (k in ("branch", "trunk") and callable(v)) or v is three
    }
    if own:
        names = r"\=.*".join(sorted(own))
        with pytest.raises(ValueError, match=rf"which a file cannot hold.*load\(path, {names}"):
            Posterior.load(path)
    else:
        with pytest.raises(ValueError, match="leave out what was passed"):
            Posterior.load(path, trunk_features=three)
    loaded = Posterior.load(path, **own)
    assert repr(loaded) == repr(posterior)
    assert loaded.model.features == model.features
    found, want = (p.predict(data.u, data.y, num_samples=3, seed=0) for p in (loaded, posterior))
    assert torch.equal(found.mean, want.mean)
    assert torch.equal(found.std, want.std)


def test_another_module_than_the_one_saved_is_refused(tmp_path):
    model = build("modules", random_data())
    path = Posterior(model, make_guide("normal", model)).save(tmp_path / "posterior.pt")
    other = nn.Linear(SENSORS, WIDTH)
    with pytest.raises(ValueError, match="branch or trunk passed is another than it was saved"):
        Posterior.load(path, branch=other, trunk=Waves(2))


def test_the_buffers_of_the_saved_module_come_back(tmp_path):
    module = Convolution()
    module.centre.fill_(7.0)
    model = DeepONet(SENSORS, 2, branch=module, trunk=(WIDTH,), prior=None)
    path = Posterior(model).save(tmp_path / "net.pt")
    u, y = torch.randn(3, SENSORS), torch.rand(4, 2)
    found = Posterior.load(path, branch=Convolution).predict(u, y).mean
    assert torch.equal(found, Posterior(model).predict(u, y).mean)


def test_repr():
    data = random_data()
    assert repr(build("modules", data)) == (
        "DeepONet(16 sensors, 2 coordinates, branch Convolution of width 6, "
        "trunk Waves of width 6, head dot, 278 weights)"
    )
    assert "branch 5-6 + skip, trunk 5-6, relu" in repr(build("skip", data))
    assert "trunk Waves of width 6 on own features, relu" in repr(build("own features", data))
    assert "5-6 on Fourier(periods=(1.0, None), harmonics=2)," in repr(build("features", data))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SENSORS, WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(x)


class Branching(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        return out if out.sum() > 0 else -out * 0 + out


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(WIDTH, SENSORS))

    def forward(self, x):
        return x @ self.weights.T


def linear_and(module):
    return nn.Sequential(nn.Linear(SENSORS, WIDTH), module)


def complex_weights():
    return nn.Linear(SENSORS, WIDTH, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("branch", "error", "message"),
    [
        (linear_and(nn.BatchNorm1d(WIDTH)), ValueError, r"changes its buffer '1.running_mean'"),
        (linear_and(nn.BatchNorm1d(WIDTH, track_running_stats=False)), ValueError, "other rows"),
        (linear_and(nn.Dropout(0.01)), ValueError, "draws random numbers .* Dropout"),
        (Counting(), ValueError, "changes its buffer 'calls'"),
        (Branching(SENSORS, WIDTH), ValueError, "cannot be run with several weights at once"),
        (nn.Linear(SENSORS, WIDTH + 1), ValueError, "ends with width 7 and the trunk with 6"),
        (nn.Linear(3, WIDTH), ValueError, r"cannot be run at inputs of shape \(3, 16\)"),
        (nn.Unflatten(1, (4, 4)), ValueError, r"branch made \(3, 4, 4\) of inputs \(3, 16\)"),
        (nn.GRU(SENSORS, WIDTH), ValueError, "branch made tuple of inputs"),
        (Named(), ValueError, "'weights' is a name the model uses itself"),
        (nn.LazyLinear(WIDTH), TypeError, "lazy parameter 'weight'; run the module once"),
        (complex_weights(), TypeError, "of type torch.complex64"),
        (PyroModule[nn.Linear](SENSORS, WIDTH), TypeError, "pass a plain torch.nn.Module"),
        (lambda: 3, TypeError, "the callable given as branch made int"),
        (30, TypeError, r"branch is 30, expected widths of layers such as \(30, 30\), a torch"),
    ],
)
def test_modules_that_cannot_be_a_net_are_refused(branch, error, message):
    with pytest.raises(error, match=message):
        DeepONet(SENSORS, 2, branch=branch, trunk=(WIDTH,))


def test_a_part_called_skip_stands_in_the_way_of_the_linear_path():
    module = nn.Sequential()
    module.add_module("skip", nn.Linear(SENSORS, WIDTH))
    with pytest.raises(ValueError, match="has a part 'skip' itself"):
        DeepONet(SENSORS, 2, branch=module, trunk=(WIDTH,), branch_skip=True)


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        (3, TypeError, "trunk_features is 3, expected a callable"),
        (Fourier, TypeError, "expected a callable from locations"),
        (nn.Linear(2, 3), ValueError, "parameters, which would not be learnt"),
        (lambda y: y[:, 0], ValueError, r"made \(3,\) of locations \(3, 2\)"),
        (lambda y: y.tolist(), ValueError, "made list of locations"),
        (Fourier((1.0,)), ValueError, "periods for 1 coordinates, the locations have 2"),
        (Decays(((1.0,),)), ValueError, "lengths for 1 coordinates, the locations have 2"),
    ],
)
@pytest.mark.parametrize("build", [partial(DeepONet, SENSORS, 2), DeepONet.for_data])
def test_features_that_are_none_are_refused(build, features, error, message):
    arguments = [random_data()] if build == DeepONet.for_data else []
    with pytest.raises(error, match=message):
        build(*arguments, trunk_features=features)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"periods": 1.0}, TypeError),
        ({"periods": ()}, TypeError),
        ({"periods": (0.0,)}, ValueError),
        ({"periods": ("1",)}, ValueError),
        ({"periods": (1.0,), "harmonics": 0}, ValueError),
    ],
)
def test_wrong_periods_are_refused(arguments, error):
    with pytest.raises(error, match=r"periods is|harmonics is"):
        Fourier(**arguments)


def test_decays_are_exponentials_beside_what_else_there_is():
    y = torch.rand(6, 2, dtype=torch.float64)
    decays = torch.stack([(-y[:, 1] / 0.1).exp(), (y[:, 1] / 2).exp()], 1)
    lengths = ((), (0.1, -2.0))
    torch.testing.assert_close(Decays(lengths)(y), torch.cat([y, decays], 1))
    waves = Fourier((1.0, None), 2)
    torch.testing.assert_close(Decays(lengths, waves)(y), torch.cat([waves(y), decays], 1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lengths": (0.1, 1.0)}, TypeError, "lengths is"),
        ({"lengths": 0.1}, TypeError, "lengths is"),
        ({"lengths": ((), ())}, ValueError, "at least one"),
        ({"lengths": ((0.0,),)}, ValueError, "other than zero"),
        ({"lengths": ((float("inf"),),)}, ValueError, "other than zero"),
        ({"lengths": ((1.0,),), "beside": 3}, TypeError, "beside is 3"),
    ],
)
def test_wrong_lengths_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Decays(**arguments)
