"""Drawing the weights of networks, from a guide or from samples that are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyro
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoContinuous, AutoDelta, AutoNormal
from torch import Tensor

from pyro_deeponet.elbo import unflatten
from pyro_deeponet.guides import flat_sampler, site_names
from pyro_deeponet.model import DeepONet

__all__ = ["check_weights", "choose", "draw", "repeat", "seeded"]


@contextlib.contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draw random numbers told by a seed, and leave the random state as it was; `None`: do not."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # Not torch.manual_seed, which seeds the devices that are none of ours as well.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


@torch.no_grad()
def draw(model: DeepONet, guide: Any, num_samples: int) -> dict[str, Tensor]:
    """Draw all weights that have a prior, and other sites the guide may have.

    Args:
        model: The model.
        guide: Its guide, which has run once.
        num_samples: How many networks, `S`.

    Returns:
        Values by site, each `(S, ...)`.

    Raises:
        ValueError: The guide leaves out a weight.
    """
    sampled = model.sampled_shapes()
    at_once = flat_sampler(guide, sampled)
    if at_once is not None:
        flat, _ = at_once(num_samples)
        return unflatten(flat, {name: sampled[name] for name in site_names(guide)})
    with pyro.get_param_store().scope():
        if isinstance(guide, AutoNormal | AutoDelta | AutoContinuous):
            with pyro.plate("samples", num_samples, dim=-3):
                values = guide(*model.example())
            values = {name: value.squeeze(1).squeeze(1) for name, value in values.items()}
        else:
            values = Predictive(guide, num_samples=num_samples)(*model.example())
    if missing := sorted(sampled.keys() - values.keys()):
        raise ValueError(f"the guide draws no {', '.join(missing)}; add these sites to it")
    return values


def check_weights(weights: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Refuse samples that are not `(S, ...)` for each of these weights, with one `S`."""
    if missing := sorted(shapes.keys() - weights.keys()):
        raise ValueError(f"weights lack {', '.join(missing)}, which the model draws from a prior")
    counts = {w.shape[0] if w.dim() else 0 for w in weights.values()}
    if len(counts) > 1 or 0 in counts:
        raise ValueError(f"weights hold {sorted(counts)} samples, expected as many of each")
    for name, shape in shapes.items():
        if weights[name].shape[1:] != shape:
            found, wanted = tuple(weights[name].shape), ", ".join(map(str, shape))
            raise ValueError(f"weights[{name!r}] has shape {found}, expected (S, {wanted})")


def choose(weights: Mapping[str, Tensor], num_samples: int) -> dict[str, Tensor]:
    """At most `num_samples` of the samples kept, evenly spread over them."""
    kept = next(iter(weights.values())).shape[0]
    chosen = torch.linspace(0, kept - 1, min(num_samples, kept)).round().long()
    return {name: w[chosen.to(w.device)] for name, w in weights.items()}


def repeat(x: Tensor, count: int) -> Tensor:
    """The first dimension brought to a length, by starting anew where it ends."""
    if x.shape[0] in (1, count):
        return x.expand(count, *x.shape[1:])
    return x[torch.arange(count, device=x.device) % x.shape[0]]
