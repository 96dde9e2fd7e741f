"""Structured inference with very many latent states: exact where that is affordable, randomized where it is not."""

from typing import TYPE_CHECKING

from tailsum.lazy import on_demand

if TYPE_CHECKING:
    from tailsum import distributed as distributed
    from tailsum import nn as nn
    from tailsum import plot as plot
    from tailsum.public import *  # noqa: F403

__version__ = "0.1.0"

__getattr__, __dir__ = on_demand(__name__, "distributed", "nn", "plot")
