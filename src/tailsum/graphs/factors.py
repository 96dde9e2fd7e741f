"""Factors: scores of the joint states of a few variables, and the messages they pass between these.

What the rest of a graph says of the variables of F factors, their *cavities*, is `[B, F, N]` for each position. A factor
with fewer states than N at some position reads the first of them, and sends minus infinity to the others.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.graphs.pairs import PairProduct
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.tensors import finite

Cavities = Sequence[Tensor | None]


class Factors(ABC):
    """Factors of one kind, over equally many variables each."""

    @abstractmethod
    def send(self, cavities: Cavities, to: int) -> Tensor:
        """The messages `[B, F, N]` to one position, each but for a constant, from the cavities of the others."""

    @abstractmethod
    def total(self, cavities: Sequence[Tensor]) -> Tensor:
        """The reduction of all joint states, `[B, F]` in float64."""


class PairFactors(Factors):
    """Factors over two variables, from the parameters of a potential, `[b, f, ..]` (see `pairs.py`)."""

    def __init__(self, params: tuple[Tensor, ...], reduce: Reduce, keep: bool | None = None) -> None:
        self.product = PairProduct(params, reduce, keep)

    def send(self, cavities: Cavities, to: int) -> Tensor:
        given = cavities[1 - to]
        assert given is not None
        size = given.shape[-1]
        if to == 1:
            return _padded(self.product.forth(given[..., : self.product.n]), size)
        return _padded(self.product.back(given[..., : self.product.m]), size)

    def total(self, cavities: Sequence[Tensor]) -> Tensor:
        first, second = cavities
        joint = self.product.forth(first[..., : self.product.n]) + second[..., : self.product.m]
        total = self.product.reduce(joint, -1)
        return total.double() + self.product.centre[..., 0, 0].double()


class TableFactors(Factors):
    """Factors over any number of variables, from tables `[b, f, n_1, .., n_r]`."""

    def __init__(self, scores: Tensor, reduce: Reduce) -> None:
        self.sizes, self.reduce = scores.shape[2:], reduce
        self.centre = finite(scores.detach().flatten(2).amax(-1))  # [b, f]
        self.scores = scores - self.centre.reshape(*scores.shape[:2], *(1,) * len(self.sizes))

    def send(self, cavities: Cavities, to: int) -> Tensor:
        size = next(c.shape[-1] for c in cavities if c is not None)
        joint = self.joint([None if p == to else c for p, c in enumerate(cavities)])
        joint = joint.movedim(2 + to, 2).flatten(3)
        return _padded(self.reduce(joint, -1), size)

    def total(self, cavities: Sequence[Tensor]) -> Tensor:
        return self.reduce(self.joint(cavities).flatten(2), -1).double() + self.centre.double()

    def joint(self, cavities: Cavities) -> Tensor:
        """The scores, but for a constant of each factor, with the given cavities added: `[B, F, n_1, .., n_r]`."""
        scores = self.scores
        for position, cavity in enumerate(cavities):
            if cavity is not None:
                size = self.sizes[position]
                shape = [size if p == position else 1 for p in range(len(self.sizes))]
                scores = scores + cavity[..., :size].reshape(*cavity.shape[:2], *shape)
        return scores


def _padded(sent: Tensor, size: int) -> Tensor:
    return sent if sent.shape[-1] == size else F.pad(sent, (0, size - sent.shape[-1]), value=-math.inf)
