"""Scores of the joint states of factors: the table of one group, and the scores of all groups of a graph."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.tensors import flattened, without_common
from tailsum.scores.base import Scores

Group = Any  # the scores of a group: a Potential, or a FactorTable for three variables or more
Scopes = tuple[tuple[int, ...], ...]  # the variables of each factor


class FactorTable(Scores):
    """Scores `[*lead, n_1, .., n_r]` of the joint states of r variables; `lead` broadcasts against `[*batch, F]`."""

    def __init__(self, scores: Float[Tensor, "*lead_states"], arity: int) -> None:
        self.scores, self.arity, self.tensors = scores, arity, (scores,)
        self.lead = scores.shape[:-arity]

    always_finite = False

    @property
    def after_batch(self) -> int:
        return self.arity + 1

    @property
    def node_sizes(self) -> tuple[int, ...]:
        """How many states each of the variables has."""
        return tuple(self.scores.shape[-self.arity :])

    def map(self, change: Callable[[Tensor], Tensor]) -> "FactorTable":
        return FactorTable(change(self.scores), self.arity)

    def tabled(self) -> "FactorTable":
        return self

    def centred(self) -> "FactorTable":
        return self.map(lambda x: without_common(x, self.arity))

    def in_rows(self) -> "FactorTable":
        return self

    def flat(self, batch_shape: torch.Size) -> "FactorTable":
        return FactorTable(flattened(self.scores, self.arity, batch_shape), self.arity)

    def at(self, *states: Int[Tensor, "*#lead"]) -> Float[Tensor, "*lead"]:
        """Scores of single joint states."""
        return self.gather([x[..., None] for x in states]).scores.flatten(-self.arity)[..., 0]

    def gather(self, index: Sequence[Int[Tensor, "..."] | None]) -> "FactorTable":
        """The scores of the given states of each variable (None: all); minus infinity for ids beyond its states."""
        scores = self.scores
        for axis, states in enumerate(index):
            if states is None:
                continue
            size = self.scores.shape[len(self.lead) + axis]
            moved = scores.movedim(scores.dim() - self.arity + axis, -1)
            lead = torch.broadcast_shapes(moved.shape[: -self.arity], states.shape[:-1])
            inner = moved.shape[-self.arity : -1]
            place = states.reshape(*states.shape[:-1], *(1,) * (self.arity - 1), states.shape[-1])
            place = place.expand(*lead, *inner, -1)
            taken = moved.expand(*lead, *inner, -1).gather(-1, place.clamp(max=size - 1))
            scores = taken.masked_fill(place >= size, -math.inf).movedim(-1, len(lead) + axis)
        return FactorTable(scores, self.arity)


class FactorGroups(Scores):
    """The scores of groups of factors, each a potential or a table."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.tensors = tuple(x for group in groups for x in group.tensors)

    def _each(self, change: Callable[[Group], Scores]) -> "FactorGroups":
        return FactorGroups([change(group) for group in self.groups])

    def map(self, change: Callable[[Tensor], Tensor]) -> "FactorGroups":
        return self._each(lambda group: group.map(change))

    def tabled(self) -> "FactorGroups":
        return self._each(lambda group: group.tabled())

    def scaled(self, factor: Float[Tensor, ""] | float) -> "FactorGroups":
        return self._each(lambda group: group.scaled(factor))

    def plus(self, other: Any) -> Scores:
        if not self.same_form(other):
            return super().plus(other)
        others = iter(other.groups)
        return self._each(lambda group: group.plus(next(others)))

    def may_forbid(self) -> bool:
        return any(group.may_forbid() for group in self.groups)

    def finite(self) -> "FactorGroups":
        return self._each(lambda group: group.finite())

    def centred(self) -> "FactorGroups":
        return self._each(lambda group: group.centred())

    def bound(self) -> float:
        return max((group.bound() for group in self.groups), default=0.0)

    def flat(self, batch_shape: torch.Size) -> "FactorGroups":
        """The scores as `[b, f, ...]`, by rows: b is 1 where the batch shares them, and f where the factors of a group do."""
        return self._each(lambda group: group.in_rows().flat(batch_shape))
