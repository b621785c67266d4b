"""The four operators against closed forms and independent solvers, and the data they make."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.interpolate import make_interp_spline

from pyro_deeponet.fields import GaussianRandomField
from pyro_deeponet.problems import (
    AdvectionDiffusion,
    Antiderivative,
    DiffusionReaction,
    GravityPendulum,
    Problem,
)

PROBLEMS = [
    Antiderivative(),
    GravityPendulum(),
    DiffusionReaction(),
    AdvectionDiffusion(),
    AdvectionDiffusion(initial_condition="periodic"),
]
SMALL = [
    Antiderivative(n_sensors=20, n_times=11),
    GravityPendulum(n_sensors=20, n_times=11),
    DiffusionReaction(n_sensors=20, n_x=10, n_times=11),
    AdvectionDiffusion(n_sensors=20, n_x=10, n_times=11),
]


def name(problem):
    return type(problem).__name__


def relative_l2(s, truth):
    s, truth = np.asarray(s), np.asarray(truth)
    return (np.linalg.norm(s - truth, axis=-1) / np.linalg.norm(truth, axis=-1)).max()


@pytest.mark.parametrize(
    ("u", "s"),
    [
        (lambda t: torch.cos(9 * t), lambda t: torch.sin(9 * t) / 9),
        (lambda t: 5 * t**4 - 6 * t + 1, lambda t: t**5 - 3 * t**2 + t),
        (lambda t: torch.exp(-t), lambda t: 1 - torch.exp(-t)),
    ],
    ids=["cos", "polynomial", "exp"],
)
@pytest.mark.parametrize("n_times", [100, 37])
def test_antiderivative_closed_forms(u, s, n_times):
    problem = Antiderivative(n_times=n_times)
    solution = problem.solve(u(problem.sensors)[None])
    assert relative_l2(solution, s(problem.grid.T)) < 1e-6
    assert solution[0, 0] == 0


def test_antiderivative_of_a_field_between_its_sensors():
    """The field itself, integrated on a grid far finer than the sensors."""
    problem = Antiderivative()
    fine = np.linspace(0, 1, 99 * 40 + 1)
    u = problem.field.sample(50, fine, seed=1).numpy()
    simpson = (u[:, :-2:2] + 4 * u[:, 1:-1:2] + u[:, 2::2]) / 6 * (fine[2] - fine[0])
    truth = np.concatenate([np.zeros((50, 1)), simpson.cumsum(1)[:, 19::20]], axis=1)
    assert relative_l2(problem.solve(problem.draw(50, seed=1)), truth) < 1e-8


@pytest.mark.parametrize(
    "problem", [GravityPendulum(), GravityPendulum(k=9.81, n_times=21)], ids=["k=1", "k=9.81"]
)
def test_pendulum_against_an_adaptive_solver(problem):
    times = problem.grid[:, 0].numpy()
    fine = np.linspace(0, 1, 1001)
    force = make_interp_spline(fine, problem.field.sample(20, fine, seed=4).numpy().T, k=5)
    s = problem.solve(problem.draw(20, seed=4))

    def rhs(t, state):
        return np.concatenate([state[20:], -problem.k * np.sin(state[:20]) + force(t)])

    truth = solve_ivp(rhs, (0, 1), np.zeros(40), t_eval=times, rtol=1e-10, atol=1e-12).y[:20]
    assert relative_l2(s, truth) < 1e-6


def method_of_lines(problem, u, intervals):
    """Central differences and a stiff adaptive solver; `u` is `(n, intervals + 1)`."""
    h = 1 / intervals
    D, k = problem.diffusivity, problem.k

    def rhs(t, s, source):
        padded = np.pad(s, 1)
        return D * (padded[2:] - 2 * s + padded[:-2]) / h**2 + k * s**2 + source

    def banded_jacobian(t, s, source):
        bands = np.full((3, len(s)), D / h**2)
        bands[1] = -2 * D / h**2 + 2 * k * s
        return bands

    n_x, n_times = problem.grid_shape
    times = np.linspace(0, problem.final_time, n_times)
    fields = np.zeros((len(u), n_x, n_times))
    for field, source in zip(fields, u[:, 1:-1], strict=True):
        y = solve_ivp(
            rhs, times[[0, -1]], np.zeros(intervals - 1), "LSODA", times, args=(source,),
            jac=banded_jacobian, lband=1, uband=1, rtol=1e-8, atol=1e-10,
        ).y  # fmt: skip
        stride = intervals // (n_x - 1)
        field[1:-1] = y[stride - 1 :: stride]
    return fields.reshape(len(u), -1)


def test_diffusion_reaction_against_method_of_lines():
    """On a grid four times finer than the solver's own, fed with the field itself."""
    problem = DiffusionReaction()
    intervals = 4 * 4 * 99
    u = problem.field.sample(4, np.linspace(0, 1, intervals + 1), seed=5).numpy()
    truth = method_of_lines(problem, u, intervals)
    assert relative_l2(problem.solve(problem.draw(4, seed=5)), truth) < 1e-4


