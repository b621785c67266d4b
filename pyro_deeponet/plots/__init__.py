"""Figures of data, predictions and fits.

A function draws on the `ax` (or `axes`) it is given, or on a new figure, and returns what it drew
on. None of them shows a figure or changes matplotlib's settings: save one with
`ax.figure.savefig(...)`. Arrays may be tensors on any device or numpy arrays.
"""

from pyro_deeponet.plots.densities import density
from pyro_deeponet.plots.heatmaps import bounds, fields
from pyro_deeponet.plots.lines import band, function, inputs
from pyro_deeponet.plots.scores import (
    calibration,
    error_against_std,
    nmse_against_functions,
    pit_histogram,
)
from pyro_deeponet.plots.training import history

__all__ = [
    "band",
    "bounds",
    "calibration",
    "density",
    "error_against_std",
    "fields",
    "function",
    "history",
    "inputs",
    "nmse_against_functions",
    "pit_histogram",
]
