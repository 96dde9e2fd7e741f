"""Actions when another library is loaded."""

import importlib
import importlib.util
import sys

from tailsum.structure.when_loaded import when_loaded


def test_modules_that_are_loaded_later_or_were_before(tmp_path, monkeypatch):
    (tmp_path / "some_other_library.py").write_text("value = 3")
    monkeypatch.syspath_prepend(str(tmp_path))
    calls, finders = [], len(sys.meta_path)
    when_loaded("some_other_library", lambda module: calls.append(module.value))
    assert calls == []
    importlib.import_module("json.tool")
    assert calls == []
    module = importlib.import_module("some_other_library")
    assert calls == [3]
    assert len(sys.meta_path) == finders
    when_loaded("some_other_library", calls.append)
    assert calls == [3, module]


def test_a_library_that_is_not_there():
    calls = []
    when_loaded("no_such_library", calls.append)
    assert importlib.util.find_spec("no_such_library") is None
    assert calls == []
