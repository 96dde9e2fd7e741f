"""Scores of the joint states of several variables, as a table."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.tensors import as_values, largest, scaled
from tailsum.scores.base import Scores


class FactorTable(Scores):
    """Scores `[*lead, n_1, .., n_r]` of the joint states of r variables; `lead` broadcasts against `[*batch, F]`."""

    def __init__(self, scores: Float[Tensor, "*lead_states"], arity: int) -> None:
        self.scores, self.arity = scores, arity

    @property
    def lead(self) -> torch.Size:
        """What the scores vary with, beside the states."""
        return self.scores.shape[: -self.arity]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.scores,)

    def map(self, change: Callable[[Tensor], Tensor]) -> "FactorTable":
        return FactorTable(change(self.scores), self.arity)

    def scaled(self, factor: Float[Tensor, ""] | float) -> "FactorTable":
        return self.map(lambda x: scaled(x, factor))

    def plus(self, other: "FactorTable") -> "FactorTable":
        return self.map(lambda x: x + other.scores)

    def finite(self) -> "FactorTable":
        return self.map(as_values)

    def forbidden(self, dtype: torch.dtype) -> "FactorTable":
        return self.map(lambda x: (x == -math.inf).to(dtype))

    def bound(self) -> float:
        return largest(self.scores)

    def block(self) -> Tensor:
        """The scores of all joint states."""
        return self.scores

    def table(self, scores: Tensor) -> "FactorTable":
        """The same kind of scores from another table."""
        return FactorTable(scores, self.arity)

    def gather(self, index: Sequence[Int[Tensor, "..."] | None]) -> "FactorTable":
        """The scores of some states of each variable (None: of all); minus infinity of those it does not know."""
        scores = self.scores
        for axis, states in enumerate(index):
            if states is None:
                continue
            size = self.scores.shape[len(self.lead) + axis]
            moved = scores.movedim(scores.dim() - self.arity + axis, -1)
            lead = torch.broadcast_shapes(moved.shape[: -self.arity], states.shape[:-1])
            inner = moved.shape[-self.arity : -1]
            wanted = states.reshape(*states.shape[:-1], *(1,) * (self.arity - 1), states.shape[-1])
            wanted = wanted.expand(*lead, *inner, -1)
            taken = moved.expand(*lead, *inner, -1).gather(-1, wanted.clamp(max=size - 1))
            scores = taken.masked_fill(wanted >= size, -math.inf).movedim(-1, len(lead) + axis)
        return FactorTable(scores, self.arity)
