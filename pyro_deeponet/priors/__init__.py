"""What a weight is drawn from.

A prior is any callable `(name, shape) -> Distribution`. It is called with the name of the site
(`"branch.0.weight"`, `"trunk.2.bias"`, `"head.weight"`) and the shape of the weight, each time the
model runs, so that a prior may depend on either, and may itself contain sample statements. For a
weight that shall be a plain parameter it gives `None`.

A prior with sites of its own may have a method `start(name, weight) -> values by site`, which says
where a guide has them start when the weight starts there; else they start at their medians.
"""

from pyro_deeponet.priors.base import Prior

# For the rest of the package, which asks priors for distributions; users write them.
from pyro_deeponet.priors.base import expanded as expanded
from pyro_deeponet.priors.base import start_of as start_of
from pyro_deeponet.priors.independent import FanIn, Laplace, Normal, ScaleMixture, StudentT
from pyro_deeponet.priors.structured import ByLayer, Horseshoe

__all__ = [
    "ByLayer",
    "FanIn",
    "Horseshoe",
    "Laplace",
    "Normal",
    "Prior",
    "ScaleMixture",
    "StudentT",
]
