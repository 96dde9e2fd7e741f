"""Tables of exponentiated pair scores times values of the pairs: kept, or streamed in tiles.

Messages are `[G, S, R, N]`, the R rows of each table together, as `Table.by_table` gives them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from tailsum.numerics.precision import product
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.table import Table, block_scores, tile_rows, times
from tailsum.numerics.tensors import as_values, exponentials

Params = tuple[Tensor, ...]  # of a `Table`


class Weighed(ABC):
    """`plain(i, j) value(i, j)`, where `plain` are the exponentials of a table; `values=None` means its scores."""

    def __init__(self, table: Table, params: Params, values: Params | None) -> None:
        self.table, self.params, self.values = table, params, values

    @abstractmethod
    def push(self, x: Tensor) -> Tensor:
        """`x [G, S, R, N]` times the weighed table: `[G, S, R, M]`."""

    @abstractmethod
    def pull(self, y: Tensor) -> Tensor:
        """`y [G, S, R, M]` times the transposed weighed table: `[G, S, R, N]`."""

    @abstractmethod
    def gradients(
        self, first: Tensor, second: Tensor, z: Tensor, y: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """The gradients in the parameters of the scores and of the values, of those that are `wanted`.

        The gradient in a score is `plain (first' z + second' y + value first' y)`, in a value `plain first' y`.
        """

    def common(self, last: Tensor) -> Tensor:
        """The sum along each sequence of an offset that the values leave out: `[B]` in float64."""
        return torch.zeros(len(last), dtype=torch.float64, device=last.device)


class WeighedTable(Weighed):
    """Both tables are kept."""

    def __init__(self, table: Table, params: Params, values: Params | None) -> None:
        super().__init__(table, params, values)
        assert table.kept is not None
        (scores,) = params
        self.plain = (scores - table.scale).exp() if torch.is_grad_enabled() else table.kept
        self.weighed = self.plain * as_values(scores if values is None else block_scores(values))

    def push(self, x: Tensor) -> Tensor:
        return times(x, self.weighed)

    def pull(self, y: Tensor) -> Tensor:
        return product(y, self.weighed.mT)

    def gradients(
        self, first: Tensor, second: Tensor, z: Tensor, y: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        together = product(first.mT, y)
        outer = product(torch.cat((first, second), -2).mT, torch.cat((z, y), -2))
        of_scores = self.plain * outer if torch.is_grad_enabled() else outer.mul_(self.plain)  # saves a table
        of_scores = of_scores.addcmul_(self.weighed, together)
        if not any(wanted[1:]):
            return of_scores, *(None for _ in wanted[1:])
        return of_scores, self.plain * together


class WeighedTiles(Weighed):
    """No table is kept: the tiles of both are computed for each product.

    The highest value of each table is subtracted from all, so that a common offset costs no digits.
    """

    def __init__(self, table: Table, params: Params, values: Params | None) -> None:
        super().__init__(table, params, values)
        self.chunk = tile_rows(table.groups * table.steps * table.n_to, table.device)
        first, *factors = params if values is None else values
        self.rows = (params[0],) if values is None else (params[0], values[0])
        self.whole = (*params[1:], *(values or ())[1:])
        with torch.no_grad():
            self.top = as_values(first.new_zeros(first.shape[:2]) if factors else first.amax((-2, -1)))  # [G, S]

    def _read(self, parts: Parts) -> tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Exponentials and values of a tile, and its other rows and whole tensors."""
        rows, whole, count = parts.rows, parts.whole, len(self.params) - 1
        scores = block_scores((rows[0], *whole[:count]))
        value = scores if self.values is None else block_scores((rows[1], *whole[count : len(self.whole)]))
        plain, value = exponentials(scores - self.table.scale), as_values(value) - self.top[..., None, None]
        return plain, value, rows[len(self.rows) :], whole[len(self.whole) :]

    def push(self, x: Tensor) -> Tensor:
        def tile(parts: Parts) -> Parts:
            plain, value, (x,), _ = self._read(parts)
            return Parts((), (times(x.mT, plain * value),))

        return streamed(tile, Parts((*self.rows, x.mT), self.whole), self.chunk, 0).whole[0]

    def pull(self, y: Tensor) -> Tensor:
        def tile(parts: Parts) -> Parts:
            plain, value, _, (y,) = self._read(parts)
            return Parts((product(plain * value, y.mT),))

        return streamed(tile, Parts(self.rows, (*self.whole, y)), self.chunk, 1).rows[0].mT

    def gradients(
        self, first: Tensor, second: Tensor, z: Tensor, y: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        count = len(self.params)
        needed = any(wanted[:count]), any(wanted[count:])

        def tile(parts: Parts) -> Parts:
            plain, value, (first, second), (z, y) = self._read(parts)
            of_value = plain * product(first, y)
            pieces = []
            if needed[0]:
                outer = product(torch.cat((first, second), -1), torch.cat((z, y), -2))
                pieces.append(_of_factors(plain * outer + value * of_value, parts.rows[0], parts.whole[: count - 1]))
            if needed[1]:
                pieces.append(_of_factors(of_value, parts.rows[1], parts.whole[count - 1 : len(self.whole)]))
            return Parts(tuple(x for rows, _ in pieces for x in rows), tuple(x for _, whole in pieces for x in whole))

        inputs = Parts((*self.rows, first.mT, second.mT), (*self.whole, z, y))
        sums = streamed(tile, inputs, self.chunk, sum(needed))
        rows, whole = iter(sums.rows), iter(sums.whole)
        gradients = list[Tensor | None]()
        for need, params in zip(needed, (self.params, self.values or ()), strict=True):
            gradients += [next(rows), *(next(whole) for _ in params[1:])] if need else [None] * len(params)
        return tuple(gradients)

    def common(self, last: Tensor) -> Tensor:
        top, steps = self.top.double(), max(1, int(last.max())) if len(last) else 1
        top = top.expand(-1, max(steps, self.table.steps)).repeat_interleave(len(last) // max(1, len(top)), 0)
        return torch.where(torch.arange(top.shape[1], device=last.device) < last[:, None], top, 0.0).sum(-1)


def _of_factors(of_scores: Tensor, left: Tensor, right: Params) -> Parts:
    """The gradient in the rows of a table, or in the rows of its left factors and in all right factors."""
    if not right:
        return Parts((of_scores,))
    return Parts((product(of_scores, right[0]),), (product(of_scores.mT, left),))
