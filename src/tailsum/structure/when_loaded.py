"""Hooks that run when another library is imported, so that this one need not import it."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Act = Callable[[ModuleType], object]


def when_loaded(name: str, act: Act) -> None:
    """Calls `act(module)` now if the module of this name is loaded, else as soon as it is.

    >>> when_loaded("math", lambda math: print(math.floor(1.5)))
    1
    """
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Watch(name, act))


class _Watch(MetaPathFinder):
    """Finds one module as usual, and acts on it once it is loaded."""

    def __init__(self, name: str, act: Act) -> None:
        self.name, self.act = name, act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_act(module: ModuleType) -> None:
                load(module)
                self.act(module)

            spec.loader.exec_module = load_and_act
        return spec
