"""Arithmetic of sums over paths: of probabilities, of their logarithms, or of maxima.

The scores of a path are joined, the paths to a state are added. What is written once for a ring serves all three.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from tailsum.numerics.precision import product
from tailsum.numerics.reduce import LogProduct, Reduce, highest, log_or_never, log_sum_exp
from tailsum.numerics.tensors import finite


class Ring(ABC):
    """How paths are joined and added."""

    zero: float  # what an impossible path has

    @abstractmethod
    def join(self, a: Tensor, b: Tensor) -> Tensor:
        """One path after the other."""

    @abstractmethod
    def add(self, parts: Sequence[Tensor]) -> Tensor:
        """The sum of tensors of one shape."""

    @abstractmethod
    def product(self, x: Tensor, table: Tensor) -> Tensor:
        """`x [*lead, R, N]` times `table [*lead, N, M]`."""

    @abstractmethod
    def collected(self, values: Tensor, place: Tensor, size: int) -> Tensor:
        """Values `[.., E]` added up at their places `[E]`, `[.., size]`."""


class Probability(Ring):
    """Products and sums."""

    zero = 0.0

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def add(self, parts: Sequence[Tensor]) -> Tensor:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def product(self, x: Tensor, table: Tensor) -> Tensor:
        return product(x, table)

    def collected(self, values: Tensor, place: Tensor, size: int) -> Tensor:
        return values.new_zeros(*values.shape[:-1], size).index_add(-1, place, values)


class Logarithm(Ring):
    """Sums, and `reduce`: `log_sum_exp`, or the maximum."""

    zero = -torch.inf

    def __init__(self, reduce: Reduce) -> None:
        self.reduce = reduce

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def add(self, parts: Sequence[Tensor]) -> Tensor:
        return self.reduce(torch.stack(list(parts)), 0)

    def product(self, x: Tensor, table: Tensor) -> Tensor:
        return LogProduct(table, self.reduce)(x)

    def collected(self, values: Tensor, place: Tensor, size: int) -> Tensor:
        never = values.new_full((*values.shape[:-1], size), -torch.inf)
        top = never.scatter_reduce(-1, place.expand(values.shape), values.detach(), "amax")
        if self.reduce is not log_sum_exp:
            return top
        base = finite(top)
        mass = (values - base.index_select(-1, place)).exp()
        return log_or_never(values.new_zeros(top.shape).index_add(-1, place, mass)) + base


PROBABILITY = Probability()
LOG_SUM, LOG_BEST = Logarithm(log_sum_exp), Logarithm(highest)
