"""Files of posteriors: what comes back, and what bad files do."""

import dataclasses
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoGuideList, AutoIAFNormal, AutoLowRankMultivariateNormal
from torch import nn

from pyro_deeponet import (
    Affine,
    Calibration,
    DeepONet,
    History,
    OperatorData,
    Posterior,
    Scaling,
    fit,
    likelihoods,
    priors,
)
from pyro_deeponet.guides import GUIDES, make_guide
from pyro_deeponet.serialization import FORMAT

U, Y = torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(0, 1, 4)[:, None]
SMALL = {"sensors": 3, "coordinates": 1, "branch": (4,), "trunk": (4,)}


def random_guide(kind, model):
    """A guide whose parameters are none that it starts with."""
    torch.manual_seed(0)
    guide = make_guide(kind, model)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return guide


def random_posterior(kind="normal", **kwargs):
    model = DeepONet(**(SMALL | kwargs))
    return Posterior(model, random_guide(kind, model))


def kept(model, count=5):
    torch.manual_seed(0)
    shapes = model.sampled_shapes()
    return Posterior(model, weights={k: torch.randn(count, *s) for k, s in shapes.items()})


def same_predictions(a, b):
    p, q = (x.predict(U, Y, num_samples=7, seed=3) for x in (a, b))
    draws = [x.sample(U, Y, num_samples=7, seed=3) for x in (a, b)]
    return (
        torch.equal(p.mean, q.mean)
        and torch.equal(p.std, q.std)
        and torch.equal(p.quantile(0.9), q.quantile(0.9))
        and torch.equal(*draws)
    )


def there_and_back(posterior, folder, **kwargs):
    return Posterior.load(posterior.save(folder / "posterior.pt"), **kwargs)


@pytest.mark.parametrize("kind", GUIDES)
def test_every_named_guide_comes_back_to_the_last_bit(tmp_path, kind):
    posterior = random_posterior(kind)
    loaded = there_and_back(posterior, tmp_path)
    assert type(loaded.guide) is type(posterior.guide)
    assert same_predictions(loaded, posterior)


def test_a_fitted_posterior_comes_back(tmp_path):
    torch.manual_seed(0)
    data = OperatorData(10 * torch.randn(12, 3), Y, 5 + torch.randn(12, 4))
    model = DeepONet.for_data(data, branch=(4,), trunk=(4,))
    steps = {"steps": 20, "warm_start": 20, "num_particles": 2, "progress": False}
    posterior = fit(model, data, guide="laplace", validation=data, **steps)
    posterior = posterior.calibrate(data, level=0.9)
    loaded = there_and_back(posterior, tmp_path)
    assert same_predictions(loaded, posterior)
    assert loaded.history == posterior.history
    assert len(loaded.history.validation["nll"]) > 0
    assert loaded.calibration == posterior.calibration
    assert repr(loaded) == repr(posterior)
    assert torch.equal(loaded.model.scaling.u.shift, posterior.model.scaling.u.shift)


@pytest.mark.parametrize(
    "change",
    [
        {"activation": "tanh", "final_activation": True, "head": "features"},
        {"activation": torch.sin},  # known by its name
        {"likelihood": likelihoods.Homoscedastic(0.3)},
        {"likelihood": likelihoods.FixedNoise(0.2)},
        {"likelihood": likelihoods.FixedNoise()},
        {"likelihood": likelihoods.Heteroscedastic(floor=0.01)},
        {"prior": priors.FanIn(0.5)},
        {"prior": priors.Normal(np.float64(0.1), np.float64(2.0))},
        {"scaling": Scaling(Affine(1.0, 2.0), Affine(), Affine(3.0, 4.0))},  # one number for all
        {"scaling": Scaling.identity(3, 1)},
    ],
)
def test_every_setting_of_the_model_comes_back(tmp_path, change):
    posterior = kept(DeepONet(**(SMALL | change)))
    loaded = there_and_back(posterior, tmp_path)
    assert same_predictions(loaded, posterior)
    assert repr(loaded.model) == repr(posterior.model).replace("own activation", "sine")
    assert loaded.model.prior == posterior.model.prior


