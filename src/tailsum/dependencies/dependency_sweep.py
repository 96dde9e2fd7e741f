"""Sweeps over the words of dependency trees with latent states.

The tree is latent, so a word has no fixed neighbours. The belief in a state of a word is the log of the sum over all trees
and over a few landmark states of all other words. The model restricted to landmarks provides the inside and outside sums
of every subtree, and messages extend them to all N states of the word.
Cost: T^3 N x landmarks for one word, and a chart of the landmarks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.dependencies.projective import attach_by, roots, stateful
from tailsum.numerics.reduce import LogProduct, log_sum_exp
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Near, Neighbours
from tailsum.sketch.selection import Subset
from tailsum.sketch.sweep import fill_unreached
from tailsum.structure.landmark_sweep import Beliefs, LandmarkSweep


@dataclass(frozen=True)
class Around:
    """Arc and root scores of the restricted model, and its inside and outside log sums by first word, last word, head."""

    arc: Tensor  # [B, T, T]
    root: Tensor  # [B, T]
    inside: Tensor  # [B, T, T, T, M]
    outside: Tensor  # [B, T, T, T, M]: by the head that the subtree is attached to, and its state
    free: Tensor  # [B, T, T]: outside of a subtree under a root


def around(nodes: Tensor, pairs: Tensor, arc: Tensor, root: Tensor, length: Tensor, multiroot: bool) -> Around:
    """The inside and outside sums of a model with few states, from scores `[B, ..]` that need no gradient."""
    attach, sent = attach_by(arc, pairs, log_sum_exp), list[Tensor]()

    def watch(_: int, values: Tensor) -> Tensor:
        sent.append(values if values.requires_grad else values.requires_grad_())
        return sent[-1]

    with torch.inference_mode(False), torch.enable_grad():
        halves, trees = stateful(nodes, attach, log_sum_exp, watch)
        before = roots(halves, nodes, root, multiroot, log_sum_exp)
        total = torch.stack(before).gather(0, length[None] - 1)[0]
        chances = torch.autograd.grad(total.sum(), sent, materialize_grads=True) if sent else ()
    batch, longest, size = nodes.shape
    inside = nodes.new_full((batch, longest, longest, longest, size), -math.inf)  # first, last, head
    outside = torch.full_like(inside, -math.inf)  # first, last, head outside of it
    for width, tree in enumerate(trees, 1):
        first = torch.arange(longest - width + 1, device=nodes.device)
        child = first[:, None] + torch.arange(width, device=nodes.device)
        inside[:, first[:, None], first[:, None] + width - 1, child] = tree.detach()
        if width < longest:
            rest = chances[width - 1].log() + total.detach()[:, None, None, None] - sent[width - 1].detach()
            outside[:, first, first + width - 1] = rest.nan_to_num_(-math.inf, -math.inf, -math.inf)
    free = _around_roots(inside, root, [x.detach() for x in before], length, multiroot)
    return Around(arc, root, inside, outside, free)


def _around_roots(inside: Tensor, root: Tensor, before: list[Tensor], length: Tensor, multiroot: bool) -> Tensor:
    """Outside log sums `[B, T, T]` of a subtree of the words s .. e under a root."""
    longest = inside.shape[1]
    position = torch.arange(longest, device=inside.device)
    if not multiroot:
        whole = (position[:, None] == 0) & (position == length[:, None, None] - 1)
        return torch.where(whole, 0.0, -math.inf).to(inside.dtype)
    alone = (inside + root[:, None, None, :, None]).flatten(3).logsumexp(-1)  # [B, s, e]
    after = torch.where(torch.arange(longest + 1, device=inside.device) == length[:, None], 0.0, -math.inf)
    after = after.to(inside.dtype)  # the words from s on, under separate roots
    for s in range(longest - 1, -1, -1):
        ways = (alone[:, s, s:] + after[:, s + 1 :]).logsumexp(-1)
        after[:, s] = torch.where(s < length, ways, after[:, s])
    earlier = torch.stack([torch.zeros_like(before[0]), *before[:-1]], 1)
    return earlier[:, :, None] + after[:, None, 1:]


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
        own = self.nodes.new_zeros(len(around.arc), size)
        # Half subtrees of the word, for all its states.
        sent = self._children(around, index, word)
        right, left = {word: own}, {word: own}
        for last in range(word + 1, length):
            right[last] = torch.stack([right[s - 1] + sent[:, s, last] for s in range(word + 1, last + 1)]).logsumexp(0)
        for first in range(word - 1, -1, -1):
            left[first] = torch.stack([left[e + 1] + sent[:, first, e] for e in range(first, word)]).logsumexp(0)
        lefts = torch.stack([left[s] for s in range(word + 1)], 1)[:, :, None]
        rights = torch.stack([right[e] for e in range(word, length)], 1)[:, None]
        belief = (lefts + rights + self._heads(around, index, word)).flatten(1, 2).logsumexp(1)
        return torch.where(word < self.length[:, None], belief, 0.0).reshape(*shape, size)

    def _children(self, around: Around, index: Tensor, word: int) -> Tensor:
        """Messages `[B, T, T, N]` (first, last) from every subtree, as a child, to the states of `word`."""
        length = around.arc.shape[1]
        found = self.nodes.new_full((len(around.arc), length, length, self.nodes.shape[-1]), -math.inf)
        for child in (*range(word), *range(word + 1, length)):
            low, high = (word + 1, length) if child > word else (0, word)
            place = slice(low, child + 1), slice(child, high)
            table = self._pairs(word, child).transposed().block(index[:, child])  # [B, M, N]
            _add_product(found[:, *place], around.inside[:, *place, child], table, around.arc[:, word, child])
        return found

    def _heads(self, around: Around, index: Tensor, word: int) -> Tensor:
        """Outside log sums `[B, word + 1, T - word, N]` (first, last) of subtrees headed by `word`, by its state."""
        length = around.arc.shape[1]
        first, last = slice(0, word + 1), slice(word, length)
        as_root = around.free[:, first, last] + around.root[:, word, None, None]
        found = as_root[..., None].expand(*as_root.shape, self.nodes.shape[-1]).clone()
        for head in (*range(word), *range(word + 1, length)):
            low, high = (0, head) if head > word else (head + 1, length)
            table = self._pairs(head, word).block(index[:, head])  # [B, M, N]
            rows = around.outside[:, low : word + 1, word:high, head]
            _add_product(found[:, low:, : high - word], rows, table, around.arc[:, head, word])
        return found

    def _pairs(self, head: int, child: int) -> Potential:
        """The scores between the states of a head and a child, leading dimensions `[B]` or none."""
        batch, trailing = self.nodes.shape[:-2], self.pairs.trailing

        def flat(x: Tensor) -> Tensor:
            return x if x.dim() == trailing else x.expand(*batch, *x.shape[-trailing:]).flatten(0, len(batch) - 1)

        return self.pairs.at_step(child).at_step(head).map(flat)


def _add_product(found: Tensor, rows: Tensor, table: Tensor, arc: Tensor) -> None:
    """Add to `found [B, s, e, N]`, in log space, `rows [B, s, e, M]` times `table [B, M, N]` and the arc `[B]`."""
    sent = LogProduct(table)(rows.flatten(1, 2)) + arc[:, None, None]
    found.copy_(torch.logaddexp(found, sent.unflatten(1, rows.shape[1:3])))
