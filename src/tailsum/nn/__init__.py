"""Modules for your own networks: encoders of sentences, a CRF over very many states on any of them, and a structured VAE."""

from typing import TYPE_CHECKING

from tailsum.lazy import on_demand

if TYPE_CHECKING:
    from tailsum.nn.public import *  # noqa: F403
else:  # a type checker knows every name, and finds those that do not exist
    __getattr__, __dir__ = on_demand(__name__, "huggingface")
