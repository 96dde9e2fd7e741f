"""Reads trees from the inside chart of a grammar, from the top down: exact samples, or best trees."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.numerics.charts import square
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import LogProduct
from tailsum.trees.reader import Reader


class Expansion(NamedTuple):
    """Spans whose children are chosen next: sentence, first and last position and state, `[R]` each.

    `left` and `right [R, T, children]` are the inside scores of the two children by the last position of the left one.
    """

    batch: Tensor
    first: Tensor
    last: Tensor
    head: Tensor
    left: Tensor
    right: Tensor


ChildrenOf = Callable[[Expansion, Choose], tuple[Tensor, Tensor, Tensor]]  # see `Rule.children_of`


class GrammarReader(Reader):
    """Children in rule ids: nonterminals, then preterminals; in a restricted model (`n_heads` None), local ids."""

    def __init__(
        self, chart: Sequence[Tensor], length: Tensor, n_heads: int | None, choose: Choose, children_of: ChildrenOf
    ) -> None:
        self.n_heads, self.choose, self.children_of = n_heads, choose, children_of
        whole = torch.stack([entry[:, 0] for entry in chart[1:]]) if len(chart) > 1 else chart[0][None, :, 0]
        self.whole = whole[(length - 2).clamp(min=0), torch.arange(len(length), device=length.device)]
        self.possible = (self.whole > -math.inf).any(-1) & (length > 1)
        if n_heads is not None:
            n_leaves = chart[0].shape[-1]
            leaves = F.pad(chart[0], (n_heads, 0), value=-math.inf)
            chart = [leaves, *(F.pad(entry, (0, n_leaves), value=-math.inf) for entry in chart[1:])]
        self.inside = square(chart)  # [B, T, T, children]
        # Inside scores of the right child, by the last position of the left one and its own last position.
        self.after = F.pad(self.inside[:, 1:], (0, 0, 0, 0, 0, 1), value=-math.inf)
        self.width = self.inside.shape[-1] ** 2 * (len(chart) if n_heads is None else 1)

    def root(self, batch: Tensor) -> Tensor:
        return self.choose(self.whole[batch])

    def expand(self, batch: Tensor, first: Tensor, last: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = torch.arange(self.inside.shape[1], device=last.device) < last[:, None]
        left = self.inside[batch, first].masked_fill(~before[..., None], -math.inf)
        at = Expansion(batch, first, last, state, left, self.after[batch, :, last])
        split, left_child, right_child = self.children_of(at, self.choose)
        return split, self._state(left_child), self._state(right_child)

    def _state(self, child: Tensor) -> Tensor:
        """The state of a child, numbered from zero within its kind."""
        return child if self.n_heads is None else torch.where(child < self.n_heads, child, child - self.n_heads)


class RankReader(GrammarReader):
    """For rules of low rank: chooses split and rank at once, then each child independently.

    `vectors` are the logarithmic factors of heads, left and right children, `[G, T or 1, T or 1, states, R]`.
    """

    def __init__(
        self, chart: Sequence[Tensor], length: Tensor, n_heads: int | None, choose: Choose, vectors: Sequence[Tensor]
    ) -> None:
        super().__init__(chart, length, n_heads, choose, self._children_of)
        self.head, self.left, self.right = vectors
        self.width = (len(chart) + self.inside.shape[-1]) * self.head.shape[-1]
        self.to_left, to_right = (self._to_ranks(x) for x in (self.left, self.right))
        self.to_right = F.pad(to_right[:, 1:], (0, 0, 0, 0, 0, 1), value=-math.inf)

    def _to_ranks(self, vectors: Tensor) -> Tensor:
        if self.n_heads is None:
            return LogProduct(vectors)(self.inside[..., None, :])[..., 0, :]
        rows = self.inside.reshape(len(vectors), -1, self.inside.shape[-1])  # the same vectors for every span
        return LogProduct(vectors[:, 0, 0])(rows).reshape(*self.inside.shape[:-1], vectors.shape[-1])

    @staticmethod
    def _at(x: Tensor, batch: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """The vectors of the states of a span, `[R, n, ranks]`."""
        places = zip((batch, first, last), x.shape[:3], strict=True)
        return x[tuple(i if size > 1 else torch.zeros_like(i) for i, size in places)]

    def _children_of(self, at: Expansion, choose: Choose) -> tuple[Tensor, Tensor, Tensor]:
        batch, first, last, state = at[:4]
        head = self._at(self.head, batch, first, last)
        head = head.take_along_dim(state.clamp(max=head.shape[1] - 1)[:, None, None], 1)  # [R, 1, ranks]
        before = torch.arange(self.inside.shape[1], device=last.device) < last[:, None]
        logits = self.to_left[batch, first] + self.to_right[batch, :, last] + head
        pick = choose(logits.masked_fill(~before[..., None], -math.inf).flatten(1))
        split, rank = pick // head.shape[-1], pick % head.shape[-1]

        def child(vectors: Tensor, first: Tensor, last: Tensor) -> Tensor:
            of_rank = self._at(vectors, batch, first, last).take_along_dim(rank[:, None, None], -1)[..., 0]
            return choose(self.inside[batch, first, last] + of_rank)

        right = (split + 1).clamp(max=len(before[0]) - 1)
        return split, child(self.left, first, split), child(self.right, right, last)
