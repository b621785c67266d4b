"""Operators with exact ground truth: draw inputs, solve for outputs, make data sets."""

from pyro_deeponet.problems.advection_diffusion import AdvectionDiffusion
from pyro_deeponet.problems.antiderivative import Antiderivative
from pyro_deeponet.problems.base import Problem
from pyro_deeponet.problems.diffusion_reaction import DiffusionReaction
from pyro_deeponet.problems.field_problem import FieldProblem, SpaceTimeProblem, TimeProblem
from pyro_deeponet.problems.gravity_pendulum import GravityPendulum

__all__ = [
    "AdvectionDiffusion",
    "Antiderivative",
    "DiffusionReaction",
    "FieldProblem",
    "GravityPendulum",
    "Problem",
    "SpaceTimeProblem",
    "TimeProblem",
]
