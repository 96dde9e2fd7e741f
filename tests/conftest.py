"""Other libraries to compare with, and which kinds of structures are slow."""

import importlib
import importlib.util
import sys
import types

import pytest


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
