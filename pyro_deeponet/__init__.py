"""Bayesian operator learning: the Variational Bayes DeepONet as a probabilistic program in Pyro."""

from pyro_deeponet import problems
from pyro_deeponet.data import OperatorData
from pyro_deeponet.fields import GaussianRandomField

__version__ = "0.1.0"
__all__ = ["GaussianRandomField", "OperatorData", "__version__", "problems"]
