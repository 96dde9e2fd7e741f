"""Configurations of dependency trees, and a test whether heads form a tree."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.numerics.check import as_whole
from tailsum.structure.k_best import at_index
from tailsum.structure.relaxed import RelaxedSample


class Dependencies(NamedTuple):
    """Trees: the head of each word (its own position for a root), its label and its state; -1 in the padding.

    `labels` is None where arcs have none, `states` where words have none.
    """

    heads: Int[Tensor, "*sample_batch T"]
    labels: Int[Tensor, "*sample_batch T"] | None = None
    states: Int[Tensor, "*sample_batch T"] | None = None

    def at(self, index: int | tuple[int, ...] | slice | Int[Tensor, "..."]) -> "Dependencies":
        """Some trees of a batch or of samples: `trees.at(0)`, `trees.at((2, 1))`; `trees[0]` is the field `heads`.

        >>> Dependencies(torch.zeros(4, 2, 3).long()).at((3, 1))
        Dependencies(heads=tensor([0, 0, 0]), labels=None, states=None)
        """
        return Dependencies(*at_index(self, index, self.heads.dim() - 1))

    @classmethod
    def from_conll(
        cls,
        heads: Int[Tensor, "*sample_batch T"] | Sequence[Any],
        labels: Int[Tensor, "*sample_batch T"] | None = None,
        states: Int[Tensor, "*sample_batch T"] | None = None,
    ) -> "Dependencies":
        """Trees from heads as in CoNLL files, where words are numbered from 1 and a root has head 0; -1 is padding.

        >>> Dependencies.from_conll(torch.tensor([2, 0, 2, -1])).heads
        tensor([ 1,  1,  1, -1])
        """
        given = as_whole("heads", heads, heads.device if isinstance(heads, Tensor) else torch.device("cpu"))
        if given.dim() < 1 or ((given < -1) | (given > given.shape[-1])).any():
            got = f"{given.min().item()} to {given.max().item()}" if given.numel() else list(given.shape)
            raise ValueError(
                f"heads must be [..., T] and lie between 0 for a root and T, or be -1 in the padding: got {got}"
            )
        word = torch.arange(given.shape[-1], device=given.device)
        return cls(torch.where(given == 0, word, (given - 1).clamp(min=-1)), labels, states)

    def to_conll(self) -> Int[Tensor, "*sample_batch T"]:
        """Heads as in CoNLL files: words numbered from 1, 0 for a root; -1 in the padding.

        >>> Dependencies(torch.tensor([1, 1, 1, -1])).to_conll()
        tensor([ 2,  0,  2, -1])
        """
        word = torch.arange(self.heads.shape[-1], device=self.heads.device)
        return torch.where(self.heads < 0, -1, torch.where(self.heads == word, 0, self.heads + 1))


class RelaxedDependencies(NamedTuple):
    """A differentiable sample: weights on arcs (those into a word sum to one), and on the states of words, if any.

    `states` are the global ids of the states that the weights refer to; `hard` is the tree that was relaxed.
    """

    arcs: Float[Tensor, "*sample_batch_part"]
    weights: Float[Tensor, "*sample_batch T n"] | None
    states: Int[Tensor, "*batch T n"] | None
    hard: Dependencies

    def mix(self, embeddings: Float[Tensor, "all d"]) -> Float[Tensor, "*sample_batch T d"]:
        """The mean of the states' embeddings under the weights, for each word."""
        if self.weights is None or self.states is None:
            raise ValueError("the words of this tree have no states to mix the embeddings of")
        return RelaxedSample(self.weights, self.states, self.hard).mix(embeddings)


torch.serialization.add_safe_globals([Dependencies, RelaxedDependencies])  # for torch.load(.., weights_only=True)


def are_trees(
    heads: Int[Tensor, "*sample_batch T"], lengths: Int[Tensor, "*batch"], multiroot: bool
) -> tuple[Bool[Tensor, "*sample_batch"], Bool[Tensor, "*sample_batch"]]:
    """Whether the heads form a tree, with one root or, if `multiroot`, at least one; and whether it is not projective.

    A tree is projective if every word between a head and its child descends from the head.
    """
    child = torch.arange(heads.shape[-1], device=heads.device)
    inside = (child < lengths[..., None]).expand(heads.shape)
    above = torch.where(inside, heads, child)
    whole = ((above >= 0) & (above <= lengths[..., None] - 1) | ~inside).all(-1)
    above = above.clamp(min=0)
    count = (inside & (above == child)).sum(-1)
    whole &= (count >= 1) if multiroot else (count == 1)
    # In a tree, T steps from head to head lead from every word to a root.
    descends = torch.eye(len(child), dtype=torch.bool, device=heads.device).expand(*heads.shape, -1)
    at = child.expand(heads.shape)
    for _ in range(len(child)):
        at = above.gather(-1, at)
        descends = descends | (at[..., None] == child)  # [.., word, ancestor]
    whole &= (~inside | (above.gather(-1, at) == at)).all(-1)
    low, high = torch.minimum(above, child), torch.maximum(above, child)
    between = (child > low[..., None]) & (child < high[..., None])  # [.., child, word]
    under = descends.gather(-1, above[..., None, :].expand(descends.shape)).mT  # [.., child, word]: word under its head
    return whole, (~under & between & inside[..., None]).any((-2, -1))
