"""With `make test`, a few kinds of each structure; with `make slow`, all the others. Enumeration has all kinds in both."""

import pytest

from harness.registry import FEW, LARGE, ONE_EACH, SMALL

SLOW = {*SMALL, *LARGE} - {*FEW, *ONE_EACH}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        kind = item.callspec.params.get("name") if hasattr(item, "callspec") else None
        here = item.path.parent.name == "structure" and item.path.name != "test_enumeration.py"
        if here and isinstance(kind, str) and kind in SLOW:
            item.add_marker(pytest.mark.slow)
