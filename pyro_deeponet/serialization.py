"""A posterior as one file: plain values and tensors, read without running anything in it.

What a file cannot hold is code. A prior, guide, activation, likelihood or map of features from this
package is written by its name and looked up again here; one of the user's own, as a module given as
branch or trunk always is, is marked as such, and must be passed again on loading.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from torch import Tensor, nn

import pyro_deeponet
from pyro_deeponet import likelihoods, networks, priors
from pyro_deeponet.calibration import Calibration
from pyro_deeponet.guides import GUIDES, LowRank, make_guide
from pyro_deeponet.history import History
from pyro_deeponet.layers import ACTIVATIONS, MLP
from pyro_deeponet.model import DeepONet
from pyro_deeponet.scaling import Affine, Scaling
from pyro_deeponet.storage import write_atomically

__all__ = ["FORMAT", "read", "write"]

#: What a file says it is. The number changes when a file can no longer be read as before.
FORMAT = "pyro_deeponet.posterior.1"
#: Stands for what only its owner can write down again.
OWN = "own"
#: Attribute that holds each argument of a likelihood, by its class.
LIKELIHOODS: dict[type, dict[str, str]] = {
    likelihoods.Heteroscedastic: {"floor": "floor"},
    likelihoods.Homoscedastic: {"initial": "initial"},
    likelihoods.FixedNoise: {"sigma": "fixed"},
}


def write(
    path: str | os.PathLike[str],
    model: DeepONet,
    guide: Any,
    weights: Mapping[str, Tensor] | None,
    history: History,
    calibration: Calibration | None,
) -> Path:
    """Write a model with its guide or weights to a file, all of it or nothing.

    Args:
        path: The file.
        model: The model.
        guide: A fitted guide, or `None`.
        weights: Samples by name, or `None`.
        history: What happened during the fit.
        calibration: A correction of the spread, or `None`.

    Examples:
        >>> import tempfile
        >>> model = DeepONet(sensors=4, coordinates=1, prior=None)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write(f"{folder}/net.pt", model, None, None, History(loss=[0.5]), None)
        ...     parts = read(path)
        >>> parts["model"], parts["history"]
        (DeepONet(4 sensors, ...), History(0 warm-start steps, 1 steps, loss 0.5, 0.0 s))
    """
    if not (guide is None or isinstance(guide, nn.Module)):
        raise TypeError(
            f"the guide is {type(guide).__name__}, no module that holds its parameters, and "
            "cannot be saved; make it a PyroModule, or save weights that were drawn from it"
        )
    content = {
        "format": FORMAT,
        "version": pyro_deeponet.__version__,
        "model": _pack_model(model),
        "plain": {name: w.requires_grad for name, w in model.plain_weights().items()},
        "model_state": _tensors(model.state_dict()),
        "guide": _pack_guide(guide),
        "guide_state": None if guide is None else _tensors(guide.state_dict()),
        "weights": None if weights is None else _tensors(weights),
        "history": _plain(history.to_dict()),
        "calibration": calibration and _plain(dataclasses.asdict(calibration)),
    }
    return write_atomically(path, lambda file: torch.save(content, file))


def read(
    path: str | os.PathLike[str],
    own: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    """Read what `write` wrote.

    Args:
        path: The file.
        own: What the file could not hold: `"prior"`, `"guide"`, `"activation"`, `"likelihood"`,
            `"branch"`, `"trunk"`, `"trunk_features"`.
        device: Where the tensors go; the CPU unless told.
        dtype: Their float type; that of the file unless told.

    Returns:
        The arguments of `write` by name, without the path.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, or something else, or asks for something to be passed.
    """
    content = _read_content(path)
    given = {name: value for name, value in (own or {}).items() if value is not None}
    try:
        config = content["model"] | {"guide": content["guide"]}
        needed = {name for name, value in config.items() if value == OWN}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: its content is not that of a posterior") from error
    _check_given(path, needed, set(given))
    try:
        return _build(content, given, device or "cpu", dtype)
    except Exception as error:  # of many kinds, from a file that only looks right
        cause = f"the {' or '.join(sorted(given))} passed is another than it was saved with"
        raise ValueError(
            f"{path} cannot be put together: {cause if given else 'it is damaged'} ({error})"
        ) from error


def _build(
    content: dict[str, Any],
    given: Mapping[str, Any],
    device: torch.device | str,
    dtype: torch.dtype | None,
) -> dict[str, Any]:
    state, weights, calibration = (content[k] for k in ("model_state", "weights", "calibration"))
    like = state["scaling.s.shift"].to(device=device, dtype=dtype)
    model = _build_model(content["model"], given, state).to(like)
    model.load_state_dict(state)
    for name, parameter in model.plain_weights().items():
        parameter.requires_grad_(content["plain"][name])
    guide = _build_guide(content["guide"], given, model)
    if guide is not None:
        guide.load_state_dict(content["guide_state"])
    return {
        "model": model,
        "guide": guide,
        "weights": weights and {name: w.to(like) for name, w in weights.items()},
        "history": History(**content["history"]),
        "calibration": calibration and Calibration(**calibration),
    }


def _read_content(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a file of ours; anything else is a `ValueError`."""
    with open(path, "rb") as file:
        start = file.read(4)
    foreign = f"{path} is no posterior saved by pyro_deeponet, or is damaged or cut short"
    # torch.save writes zip files. Other files never reach torch.load, whose reader of older
    # formats has run code from them in the past.
    if start != b"PK\x03\x04" or not zipfile.is_zipfile(path):
        raise ValueError(foreign)
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # of many kinds, depending on where the damage is
        raise ValueError(f"{foreign}; nothing in it was run ({type(error).__name__})") from None
    found = content.get("format") if isinstance(content, dict) else None
    if found == FORMAT:
        return content
    family, _, number = str(found).rpartition(".")
    if family != FORMAT.rpartition(".")[0] or not number.isdecimal():
        raise ValueError(foreign if found is None else f"{foreign}; it says it is {found!r}")
    if int(number) > int(FORMAT.rpartition(".")[2]):
        raise ValueError(
            f"{path} was written by pyro_deeponet {content.get('version')} in a newer format, "
            f"{found!r}; this is {pyro_deeponet.__version__}, which reads {FORMAT!r}: upgrade it"
        )
    raise ValueError(
        f"{path} is in an older format, {found!r}; load it with pyro_deeponet "
        f"{content.get('version')}, which wrote it, and fit or save anew"
    )


