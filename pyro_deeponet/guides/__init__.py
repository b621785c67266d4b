"""Variational posteriors: names for guides, where they start, and drawing from them at once.

A guide is a name from `GUIDES`, a `LowRank` with a rank of its own, or any callable
`model -> guide`, such as `functools.partial(AutoDiagonalNormal, init_scale=1e-2)`.
"""

from pyro_deeponet.guides.families import GUIDES, AutoMeanField, Guide, LowRank
from pyro_deeponet.guides.making import (
    is_point_guide,
    make_guide,
    scale_parameters,
    site_names,
    start_guide,
)
from pyro_deeponet.guides.sampling import flat_sampler, mean_field, unflatten

__all__ = [
    "GUIDES",
    "AutoMeanField",
    "Guide",
    "LowRank",
    "flat_sampler",
    "is_point_guide",
    "make_guide",
    "mean_field",
    "scale_parameters",
    "site_names",
    "start_guide",
    "unflatten",
]