def test_deterministic_and_partly_plain_nets(tmp_path):
    net = Posterior(DeepONet(**SMALL, prior=None))
    with torch.no_grad():
        for parameter in net.model.parameters():
            parameter.add_(torch.randn_like(parameter))
    net.model.head.weight.requires_grad_(False)
    loaded = there_and_back(net, tmp_path)
    assert same_predictions(loaded, net)
    assert loaded.model.prior is None
    frozen = [k for k, w in loaded.model.plain_weights().items() if not w.requires_grad]
    assert frozen == ["head.weight"]

    partly = random_posterior(prior=partly_plain)
    with torch.no_grad():
        partly.model.head.bias.fill_(0.7)
    assert same_predictions(there_and_back(partly, tmp_path, prior=partly_plain), partly)


def partly_plain(name, shape):
    return dist.Normal(0.0, 1.0) if name.startswith("branch") else None


def test_new_priors_are_found_by_themselves(tmp_path, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class ByName:
        table: dict
        rest: object = None
        numbers: tuple = ()

        def __call__(self, name, shape):
            known = [p for glob, p in self.table.items() if glob in name]
            return (known or [self.rest])[0](name, shape)

    monkeypatch.setattr(priors, "ByName", ByName, raising=False)
    monkeypatch.setattr(priors, "__all__", [*priors.__all__, "ByName"])
    inner = ByName({"bias": priors.FanIn(2.0)}, priors.Normal(0.0, 0.5), (1, 2.5, "x"))
    prior = ByName({"head": priors.Normal(1.0, 2.0), "branch": inner}, priors.FanIn())
    posterior = random_posterior(prior=prior)
    loaded = there_and_back(posterior, tmp_path)
    assert loaded.model.prior == prior
    assert same_predictions(loaded, posterior)
    # One field that is the user's own makes the whole prior so.
    own = random_posterior(prior=ByName({}, lambda name, shape: dist.Normal(0.0, 1.0)))
    with pytest.raises(ValueError, match="your own prior"):
        there_and_back(own, tmp_path)


class OwnLikelihood(likelihoods.Likelihood):
    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.3))

    def sigma(self, delta, unit):
        return self.level / unit


def own_prior(name, shape):
    return dist.Laplace(0.0, 1.0)


def test_what_is_the_user_s_own_must_be_passed_again(tmp_path):
    likelihood = OwnLikelihood()
    with torch.no_grad():
        likelihood.level.fill_(0.9)
    own = {
        "prior": own_prior,
        "guide": small_flow,
        "activation": torch.atan,
        "likelihood": likelihood,
    }
    model = DeepONet(**SMALL, **{k: v for k, v in own.items() if k != "guide"})
    posterior = Posterior(model, random_guide(own["guide"], model))
    path = posterior.save(tmp_path / "own.pt")
    with pytest.raises(ValueError, match=r"own activation and guide and likelihood and prior"):
        Posterior.load(path)
    with pytest.raises(ValueError, match=r"load\(path, guide=\.\.\.\)"):
        Posterior.load(path, **(own | {"guide": None}))
    fresh = OwnLikelihood()
    loaded = Posterior.load(path, **(own | {"likelihood": fresh}))
    assert same_predictions(loaded, posterior)
    assert loaded.model.likelihood.level.item() == pytest.approx(0.9)
    assert fresh.level.item() == pytest.approx(0.3)  # what was passed is left alone
    with pytest.raises(ValueError, match="is another than it was saved with"):
        Posterior.load(path, **(own | {"guide": "normal"}))
    with pytest.raises(ValueError, match="is another than it was saved with"):
        Posterior.load(path, **(own | {"prior": partly_plain}))


def small_flow(model):
    return AutoIAFNormal(model, hidden_dim=[64], num_transforms=1)


def test_what_the_file_holds_need_not_be_passed(tmp_path):
    path = random_posterior().save(tmp_path / "posterior.pt")
    with pytest.raises(ValueError, match="holds its own prior; leave out"):
        Posterior.load(path, prior=own_prior)