def _check_given(path: Any, needed: set[str], given: set[str]) -> None:
    if missing := sorted(needed - given):
        arguments = ", ".join(f"{name}=..." for name in missing)
        raise ValueError(
            f"{path} was saved with your own {' and '.join(missing)}, which a file cannot hold; "
            f"pass the same again: Posterior.load(path, {arguments})"
        )
    if surplus := sorted(given - needed):
        raise ValueError(
            f"{path} holds its own {' and '.join(surplus)}; leave out what was passed for it"
        )


def _pack_model(model: DeepONet) -> dict[str, Any]:
    maps = model.scaling.u, model.scaling.y, model.scaling.s
    expected = [(model, DeepONet), (model.scaling, Scaling), *((x, Affine) for x in maps)]
    for x, kind in expected:
        if type(x) is not kind:
            raise TypeError(
                f"{type(x).__name__} is a class of your own in the place of {kind.__name__}; a "
                "file cannot hold it. Save model.state_dict(), and rebuild the model in your code"
            )
    names = [name for name, f in ACTIVATIONS.items() if model.activation in (name, f)]
    return {
        "sensors": model.sensors,
        "coordinates": model.coordinates,
        "outputs": model.outputs,
        "branch": list(model.branch_sizes) if isinstance(model.branch, MLP) else OWN,
        "trunk": list(model.trunk_sizes) if isinstance(model.trunk, MLP) else OWN,
        "trunk_features": _pack_own(model.features),
        "branch_skip": bool(model.branch_skip),
        "activation": names[0] if names else OWN,
        "final_activation": bool(model.final_activation),
        "head": model.head.kind,
        "prior": _pack_own(model.prior),
        "likelihood": _pack_likelihood(model.likelihood),
    }


