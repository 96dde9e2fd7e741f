"""Semirings that save time or memory in torch-struct. Inference here needs neither: they are those that they stand for."""

from typing import TypeVar

from tailsum.compat.torch_struct.semirings.base import Semiring
from tailsum.compat.torch_struct.semirings.plain import LogSemiring, MaxSemiring
from tailsum.compat.torch_struct.semirings.sampled import SampledSemiring

Kind = TypeVar("Kind", bound=type[Semiring])

FastLogSemiring, FastMaxSemiring, FastSampleSemiring = LogSemiring, MaxSemiring, SampledSemiring


def CheckpointSemiring(cls: Kind, min_size: int = 0) -> Kind:
    """The semiring itself: nothing that grows with products of tables is kept for backward passes."""
    return cls


def CheckpointShardSemiring(cls: Kind, max_size: int, min_size: int = 0) -> Kind:
    """The semiring itself."""
    return cls
