"""Scores whose exponentials are a product of block-diagonal matrices (Dao et al., 2022)."""

import functools
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import check_floating
from tailsum.numerics.precision import product
from tailsum.numerics.rings import PROBABILITY, Ring
from tailsum.numerics.tensors import at_step
from tailsum.numerics.tiles import fits_budget
from tailsum.scores.potential import Columns, Rows, column_scale
from tailsum.scores.structured import Structured, every_pair, joint_lead, looked_up

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
        for k, block in enumerate(blocks):
            check_floating(f"block {k}", block)
            if block.dim() < 3 or 0 in block.shape[-3:]:
                raise ValueError(f"block {k} must be [*lead, N/n, n, n], none of them zero: got {list(block.shape)}")
        self.sizes = tuple(block.shape[-1] for block in blocks)
        states = torch.Size(self.sizes).numel()
        for k, block in enumerate(blocks):
            n = self.sizes[k]
            if block.shape[-3:] != (states // n, n, n):
                raise ValueError(
                    f"block {k} must be [*lead, {states // n}, {n}, {n}], as the last sizes of all blocks, {list(self.sizes)}, "
                    f"multiply to {states} states: got {list(block.shape)}"
                )
        joint_lead("blocks", *(block.shape[:-3] for block in blocks))
        self.n_from = self.n_to = states
        self._order = tuple(range(len(blocks)))  # of the blocks on the way from a state to another
        self._inverse = False  # whether that is the opposite order, each digit being taken from the front
        self._tops = dict[int, tuple[Tensor, Tensor]]()  # of scores that are exponentiated a part at a time
        self._set(*(block.flatten(-3, -2) for block in blocks))

    def block(self, rows: Rows = None, cols: Columns = None) -> Float[Tensor, "*lead a b"]:
        here, there = every_pair(self, rows, cols)
        here, there = (there, here) if self._inverse else (here, there)
        scores = list[Tensor]()
        for x, n in zip(self.tensors, self.sizes, strict=True):
            digit, there = there % n, there // n
            scores.append(looked_up(x, here, digit))
            here = digit * (self.n_from // n) + here // n
        return functools.reduce(torch.add, scores)

    def at_step(self, t: int) -> "Monarch":
        tops = {k: (at_step(before, 2, t), at_step(after, 2, t)) for k, (before, after) in self._tops.items()}
        return self._changed(lambda x: at_step(x, self.trailing, t), _tops=tops)

    def transposed(self) -> "Monarch":
        return self._changed(_inverse=not self._inverse, _order=self._order[::-1])

    def carry(self, x: Float[Tensor, "*lead r n_from"], ring: Ring) -> Float[Tensor, "*lead r n_to"]:
        for k in self._order:
            x = self.leave(self.through(k, self.enter(x, k), ring))
        return x

    def enter(self, x: Float[Tensor, "*lead r n"], k: int) -> Float[Tensor, "*lead p r d"]:
        """The digit that block k moves in a dimension of its own, after those that it depends on."""
        n = self.sizes[k]
        return x.unflatten(-1, (n, -1)).movedim(-1, -3) if self._inverse else x.unflatten(-1, (-1, n)).transpose(-3, -2)

    def leave(self, x: Float[Tensor, "*lead p r d"]) -> Float[Tensor, "*lead r n"]:
        """The inverse of `enter` on the other side of the block."""
        return (x.transpose(-3, -2) if self._inverse else x.movedim(-3, -1)).flatten(-2)

    def _tiles(self, k: int) -> Iterator[tuple[slice, Float[Tensor, "*lead p d d"]]]:
        """Some tables of a block at a time, a few million entries, exponentiated here if there was no room for all."""
        n = self.sizes[k]
        tables = self.tensors[k].unflatten(-2, (-1, n))
        step = max(1, TILE // (n * n * max(1, self.lead.numel())))
        for start in range(0, self.n_from // n, step):
            part = slice(start, start + step)
            table = tables[..., part, :, :]
            if self._tops:
                before, after = (top[..., part, :] for top in self._tops[k])
                table = (table + before[..., None]).sub_(after[..., None, :]).exp_()
            yield part, self._turned(table)

    def _turned(self, table: Tensor) -> Tensor:
        return table.mT if self._inverse else table

    def through(self, k: int, x: Float[Tensor, "*lead p r d"], ring: Ring) -> Float[Tensor, "*lead p r d"]:
        """Messages times the tables of block k."""
        return torch.cat([ring.product(x[..., part, :, :], table) for part, table in self._tiles(k)], -3)

    def normalised(self) -> tuple["Monarch", Float[Tensor, "*lead n_to"]]:
        tops, scale = self._column_tops()
        tables = [x.unflatten(-2, (-1, n)) for x, n in zip(self.tensors, self.sizes, strict=True)]
        less = [table + tops[k][0][..., None] - tops[k][1][..., None, :] for k, table in enumerate(tables)]
        return self.with_tensors([table.flatten(-3, -2) for table in less]), scale

    def prepared(self) -> tuple["Monarch", Float[Tensor, "*lead n_to"]]:
        size = sum(x.numel() * x.element_size() for x in self.tensors)
        if torch.is_grad_enabled() or fits_budget(2 * size):
            return super().prepared()
        tops, scale = self._column_tops()
        return self._changed(_tops=tops), scale

    @torch.no_grad()
    def _column_tops(self) -> tuple[dict[int, tuple[Tensor, Tensor]], Float[Tensor, "*lead n_to"]]:
        """Numbers to add to the rows and to subtract from the columns of each block, and their sum for each column of all."""
        tops, top = dict[int, tuple[Tensor, Tensor]](), self.tensors[0].new_zeros(*self.lead, 1, self.n_from)
        for k in self._order:
            before = self.enter(top, k)[..., 0, :]
            highest = [(table + before[..., part, :, None]).amax(-2) for part, table in self._tiles(k)]
            after = column_scale(torch.cat(highest, -2))
            top = self.leave(after[..., None, :])
            tops[k] = (-after, -before) if self._inverse else (before, after)
        return tops, top[..., 0, :]

    def correlated(self, x: Tensor, y: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return super().correlated(x, y)
        back, early = self.transposed(), list[Tensor]()
        for k in self._order:  # messages that enter each block
            early.append(self.enter(x, k))
            x = self.leave(self.through(k, early[-1], PROBABILITY))
        slopes = dict[int, Tensor]()
        for k in self._order[::-1]:
            late, before = back.enter(y, k), early.pop()
            out = torch.empty_like(self.tensors[k]).unflatten(-2, (-1, self.sizes[k]))
            for part, table in self._tiles(k):
                outer = product(before[..., part, :, :].mT, late[..., part, :, :])
                out[..., part, :, :] = self._turned(outer.mul_(table))
            slopes[k] = out.flatten(-3, -2)
            y = back.leave(back.through(k, late, PROBABILITY))
        return tuple(slopes[k] for k in range(len(slopes)))
