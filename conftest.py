"""What the tests of the library and of the studies share. Shapes and types of every function are checked while they run."""

import gc
import os

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

from harness import type_checks

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is loaded: kernels are tested without a GPU

type_checks.install()

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # no doctests in them, and they share a name

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores: more threads would wait for one another
    torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])))
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # of the processes that tests start

settings.register_profile(
    "tailsum", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tailsum")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    type_checks.begin_test()


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


def pytest_collection_finish():
    """All tests and packages are there until the end: a test that collects garbage need not look through them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_network(monkeypatch):
    """Nothing may even try to reach the network."""
    from harness.stored_models import cut_off  # noqa: PLC0415  (needs transformers)

    tried = cut_off(monkeypatch)
    yield
    assert not tried