def test_diffusion_reaction_where_the_reaction_is_strong():
    problem = DiffusionReaction(k=0.8, n_x=34)
    intervals = 33 * 16
    u = 1 + np.cos(3 * np.linspace(0, 1, intervals + 1))[None]
    s = problem.solve(1 + np.cos(3 * problem.sensors.numpy())[None])
    assert relative_l2(s, method_of_lines(problem, u, intervals)) < 2e-4


@pytest.mark.parametrize(
    ("axis", "settings"),
    [
        ("space", [{"refine_x": r, "refine_t": 64} for r in (1, 2, 4)]),
        ("time", [{"refine_x": 16, "refine_t": r} for r in (1, 2, 4)]),
        ("both", [{"refine_x": r, "refine_t": r} for r in (1, 2, 4)]),
    ],
)
def test_diffusion_reaction_is_of_second_order(axis, settings):
    # A strong reaction and few times, so that the error in time rises above that in space.
    arguments = {"k": 1.0, "diffusivity": 0.1, "n_times": 6, "n_x": 21, "n_sensors": 81}
    base = DiffusionReaction(**arguments)
    intervals = 20 * 16
    truth = method_of_lines(base, np.ones((1, intervals + 1)), intervals)
    if axis != "time":  # the truth itself, beyond its error in space
        coarser = method_of_lines(base, np.ones((1, intervals // 2 + 1)), intervals // 2)
        truth = truth + (truth - coarser) / 3
    errors = [
        relative_l2(DiffusionReaction(**arguments, **s).solve(np.ones((1, 81))), truth)
        for s in settings
    ]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert np.all((orders > 1.8) & (orders < 2.2)), (errors, orders)


def test_diffusion_reaction_manufactured_steady_state():
    """u = -D s'' - k s^2 is what keeps s standing; with D = 1 it is reached to 1e-13 at t = 3."""
    problem = DiffusionReaction(diffusivity=1.0, k=0.5, final_time=3.0, refine_t=8)
    x = problem.sensors
    s = torch.sin(torch.pi * x) + 0.3 * torch.sin(2 * torch.pi * x)
    minus_s_xx = torch.pi**2 * (torch.sin(torch.pi * x) + 1.2 * torch.sin(2 * torch.pi * x))
    field = problem.solve((minus_s_xx - 0.5 * s**2)[None]).reshape(100, 100)
    assert relative_l2(field[:, -1], s) < 1e-4


def test_diffusion_reaction_closed_forms_in_time():
    t = torch.linspace(0, 1, 100, dtype=torch.float64)
    x = torch.linspace(0, 1, 100, dtype=torch.float64)
    no_reaction = DiffusionReaction(k=0.0, diffusivity=0.2)
    rate = 0.2 * (2 * torch.pi) ** 2
    wave = torch.sin(2 * torch.pi * x)
    s = no_reaction.solve(wave[None]).reshape(100, 100)
    truth = wave[:, None] * (1 - torch.exp(-rate * t)) / rate
    assert relative_l2(s.reshape(1, -1), truth.reshape(1, -1)) < 1e-4

    next_to_no_diffusion = DiffusionReaction(k=1.0, diffusivity=1e-12)
    u = torch.sin(torch.pi * x) ** 2 + 1e-9  # s' = s^2 + u, so s = sqrt(u) tan(sqrt(u) t)
    s = next_to_no_diffusion.solve(u[None]).reshape(100, 100)[1:-1]
    truth = u.sqrt()[1:-1, None] * torch.tan(u.sqrt()[1:-1, None] * t)
    assert relative_l2(s.reshape(1, -1), truth.reshape(1, -1)) < 1e-4


def test_diffusion_reaction_boundary_and_initial_values_are_zero():
    problem = DiffusionReaction()
    s = problem.solve(problem.draw(3, seed=0)).reshape(3, *problem.grid_shape)
    assert (s[:, [0, -1]] == 0).all()
    assert (s[:, :, 0] == 0).all()


def test_blow_up_is_refused():
    problem = DiffusionReaction(k=50.0)
    u = torch.stack([torch.zeros(100), torch.full((100,), 30.0)])
    with pytest.raises(ValueError, match=r"blow up .*first row 1, 1 of 2"):
        problem.solve(u)


@pytest.mark.parametrize("n_sensors", [100, 99, 41], ids=["odd", "even", "coarse"])
@pytest.mark.parametrize("domain", [(0.0, 1.0), (-1.0, 2.0)])
def test_advection_diffusion_of_fourier_modes(n_sensors, domain):
    field = GaussianRandomField(0.5, domain=domain)
    problem = AdvectionDiffusion(
        field=field, n_sensors=n_sensors, velocity=0.7, diffusivity=0.02, n_x=33
    )
    wave = 2 * torch.pi * torch.arange(20, dtype=torch.float64)[:, None] / (domain[1] - domain[0])
    for phase in (0.0, 1.0):
        s = problem.solve(torch.cos(wave * problem.sensors + phase))
        x, t = problem.grid.T
        truth = torch.exp(-0.02 * wave**2 * t) * torch.cos(wave * (x - 0.7 * t) + phase)
        assert relative_l2(s, truth) < 1e-6


def test_advection_diffusion_of_the_highest_mode():
    """With an even number of points cos is seen, sin is not: a standing value that travels."""
    problem = AdvectionDiffusion(n_sensors=9, diffusivity=1e-3)
    wave = 8 * torch.pi
    x, t = problem.grid.T
    s = problem.solve(torch.cos(wave * problem.sensors)[None])
    truth = torch.exp(-1e-3 * wave**2 * t) * torch.cos(wave * (x - t))
    assert relative_l2(s, truth[None]) < 1e-6


@pytest.mark.parametrize("initial_condition", ["sin2", "periodic"])
def test_advection_diffusion_conserves_mass_and_is_periodic(initial_condition):
    problem = AdvectionDiffusion(initial_condition=initial_condition)
    u = problem.draw(50, seed=0)
    s = problem.solve(u).reshape(50, *problem.grid_shape)
    mass = torch.trapezoid(s, dx=1 / 99, dim=1)
    assert (mass - torch.trapezoid(u, dx=1 / 99)[:, None]).abs().max() < 1e-10
    torch.testing.assert_close(s[:, 0], s[:, -1], rtol=0, atol=1e-12)
    torch.testing.assert_close(s[:, 1:-1, 0], u[:, 1:-1], rtol=0, atol=1e-10)


def test_advection_diffusion_initial_profiles():
    field = GaussianRandomField(0.5)
    x = np.linspace(0, 1, 100)
    sin2 = np.sin(2 * np.pi * field.sample(5, x, seed=7).numpy()) ** 2
    np.testing.assert_allclose(AdvectionDiffusion().draw(5, seed=7), sin2, atol=1e-10)
    v = field.sample(5, np.sin(np.pi * x) ** 2, seed=7).numpy()
    problem = AdvectionDiffusion(initial_condition="periodic")
    np.testing.assert_allclose(problem.draw(5, seed=7), v, atol=1e-10)


@pytest.mark.parametrize("problem", PROBLEMS, ids=name)
def test_every_problem_keeps_the_contract(problem):
    k, (q, d) = len(problem.sensors), problem.grid.shape
    space_time = hasattr(problem, "grid_shape")
    assert (k, q, d) == ((100, 10_000, 2) if space_time else (100, 100, 1))
    assert (problem.sensors[0], problem.sensors[-1]) == (0, 1)
    assert problem.grid.amin() == 0
    assert problem.grid.amax() == 1
    u = problem.draw(6, seed=3)
    s = problem.solve(u)
    assert u.shape == (6, k)
    assert s.shape == (6, q)
    assert u.dtype == s.dtype == problem.grid.dtype == torch.float64
    array = problem.solve(u.numpy())
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, s)
    assert problem.solve(u.float()).dtype == torch.float64
    torch.testing.assert_close(problem.solve(u[2:3]), s[2:3])
    assert type(problem)() == type(problem)()
    assert "n_sensors=100" in repr(problem)


@pytest.mark.parametrize("problem", SMALL, ids=name)
def test_seeds_decide_the_functions_alone(problem):
    data = problem.dataset(12, seed=5)
    assert data == problem.dataset(12, seed=5)
    assert not torch.equal(data.u, problem.dataset(12, seed=6).u)
    sparse = problem.dataset(12, n_points=4, noise=0.1, seed=5)
    assert torch.equal(sparse.u, data.u)
    torch.testing.assert_close(problem.dataset(5, seed=5).s, data.s[:5])
    torch.testing.assert_close(problem.draw(5, seed=5), problem.draw(12, seed=5)[:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dataset_on_the_whole_grid(dtype):
    problem = SMALL[2]
    data = problem.dataset(7, seed=1, dtype=dtype)
    u = problem.draw(7, seed=1)
    assert data.index is None
    assert {data.u.dtype, data.y.dtype, data.s.dtype} == {dtype}
    torch.testing.assert_close(data.s, problem.solve(u).to(dtype))
    torch.testing.assert_close(data.y, problem.grid.to(dtype))
    assert problem.dataset(7).s.dtype == torch.float32
    assert problem.dataset(7, n_points=110, seed=1, dtype=dtype) == data


def test_observed_locations_are_distinct_and_uniform():
    problem = SMALL[2]
    data = problem.dataset(4000, n_points=30, seed=2, dtype=torch.float64)
    assert data.s.shape == data.index.shape == (4000, 30)
    assert (data.index.diff(dim=1) > 0).all()
    truth = problem.solve(problem.draw(4000, seed=2))
    torch.testing.assert_close(data.s, truth.gather(1, data.index))
    share = torch.bincount(data.index.reshape(-1), minlength=110) / 4000
    assert (share - 30 / 110).abs().max() < 5 * math.sqrt(30 / 110 * 80 / 110 / 4000)


def test_noise_is_a_fraction_of_the_spread():
    problem = SMALL[0]
    clean = problem.dataset(5000, seed=3, dtype=torch.float64).s
    noisy = problem.dataset(5000, noise=0.05, seed=3, dtype=torch.float64).s
    residual = (noisy - clean) / clean.std()
    assert abs(residual.mean()) < 1e-3
    assert residual.std() == pytest.approx(0.05, rel=0.02)
    assert (residual**4).mean() == pytest.approx(3 * 0.05**4, rel=0.1)
    correlation = (residual * clean).mean() / (residual.std() * clean.std())
    assert abs(correlation) < 0.02


def test_chunks_do_not_show(monkeypatch):
    whole = SMALL[2].dataset(23, n_points=9, noise=0.1, dtype=torch.float64)
    monkeypatch.setattr("pyro_deeponet.problems.base._CHUNK_VALUES", 500)
    chunked = SMALL[2].dataset(23, n_points=9, noise=0.1, dtype=torch.float64)
    assert torch.equal(chunked.index, whole.index)
    torch.testing.assert_close(chunked.s, whole.s)


class Poisson(Problem):
    """A fifth operator, -s'' = f with zero boundary values, as a user would write it."""

    def __init__(self, kind=torch.as_tensor):
        self.kind = kind
        self.x = np.linspace(0, 1, 41)
        self.sensors = kind(self.x)
        self.grid = kind(self.x[:, None])

    def draw(self, n, seed):
        amplitudes = np.random.default_rng(seed).standard_normal((n, 3))
        waves = np.sin(np.pi * np.outer([1, 2, 3], self.x))
        return self.kind(amplitudes @ waves)

    def solve(self, f):
        laplacian = (np.eye(39, k=1) - 2 * np.eye(39) + np.eye(39, k=-1)) * 40**2
        inside = np.linalg.solve(-laplacian, np.asarray(f)[:, 1:-1].T).T
        return self.kind(np.pad(inside, ((0, 0), (1, 1))))


@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray], ids=["tensor", "array"])
def test_a_users_own_operator(kind):
    problem = Poisson(kind)
    amplitudes = np.random.default_rng(9).standard_normal((6, 3))
    m = np.array([1, 2, 3])
    exact = (amplitudes / (m * np.pi) ** 2) @ np.sin(np.pi * np.outer(m, problem.x))
    data = problem.dataset(6, seed=9)
    assert relative_l2(data.s, exact) < 5e-3
    sparse = problem.dataset(6, n_points=10, noise=0.01, seed=9)
    assert sparse.s.shape == (6, 10)
    assert relative_l2(sparse.s, np.take_along_axis(exact, sparse.index.numpy(), 1)) < 0.1


def test_a_users_mistakes_are_named():
    problem = Poisson()
    problem.grid = problem.grid[:, 0]
    with pytest.raises(ValueError, match=r"grid must have shape .* use grid\[:, None\]"):
        problem.dataset(2)
    problem = Poisson()
    problem.sensors = problem.sensors[:-1]
    with pytest.raises(ValueError, match=r"draw returned shape \(2, 41\), expected \(2, 40\)"):
        problem.dataset(2)
    problem = Poisson()
    problem.grid = problem.grid[:-1]
    with pytest.raises(ValueError, match=r"solve returned shape \(2, 41\), expected \(2, 40\)"):
        problem.dataset(2)
    with pytest.raises(TypeError, match="abstract"):
        Problem()


@pytest.mark.parametrize("problem", SMALL, ids=name)
@pytest.mark.parametrize(
    ("u", "error", "message"),
    [
        (torch.zeros(2, 64), ValueError, "u has 64 sensors, the problem was built for 20"),
        (np.zeros(20), ValueError, r"shape \(functions, 20 sensors\), got \(20,\).*u\[None\]"),
        (torch.tensor([[0.0] * 20, [math.nan] * 20]), ValueError, "u holds NaN .*first row 1"),
        (np.full((1, 20), np.inf), ValueError, "infinite"),
        (np.zeros((1, 20), dtype=complex), TypeError, "real numbers, got complex128"),
        ([[0.0] * 20], TypeError, "tensor or a numpy array, got list"),
    ],
    ids=["sensors", "1-D", "NaN", "inf", "complex", "list"],
)
def test_wrong_inputs_are_refused(problem, u, error, message):
    with pytest.raises(error, match=message):
        problem.solve(u)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_functions": 0}, ValueError, "n_functions must be an integer >= 1, got 0"),
        ({"n_functions": 1.5}, TypeError, "n_functions must be an integer"),
        ({"n_points": 0}, ValueError, "n_points must be an integer >= 1"),
        ({"n_points": 12}, ValueError, "n_points=12 is more than the 11 locations"),
        ({"noise": -0.1}, ValueError, "noise must be >= 0, a fraction"),
        ({"noise": math.nan}, ValueError, "noise must be finite"),
        ({"noise": "5%"}, TypeError, "noise must be a number"),
        ({"seed": -1}, ValueError, "seed must be an integer >= 0"),
        ({"dtype": torch.int64}, TypeError, "floating point"),
    ],
)
def test_wrong_datasets_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        SMALL[0].dataset(**{"n_functions": 3} | arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [
        (Antiderivative, {"n_sensors": 1}, ValueError, "n_sensors must be an integer >= 2"),
        (Antiderivative, {"field": "rbf"}, TypeError, "GaussianRandomField"),
        (GravityPendulum, {"max_step": 0.0}, ValueError, "max_step must be positive"),
        (GravityPendulum, {"n_times": 1}, ValueError, "n_times must be an integer >= 2"),
        (DiffusionReaction, {"diffusivity": -1.0}, ValueError, "diffusivity must be positive"),
        (DiffusionReaction, {"k": math.inf}, ValueError, "k must be finite"),
        (DiffusionReaction, {"refine_x": 0}, ValueError, "refine_x must be an integer >= 1"),
        (AdvectionDiffusion, {"final_time": 0}, ValueError, "final_time must be positive"),
        (AdvectionDiffusion, {"initial_condition": "cos"}, ValueError, "'sin2', 'periodic'"),
    ],
)
def test_wrong_problems_are_refused(kind, arguments, error, message):
    with pytest.raises(error, match=message):
        kind(**arguments)
