"""Factors: scores of the joint states of a few variables, and the messages that they send to these variables.

The *cavity* of a factor at one of its positions is the score of the variable there plus the messages of all its other
factors; `[B, F, N]` for each position of F factors. A factor with fewer than N states at a position reads only so many
of the N, and sends minus infinity to the others.
"""

import math
from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.graphs.pairs import PairProduct
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.tensors import finite

Cavities = Sequence[Tensor | None]


class PairFactors(PairProduct):
    """Factors over two variables, from the parameters of a potential, `[b, f, ..]` (see `pairs.py`)."""

    def send(self, cavities: Cavities, to: int) -> Tensor:
        """The messages `[B, F, N]` to one position, up to a constant each, from the cavities of the others."""
        cavity = cavities[1 - to]
        assert cavity is not None
        sent = self.forth(cavity[..., : self.n]) if to == 1 else self.back(cavity[..., : self.m])
        return padded(sent, cavity.shape[-1])

    def total(self, cavities: Sequence[Tensor]) -> Tensor:
        """The reduction over all joint states, `[B, F]` in float64."""
        joint = self.forth(cavities[0][..., : self.n]) + cavities[1][..., : self.m]
        return self.reduce(joint, -1).double() + self.centre[..., 0, 0].double()


class TableFactors:
    """Factors over any number of variables, from tables `[b, f, n_1, .., n_r]`, with the methods of `PairFactors`."""

    def __init__(self, scores: Tensor, reduce: Reduce) -> None:
        self.sizes, self.reduce = scores.shape[2:], reduce
        self.centre = finite(scores.detach().flatten(2).amax(-1))  # [b, f]
        self.scores = scores - self.centre.reshape(*scores.shape[:2], *(1,) * len(self.sizes))

    def send(self, cavities: Cavities, to: int) -> Tensor:
        size = next(c.shape[-1] for c in cavities if c is not None)
        joint = self.joint([None if p == to else c for p, c in enumerate(cavities)])
        return padded(self.reduce(joint.movedim(2 + to, 2).flatten(3), -1), size)

    def total(self, cavities: Sequence[Tensor]) -> Tensor:
        return self.reduce(self.joint(cavities).flatten(2), -1).double() + self.centre.double()

    def joint(self, cavities: Cavities) -> Tensor:
        """The scores less `centre`, with the given cavities added: `[B, F, n_1, .., n_r]`."""
        scores = self.scores
        for position, cavity in enumerate(cavities):
            if cavity is not None:
                size = self.sizes[position]
                shape = [size if p == position else 1 for p in range(len(self.sizes))]
                scores = scores + cavity[..., :size].reshape(*cavity.shape[:2], *shape)
        return scores


Factors = PairFactors | TableFactors


def padded(scores: Tensor, size: int) -> Tensor:
    """Scores padded with minus infinity to `size` states."""
    return scores if scores.shape[-1] == size else F.pad(scores, (0, size - scores.shape[-1]), value=-math.inf)
