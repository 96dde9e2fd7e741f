"""Semirings that save time or memory in torch-struct. Here they are the plain semirings, as there is nothing to save."""

from typing import TypeVar

from tailsum.compat.torch_struct.semirings.base import Semiring
from tailsum.compat.torch_struct.semirings.plain import LogSemiring, MaxSemiring
from tailsum.compat.torch_struct.semirings.sampled import SampledSemiring

Kind = TypeVar("Kind", bound=type[Semiring])

FastLogSemiring, FastMaxSemiring, FastSampleSemiring = LogSemiring, MaxSemiring, SampledSemiring


def CheckpointSemiring(cls: Kind, min_size: int = 0) -> Kind:
    """The semiring itself: backward passes keep no products of tables."""
    return cls


def CheckpointShardSemiring(cls: Kind, max_size: int, min_size: int = 0) -> Kind:
    """The semiring itself."""
    return cls
