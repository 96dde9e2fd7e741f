"""Structured inference with very many latent states: exact where that is affordable, randomized where it is not."""

from typing import TYPE_CHECKING

from tailsum.lazy import on_demand

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tailsum import compat as compat
    from tailsum import distributed as distributed
    from tailsum import formats as formats
    from tailsum import hmm as hmm
    from tailsum import nn as nn
    from tailsum import plot as plot
    from tailsum.public import *  # noqa: F403
else:  # type checkers see every name above
    __getattr__, __dir__ = on_demand(__name__, "compat", "distributed", "formats", "hmm", "nn", "plot")
