"""Factors: scores of the joint states of a few variables, and the messages that they send to these variables.

The *cavity* of a factor at one of its positions is the score of the variable there plus the messages of all its other
factors; `[B, F, N]` for each position of F factors. A factor with fewer than N states at a position reads only so many
of the N, and sends minus infinity to the others.

Scores have leading dimensions `[b, f]`: b = 1 where the batch of B shares them, and f = 1 where the F factors do. Messages
are defined up to a constant, so the *centre* of a table, its largest score, is left out: adding it to every entry would
cost digits.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.numerics.reduce import Reduce, column_tops, log_product, log_sum_exp, reached
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import fits_budget, tile_size
from tailsum.scores.potential import Potential

Cavities = Sequence[Tensor | None]


class PairFactors:
    """Factors over two variables, from a potential `[b, f, n, m]`.

    All messages that share a table are one product with it: `log sum_i exp(x_i + score(i, j)) - centre` for every j, or the
    maximum; and the same over j for every i.

    The exponentials are kept for both directions if they fit the table budget; `keep` overrides this. Otherwise, and
    where the product may have underflowed, the scores are streamed in tiles, which a backward pass recomputes.
    """

    def __init__(self, pairs: Potential, reduce: Reduce, keep: bool | None = None) -> None:
        self.pairs, self.reduce = pairs, reduce
        (self.b, self.f), self.n, self.m = pairs.lead, pairs.n_from, pairs.n_to
        keep = fits_budget(pairs.table_bytes) if keep is None else keep
        self.centre = pairs.map(torch.detach).common_part()  # [b, f]
        self.table = self._scaled() if reduce is log_sum_exp and keep else None

    def send(self, cavities: Cavities, to: int) -> Tensor:
        """The messages `[B, F, N]` to one position, up to a constant each, from the cavities of the others."""
        cavity = cavities[1 - to]
        assert cavity is not None
        return padded(self.products(cavity[..., : self.n if to == 1 else self.m], to), cavity.shape[-1])

    def total(self, cavities: Sequence[Tensor]) -> Tensor:
        """The reduction over all joint states, `[B, F]` in float64."""
        joint = self.products(cavities[0][..., : self.n], 1) + cavities[1][..., : self.m]
        return self.reduce(joint, -1).double() + self.centre.double()

    def products(self, x: Tensor, to: int) -> Tensor:
        """From `[B, F, n]` to `[B, F, m]` for position 1, and the reverse for position 0."""
        split = (self.b, x.shape[0] // max(1, self.b), self.f, x.shape[1] // max(1, self.f))
        rows = x.reshape(*split, x.shape[-1]).transpose(1, 2).flatten(2, 3)  # [b, f, messages that share a table, n]
        out = None if self.table is None else self._product(*self.table, rows, to)
        out = self._streamed(rows, to) if out is None else out
        out = out.unflatten(2, (split[1], split[3])).transpose(1, 2)
        return out.reshape(*x.shape[:2], out.shape[-1])

    def _product(self, top: Tensor, table: Tensor, x: Tensor, to: int) -> Tensor | None:
        """The product with the table; None where it may have underflowed and the sum is positive."""
        if to == 0:
            x, table = x + top, table.mT
        out, small = log_product(x, table)
        if small.any() and (small & self._reached(x, to)).any():
            return None
        return out if to == 0 else out + top

    def _reached(self, x: Tensor, to: int) -> Tensor:
        if self.pairs.always_finite:
            return (x > -torch.inf).any(-1, keepdim=True)
        return reached(x, self.pairs.block().mT if to == 0 else self.pairs.block())

    def _streamed(self, x: Tensor, to: int) -> Tensor:
        pairs = self.pairs if to == 1 else self.pairs.backwards()
        pieces = [
            pairs.map(lambda p, here=here: p[:, here]).log_product(x[:, here], self.reduce, self.centre[:, here])
            for here in self._together()
        ]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    def _scaled(self) -> tuple[Tensor, Tensor]:
        """The largest score of each column less the centre, and the exponentials of the scores over it."""
        centre = self.centre[..., None, None]
        if torch.is_grad_enabled():
            scores = self.pairs.block()
            top = column_tops(scores)
            return top - centre, (scores - top).exp()
        new = self.pairs.tensors[0].new_empty  # filled tile by tile, so that there is no second table
        top, table = new(self.b, self.f, 1, self.m), new(self.b, self.f, self.n, self.m)
        for here in self._together():
            scores = self.pairs.map(lambda p, here=here: p[:, here]).block()
            top[:, here] = column_tops(scores)
            torch.sub(scores, top[:, here], out=table[:, here]).exp_()
        return top - centre, table

    def _together(self) -> list[slice]:
        """The factors in groups whose tables are of the size of a tile."""
        count = max(1, tile_size(self.pairs.device) // max(1, self.b * self.n * self.m))
        return [slice(start, start + count) for start in range(0, max(1, self.f), count)]


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
