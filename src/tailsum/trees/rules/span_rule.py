"""Rules of a restricted grammar, in which every span keeps its own states.

The rules of span (i, j) with split k join the states of (i, j) with those of (i, k) and (k+1, j). Each width has a table
`[*lead, T-w+1, w-1, K, K, K]` (first position, split, head, left, right). Since the sets of states differ, splits cannot
be merged before the rules are contracted: a chart costs T^3 K^3.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import Reduce
from tailsum.trees.rules.grammar_reader import Expansion
from tailsum.trees.rules.rule import Rule


class SpanRule(Rule):
    """Scores of rules between the states that spans keep."""

    by_span = True

    @abstractmethod
    def tabled(self) -> "SpanTables": ...

    @abstractmethod
    def rows(self, at: Expansion) -> Float[Tensor, "r T k k"]:
        """All rules of the head of each span, by the last position of the left child."""

    def children_of(self, at: Expansion, choose: Choose, reduce: Reduce) -> tuple[Tensor, Tensor, Tensor]:
        """The split and both children in one choice, since the states differ by split."""
        size = at.left.shape[-1]
        pick = choose((self.rows(at) + at.left[..., :, None] + at.right[..., None, :]).flatten(1))
        return pick // size**2, pick // size % size, pick % size

    def counts(self, gradients: Sequence[Tensor], states: Int[Tensor, "*batch T T n"]) -> Float[Tensor, "*batch N C C"]:
        shape = (self.n_heads, self.n_children, self.n_children)
        expected = torch.zeros(*states.shape[:-3], math.prod(shape), device=states.device)
        for width, count in enumerate(gradients, 2):
            head, left, right = spread(sets_of_width(states, width, self.n_heads, self.n_children))
            place = (head * self.n_children + left) * self.n_children + right
            expected = expected.to(count.dtype).scatter_add(-1, place.flatten(-5), count.flatten(-5))
        return expected.unflatten(-1, shape)


class SpanTables(SpanRule):
    """A table for each width from 2."""

    trailing = 5

    def __init__(self, scores: list[Tensor], n_heads: int, n_children: int) -> None:
        self.scores, self.tensors = scores, tuple(scores)
        self.n_heads, self.n_children = n_heads, n_children

    def map(self, change: Callable[[Tensor], Tensor]) -> "SpanTables":
        return SpanTables([change(x) for x in self.scores], self.n_heads, self.n_children)

    def tabled(self) -> "SpanTables":
        return self

    def at_spans(self, index: Int[Tensor, "*lead T T k"]) -> "SpanTables":
        tables = []
        for width, table in enumerate(self.scores, 2):
            for dim, chosen in enumerate(spread(_of_width(index, index, width)), -3):
                table = taken(table, chosen, dim)  # noqa: PLW2901
            tables.append(table)
        return SpanTables(tables, self.n_heads, self.n_children)

    def rows(self, at: Expansion) -> Float[Tensor, "r T k k"]:
        size = self.scores[0].shape[-1]
        scores = self.scores[0].new_full((len(at.batch), len(self.scores) + 1, size, size), -math.inf)
        for width, table in enumerate(self.scores, 2):
            (rows,) = torch.nonzero(at.last - at.first + 1 == width, as_tuple=True)
            lead = at.batch[rows] if len(table) > 1 else torch.zeros_like(rows)
            position = at.first[rows, None] + torch.arange(width - 1, device=rows.device)
            scores[rows[:, None], position] = table[lead, at.first[rows], :, at.head[rows]]
        return scores

    def contract(
        self, width: int, left: Sequence[Tensor], right: Sequence[Tensor], reduce: Reduce
    ) -> Float[Tensor, "B n heads"]:
        before, after = torch.stack(list(left), 2), torch.stack(list(right), 2)
        rules = self.scores[width - 2] + before[..., None, :, None] + after[..., None, None, :]
        return reduce(reduce(rules.flatten(-2), -1), 2)


class Sets(NamedTuple):
    """The states of the spans of one width and of their children."""

    head: Int[Tensor, "*lead n k"]
    left: Int[Tensor, "*lead n split k"]
    right: Int[Tensor, "*lead n split k"]


def sets_of_width(index: Int[Tensor, "*lead T T k"], width: int, n_heads: int, n_children: int) -> Sets:
    """The sets, in rule ids, of the spans with `width` positions, where every span keeps the states `index`."""
    return _of_width(index.clamp(max=n_heads - 1), child_ids(index, n_heads, n_children), width)


def _of_width(head: Int[Tensor, "*lead T T k"], child: Int[Tensor, "*lead T T k"], width: int) -> Sets:
    first = torch.arange(head.shape[-2] - width + 1, device=head.device)[:, None]
    more = torch.arange(width - 1, device=head.device)
    return Sets(
        head[..., first[:, 0], first[:, 0] + width - 1, :],
        child[..., first, first + more, :],
        child[..., first + more + 1, first + width - 1, :],
    )


def spread(sets: Sets) -> tuple[Tensor, Tensor, Tensor]:
    """The sets as indices that broadcast to `[*lead, n, split, head, left, right]`."""
    head, left, right = sets
    return head[..., None, :, None, None], left[..., None, :, None], right[..., None, None, :]


def child_ids(index: Int[Tensor, "*lead T T k"], n_heads: int, n_children: int) -> Int[Tensor, "*lead T T k"]:
    """The states of spans in the ids of rules' children. Those out of range have score minus infinity at their span."""
    leaf = torch.eye(index.shape[-2], dtype=torch.bool, device=index.device)[..., None]
    return torch.where(leaf, index + n_heads, index).clamp(max=n_children - 1)


def taken(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """`take_along_dim` with leading dimensions broadcast, also where one of the two has fewer."""
    missing = x.dim() - index.dim()
    return x[(None,) * max(0, -missing)].take_along_dim(index[(None,) * max(0, missing)], dim)
