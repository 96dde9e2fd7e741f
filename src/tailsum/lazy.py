"""Packages whose names are loaded on first use: importing torch takes seconds, and `--help` does not need it."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def on_demand(package: str, *rooms: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: for the names in its module `public`, and for the subpackages `rooms`.

    `public` imports the names and lists them in `__all__`, which is also the package's `__all__`.
    """

    def load(name: str) -> Any:
        if name in rooms:
            return import_module(f"{package}.{name}")
        public = import_module(f"{package}.public")
        if name == "__all__" or name in public.__all__:
            return getattr(public, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted([*load("__all__"), *rooms])
