"""The optimiser that turns matrices."""

import copy

import pytest
import torch

from pyro_deeponet import DeepONet, ensemble, fit
from pyro_deeponet.optimizers import Soap
from tests.test_ensemble import SHORT
from tests.test_fit import error, quickly, sums


def descend(optimizer, loss, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
    return loss().item()


def stiff(seed=0):
    """A least-squares problem whose steep directions are mixtures of the weights."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(10, 10, generator=generator))[0]
    x = torch.randn(200, 10, generator=generator) * torch.logspace(0, -2, 10) @ basis
    target = x @ torch.randn(10, 6, generator=generator)
    weight = torch.nn.Parameter(torch.zeros(10, 6))
    return weight, lambda: (x @ weight - target).square().mean()


def test_turned_steps_go_further_than_adams_on_a_stiff_problem():
    reached = {}
    for name, make in {"soap": Soap, "adam": torch.optim.Adam}.items():
        weight, loss = stiff()
        reached[name] = descend(make([weight], lr=1e-2), loss, 400)
    assert reached["soap"] < 0.3 * reached["adam"]


def test_without_turning_it_is_adam():
    ours, loss = stiff()
    descend(Soap([ours], lr=1e-2, betas=(0.9, 0.99), rotate=False), loss, 50)
    theirs, loss = stiff()
    descend(torch.optim.Adam([theirs], lr=1e-2, betas=(0.9, 0.99), eps=1e-20), loss, 50)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_its_state_is_kept():
    weight, loss = stiff()
    optimizer = Soap([weight], lr=1e-2)
    descend(optimizer, loss, 37)
    state, at = copy.deepcopy(optimizer.state_dict()), weight.detach().clone()
    on = descend(optimizer, loss, 20)
    other, loss = stiff()
    with torch.no_grad():
        other.copy_(at)
    resumed = Soap([other], lr=1.0)
    resumed.load_state_dict(state)
    assert descend(resumed, loss, 20) == on


def test_matrices_of_one_shape_are_worked_on_together_and_apart():
    alone = []
    for seed in (0, 1):
        weight, loss = stiff(seed)
        alone.append(descend(Soap([weight], lr=1e-2), loss, 60))
    (first, one), (second, two) = stiff(0), stiff(1)
    optimizer = Soap([first, second], lr=1e-2)
    descend(optimizer, lambda: one() + two(), 60)
    assert [one().item(), two().item()] == pytest.approx(alone, rel=1e-2)


def test_a_fit_with_it_errs_less_than_with_adam():
    data = sums()
    net = DeepONet.for_data(data, branch=(16, 8), trunk=(16, 8), prior=None)
    settings = {"warm_start": 1000, "steps": 0, "lr": 3e-3}
    errors = [error(quickly(data, net, optimizer=x, **settings), data) for x in ("soap", "adam")]
    assert errors[0] < 0.3 * errors[1]


def test_members_of_an_ensemble_stay_apart(monkeypatch):
    """What the others do is nothing to a member."""
    data = sums(40)
    model = DeepONet.for_data(data, branch=(8, 4), trunk=(8, 4))
    one = ensemble(model, data, members=3, **SHORT, optimizer="soap")
    start = DeepONet.start
    monkeypatch.setattr(
        DeepONet, "start", lambda self, seed=0: start(self, seed if seed == 2 else seed + 10)
    )
    other = ensemble(model, data, members=3, **SHORT, optimizer="soap")
    for name, weights in one.weights.items():
        assert torch.equal(weights[2], other.weights[name][2])
    assert any(not torch.equal(w[0], other.weights[k][0]) for k, w in one.weights.items())


def test_unknown_names_are_refused():
    data = sums(10)
    with pytest.raises(ValueError, match="optimizer is 'sgd', expected 'adam', 'soap'"):
        fit(DeepONet.for_data(data), data, optimizer="sgd", progress=False)
