"""All kernels that the library declares."""

from importlib import import_module
from pkgutil import walk_packages

import tailsum
from tailsum.numerics.fused.kernel import Kernel, declared

ROOMS = {"numerics", "scores", "sketch", "chains", "trees", "dependencies", "graphs"}


def all_declared() -> list[Kernel]:
    """In the order of the modules that declare them."""
    for module in walk_packages(tailsum.__path__, "tailsum."):
        if module.name.split(".")[1] in ROOMS:
            import_module(module.name)
    return list(declared())
