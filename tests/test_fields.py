"""Random fields: their covariance, and samples that are functions rather than vectors."""

import math

import numpy as np
import pytest
import torch

from pyro_deeponet.fields import GaussianRandomField

KERNELS = ["rbf", "matern32", "matern52", "periodic"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("length_scale", [0.1, 0.5])
def test_empirical_covariance_is_the_kernel(kernel, length_scale):
    field = GaussianRandomField(length_scale, kernel=kernel)
    x = torch.linspace(0, 1, 40, dtype=torch.float64)
    u = field.sample(20_000, x, seed=2)
    assert u.shape == (20_000, 40)
    assert u.dtype == torch.float64
    empirical = u.T @ u / len(u)
    assert (empirical - field.covariance(x, x)).abs().max() < 0.03
    assert u.mean(0).abs().max() < 0.03


@pytest.mark.parametrize(
    ("kernel", "value"),
    [  # at distance 0.3 with length scale 0.5, so r = 0.6; worked out by hand
        ("rbf", math.exp(-0.18)),
        ("matern32", (1 + 0.6 * 3**0.5) * math.exp(-0.6 * 3**0.5)),
        ("matern52", (1 + 0.6 * 5**0.5 + 0.6) * math.exp(-0.6 * 5**0.5)),
        ("periodic", math.exp(-8 * math.sin(0.3 * math.pi) ** 2)),
    ],
)
def test_covariance_has_the_stated_form(kernel, value):
    field = GaussianRandomField(0.5, variance=4.0, kernel=kernel)
    covariance = field.covariance([0.1, 0.4], [0.1])
    torch.testing.assert_close(covariance, 4.0 * torch.tensor([[1.0], [value]]).double())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("domain", [(0.0, 1.0), (-2.0, 1.0)])
def test_one_seed_gives_the_same_functions_at_every_resolution(kernel, domain):
    field = GaussianRandomField(0.5, kernel=kernel, domain=domain)
    fine = np.linspace(*domain, 991)
    u = field.sample(10, fine, seed=3)
    torch.testing.assert_close(field.sample(10, fine[::10], seed=3), u[:, ::10], rtol=0, atol=1e-9)
    shuffled = np.random.default_rng(0).permutation(991)
    torch.testing.assert_close(
        field.sample(10, fine[shuffled], seed=3), u[:, shuffled], rtol=0, atol=1e-9
    )


def test_rbf_samples_are_smooth_without_jitter():
    """The sixth difference of a smooth function falls as h^6, that of jitter grows 64-fold."""
    u = GaussianRandomField(0.5).sample(50, np.linspace(0, 1, 513), seed=0).numpy()
    assert np.abs(np.diff(u, 6, axis=1)).max() < 1e-8


def test_periodic_samples_close_up_smoothly():
    field = GaussianRandomField(0.8, kernel="periodic", domain=(1.0, 3.0))
    h = 1e-3
    left = field.sample(20, [1.0, 1.0 + h, 1.0 + 2 * h], seed=0)
    right = field.sample(20, [3.0, 3.0 - h, 3.0 - 2 * h], seed=0)
    torch.testing.assert_close(left[:, 0], right[:, 0], rtol=0, atol=1e-10)
    slope = torch.tensor([-3.0, 4.0, -1.0], dtype=torch.float64) / (2 * h)
    torch.testing.assert_close(left @ slope, -(right @ slope), rtol=0, atol=1e-3)


def test_seeds():
    field, x = GaussianRandomField(), np.linspace(0, 1, 5)
    u = field.sample(20_000, x, seed=0)
    again = GaussianRandomField().sample(20_000, x, seed=0)
    assert torch.equal(u, again)
    other = field.sample(20_000, x, seed=1)
    correlation = (u * other).mean(0)
    assert correlation.abs().max() < 0.03
    torch.testing.assert_close(field.sample(7, x, seed=0), u[:7])


@pytest.mark.parametrize("points", [[0.0, 0.25, 1.0], (0.0, 0.25, 1.0)])
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, lambda x: np.float32(x)])
def test_points_of_any_kind(points, kind):
    field = GaussianRandomField()
    expected = field.sample(2, torch.tensor([0.0, 0.25, 1.0]), seed=0)
    torch.testing.assert_close(field.sample(2, kind(points), seed=0), expected)


def test_fields_are_values():
    assert GaussianRandomField(0.2, domain=[0, 2]) == GaussianRandomField(0.2, domain=(0.0, 2.0))
    assert len({GaussianRandomField(), GaussianRandomField(0.5)}) == 1
    with pytest.raises(AttributeError):
        GaussianRandomField().length_scale = 1.0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"length_scale": 0.0}, ValueError, "length_scale must be positive, got 0.0"),
        ({"length_scale": "long"}, TypeError, "length_scale must be a number, got 'long'"),
        ({"variance": -1.0}, ValueError, "variance must be positive"),
        ({"variance": math.nan}, ValueError, "variance must be finite"),
        ({"kernel": "gauss"}, ValueError, "'gauss'.*'rbf', 'matern32', 'matern52', 'periodic'"),
        ({"domain": (1.0, 0.0)}, ValueError, "low < high"),
        ({"domain": 1.0}, TypeError, "two numbers"),
    ],
)
def test_wrong_fields_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        GaussianRandomField(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be an integer >= 1, got 0"),
        ({"n": 2.0}, TypeError, "n must be an integer"),
        ({"seed": -1}, ValueError, "seed must be an integer >= 0, got -1"),
        ({"seed": None}, TypeError, "seed must be an integer"),
        ({"x": [0.5, 1.5]}, ValueError, r"\[0, 1\], got 1.5; .*domain="),
        ({"x": [math.nan]}, ValueError, "got nan"),
        ({"x": np.zeros((3, 1))}, ValueError, r"one-dimensional, got shape \(3, 1\)"),
    ],
)
def test_wrong_samples_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        GaussianRandomField().sample(**{"n": 2, "x": [0.0, 1.0], "seed": 0} | arguments)


def test_a_length_scale_below_the_reference_grid_is_refused():
    with pytest.raises(ValueError, match=r"length_scale=0.001 is too small .* at least 0.00789"):
        GaussianRandomField(0.001).sample(1, [0.0], seed=0)