def test_a_callable_that_gives_a_known_guide_is_known(tmp_path):
    posterior = random_posterior(lambda model: AutoLowRankMultivariateNormal(model, rank=3))
    loaded = there_and_back(posterior, tmp_path)
    assert loaded.guide.rank == 3
    assert same_predictions(loaded, posterior)
    other = random_posterior(list_of_guides)
    with pytest.raises(ValueError, match="your own guide"):
        there_and_back(other, tmp_path)


def list_of_guides(model):
    guide = AutoGuideList(model)
    guide.append(GUIDES["normal"](model))
    return guide


def test_what_cannot_be_saved_is_told(tmp_path):
    class OwnScaling(Scaling):
        pass

    model = DeepONet(**SMALL, scaling=OwnScaling())
    with pytest.raises(TypeError, match="OwnScaling is a class of your own in the place of"):
        kept(model).save(tmp_path / "x.pt")
    with pytest.raises(TypeError, match="no module that holds its parameters"):
        Posterior(DeepONet(**SMALL), lambda *args: {}).save(tmp_path / "x.pt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("saved", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "mvn", None])
def test_another_float_type(tmp_path, saved, kind):
    model = DeepONet(**SMALL, scaling=Scaling(s=Affine(0.1, 0.3))).to(saved)
    posterior = kept(model) if kind is None else Posterior(model, random_guide(kind, model))
    if kind is None:
        posterior = Posterior(model, weights={k: w.to(saved) for k, w in posterior.weights.items()})
    path = posterior.save(tmp_path / "posterior.pt")
    same = Posterior.load(path)
    assert same.predict(U, Y).mean.dtype == saved
    assert same_predictions(same, posterior)
    for dtype in (torch.float32, torch.float64):
        loaded = Posterior.load(path, dtype=dtype, device="cpu")
        assert loaded.predict(U, Y).mean.dtype == dtype
        assert {p.dtype for p in loaded.model.buffers()} == {dtype}
        if kind is not None:
            assert {p.dtype for p in loaded.guide.parameters()} == {dtype}
        twice = there_and_back(loaded, tmp_path)
        assert same_predictions(twice, loaded)


def test_views_are_saved_without_the_rest_of_their_storage(tmp_path):
    model = DeepONet(**SMALL)
    full = kept(model, 20_000).weights
    few = Posterior(model, weights={k: w[:2] for k, w in full.items()})
    assert few.save(tmp_path / "few.pt").stat().st_size < 100_000


def test_a_new_process_predicts_the_same(tmp_path):
    posterior = random_posterior("mvn", activation="gelu")
    posterior = Posterior(
        posterior.model,
        posterior.guide,
        history=History(loss=[2.0, 1.0]),
        calibration=Calibration(1.5, 0.9, 40),
    )
    posterior.save(tmp_path / "deep" / "posterior.pt")
    script = """
import sys, torch
from pyro_deeponet import Posterior
torch.set_num_threads(1)
posterior = Posterior.load(sys.argv[1])
u, y = torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(0, 1, 4)[:, None]
p = posterior.predict(u, y, num_samples=7, seed=3)
s = posterior.sample(u, y, num_samples=7, seed=3)
torch.save([p.mean, p.std, s, repr(posterior), posterior.history.loss], sys.argv[2])
"""
    files = [str(tmp_path / "deep" / "posterior.pt"), str(tmp_path / "out.pt")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", script, *files], check=True, env=environment)
    *found, text, loss = torch.load(files[1], weights_only=True)
    p = posterior.predict(U, Y, num_samples=7, seed=3)
    expected = p.mean, p.std, posterior.sample(U, Y, num_samples=7, seed=3)
    assert all(map(torch.equal, found, expected))
    assert "std x 1.5 for 90% on 40 functions" in text
    assert loss == [2.0, 1.0]


def test_a_file_cut_short_anywhere(tmp_path):
    content = random_posterior().save(tmp_path / "whole.pt").read_bytes()
    path = tmp_path / "cut.pt"
    for tenth in range(10):
        path.write_bytes(content[: len(content) * tenth // 10])
        with pytest.raises(ValueError, match=r"cut\.pt is no posterior .* or is damaged"):
            Posterior.load(path)
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match="damaged"):
        Posterior.load(path)


class Payload:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


def rewritten(source, target, change):
    """The file with its pickle changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name.endswith("data.pkl") else data)
    return target


def bad_files(folder, proof):
    """Files that want to run something, which would leave a proof, and files of another kind."""
    good = random_posterior().save(folder / "good.pt")
    payload = pickle.dumps(Payload(proof), protocol=2)
    torch.save({"format": FORMAT, "model": Payload(proof)}, folder / "payload.pt")
    torch.save(Payload(proof), folder / "bare.pt")
    torch.save(Payload(proof), folder / "legacy.pt", _use_new_zipfile_serialization=False)
    (folder / "pickle.pt").write_bytes(payload)
    rewritten(good, folder / "rewritten.pt", lambda data: payload)
    archive = (folder / "payload.pt").read_bytes()
    (folder / "polyglot.pt").write_bytes(payload + archive)
    torch.save(nn.Linear(2, 2).state_dict(), folder / "state.pt")
    torch.save(torch.zeros(3), folder / "tensor.pt")
    torch.save({"format": "pyro_deeponet.checkpoint.1"}, folder / "checkpoint.pt")
    torch.save(nn.Linear(2, 2), folder / "module.pt")
    np.savez(folder / "arrays.npz", u=np.zeros(3))
    with zipfile.ZipFile(folder / "plain.zip", "w") as file:
        file.writestr("note.txt", "hello")
    (folder / "text.csv").write_text("u,y,s\n1,2,3\n")
    (folder / "noise.bin").write_bytes(bytes(range(256)) * 10)
    (folder / "empty").write_bytes(b"")
    good.unlink()
    return sorted(set(folder.iterdir()))


def test_foreign_and_malicious_files_run_nothing(tmp_path):
    folder, proof = tmp_path / "files", tmp_path / "proof"
    folder.mkdir()
    files = bad_files(folder, proof)
    assert len(files) == 15
    for path in files:
        with pytest.raises(ValueError, match="no posterior saved by pyro_deeponet"):
            Posterior.load(path)
        assert not proof.exists(), path
    torch.load(folder / "payload.pt", weights_only=False)
    assert proof.exists()  # the payload does work where it is let


def content_of(path):
    return torch.load(path, weights_only=True)


def test_other_formats_of_ours(tmp_path):
    path = random_posterior().save(tmp_path / "posterior.pt")
    content = content_of(path)
    for number, message in ((0, "older format"), (2, r"by pyro_deeponet 9\.9 in a newer format")):
        changed = content | {"format": f"pyro_deeponet.posterior.{number}", "version": "9.9"}
        torch.save(changed, path)
        with pytest.raises(ValueError, match=message):
            Posterior.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {}},
        {"model": 3},
        {"model_state": {}},
        {"guide": {"kind": "unheard of", "fields": {}}},
        {"guide_state": {}},
        {"history": {"unheard of": 1}},
        {"calibration": 3},
        {"prior": {"kind": "expanded", "fields": {}}},
        {"prior": {"kind": "os.system", "fields": {"command": "true"}}},
        {"likelihood": {"kind": "Likelihood", "fields": {}}},
        {"likelihood": {"kind": "FixedNoise", "fields": {"unknown": 1}}},
        {"activation": "os.system"},
        {"sensors": 4},
        {"sensors": "four"},
    ],
)
def test_content_that_makes_no_sense(tmp_path, change):
    path = random_posterior().save(tmp_path / "posterior.pt")
    content = content_of(path)
    if change.keys() <= content.keys():
        content |= change
    else:
        content["model"] |= change
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"posterior\.pt"):
        Posterior.load(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Posterior.load(tmp_path / "none.pt")


def test_saving_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = random_posterior().save(tmp_path / "posterior.pt")
    before = path.read_bytes()

    def fail(content, file):
        file.write(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="no space"):
        random_posterior().save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
