"""Every test must leave global state as it found it."""

import pyro
import pytest
import torch


def global_state():
    return {
        "default dtype": torch.get_default_dtype(),
        "grad enabled": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "pyro settings": pyro.settings.get(),
        "threads": torch.get_num_threads(),
        "parameter store": sorted(pyro.get_param_store().keys()),
    }


@pytest.fixture(autouse=True)
def leaves_no_trace():
    """Start with an empty parameter store, and fail a test that changes global state."""
    pyro.clear_param_store()
    before = global_state()
    yield
    assert global_state() == before, "the test changed global state"
