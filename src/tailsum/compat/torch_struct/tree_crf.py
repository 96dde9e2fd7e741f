"""Binary trees with a score for each span: `log_potentials[i, j, nt]` for the positions i to j, both included."""

import torch
from jaxtyping import Bool, Int, Num
from torch import Tensor

from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.semirings.recursion import chosen, sum_of_products
from tailsum.compat.torch_struct.struct import Lengths, Struct
from tailsum.structure.base import Structure
from tailsum.trees.span_tree import SpanTree


class CKY_CRF(Struct):
    """Trees. An event says which spans and nonterminals are used; there is no shorter form."""

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> "TreeCRF":
        return TreeCRF(log_potentials, lengths)

    def recursion(self, parts: Num[Tensor, "size B N N NT"], lengths: Int[Tensor, " B"]) -> Num[Tensor, "size B"]:
        """Spans by width, each joined from two adjacent spans."""
        spans = self.semiring.sum(parts)
        inside = [spans.diagonal(0, 2, 3)]
        for w in range(1, spans.shape[-1]):
            here = spans.shape[-1] - w
            splits = [(inside[u][..., :here], inside[w - u - 1][..., u + 1 :]) for u in range(w)]
            inside.append(self.semiring.mul(sum_of_products(self.semiring, splits), spans.diagonal(w, 2, 3)))
        return chosen([chart[..., 0] for chart in inside], lengths - 1)


class TreeCRF(StructDistribution):
    """A span parser with NT nonterminals, from `log_potentials [B, N, N, NT]` (first position, last position, nonterminal).

    >>> TreeCRF(torch.zeros(1, 4, 4, 1)).count  # the binary trees over four words
    tensor([5.])
    """

    struct = CKY_CRF
    form = "[B, N, N, NT]"

    @staticmethod
    def _fits(event: torch.Size) -> bool:
        return len(event) == 3 and event[0] == event[1] and 0 not in event

    def _usable(self) -> Bool[Tensor, "*batch N N 1"]:
        last = self._inside()[..., None, :]
        return last.expand(*self.batch_shape, *self.event_shape[:2]).triu()[..., None]

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        return SpanTree(scores[0], lengths)
