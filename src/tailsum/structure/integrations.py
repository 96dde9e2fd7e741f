"""Hooks for `torch.compile` and Pyro, which run when these are loaded.

`torch.compile` runs this package's code eagerly: a graph break for each call, and no recompilation. The recursions loop over
positions in Python and choose their method by the range of the scores, so the compiler would trace every length and every
choice anew.

Pyro accepts structures as distributions, `pyro.sample("z", chain)`: they get the methods that Pyro adds to torch's
distributions, and count as instances of its base class.
"""

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

from tailsum.structure.when_loaded import when_loaded


def integrate(structure: Any) -> None:
    """Prepare the base class of all structures for libraries that may be loaded later."""

    def register(pyro: ModuleType) -> None:
        base = pyro.TorchDistributionMixin
        for name in dir(base):
            public = name == "__call__" or not name.startswith("_")
            if public and not any(name in vars(kind) for kind in structure.__mro__):
                setattr(structure, name, inspect.getattr_static(base, name))
        base.register(structure)

    when_loaded("torch._dynamo.trace_rules", leave_eager)
    when_loaded("pyro.distributions.torch_distribution", register)


def leave_eager(rules: ModuleType) -> None:
    """Keep the compiler from tracing any file of this package but `operator.py`."""
    package = importlib.import_module(__name__.partition(".")[0])
    if hasattr(rules, "add"):  # undocumented: without it, compilation is slow but still correct
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".operator"):
                rules.add(module.name)
