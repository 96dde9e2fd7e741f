"""Reports need packages that the library does without, and say so."""

import importlib
import importlib.util
import subprocess
import sys

import pytest

from tailsum_studies import report


@pytest.mark.parametrize("missing", ["jinja2", "pandas", "matplotlib"])
def test_what_is_missing_is_named(missing, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(ImportError, match=rf"more packages \({missing}\): pip install 'tailsum\[plot,report\]'$"):
        importlib.reload(report)


def test_the_library_loads_no_pages():
    code = "import sys, tailsum; print([n for n in ('tailsum_studies.', 'pandas', 'jinja2') if n in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert shown.stdout.strip() == "[]", shown.stderr
