"""Sweeps over the words of dependency trees with latent states.

The tree is latent, so a word has no fixed neighbours. The belief in a state of a word is the log of the sum over all trees
and over a few landmark states of all other words. The model restricted to landmarks provides the inside and outside sums
of every subtree, and messages extend them to all N states of the word.
Cost: T^3 N x landmarks for one word, and a chart of the landmarks.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.dependencies.around import Around
from tailsum.numerics.reduce import column_tops, log_product
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Near, Neighbours
from tailsum.sketch.selection import Subset
from tailsum.sketch.sweep import fill_unreached
from tailsum.structure.landmark_sweep import Beliefs, LandmarkSweep


class DependencySweep(LandmarkSweep):
    """Beliefs in the states of every word from landmarks of all the others; `sums(kept)` restricts the model to them."""

    def __init__(
        self,
        nodes: Float[Tensor, "*batch T n"],
        pairs: Potential,
        length: Int[Tensor, " B"],
        sums: Callable[[Subset], Around],
    ) -> None:
        super().__init__(nodes, nodes.shape[-2:-1], self._given)
        self.pairs, self.length, self.sums = pairs, length, sums

    def set_neighbours(self, neighbours: Neighbours | int, landmarks: int) -> None:
        """Choose the first landmarks by what each state receives from its neighbours at other words, as heads and as children.

        Later ones are chosen by messages from these landmarks. Only for scores that all arcs share.
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
            others = [torch.cat((sent[..., :w, :], sent[..., w + 1 :, :]), -2).logsumexp(-2) for w in range(length)]
            self.belief = self.belief + fill_unreached(torch.stack(others, -2))

    def _given(self, kept: Subset) -> Beliefs:
        around = self.sums(kept)
        return lambda word: self._belief(around, kept, word)

    def _belief(self, around: Around, kept: Subset, word: int) -> Tensor:
        """Log beliefs `[*batch, N]` in the states of one word, without its node scores."""
        *shape, length, size = self.nodes.shape
        index = kept.index.expand(*shape, -1, -1).reshape(len(around.arc), length, kept.index.shape[-1])
        # Half subtrees of the word, for all its states: by last word, and by first word from the right.
        rights = _halves(self._children(around, index, word, range(word + 1, length)))
        lefts = _halves(self._children(around, index, word, range(word)).transpose(1, 2).flip(1, 2)).flip(1)
        ways = lefts[:, :, None] + rights[:, None] + self._heads(around, index, word)
        belief = ways.flatten(1, 2).logsumexp(1)
        return torch.where(word < self.length[:, None], belief, 0.0).reshape(*shape, size)

    def _children(self, around: Around, index: Tensor, word: int, words: range) -> Tensor:
        """Messages `[B, w, w, N]` (first, last) from every subtree of some words, as a child, to the states of `word`."""
        some = slice(words.start, words.stop)
        if not words:
            return self.nodes.new_empty(len(around.arc), 0, 0, self.nodes.shape[-1])
        tables = self._tables(index, words, lambda child: self._pairs(word, child).transposed())
        rows = around.inside[:, some, some, some] + around.arc[:, None, None, word, some, None]
        return self._summed(rows.flatten(1, 2), tables).unflatten(1, rows.shape[1:3])

    def _heads(self, around: Around, index: Tensor, word: int) -> Tensor:
        """Outside log sums `[B, word + 1, T - word, N]` (first, last) of subtrees headed by `word`, by its state."""
        first, last = slice(0, word + 1), slice(word, None)
        tables = self._tables(index, range(index.shape[1]), lambda head: self._pairs(head, word))
        rows = around.outside[:, first, last] + around.arc[:, None, None, :, word, None]
        found = self._summed(rows.flatten(1, 2), tables).unflatten(1, rows.shape[1:3])
        as_root = around.free[:, first, last] + around.root[:, word, None, None]
        return torch.logaddexp(found, as_root[..., None])

    def _tables(self, index: Tensor, words: range, pairs: Callable[[int], Potential]) -> Tensor:
        """The scores of the kept states of some words with all states of one: `[B, w M, N]`."""
        if not self.pairs.lead:
            return pairs(words[0]).block(index[:, words.start : words.stop].flatten(1))
        return torch.cat([pairs(other).block(index[:, other]) for other in words], 1)

    @staticmethod
    def _summed(rows: Float[Tensor, "B r T M"], tables: Float[Tensor, "B m n"]) -> Float[Tensor, "B r n"]:
        """The log-space product of rows with the tables of all words.

        Where it underflows it is minus infinity. That is safe, as a sweep never takes this for impossible; and it needs no
        check, for which a device would be waited for.
        """
        top = column_tops(tables)
        return log_product(rows.flatten(2), (tables - top).exp_())[0] + top

    def _pairs(self, head: int, child: int) -> Potential:
        """The scores between the states of a head and a child, leading dimensions `[B]` or none."""
        batch, trailing = self.nodes.shape[:-2], self.pairs.trailing

        def flat(x: Tensor) -> Tensor:
            return x if x.dim() == trailing else x.expand(*batch, *x.shape[-trailing:]).flatten(0, len(batch) - 1)

        return self.pairs.at_step(child).at_step(head).map(flat)


def _halves(sent: Float[Tensor, "B w w n"]) -> Float[Tensor, "B v n"]:
    """Half subtrees with no words, one, and so on, from the messages of the subtrees from word s to word e beside the head."""
    found = sent.new_zeros(len(sent), sent.shape[1] + 1, sent.shape[-1])
    for last in range(sent.shape[1]):
        found[:, last + 1] = (found[:, : last + 1] + sent[:, : last + 1, last]).logsumexp(1)
    return found
