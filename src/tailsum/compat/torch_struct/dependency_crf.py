"""Projective dependency trees: `log_potentials[h, c]` scores that word c has head h, and `[c, c]` that word c is a root.

With labels, `log_potentials[h, c, l]`.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.semirings.base import Semiring
from tailsum.compat.torch_struct.semirings.recursion import chosen, neutral, sum_of_products
from tailsum.compat.torch_struct.struct import Lengths, Struct, check_labels, inside, lengths_of
from tailsum.dependencies.dependency_tree import DependencyTree
from tailsum.structure.base import Structure


class DepTree(Struct):
    """Trees. The short form is the head of each word, `[B, N]`: words are numbered from 1, and 0 is the head of a root.

    `extra` is None, or `(labels [B, N], L)` where arcs have labels.
    """

    multiroot: ClassVar[bool] = True

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> StructDistribution:
        return DependencyCRF(log_potentials, lengths, multiroot=self.multiroot)

    def recursion(self, parts: Num[Tensor, "size B N N ..."], lengths: Int[Tensor, " B"]) -> Num[Tensor, "size B"]:
        """Half-trees by width (Eisner 1996), trees of two halves under a root, and with many roots, rows of such trees."""
        arcs = self.semiring.sum(parts) if parts.dim() == 5 else parts
        left, right = half_trees(self.semiring, arcs)
        roots, last = arcs.diagonal(0, 2, 3), arcs.shape[-1]
        trees = []
        for w in range(last):
            halves = [
                (left[u][..., : last - w], self.semiring.mul(roots[..., u : u + last - w], right[w - u][..., u:]))
                for u in range(w + 1)
            ]
            trees.append(sum_of_products(self.semiring, halves))
        if not self.multiroot:
            return chosen([chart[..., 0] for chart in trees], lengths - 1)
        _, one = neutral(self.semiring, arcs, 2)
        rows = [one.expand(arcs.shape[:2])]
        for j in range(last):
            rows.append(sum_of_products(self.semiring, [(rows[i], trees[j - i][..., i]) for i in range(j + 1)]))
        return chosen(rows, lengths)

    @staticmethod
    def to_parts(
        sequence: Int[Tensor, "*batch N"], extra: tuple[Tensor, int] | None = None, lengths: Lengths = None
    ) -> Int[Tensor, "*batch_part"]:
        """The arcs.

        >>> DepTree.to_parts(torch.tensor([[2, 0]]))  # the second word is the root, and the head of the first
        tensor([[[0, 0],
                 [1, 1]]])
        """
        length = sequence.shape[-1]
        word = torch.arange(length, device=sequence.device)
        mask = inside(length, lengths_of(sequence, lengths))
        heads = torch.where(mask, sequence, 0)
        check_labels("sequence", heads, 0, length)
        arcs = F.one_hot(torch.where(heads == 0, word, heads - 1), length).mT
        arcs = arcs * mask[..., None, :] * mask[..., :, None]
        if extra is None:
            return arcs
        labels, size = extra
        return arcs[..., None] * F.one_hot(torch.where(mask, labels, 0), size)[..., None, :, :]

    @staticmethod
    def from_parts(event: Tensor) -> tuple[Int[Tensor, "*batch N"], tuple[Tensor, int] | None]:
        """The head of each word, zero for roots and in the padding, and the labels of labelled arcs."""
        labelled = event.dim() > 3
        used = event != 0
        arcs = used.any(-1) if labelled else used
        word = torch.arange(arcs.shape[-1], device=event.device)
        heads = arcs.long().argmax(-2)
        heads = torch.where(arcs.any(-2) & (heads != word), heads + 1, 0)
        return heads, (used.any(-3).long().argmax(-1), event.shape[-1]) if labelled else None


def half_trees(semiring: type[Semiring], arcs: Num[Tensor, "size B N N"]) -> tuple[list[Tensor], list[Tensor]]:
    """Sums over half-trees `[size, B, N-w]` of w+1 words by their first word: under the last word, and under the first."""
    _, one = neutral(semiring, arcs, 3)
    length = arcs.shape[-1]
    left, right = ([one.expand(*arcs.shape[:2], length)] for _ in range(2))
    leftward, rightward = [right[0]], [right[0]]  # with an arc between their ends; unused for one word
    for w in range(1, length):
        here = length - w
        between = sum_of_products(semiring, [(right[u][..., :here], left[w - u - 1][..., u + 1 :]) for u in range(w)])
        leftward.append(semiring.mul(between, arcs.diagonal(-w, 2, 3)))
        rightward.append(semiring.mul(between, arcs.diagonal(w, 2, 3)))
        steps = range(1, w + 1)
        left.append(sum_of_products(semiring, [(left[w - u][..., :here], leftward[u][..., w - u :]) for u in steps]))
        right.append(sum_of_products(semiring, [(rightward[u][..., :here], right[w - u][..., u:]) for u in steps]))
    return left, right


class SingleRootDepTree(DepTree):
    """Trees with one root."""

    multiroot = False


class DependencyCRF(StructDistribution):
    """A projective dependency parser, from `log_potentials [B, N, N]` (head, child) or `[B, N, N, L]`, roots on the diagonal.

    >>> DependencyCRF(torch.zeros(1, 4, 4)).count, DependencyCRF(torch.zeros(1, 4, 4), multiroot=False).count
    (tensor([55.]), tensor([30.]))
    """

    form, projective = "[B, N, N] or [B, N, N, L]", True
    programs: ClassVar = {True: DepTree, False: SingleRootDepTree}  # by `multiroot`

    def __init__(
        self, log_potentials: Float[Tensor, "batch N N ..."], lengths: Lengths = None,
        args: dict[str, Any] | None = None, multiroot: bool = True, validate_args: bool | None = False,
    ) -> None:  # fmt: skip
        self.multiroot = multiroot
        self.labelled = isinstance(log_potentials, Tensor) and log_potentials.dim() == 4
        self.struct = self.programs[bool(multiroot)]
        super().__init__(log_potentials, lengths, args)

    @staticmethod
    def _fits(event: torch.Size) -> bool:
        return len(event) in (2, 3) and event[0] == event[1] and 0 not in event

    def _usable(self) -> Bool[Tensor, "..."]:
        words = self._inside()
        arcs = words[..., None] & words[..., None, :]
        return arcs[..., None] if self.labelled else arcs

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        return DependencyTree(scores[0], lengths, self.projective, self.multiroot, labelled=self.labelled)
