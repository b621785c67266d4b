"""What `experiments.compare` compares: on some data, one network and many ways to learn it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyro_deeponet.likelihoods import Homoscedastic
from pyro_deeponet.priors import (
    ByLayer,
    FanIn,
    Horseshoe,
    Laplace,
    Normal,
    Prior,
    ScaleMixture,
    StudentT,
)
from pyro_deeponet.problems import Antiderivative, Problem

__all__ = ["SETTINGS", "Setting"]

PROBLEM: Problem = Antiderivative()
#: Of the training data; the noise is relative to the outputs' spread.
FUNCTIONS, POINTS, NOISE = 100, 20, 0.05
TEST_FUNCTIONS = 1_000
#: Of all settings. Small enough for guides with a full covariance matrix, and for the samplers.
NETWORK: dict[str, Any] = {
    "branch": (16, 16), "trunk": (16, 16), "activation": "gelu", "head": "features",
    "branch_skip": True,
}  # fmt: skip
#: Arguments of each function of the package, where a setting has no others.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "fit": {"warm_start": 2_000, "steps": 2_000, "num_particles": 10},
    "ensemble": {"warm_start": 2_000, "steps": 2_000, "members": 10},
    "mcmc": {"warm_start": 2_000},
}


@dataclass(frozen=True)
class Setting:
    """One way to learn the operator.

    Args:
        family: What it is one of, in the figure.
        label: What it is called in the table.
        prior: Of the weights.
        arguments: Of the function, where they are not `ARGUMENTS`.
        inference: The function of the package, a key of `ARGUMENTS`.
        model: Of the network, where it is not `NETWORK`.
        held_out: Fraction of the functions that are kept from training, to stop by.
    """

    family: str
    label: str
    prior: Prior | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inference: str = "fit"
    model: Mapping[str, Any] = field(default_factory=dict)
    held_out: float = 0.0

    @property
    def network(self) -> dict[str, Any]:
        """Arguments of `DeepONet.for_data`."""
        return {**NETWORK, **self.model, "prior": self.prior}

    @property
    def call(self) -> dict[str, Any]:
        """Arguments of the function."""
        return {**ARGUMENTS[self.inference], **self.arguments}

    def to_json(self) -> dict[str, Any]:
        """The setting as a JSON file gives it back; priors and the like by their `repr`."""
        values = {
            "network": self.network,
            "inference": self.inference,
            "call": self.call,
            "held_out": self.held_out,
        }
        plain: dict[str, Any] = json.loads(json.dumps(values, default=repr))
        return plain


_NARROW = Normal(0.0, 0.1)
SETTINGS: dict[str, Setting] = {
    "deterministic": Setting("deterministic", "2000 + 2000 steps", None),
    "deterministic-one-sigma": Setting("deterministic", "2000 + 2000 steps, one noise level",
        None, model={"likelihood": Homoscedastic()}),
    "deterministic-short": Setting("deterministic", "1000 + 1000 steps", None,
        {"warm_start": 1_000, "steps": 1_000}),
    "deterministic-long": Setting("deterministic", "8000 + 3000 steps", None,
        {"warm_start": 8_000, "steps": 3_000}),
    "deterministic-stopped": Setting("deterministic", "stopped by 20 held-out functions", None,
        {"warm_start": 0, "steps": 6_000, "patience": 10}, held_out=0.2),
    "map": Setting("MAP", "N(0, 0.1), guide `delta`", _NARROW, {"guide": "delta"}),
    "unit-normal": Setting("variational", "N(0, 1), guide `normal`", Normal(0.0, 1.0)),
    "normal": Setting("variational", "N(0, 0.1), guide `normal`", _NARROW),
    "meanfield": Setting("variational", "N(0, 0.1), guide `meanfield`", _NARROW,
        {"guide": "meanfield"}),
    "lowrank": Setting("variational", "N(0, 0.1), guide `lowrank`", _NARROW, {"guide": "lowrank"}),
    "laplace": Setting("variational", "N(0, 0.1), guide `laplace`", _NARROW, {"guide": "laplace"}),
    "fan-in": Setting("variational", "fan-in, guide `normal`", FanIn(1.0)),
    "laplace-prior": Setting("variational", "Laplace(0.1), guide `normal`", Laplace(0.0, 0.1)),
    "student-t": Setting("variational", "Student t(3, 0.1), guide `normal`",
        StudentT(3.0, 0.0, 0.1)),
    "scale-mixture": Setting("variational", "N(0, 0.5) and N(0, 0.05) mixed, guide `normal`",
        ScaleMixture(0.5, 0.5, 0.05)),
    "horseshoe": Setting("variational", "horseshoe(0.1), guide `normal`", Horseshoe(0.1)),
    "plain-trunk": Setting("variational", "N(0, 0.1) but for the trunk, guide `normal`",
        ByLayer({"trunk.*": None, "*": _NARROW})),
    "head-only": Setting("variational", "N(0, 1) on the head alone, guide `normal`",
        ByLayer({"head.*": Normal(0.0, 1.0), "*": None})),
    "tempered-unit": Setting("variational", "N(0, 1), guide `normal`, KL weight 0.1",
        Normal(0.0, 1.0), {"kl_weight": 0.1}),
    "tempered": Setting("variational", "N(0, 0.1), guide `normal`, KL weight 0.1", _NARROW,
        {"kl_weight": 0.1}),
    "ensemble": Setting("ensemble", "10 members without a prior", None, inference="ensemble"),
    "ensemble-prior": Setting("ensemble", "10 members, N(0, 0.1)", _NARROW, inference="ensemble"),
    "nuts": Setting("MCMC", "N(0, 0.1), NUTS, 2 chains of 100 + 100", _NARROW,
        {"kernel": "nuts", "warmup": 100, "samples": 100, "chains": 2, "max_tree_depth": 7},
        inference="mcmc"),
    "hmc": Setting("MCMC", "N(0, 0.1), HMC, 1 chain of 60 + 60", _NARROW,
        {"kernel": "hmc", "warmup": 60, "samples": 60, "chains": 1, "trajectory_length": 0.5},
        inference="mcmc"),
}  # fmt: skip
