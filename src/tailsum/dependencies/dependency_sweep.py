"""Sweeps over the words of dependency trees with latent states.

The tree is latent, so a word has no fixed neighbours. The belief in a state of a word is the log of the sum over all trees and
over landmark states of all other words. The model restricted to landmarks gives the inside and outside sums of every
subtree, and messages extend them to all N states of the word.
Cost: T^3 N x landmarks for one word, and a chart of the landmarks.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.dependencies.inside_outside import InsideOutside
from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.precision import product
from tailsum.numerics.reduce import column_tops
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Near, Neighbours
from tailsum.sketch.selection import Subset
from tailsum.sketch.sweep import fill_unreached
from tailsum.structure.landmark_sweep import Beliefs, LandmarkSweep


class DependencySweep(LandmarkSweep):
    """Beliefs in the states of every word from landmarks of all others; `sums(kept)` has the sums of the restricted model."""

    def __init__(
        self,
        nodes: Float[Tensor, "*batch T n"],
        pairs: Potential,
        length: Int[Tensor, " B"],
        sums: Callable[[Subset], InsideOutside],
    ) -> None:
        super().__init__(nodes, nodes.shape[-2:-1], self._given)
        self.pairs, self.length, self.sums = pairs, length, sums

    def set_neighbours(self, neighbours: Neighbours | int, landmarks: int) -> None:
        """Choose the first landmarks by messages to each state from its neighbours at other words, as heads and as children.

        Later ones are chosen by messages from these landmarks. Only for scores shared by all arcs.
        """
        pairs, (*shape, length, _) = self.pairs, self.nodes.shape
        if pairs.lead.numel() != 1 or length == 1:
            return
        shared = pairs.map(lambda x: x.reshape(x.shape[x.dim() - pairs.trailing :]))
        inside = torch.arange(length, device=self.nodes.device) < self.length.reshape(*shape, 1)
        value = self.nodes - finite(self.nodes.logsumexp(-1, keepdim=True))
        value = value.masked_fill(~inside[..., None], -math.inf)
        both = Near(shared, shared.transposed(), neighbours, value.device)
        self.lists = both.lists
        for near in (both.back, both.onward):
            sent = near.alone(value)
            before, after = sent.logcumsumexp(-2), sent.flip(-2).logcumsumexp(-2).flip(-2)
            before, after = before.roll(1, -2), after.roll(-1, -2)
            before[..., 0, :], after[..., -1, :] = -math.inf, -math.inf
            self.belief = self.belief + fill_unreached(torch.logaddexp(before, after))

    def _given(self, kept: Subset) -> Beliefs:
        *shape, length, _ = self.nodes.shape
        sums = self.sums(kept)
        index = kept.index.expand(*shape, -1, -1).reshape(len(sums.arc), length, kept.index.shape[-1])
        tables = _Tables(self._pairs, index, shared=not self.pairs.lead)
        return lambda word: self._belief(sums, tables, word)

    def _belief(self, sums: InsideOutside, tables: "_Tables", word: int) -> Tensor:
        """Log beliefs `[*batch, N]` in the states of one word, without its node scores."""
        *shape, length, size = self.nodes.shape
        # Half subtrees of the word, for all its states: by last word, and by first word from the right.
        rights = _grown_halves(self._children(sums, tables, word, range(word + 1, length)))
        lefts = _grown_halves(self._children(sums, tables, word, range(word), leftward=True)).flip(1)
        ways = lefts[:, :, None] + rights[:, None] + self._heads(sums, tables, word)
        belief = ways.flatten(1, 2).logsumexp(1)
        return torch.where(word < self.length[:, None], belief, 0.0).reshape(*shape, size)

    def _children(
        self, sums: InsideOutside, tables: "_Tables", word: int, words: range, leftward: bool = False
    ) -> Tensor:
        """Messages `[B, w, w, N]` from every subtree of some words, as a child, to the states of `word`.

        By first and last word; if `leftward`, both from the end, and the last before the first.
        """
        if not words:
            return self.nodes.new_empty(len(sums.arc), 0, 0, self.nodes.shape[-1])
        here = slice(words.start, words.stop)
        rows = sums.inside[:, here, here, here] + sums.arc[:, None, None, word, here, None]
        return tables.summed(rows.transpose(1, 2).flip(1, 2) if leftward else rows, word, words, as_children=True)

    def _heads(self, sums: InsideOutside, tables: "_Tables", word: int) -> Tensor:
        """Outside log sums `[B, word + 1, T - word, N]` (first, last) of subtrees headed by `word`, by its state."""
        first, last = slice(0, word + 1), slice(word, None)
        rows = sums.outside[:, first, last] + sums.arc[:, None, None, :, word, None]
        as_child = tables.summed(rows, word, range(rows.shape[3]), as_children=False)
        as_root = sums.free[:, first, last] + sums.root[:, word, None, None]
        return torch.logaddexp(as_child, as_root[..., None])

    def _pairs(self, head: int, child: int) -> Potential:
        """The scores between the states of a head and a child, leading dimensions `[B]` or none."""
        batch, trailing = self.nodes.shape[:-2], self.pairs.trailing

        def flat(x: Tensor) -> Tensor:
            return x if x.dim() == trailing else x.expand(*batch, *x.shape[-trailing:]).flatten(0, len(batch) - 1)

        return self.pairs.at_step(child).at_step(head).map(flat)


class _Tables:
    """Exponentials of the scores between the kept states of words and all states of another, their head or child.

    If all arcs share the scores, tables are made once for all words.
    """

    def __init__(self, pairs: Callable[[int, int], Potential], index: Int[Tensor, "B T M"], shared: bool) -> None:
        self.pairs, self.index, self.shared = pairs, index, shared
        self._made: dict[bool, tuple[Tensor, Tensor]] = {}

    def summed(
        self, rows: Float[Tensor, "B a b w M"], word: int, words: range, as_children: bool
    ) -> Float[Tensor, "B a b n"]:
        """The log-space product of rows over the states of some words with their scores to all states of `word`.

        It is minus infinity on underflow, which is safe, as sweeps do not take this for impossible. A check would make the
        CPU wait for the device.
        """
        table, top = self._table(word, words, as_children)
        scores = rows.flatten(3).flatten(1, 2)
        peak = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
        total = product((scores - peak).exp_(), table)
        return total.log_().add_(peak).add_(top).unflatten(1, rows.shape[1:3])

    def _table(self, word: int, words: range, as_children: bool) -> tuple[Tensor, Tensor]:
        """Exponentials `[B, w M, N]`, and the scale of their columns."""
        if not self.shared:
            scores = [self._scores(word, other, as_children).block(self.index[:, other]) for other in words]
            return _exponentials(torch.cat(scores, 1))
        if as_children not in self._made:
            self._made[as_children] = _exponentials(self._scores(0, 0, as_children).block(self.index.flatten(1)))
        table, top = self._made[as_children]
        return table[:, words.start * self.index.shape[-1] : words.stop * self.index.shape[-1]], top

    def _scores(self, word: int, other: int, as_children: bool) -> Potential:
        return self.pairs(word, other).transposed() if as_children else self.pairs(other, word)


def _exponentials(scores: Tensor) -> tuple[Tensor, Tensor]:
    top = column_tops(scores)
    return (scores - top).exp_(), top


def _halves(sent: Float[Tensor, "B w w n"]) -> Float[Tensor, "B v n"]:
    """Half subtrees of no words, one, and so on, from the messages of subtrees (first and last word) beside the head."""
    halves = sent.new_zeros(len(sent), sent.shape[1] + 1, sent.shape[-1])
    for last in range(sent.shape[1]):
        halves[:, last + 1] = (halves[:, : last + 1] + sent[:, : last + 1, last]).logsumexp(1)
    return halves


def _example(batch: int, words: int, states: int) -> Example:
    return Example((torch.randn(batch, words, words, states),))


_grown_halves = Kernel(
    "grown_halves",
    _halves,
    _example,
    sizes=({"batch": 2, "words": 3, "states": 130}, {"batch": 1, "words": 1, "states": 3}),
    large={"batch": 4, "words": 20, "states": 5000},
)
