"""Scores whose exponentials are a product of block-diagonal matrices (Dao et al., 2022)."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import check_floating
from tailsum.numerics.precision import product
from tailsum.numerics.rings import PROBABILITY, Ring
from tailsum.numerics.tiles import fits_budget
from tailsum.scores.potential import Columns, Rows, column_scale
from tailsum.scores.structured import Structured, every_pair, looked_up

TILE = 1 << 24  # entries of the tables of a block that are made at a time


class Monarch(Structured):
    """A product of block-diagonal matrices of exponentials, with a permutation after each, as in a fast Fourier transform.

    A state is a number with a digit for each block. With two blocks, `first [*lead, n1, n2, n2]` and `second [*lead, n2, n1, n1]`, and
    states `i = i1 n2 + i2`: `score(i, j) = first[i1, i2, j2] + second[j2, i1, j1]`. Each block moves the last digit, given the
    others, which then becomes the first. All pairs are possible, while scores and time grow with N (n1 + n2).

    >>> potential = Monarch(torch.randn(4, 8, 8), torch.randn(8, 4, 4))
    >>> potential.n_from, potential.block().shape
    (32, torch.Size([32, 32]))
    """

    def __init__(self, *blocks: Float[Tensor, "..."]) -> None:
        if len(blocks) < 2:
            raise ValueError(f"blocks must be two tensors or more: got {len(blocks)}")
        for block in blocks:
            check_floating("blocks", block)
        self.sizes = tuple(block.shape[-1] for block in blocks)
        states = torch.Size(self.sizes).numel()
        for k, block in enumerate(blocks):
            n = self.sizes[k]
            if block.dim() < 3 or block.shape[-3:] != (states // n, n, n):
                raise ValueError(
                    f"block {k} must be [*lead, {states // n}, {n}, {n}], as the last sizes of all blocks, {list(self.sizes)}, "
                    f"multiply to {states} states: got {list(block.shape)}"
                )
        self.n_from = self.n_to = states
        self._inverse = False  # whether blocks come in the opposite order, each digit being taken from the front
        self._tops: list[tuple[Tensor, Tensor]] | None = None  # of scores that are exponentiated a part at a time
        self._set(*(block.flatten(-3, -2) for block in blocks))

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        here, there = every_pair(self, rows, cols)
        here, there = (there, here) if self._inverse else (here, there)
        total = None
        for x, n in zip(self.tensors, self.sizes, strict=True):
            digit, there = there % n, there // n
            scores = looked_up(x, here, digit)
            total = scores if total is None else total + scores
            here = digit * (self.n_from // n) + here // n
        assert total is not None
        return total

    def transposed(self) -> "Monarch":
        return self._changed(_inverse=not self._inverse)

    def carry(self, x: Float[Tensor, "*lead r n_from"], ring: Ring) -> Float[Tensor, "*lead r n_to"]:
        for k in self._order():
            x = self.leave(self.through(k, self.enter(x, k), ring))
        return x

    def _order(self) -> list[int]:
        order = list(range(len(self.sizes)))
        return order[::-1] if self._inverse else order

    def enter(self, x: Float[Tensor, "*lead r n"], k: int) -> Float[Tensor, "*lead p r d"]:
        """The digit that block k moves in a dimension of its own, after those that it depends on."""
        n = self.sizes[k]
        return x.unflatten(-1, (n, -1)).movedim(-1, -3) if self._inverse else x.unflatten(-1, (-1, n)).transpose(-3, -2)

    def leave(self, x: Float[Tensor, "*lead p r d"]) -> Float[Tensor, "*lead r n"]:
        """The inverse of `enter` on the other side of the block."""
        return (x.transpose(-3, -2) if self._inverse else x.movedim(-3, -1)).flatten(-2)

    def _tiles(self, k: int) -> Iterator[slice]:
        """Parts of a block that have a few million entries."""
        n = self.sizes[k]
        step = max(1, TILE // (n * n * max(1, self.lead.numel())))
        return (slice(start, start + step) for start in range(0, self.n_from // n, step))

    def _table(self, k: int, part: slice) -> Float[Tensor, "*lead p n n"]:
        """Some tables of a block, exponentiated here if there was no room for all."""
        table = self.tensors[k].unflatten(-2, (-1, self.sizes[k]))[..., part, :, :]
        if self._tops is None:
            return table
        before, after = (top[..., part, :] for top in self._tops[k])
        return (table + before[..., None]).sub_(after[..., None, :]).exp_()

    def through(self, k: int, x: Float[Tensor, "*lead p r d"], ring: Ring) -> Float[Tensor, "*lead p r d"]:
        """Messages times the tables of block k."""
        pieces = []
        for part in self._tiles(k):
            table = self._table(k, part)
            pieces.append(ring.product(x[..., part, :, :], table.mT if self._inverse else table))
        return torch.cat(pieces, -3)

    def normalised(self) -> tuple["Monarch", Float[Tensor, "*lead n_to"]]:
        tops, scale = self._column_tops()
        tables = []
        for x, n, (before, after) in zip(self.tensors, self.sizes, tops, strict=True):
            tables.append((x.unflatten(-2, (-1, n)) + before[..., None] - after[..., None, :]).flatten(-3, -2))
        return self.with_tensors(tables), scale

    def prepared(self) -> tuple["Monarch", Float[Tensor, "*lead n_to"]]:
        size = sum(x.numel() * x.element_size() for x in self.tensors)
        if torch.is_grad_enabled() or fits_budget(2 * size):
            return super().prepared()
        tops, scale = self._column_tops()
        return self._changed(_tops=tops), scale

    @torch.no_grad()
    def _column_tops(self) -> tuple[list[tuple[Tensor, Tensor]], Float[Tensor, "*lead n_to"]]:
        """Numbers to add to the rows and to subtract from the columns of each block, and their sum for each column of all."""
        tops, top = dict[int, tuple[Tensor, Tensor]](), self.tensors[0].new_zeros(*self.lead, 1, self.n_from)
        for k in self._order():
            before = self.enter(top, k)
            highest = [
                ((table.mT if self._inverse else table) + before[..., part, 0, :, None]).amax(-2)
                for part, table in ((part, self._table(k, part)) for part in self._tiles(k))
            ]
            after = column_scale(torch.cat(highest, -2))
            top = self.leave(after[..., None, :])
            rows = before[..., 0, :]
            tops[k] = (-after, -rows) if self._inverse else (rows, after)
        return [tops[k] for k in range(len(tops))], top[..., 0, :]

    def correlated(self, x: Tensor, y: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return super().correlated(x, y)
        order, back, early = self._order(), self.transposed(), list[Tensor]()
        for k in order:  # messages that enter each block
            early.append(self.enter(x, k))
            x = self.leave(self.through(k, early[-1], PROBABILITY))
        slopes = dict[int, Tensor]()
        for k in reversed(order):
            late, before = back.enter(y, k), early.pop()
            out = torch.empty_like(self.tensors[k]).unflatten(-2, (-1, self.sizes[k]))
            for part in self._tiles(k):
                outer = product(before[..., part, :, :].mT, late[..., part, :, :])
                torch.mul(outer.mT if self._inverse else outer, self._table(k, part), out=out[..., part, :, :])
            slopes[k] = out.flatten(-3, -2)
            y = back.leave(back.through(k, late, PROBABILITY))
        return tuple(slopes[k] for k in range(len(slopes)))

    def _changed(self, **fields: object) -> "Monarch":
        new = self.map(lambda x: x)
        vars(new).update(fields)
        return new
