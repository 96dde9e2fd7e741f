"""Binary trees whose spans have scores: `log_potentials[i, j, nt]` of the positions i to j, both included."""

import torch
from jaxtyping import Bool
from torch import Tensor

from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.struct import Lengths, Struct
from tailsum.structure.base import Structure
from tailsum.trees.span_tree import SpanTree


class CKY_CRF(Struct):
    """Trees. An event, which spans and nonterminals are in use, is its own short form."""

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> "TreeCRF":
        return TreeCRF(log_potentials, lengths)


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
