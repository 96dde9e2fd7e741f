"""Sweeps over the words of dependency trees with latent states.

The tree is not known, so neither is who neighbours whom. What a state of a word is worth is the sum over all trees and
over a few landmark states of all the other words. The model restricted to landmarks gives, by its inside and outside
sums, what every subtree is worth, and what is around it; messages take both to all N states of the word.
Cost: T^3 N x landmarks for one word, and a chart of the landmarks.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.dependencies.projective import roots, stateful
from tailsum.numerics.reduce import LogProduct, log_sum_exp
from tailsum.scores.potential import Potential
from tailsum.scores.scored import Scored
from tailsum.sketch.selection import Optimal, Selection, Subset
from tailsum.sketch.sweep import Sweep, known


class DependencySweep(Sweep):
    """Beliefs about the states of every word from landmarks of all the others."""

    def __init__(self, model: Any) -> None:
        self.model, self.nodes = model, model.node_scores()
        if model.kept is not None:
            self.nodes = self.nodes + model.log_weight
        self.belief: Tensor = self.nodes

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        kept = Optimal(max(1, landmarks // 8))(self.belief, generator)
        around = self._around(kept)
        words = range(self.nodes.shape[-2])
        self.belief = torch.stack([self._belief(around, kept, word) for word in words], -2)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T n"]:
        return self.belief

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        """Word after word, each by the states kept of those before it, and for now of those after it."""
        kept = selection(self.belief, generator)
        kept = Subset(kept.index.clone(), kept.log_weight.clone())
        for word in range(1, self.nodes.shape[-2]):
            chosen = selection(self._belief(self._around(kept), kept, word), generator)
            kept.index[..., word, :], kept.log_weight[..., word, :] = chosen.index, chosen.log_weight
        return kept

    def _around(self, kept: Subset) -> "_Around":
        """The inside and outside sums of the model restricted to the kept states."""
        small = self.model.restrict(kept)
        sent: list[Tensor] = []

        def watch(_: int, values: Tensor) -> Tensor:
            sent.append(values if values.requires_grad else values.requires_grad_())
            return sent[-1]

        with torch.inference_mode(False), torch.enable_grad():
            terms = small._weighted(tuple(term.map(lambda x: x.detach().clone()) for term in small.terms()))
            arc, root = small._arcs(terms, log_sum_exp)
            nodes = small._flat_nodes(terms)
            halves, trees = stateful(nodes, small._attach(terms, arc, log_sum_exp), log_sum_exp, watch)
            before = roots(halves, nodes, root, small.multiroot, log_sum_exp)
            total = torch.stack(before).gather(0, small._length()[None] - 1)[0]
            chances = torch.autograd.grad(total.sum(), sent, materialize_grads=True) if sent else ()
        batch, length, size = nodes.shape
        inside = nodes.new_full((batch, length, length, length, size), -math.inf)  # first, last, head
        outside = nodes.new_full((batch, length, length, length, size), -math.inf)  # first, last, head outside of it
        for width, tree in enumerate(trees, 1):
            first = torch.arange(length - width + 1, device=nodes.device)
            child = first[:, None] + torch.arange(width, device=nodes.device)
            inside[:, first[:, None], first[:, None] + width - 1, child] = tree.detach()
            if width < length:
                around = chances[width - 1].log() + total.detach()[:, None, None, None] - sent[width - 1].detach()
                outside[:, first, first + width - 1] = around.nan_to_num_(-math.inf, -math.inf, -math.inf)
        free = self._around_roots(inside, root, [x.detach() for x in before], small._length())
        return _Around(arc, root, inside, outside, free)

    def _around_roots(self, inside: Tensor, root: Tensor, before: list[Tensor], length: Tensor) -> Tensor:
        """What lies around a subtree of the words s .. e under a root: `[B, T, T]`."""
        longest = inside.shape[1]
        position = torch.arange(longest, device=inside.device)
        if not self.model.multiroot:
            whole = (position[:, None] == 0) & (position == length[:, None, None] - 1)
            return torch.where(whole, 0.0, -math.inf).to(inside.dtype)
        alone = (inside + root[:, None, None, :, None]).flatten(3).logsumexp(-1)  # [B, s, e]
        after = torch.where(torch.arange(longest + 1, device=inside.device) == length[:, None], 0.0, -math.inf)
        after = after.to(inside.dtype)  # the words from s on, under roots of their own
        for s in range(longest - 1, -1, -1):
            ways = (alone[:, s, s:] + after[:, s + 1 :]).logsumexp(-1)
            after[:, s] = torch.where(s < length, ways, after[:, s])
        earlier = torch.stack([torch.zeros_like(before[0]), *before[:-1]], 1)
        return earlier[:, :, None] + after[:, None, 1:]

    def _belief(self, around: "_Around", kept: Subset, word: int) -> Tensor:
        """How much every state of one word matters, `[*batch, N]`."""
        size, length = self.model.n_states, self.nodes.shape[-2]
        batch = around.arc.shape[0]
        flat = Subset(
            kept.index.expand(*self.model.batch_shape, -1, -1).reshape(batch, length, kept.index.shape[-1]),
            kept.log_weight.expand(*self.model.batch_shape, -1, -1).reshape(batch, length, kept.index.shape[-1]),
        )
        own = self.nodes.new_zeros(batch, size)
        # Half subtrees of the word, for all its states.
        sent = self._children(around, flat, word)
        right, left = {word: own}, {word: own}
        for last in range(word + 1, length):
            right[last] = torch.stack([right[s - 1] + sent[:, s, last] for s in range(word + 1, last + 1)]).logsumexp(0)
        for first in range(word - 1, -1, -1):
            left[first] = torch.stack([left[e + 1] + sent[:, first, e] for e in range(first, word)]).logsumexp(0)
        halves = (
            torch.stack([left[s] for s in range(word + 1)], 1)[:, :, None]
            + torch.stack([right[e] for e in range(word, length)], 1)[:, None]
        )
        belief = (
            (halves + self._heads(around, flat, word)).flatten(1, 2).logsumexp(1).reshape(*self.model.batch_shape, size)
        )
        belief = known(belief) + self.nodes[..., word, :]
        inside = word < self.model._length().reshape(self.model.batch_shape)
        return torch.where(inside[..., None], belief, self.nodes[..., word, :])

    def _children(self, around: "_Around", kept: Subset, word: int) -> Tensor:
        """What every subtree gives the states of `word` as its child: `[B, T, T, N]` (first, last)."""
        length = around.arc.shape[1]
        found = self.nodes.new_full((len(around.arc), length, length, self.model.n_states), -math.inf)
        for child in range(length):
            if child == word:
                continue
            low, high = (word + 1, length) if child > word else (0, word)
            first, last = torch.meshgrid(
                torch.arange(low, child + 1, device=found.device),
                torch.arange(child, high, device=found.device),
                indexing="ij",
            )
            table = self._pairs(word, child).transposed().block(kept.index[:, child])  # [B, M, N]
            rows = around.inside[:, first.flatten(), last.flatten(), child]
            sent = LogProduct(table)(rows) + around.arc[:, word, child, None, None]
            place = slice(low, child + 1), slice(child, high)
            found[:, *place] = torch.logaddexp(found[:, *place], sent.unflatten(1, first.shape))
        return found

    def _heads(self, around: "_Around", kept: Subset, word: int) -> Tensor:
        """What is around subtrees headed by `word`, by its state: `[B, word + 1, T - word, N]` (first, last)."""
        length = around.arc.shape[1]
        first, last = slice(0, word + 1), slice(word, length)
        as_root = around.free[:, first, last] + around.root[:, word, None, None]
        found = as_root[..., None].expand(*as_root.shape, self.model.n_states).clone()
        for head in range(length):
            if head == word:
                continue
            first, last = (
                (slice(0, word + 1), slice(word, head))
                if head > word
                else (slice(head + 1, word + 1), slice(word, length))
            )
            table = self._pairs(head, word).block(kept.index[:, head])  # [B, M, N]
            rows = around.outside[:, first, last, head]
            sent = LogProduct(table)(rows.flatten(1, 2)) + around.arc[:, head, word, None, None]
            part = found[:, first, last.start - word : last.stop - word]
            part.copy_(torch.logaddexp(part, sent.unflatten(1, rows.shape[1:3])))
        return found

    def _pairs(self, head: int, child: int) -> Potential:
        """The scores between the states of a head and a child, leading dimensions `[B]` or none."""
        pairs, batch = self.model._pairs, self.model.batch_shape
        if not pairs.lead:
            return pairs
        trailing = 1 if isinstance(pairs, Scored) else 2

        def at(x: Tensor) -> Tensor:
            if x.dim() == trailing:
                return x
            x = x.movedim((-trailing - 2, -trailing - 1), (0, 1))
            x = x[head if len(x) > 1 else 0, child if x.shape[1] > 1 else 0]
            return x.expand(*batch, *x.shape[-trailing:]).reshape(batch.numel(), *x.shape[-trailing:])

        return pairs.map(at)


@dataclass(frozen=True)
class _Around:
    """Of the restricted model: arcs and roots; the subtrees by first, last and head, and what is around them."""

    arc: Tensor  # [B, T, T]
    root: Tensor  # [B, T]
    inside: Tensor  # [B, T, T, T, M]
    outside: Tensor  # [B, T, T, T, M]: around the subtree, with the head that it is attached to, and its state
    free: Tensor  # [B, T, T]: around the subtree under a root
