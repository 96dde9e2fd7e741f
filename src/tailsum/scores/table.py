"""Products with pair scores that are kept as a table, or streamed in tiles."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tailsum.numerics.kernels import ALIGNED, fused, is_fast
from tailsum.numerics.precision import product
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.tensors import exponentials
from tailsum.numerics.tiles import fits_budget, tile_rows, tile_size, times
from tailsum.scores.products import Products, grouped

SMALL = 128  # states: up to this many, a product takes less time than the call of an operator


class Table(Products):
    """`exp(scores - scale)` of any flat potential, by tiles of its rows; a table that fits the budget is filled once."""

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs = pairs.map(torch.detach)
        self.precision = "tf32" if is_fast() else "tf32x3"  # of products with messages in kernels
        (self.groups, self.steps), self.n_from, self.n_to = pairs.lead, pairs.n_from, pairs.n_to
        first = pairs.tensors[0]
        self.dtype, self.device = first.dtype, first.device
        self.chunk = tile_rows(self.groups * self.n_to, self.device)
        made = (
            pairs.for_kernels if pairs.parts().whole else None
        )  # what kernels make scores from, in place of reading them
        with torch.no_grad():
            super().__init__(pairs, self._column_max(made))
            size = math.prod((self.groups, self.steps, self.n_from, self.n_to)) * self.dtype.itemsize
            self.kept = self._fill() if fits_budget(size) else None
        few = max(self.n_from, self.n_to) <= SMALL
        few &= self.groups == 1 or self.groups * self.n_from * self.n_to <= SMALL**2
        self.small = self.kept.transpose(0, 1) if few and self.kept is not None else None
        self.suits_kernels = pairs.for_kernels is not None and (self.kept is not None or made is not None)

    def _rows(self, step: slice, start: int, stop: int) -> Tensor:
        rows, whole = self.pairs.parts()
        cut = Parts(tuple(x[:, step, start:stop] for x in rows), tuple(x[:, step] for x in whole))
        return self.pairs.scores_of(cut)

    def _column_max(self, made: tuple[Tensor, ...] | None) -> Tensor:
        if made is not None and fused(*made):
            from tailsum.numerics.fused.table_products import column_max  # noqa: PLC0415

            return column_max(*made)
        new = self.pairs.tensors[0].new_full
        highest = new((self.groups, self.steps, self.n_to), -math.inf)
        for step, start, stop in self._tiles():
            highest[:, step] = torch.maximum(highest[:, step], self._rows(step, start, stop).amax(-2))
        centre = highest.amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
        return torch.where(highest > -math.inf, highest, centre)

    def _fill(self) -> Tensor:
        rows, columns = self.n_from, self.n_to
        if fused(*self.pairs.tensors):  # kernels read four numbers at once where rows start at multiples of sixteen
            rows, columns = (size + -size % ALIGNED for size in (rows, columns))
        same = (rows, columns) == (self.n_from, self.n_to)
        new = self.scale.new_empty if same else self.scale.new_zeros
        self.storage = new(self.groups, self.steps, rows, columns)
        table = self.storage[..., : self.n_from, : self.n_to]
        for step, start, stop in self._tiles():
            torch.sub(self._rows(step, start, stop), self.scale[:, step], out=table[:, step, start:stop])
            exponentials(table[:, step, start:stop])
        return table

    def _tiles(self) -> Iterator[tuple[slice, int, int]]:
        together = self.steps if self.steps * self.groups * self.n_from * self.n_to <= tile_size(self.device) else 1
        for step in range(0, self.steps, max(1, together)):
            for start in range(0, self.n_from, self.chunk):
                yield slice(step, step + together), start, min(start + self.chunk, self.n_from)

    def _tile(self, step: int, start: int, stop: int) -> Tensor:
        scores = self._rows(slice(step, step + 1), start, stop)[:, 0]
        return (scores - self.scale[:, step]).exp_()

    def of(self, pairs: Any) -> "Table":
        return Table(pairs)

    def push(self, t: int, x: Tensor) -> Tensor:
        step = min(t, self.steps - 1)
        if self.kept is not None:
            return push(self.kept[:, step], x)
        rows = grouped(x, self.groups)
        out = x.new_zeros(*rows.shape[:2], self.n_to)
        for start in range(0, self.n_from, self.chunk):
            stop = min(start + self.chunk, self.n_from)
            out += times(rows[..., start:stop], self._tile(step, start, stop))
        return out.reshape(len(x), self.n_to)

    def pull(self, t: int, y: Tensor) -> Tensor:
        step = min(t, self.steps - 1)
        if self.kept is not None:
            return pull(self.kept[:, step], y)
        columns = grouped(y, self.groups).mT
        out = y.new_empty(self.groups, self.n_from, columns.shape[-1])
        for start in range(0, self.n_from, self.chunk):
            stop = min(start + self.chunk, self.n_from)
            out[:, start:stop] = product(self._tile(step, start, stop), columns)
        return out.mT.reshape(len(y), self.n_from)

    def gradient(self, x: Tensor, y: Tensor, tensors: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """One product over all steps that share a table, in tiles."""
        x, y, pairs = self.by_table(x).mT, self.by_table(y), self.pairs.with_tensors(tensors)
        scale, chunk, given = self.scale, tile_rows(self.groups * self.steps * self.n_to, self.device), pairs.parts()

        def weights(x: Tensor, y: Tensor, parts: Parts) -> Tensor:
            params = (*parts.rows, *parts.whole)
            if self.pairs.for_kernels is not None and fused(x, y) and not torch.is_grad_enabled():
                from tailsum.numerics.fused.table_products import weights  # noqa: PLC0415

                return weights(x, y, params, scale, self.precision)
            # A product of a column and a row, where each table has one row of its own: matrix products are slow at that.
            outer = x * y if x.shape[-1] == 1 else product(x, y)
            exp = torch.exp if pairs.always_finite else exponentials  # products of factors have no masks
            return exp(pairs.scores_of(parts) - scale) * outer

        def tile(parts: Parts) -> Parts:
            (*rows, x), (*whole, y) = parts
            own = Parts(tuple(rows), tuple(whole))
            return pairs.slopes(weights(x, y, own), own)

        inputs = Parts((*given.rows, x), (*given.whole, y))
        return pairs.of_parts(streamed(tile, inputs, chunk, len(given.rows)))


def push(table: Tensor, x: Tensor) -> Tensor:
    """`x [B, N]` times a table `[G, N, M]`: `[B, M]`."""
    return times(grouped(x, len(table)), table).reshape(len(x), table.shape[-1])


def pull(table: Tensor, y: Tensor) -> Tensor:
    """`y [B, M]` times a transposed table `[G, N, M]`: `[B, N]`."""
    return product(table, grouped(y, len(table)).mT).mT.reshape(len(y), table.shape[-2])
