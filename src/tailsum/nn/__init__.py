"""Modules for networks: sentence encoders, CRFs over very many states, parsers, and a structured VAE."""

from typing import TYPE_CHECKING

from tailsum.lazy import on_demand

if TYPE_CHECKING:
    from tailsum.nn.public import *  # noqa: F403
else:  # type checkers must not see these, or they would accept names that do not exist
    __getattr__, __dir__ = on_demand(__name__, "huggingface")
