"""Bayesian operator learning: the Variational Bayes DeepONet as a probabilistic program in Pyro."""

from pyro_deeponet import guides, likelihoods, metrics, networks, plots, priors, problems
from pyro_deeponet.data import OperatorData
from pyro_deeponet.elbo import DeepONetELBO
from pyro_deeponet.ensemble import ensemble
from pyro_deeponet.fields import GaussianRandomField
from pyro_deeponet.fit import Diverged, State, fit
from pyro_deeponet.history import History
from pyro_deeponet.mcmc import mcmc
from pyro_deeponet.metrics import evaluate
from pyro_deeponet.model import DeepONet
from pyro_deeponet.posterior import Calibration, Posterior
from pyro_deeponet.prediction import Prediction
from pyro_deeponet.scaling import Affine, Scaling

__version__ = "0.1.0"
__all__ = [
    "Affine",
    "Calibration",
    "DeepONet",
    "DeepONetELBO",
    "Diverged",
    "GaussianRandomField",
    "History",
    "OperatorData",
    "Posterior",
    "Prediction",
    "Scaling",
    "State",
    "__version__",
    "ensemble",
    "evaluate",
    "fit",
    "guides",
    "likelihoods",
    "mcmc",
    "metrics",
    "networks",
    "plots",
    "priors",
    "problems",
]
