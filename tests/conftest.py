"""Shapes and types of every function of the package are checked while the tests run."""

import os

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

jaxtyping.install_import_hook("tailsum", "beartype.beartype").__enter__()

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores: more threads would wait for one another
    torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])))

settings.register_profile(
    "tailsum", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tailsum")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def unchecked():
    """Without the type checks, as users run it: what does bad input say then?"""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def one_thread():
    """Where tensors are small, threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
