"""Binary trees whose spans have scores: `log_potentials[i, j, nt]` of the positions i to j, both included."""

import torch
from jaxtyping import Bool, Int, Num
from torch import Tensor

from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.semirings.recursion import chosen, total
from tailsum.compat.torch_struct.struct import Lengths, Struct
from tailsum.structure.base import Structure
from tailsum.trees.span_tree import SpanTree


class CKY_CRF(Struct):
    """Trees. An event, which spans and nonterminals are in use, is its own short form."""

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> "TreeCRF":
        return TreeCRF(log_potentials, lengths)

    def recursion(self, parts: Num[Tensor, "size B N N NT"], lengths: Int[Tensor, " B"]) -> Num[Tensor, "size B"]:
        """Spans by width, each of two spans side by side."""
        spans = self.semiring.sum(parts)
        inside = [spans.diagonal(0, 2, 3)]
        for w in range(1, spans.shape[-1]):
            here = spans.shape[-1] - w
            splits = [(inside[u][..., :here], inside[w - u - 1][..., u + 1 :]) for u in range(w)]
            inside.append(self.semiring.mul(total(self.semiring, splits), spans.diagonal(w, 2, 3)))
        return chosen([chart[..., 0] for chart in inside], lengths - 1)


class TreeCRF(StructDistribution):
    """A span parser with NT nonterminals, from `log_potentials [B, N, N, NT]` (first position, last position, nonterminal).

    >>> TreeCRF(torch.zeros(1, 4, 4, 1)).count  # the binary trees over four words
    tensor([5.])
    """

    struct = CKY_CRF
    form, part_dims = "[B, N, N, NT]", 3

    @staticmethod
    def _fits(event: torch.Size) -> bool:
        return event[0] == event[1] and 0 not in event

    def _longest(self) -> int:
        return self.event_shape[0]

    def _usable(self) -> Bool[Tensor, "*batch N N 1"]:
        position = torch.arange(self._longest(), device=self.log_potentials.device)
        last = position < self._positions()[..., None, None]
        return (last & (position[:, None] <= position))[..., None]

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        return SpanTree(scores[0], lengths)
