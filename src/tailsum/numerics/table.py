"""Exponentiated pair scores, the matrices of a sum over paths: kept as a table, or streamed in tiles.

Here and in `chains/scan.py` time comes first: `[T, B, N]`. A table is `[G, S, N, M]`. G is 1 if the batch shares it, and B if each
sequence has its own; S is 1 if the steps share it, and T-1 if each step has its own.

Column j is divided by its largest entry, `exp(scale_j)`, so every entry of the table lies in [0, 1].
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from tailsum.numerics.kernels import ALIGNED, fits_tiles, fused, fused_long_sums, is_fast, within
from tailsum.numerics.precision import product
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.tensors import exponentials

_budget = contextvars.ContextVar("table_budget", default=4 << 30)
# Entries of a streamed tile: few enough to stay in the cache of a CPU, many enough to occupy a GPU.
_TILE = {"cpu": 1 << 20}
_TILE_ELSEWHERE = 1 << 26
SMALL = 128  # states: up to this many, a product takes less time than the call of an operator


def table_budget(size: int) -> contextlib.AbstractContextManager[None]:
    """Within it, tables of pair scores up to `size` bytes (default 4 GiB) are kept; larger ones are streamed in tiles.

    >>> import torch, tailsum as ts
    >>> left, right = torch.randn(2, 50, 4)
    >>> chain = ts.LinearChain(torch.randn(7, 50), ts.Factored(left, right))
    >>> with ts.table_budget(0):
    ...     streamed = chain.log_partition()
    >>> bool(torch.isclose(streamed, chain.log_partition()))
    True
    """
    return within(_budget, size)


def budget() -> int:
    """The bytes of the largest table that may be kept."""
    return _budget.get()


def fits_budget(size: int) -> bool:
    """Whether a table of `size` bytes may be kept."""
    return size <= budget()


def tile_rows(entries_per_row: int, device: torch.device) -> int:
    """The number of rows of a tile: at least 16, as products of fewer rows are slow whatever their size."""
    return max(16, tile_size(device) // max(1, entries_per_row))


def tile_size(device: torch.device) -> int:
    """The number of entries of a tile."""
    return _TILE.get(device.type, _TILE_ELSEWHERE)


class Table:
    """`exp(scores - scale)` and its products with messages, without gradients.

    `params` are either `(scores [G, S, N, M],)` or `(left [G, S, N, d], right [G, S, M, d])`.
    """

    def __init__(self, params: tuple[Tensor, ...]) -> None:
        self.params = tuple(p.detach() for p in params)
        self.groups, self.steps, self.n_from = params[0].shape[:3]
        self.n_to = params[-1].shape[-1 if len(params) == 1 else -2]
        self.device = params[0].device
        self.precision = "tf32" if is_fast() else "tf32x3"  # of products with messages in kernels
        self.chunk = tile_rows(self.groups * self.n_to, self.device)
        limits = torch.finfo(params[0].dtype)
        self.floor = limits.tiny / limits.eps * 100 * self.n_from  # in smaller products, terms may have underflowed
        with torch.no_grad():
            self.scale = self._column_max()
            # The scale in two parts, so that an offset common to all scores costs no digits.
            scale = self.scales = self.scale[:, :, 0].transpose(0, 1).contiguous()  # [S, G, M]
            self.centre = scale.amax(-1).double()  # [S, G]
            self.column_scale = scale - scale.amax(-1, keepdim=True)
            size = math.prod((self.groups, self.steps, self.n_from, self.n_to)) * params[0].element_size()
            self.kept = self._fill() if fits_budget(size) else None

    def _rows(self, step: slice, start: int, stop: int) -> Tensor:
        return block_scores(tuple(p[:, step] for p in self.params), slice(start, stop))

    def _column_max(self) -> Tensor:
        if len(self.params) == 2 and fits_tiles(self.params) and fused(*self.params):
            from tailsum.numerics.fused.table_products import column_max  # noqa: PLC0415

            left, right = self.params
            return column_max(left, right)[:, :, None]
        highest = self.params[0].new_full((self.groups, self.steps, 1, self.n_to), -math.inf)
        for step, start, stop in self._tiles():
            rows = self._rows(step, start, stop).amax(-2, keepdim=True)
            highest[:, step] = torch.maximum(highest[:, step], rows)
        centre = highest.amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
        return torch.where(highest > -math.inf, highest, centre)

    def _fill(self) -> Tensor:
        rows, columns = self.n_from, self.n_to
        if fused_long_sums(*self.params):  # kernels read four numbers at once where rows start at multiples of sixteen
            rows, columns = (size + -size % ALIGNED for size in (rows, columns))
        new = self.params[0].new_empty if (rows, columns) == (self.n_from, self.n_to) else self.params[0].new_zeros
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

    @property
    def suits_kernels(self) -> bool:
        """Whether kernels can multiply by it: it is kept, or made from factors that fit their tiles."""
        return self.kept is not None or (len(self.params) == 2 and fits_tiles(self.params))

    @property
    def small(self) -> Tensor | None:
        """The tables `[S, G, N, M]`, if they are kept and so small that calls take the time of a step."""
        few = max(self.n_from, self.n_to) <= SMALL and self.device.type == "cpu"
        few &= self.groups == 1 or self.groups * self.n_from * self.n_to <= SMALL**2
        return self.kept.transpose(0, 1) if few and self.kept is not None else None

    # Reductions over all states, which a table distributed over several devices overrides.

    def highest(self, x: Tensor) -> Tensor:
        """The maximum over the states, the last dimension."""
        return x.amax(-1)

    def summed(self, x: Tensor) -> Tensor:
        """The sum over the states."""
        return x.sum(-1)

    def anywhere(self, x: Tensor) -> bool:
        """Whether any entry is true."""
        return bool(x.any())

    def with_params(self, params: tuple[Tensor, ...]) -> "Table":
        """A table of other scores of the same states."""
        return Table(params)

    def push(self, t: int, x: Tensor) -> Tensor:
        """`x [B, N]` times the table of step t: `[B, M]`."""
        step = min(t, self.steps - 1)
        if self.kept is not None:
            return push(self.kept[:, step], x)
        grouped = _grouped(x, self.groups)
        out = x.new_zeros(*grouped.shape[:2], self.n_to)
        for start in range(0, self.n_from, self.chunk):
            stop = min(start + self.chunk, self.n_from)
            out += times(grouped[..., start:stop], self._tile(step, start, stop))
        return out.reshape(len(x), self.n_to)

    def pull(self, t: int, y: Tensor) -> Tensor:
        """`y [B, M]` times the transposed table of step t: `[B, N]`."""
        step = min(t, self.steps - 1)
        if self.kept is not None:
            return pull(self.kept[:, step], y)
        grouped = _grouped(y, self.groups).mT
        out = y.new_empty(self.groups, self.n_from, grouped.shape[-1])
        for start in range(0, self.n_from, self.chunk):
            stop = min(start + self.chunk, self.n_from)
            out[:, start:stop] = product(self._tile(step, start, stop), grouped)
        return out.mT.reshape(len(y), self.n_from)

    def gradient(self, x: Tensor, y: Tensor, params: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The gradient of `sum_t x_t @ table_t @ y_t` in `params`, for x `[T-1, B, N]` and y `[T-1, B, M]`.

        One product over all steps that share a table, in tiles; differentiable in x, y and `params`.
        """
        x, y = self.by_table(x).mT, self.by_table(y)
        scale, chunk = self.scale, tile_rows(self.groups * self.steps * self.n_to, self.device)

        def weights(x: Tensor, y: Tensor, params: tuple[Tensor, ...]) -> Tensor:
            if fits_tiles(params) and fused(x, y) and not torch.is_grad_enabled():
                from tailsum.numerics.fused.table_products import weights  # noqa: PLC0415

                return weights(x, y, params, scale, self.precision)
            # A product of a column and a row, where each table has one row of its own: matrix products are slow at that.
            pairs = x * y if x.shape[-1] == 1 else product(x, y)
            exp = exponentials if len(params) == 1 else torch.exp  # products of factors have no masks
            return exp(block_scores(params) - scale) * pairs

        def tile(parts: Parts) -> Parts:
            (left, x), (*right, y) = parts
            weight = weights(x, y, (left, *right))
            if not right:  # a table
                return Parts((weight,))
            return Parts((product(weight, right[0]),), (product(weight.mT, left),))

        result = streamed(tile, Parts((params[0], x), (*params[1:], y)), chunk, 1)
        return result.rows + result.whole

    def by_table(self, x: Tensor) -> Tensor:
        """`[T-1, B, N]` as `[G, S, R, N]`: the R rows of each table together."""
        steps, batch, size = x.shape
        together = batch // max(1, self.groups)
        x = x.reshape(steps, self.groups, together, size).movedim(1, 0)
        return x.reshape(self.groups, self.steps, steps // self.steps * together, size)

    def by_step(self, x: Tensor, steps: int) -> Tensor:
        """The inverse of `by_table`: `[G, S, R, N]` as `[T-1, B, N]`, where `steps` is T-1."""
        *_, rows, size = x.shape
        together = rows * self.steps // max(1, steps)
        return x.reshape(self.groups, steps, together, size).movedim(1, 0).reshape(steps, self.groups * together, size)


def push(table: Tensor, x: Tensor) -> Tensor:
    """`x [B, N]` times a table `[G, N, M]`: `[B, M]`."""
    return times(_grouped(x, len(table)), table).reshape(len(x), table.shape[-1])


def pull(table: Tensor, y: Tensor) -> Tensor:
    """`y [B, M]` times a transposed table `[G, N, M]`: `[B, N]`."""
    return product(table, _grouped(y, len(table)).mT).mT.reshape(len(y), table.shape[-2])


def _grouped(x: Tensor, groups: int) -> Tensor:
    """`[B, N]` as `[G, B/G, N]`."""
    return x.reshape(groups, len(x) // max(1, groups), x.shape[-1])


def times(x: Tensor, table: Tensor) -> Tensor:
    """`x @ table`, transposed for 16 rows or more: up to eight times faster on a CPU, measured."""
    return product(x, table) if x.shape[-2] < 16 else product(table.mT, x.mT).mT


def block_scores(params: tuple[Tensor, ...], rows: slice = slice(None)) -> Tensor:
    """The scores of some rows, sliced from a table or computed from factors."""
    if len(params) == 1:
        return params[0][..., rows, :]
    return product(params[0][..., rows, :], params[1].mT)


def transposed(params: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The parameters of the transposed table."""
    return (params[0].mT,) if len(params) == 1 else params[::-1]
