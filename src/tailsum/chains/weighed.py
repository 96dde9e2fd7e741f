"""Tables of exponentiated pair scores times values of the pairs: kept, or streamed in tiles.

Messages are `[G, S, R, N]`, the R rows of each table together, as `Table.by_table` gives them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from tailsum.numerics.precision import product
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.tensors import as_values, exponentials
from tailsum.numerics.tiles import tile_rows, times
from tailsum.scores.potential import Potential
from tailsum.scores.products import Products


class Weighed(ABC):
    """`plain(i, j) value(i, j)`, where `plain` are the entries of a table; `values=None` means its scores."""

    def __init__(self, table: Products, pairs: Potential, values: Potential | None) -> None:
        self.table, self.pairs, self.values = table, pairs, values

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
        """The gradients in the tensors of the scores and of the values, of those that are `wanted`.

        The gradient in a score is `plain (first' z + second' y + value first' y)`, in a value `plain first' y`.
        """

    def common(self, last: Tensor) -> Tensor:
        """The sum along each sequence of an offset that the values leave out: `[B]` in float64."""
        return torch.zeros(len(last), dtype=torch.float64, device=last.device)


class WeighedTable(Weighed):
    """Both tables are kept."""

    def __init__(self, table: Products, pairs: Potential, values: Potential | None) -> None:
        super().__init__(table, pairs, values)
        assert table.kept is not None
        scores = pairs.block()
        self.plain = (scores - table.scale).exp() if torch.is_grad_enabled() else table.kept
        self.weighed = self.plain * as_values(scores if values is None else values.block())

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

    def __init__(self, table: Products, pairs: Potential, values: Potential | None) -> None:
        super().__init__(table, pairs, values)
        self.chunk = tile_rows(table.groups * table.steps * table.n_to, table.device)
        self.given = [x.parts() for x in (pairs, values) if x is not None]
        self.rows, self.whole = (tuple(x for parts in self.given for x in parts[k]) for k in (0, 1))
        with torch.no_grad():
            self.top = (pairs if values is None else values).common_part()  # [G, S]

    def _read(self, parts: Parts) -> tuple[list[Parts], Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The parts of a tile, its exponentials and values, and the other rows and whole tensors."""
        rows, whole = iter(parts.rows), iter(parts.whole)
        own = [Parts(tuple(next(rows) for _ in x.rows), tuple(next(whole) for _ in x.whole)) for x in self.given]
        scores = self.pairs.scores_of(own[0])
        value = scores if self.values is None else self.values.scores_of(own[1])
        plain, value = exponentials(scores - self.table.scale), as_values(value) - self.top[..., None, None]
        return own, plain, value, tuple(rows), tuple(whole)

    def push(self, x: Tensor) -> Tensor:
        def tile(parts: Parts) -> Parts:
            _, plain, value, (x,), _ = self._read(parts)
            return Parts((), (times(x.mT, plain * value),))

        return streamed(tile, Parts((*self.rows, x.mT), self.whole), self.chunk, 0).whole[0]

    def pull(self, y: Tensor) -> Tensor:
        def tile(parts: Parts) -> Parts:
            _, plain, value, _, (y,) = self._read(parts)
            return Parts((product(plain * value, y.mT),))

        return streamed(tile, Parts(self.rows, (*self.whole, y)), self.chunk, 1).rows[0].mT

    def gradients(
        self, first: Tensor, second: Tensor, z: Tensor, y: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        kinds = [x for x in (self.pairs, self.values) if x is not None]
        count = len(self.pairs.tensors)
        needed = any(wanted[:count]), any(wanted[count:])

        def tile(parts: Parts) -> Parts:
            own, plain, value, (first, second), (z, y) = self._read(parts)
            of_value = plain * product(first, y)
            pieces = []
            if needed[0]:
                outer = product(torch.cat((first, second), -1), torch.cat((z, y), -2))
                pieces.append(self.pairs.slopes(plain * outer + value * of_value, own[0]))
            if needed[1]:
                pieces.append(kinds[1].slopes(of_value, own[1]))
            return Parts(tuple(x for rows, _ in pieces for x in rows), tuple(x for _, whole in pieces for x in whole))

        inputs = Parts((*self.rows, first.mT, second.mT), (*self.whole, z, y))
        outputs = sum(len(x.rows) for x, need in zip(self.given, needed, strict=False) if need)
        sums = streamed(tile, inputs, self.chunk, outputs)
        rows, whole = iter(sums.rows), iter(sums.whole)
        gradients = list[Tensor | None]()
        for need, kind, given in zip(needed, kinds, self.given, strict=False):
            own = (
                Parts(tuple(next(rows) for _ in given.rows), tuple(next(whole) for _ in given.whole)) if need else None
            )
            gradients += [None] * len(kind.tensors) if own is None else kind.of_parts(own)
        return tuple(gradients)

    def common(self, last: Tensor) -> Tensor:
        top, steps = self.top.double(), max(1, int(last.max())) if len(last) else 1
        top = top.expand(-1, max(steps, self.table.steps)).repeat_interleave(len(last) // max(1, len(top)), 0)
        return torch.where(torch.arange(top.shape[1], device=last.device) < last[:, None], top, 0.0).sum(-1)