def _build_model(
    config: dict[str, Any], given: Mapping[str, Any], state: Mapping[str, Tensor]
) -> DeepONet:
    own = {
        name: copy.deepcopy(value) if isinstance(value, nn.Module) else value
        for name, value in given.items()
        if name != "guide"
    }
    maps = (Affine(state[f"scaling.{x}.shift"], state[f"scaling.{x}.scale"]) for x in "uys")
    known: dict[str, Any] = {"scaling": Scaling(*maps)}
    # Files from before there were features, say, have none in them.
    for name in {"prior", "trunk_features"} & config.keys() - own.keys():
        known[name] = _unpack(config[name])
    if "likelihood" not in own:
        kinds = {kind.__name__: kind for kind in LIKELIHOODS}
        known["likelihood"] = kinds[config["likelihood"]["kind"]](**config["likelihood"]["fields"])
    return DeepONet(**(config | known | own))


def _pack_likelihood(likelihood: likelihoods.Likelihood) -> Any:
    arguments = LIKELIHOODS.get(type(likelihood))
    if arguments is None:
        return OWN
    fields = {argument: getattr(likelihood, name) for argument, name in arguments.items()}
    return {"kind": type(likelihood).__name__, "fields": fields}


def _pack_guide(guide: Any) -> Any:
    if guide is None:
        return None
    if type(guide) is AutoLowRankMultivariateNormal:
        return {"kind": "lowrank", "fields": {"rank": _plain(guide.rank)}}
    names = [name for name, make in GUIDES.items() if type(guide) is getattr(make, "func", make)]
    return {"kind": names[0], "fields": {}} if names else OWN


def _build_guide(config: Any, given: Mapping[str, Any], model: DeepONet) -> Any:
    if config is None:
        return None
    if config == OWN:
        return make_guide(given["guide"], model)
    if config["kind"] == "lowrank":
        return make_guide(LowRank(**config["fields"]), model)
    return make_guide(config["kind"], model)


def _kinds() -> dict[str, Any]:
    """The priors and features of this package that are told by their fields."""
    named = {name: getattr(of, name) for of in (priors, networks) for name in of.__all__}
    return {k: v for k, v in named.items() if isinstance(v, type) and dataclasses.is_dataclass(v)}


def _pack_own(value: Any) -> Any:
    try:
        return _pack(value)
    except TypeError:
        return OWN


def _pack(value: Any) -> Any:
    """A value, or a prior with values and priors in its fields, in plain types."""
    if _kinds().get(type(value).__name__) is type(value):
        fields = {f.name: _pack(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, "fields": fields}
    if isinstance(value, Mapping):
        return {"kind": "dict", "fields": {str(k): _pack(v) for k, v in value.items()}}
    if type(value) in (list, tuple):
        return {"kind": type(value).__name__, "fields": [_pack(v) for v in value]}
    return _plain(value)


def _unpack(packed: Any) -> Any:
    if not isinstance(packed, dict):
        return packed
    kind, fields = packed["kind"], packed["fields"]
    if kind in ("list", "tuple"):
        return [_unpack(v) for v in fields] if kind == "list" else tuple(map(_unpack, fields))
    unpacked = {name: _unpack(v) for name, v in fields.items()}
    return unpacked if kind == "dict" else _kinds()[kind](**unpacked)


def _plain(value: Any) -> Any:
    """Numbers, texts, tensors and containers of them, as Python's and torch's own types."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"{type(value).__name__} is no plain type")


def _tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Cloned: a view would take the whole of its storage into the file.
    return {name: value.detach().cpu().clone() for name, value in state.items()}
