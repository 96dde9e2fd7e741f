"""Shapes and types of every function of the package are checked while the tests run."""

import gc
import importlib
import importlib.util
import os
import sys
import types

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

from harness import type_checks

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is loaded: kernels are tested without a GPU

type_checks.install()

collect_ignore_glob = ["conftest.py", "*/conftest.py", "*/*/conftest.py"]  # no doctests in them, and they share a name

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


# Other libraries to compare with.


@pytest.fixture(scope="module")
def torch_struct():
    return pytest.importorskip("torch_struct")


@pytest.fixture(scope="module")
def nonprojective():
    return pytest.importorskip("torch_struct.deptree")


@pytest.fixture(scope="module")
def supar():
    """`supar.structs`, without what `import supar` runs: its parsers, which want transformers, stanza, nltk and dill.

    The structures need nothing but torch and two small modules of supar.utils.
    """
    spec = importlib.util.find_spec("supar")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(
            "supar is not installed (pip install --no-deps supar: its structures need none of its requirements)"
        )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("supar", "supar.utils"):
            package = types.ModuleType(name)
            inner = name.split(".")[1:]
            package.__path__ = ["/".join([place, *inner]) for place in spec.submodule_search_locations]
            patch.setitem(sys.modules, name, package)
        yield importlib.import_module("supar.structs")


# Slow kinds.


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """In `tests/structure`, a few kinds of each structure run with `make test`, the others with `make slow`.

    Enumeration has all kinds in both.
    """
    from harness.registry import FEW, LARGE, ONE_EACH, SMALL  # noqa: PLC0415  (after the type checks are installed)

    slow = {*SMALL, *LARGE} - {*FEW, *ONE_EACH}
    slow |= {"chain-scored", "segments-scored", "pcfg-own dense", "pairs-star, scored", "pairs-no edges"}
    slow |= {"pairs-isolated, factored unary", "dependencies-labelled", "pcfg-scored"}
    for item in items:
        kind = item.callspec.params.get("name") if hasattr(item, "callspec") else None
        here = item.path.parent.name == "structure" and item.path.name != "test_enumeration.py"
        if here and isinstance(kind, str) and kind in slow:
            item.add_marker(pytest.mark.slow)
