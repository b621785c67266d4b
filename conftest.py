"""Settings of all tests, the examples of docstrings and pages among them."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch

mpl.use("Agg")
torch.set_num_threads(1)  # tests run side by side


@pytest.fixture(autouse=True)
def closes_its_figures():
    """Close what an example draws, which the reader would look at."""
    yield
    plt.close("all")
