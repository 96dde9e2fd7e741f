"""What `torch.compile` and Pyro need from structures, set up when they are loaded.

`torch.compile` leaves this package's code to run eagerly: a break in the graph for each call, and no recompilation. The
recursions loop over positions in Python and choose their method by the range of the scores, so the compiler would trace
every length and every choice anew.

Pyro takes a structure wherever it takes a distribution, `pyro.sample("z", chain)`: structures get the methods that Pyro's
own distributions have beyond those of torch, and count as instances of its base class.
"""

import inspect
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
    """No file of this package is traced."""
    if hasattr(rules, "add"):  # not documented: without it compilation is slow, and still right
        rules.add(__name__.partition(".")[0])
