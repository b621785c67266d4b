"""Variational posteriors: names for guides, where they start, and drawing from them at once.

A guide is a name from `GUIDES`, a `LowRank` with a rank of its own, or any callable
`model -> guide`, such as `functools.partial(AutoDiagonalNormal, init_scale=1e-2)`.
"""

from pyro_deeponet.guides.families import GUIDES, AutoMeanField, Guide, LowRank

# For the rest of the package, which makes guides and draws from them; users name them.
from pyro_deeponet.guides.families import INIT_SCALE as INIT_SCALE
from pyro_deeponet.guides.making import is_point_guide as is_point_guide
from pyro_deeponet.guides.making import make_guide as make_guide
from pyro_deeponet.guides.making import scale_parameters as scale_parameters
from pyro_deeponet.guides.making import site_names as site_names
from pyro_deeponet.guides.making import start_guide as start_guide
from pyro_deeponet.guides.sampling import flat_sampler as flat_sampler
from pyro_deeponet.guides.sampling import mean_field as mean_field
from pyro_deeponet.guides.sampling import unflatten as unflatten

__all__ = ["GUIDES", "AutoMeanField", "Guide", "LowRank"]
