"""The table of pair scores of a chain whose states are on several ranks, with the rows of its states on each rank.

Rank p computes with the block row `[n, N]`, from its states to those of all ranks. A message to the next step is a sum
over the rows of all ranks: each rank computes its part for all N columns, and a reduce-scatter adds them up. A message
back is a product with all columns, whose N numbers are gathered. So each step exchanges `[B, N]` numbers.

With a factored table, a rank has the factors of its rows and columns. It gets those of other columns from one rank at a
time, and fetches the next slice while it uses one. That moves N d numbers for each step, while N N / ranks pairs are
computed: with N / ranks in the thousands the transfer takes a small part of the time, and no rank ever has all factors.
If the block row fits the table budget, it is filled once, and from then on only messages are exchanged.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from tailsum.distributed.collectives import from_rank, to_rank
from tailsum.distributed.shards import Shards
from tailsum.numerics.precision import product
from tailsum.numerics.stream import Parts, Tile, streamed
from tailsum.numerics.tiles import fits_budget, tile_rows
from tailsum.scores.potential import Potential
from tailsum.scores.table import Table, pull, push


class ShardedTable(Table):
    """`exp(scores - scale)` of this rank's rows, and its products with messages of all ranks.

    `pairs` are flat: `Dense(scores [G, S, n, N])` or `Factored(left [G, S, n, d], right [G, S, n, d])`, of this rank's n states.
    """

    def __init__(self, pairs: Potential, shards: Shards) -> None:
        self.pairs, self.shards = pairs.map(torch.detach), shards
        (self.groups, self.steps), self.n_from = pairs.lead, pairs.n_from
        self.first = self.pairs.tensors[0]
        self.n_to, self.device = shards.n_states, self.first.device
        self.chunk = tile_rows(self.groups * max(shards.sizes), self.device)
        limits = torch.finfo(self.first.dtype)
        self.floor = limits.tiny / limits.eps * 100 * shards.n_states
        with torch.no_grad():
            self.scale = self._highest_scores()  # of all columns, [G, S, 1, N]
            scale = self.scale[:, :, 0].transpose(0, 1)
            self.centre = scale.amax(-1).double()
            self.column_scale = scale[..., shards.local] - scale.amax(-1, keepdim=True)
            # By the largest slice, so that every rank makes the same decision.
            size = math.prod((self.groups, self.steps, max(shards.sizes), self.n_to)) * self.first.element_size()
            self.kept = self._fill() if fits_budget(size) else None

    def highest(self, x: Tensor) -> Tensor:
        return self.shards.highest(x)

    def summed(self, x: Tensor) -> Tensor:
        return self.shards.summed(x)

    def anywhere(self, x: Tensor) -> bool:
        return self.shards.anywhere(x)

    def of(self, pairs: Potential) -> "ShardedTable":
        return ShardedTable(pairs, self.shards)

    def _blocks(self, step: int) -> Iterator[tuple[slice, Parts]]:
        """The columns of each rank, and the parts `[G, ...]` of the block from this rank's rows to them."""
        (left,), right = ([x[:, step] for x in tensors] for tensors in self.pairs.parts())
        if not right:
            for p in self.shards.filled:
                columns = self.shards.columns(p)
                yield columns, Parts((left[..., columns],))
            return
        for p, part in self.shards.visits(right[0], -2):
            yield self.shards.columns(p), Parts((left,), (part,))

    def _tiles(self, step: int) -> Iterator[tuple[slice, slice, Tensor]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Rows, columns and scores `[G, rows, columns]` of all tiles of this rank's rows."""
        for columns, (left, right) in self._blocks(step):
            for start in range(0, self.n_from, self.chunk):
                rows = slice(start, min(start + self.chunk, self.n_from))
                yield rows, columns, self.pairs.scores_of(Parts((left[0][:, rows],), right))

    def _highest_scores(self) -> Tensor:
        highest = self.first.new_full((self.groups, self.steps, self.n_to), -math.inf)
        for step in range(self.steps):
            for _, columns, scores in self._tiles(step):
                torch.maximum(highest[:, step, columns], scores.amax(-2), out=highest[:, step, columns])
        highest = self.shards.highest(highest[..., None])[:, :, None]
        centre = highest.amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
        return torch.where(highest > -math.inf, highest, centre)

    def _fill(self) -> Tensor:
        table = self.first.new_empty(self.groups, self.steps, self.n_from, self.n_to)
        for step in range(self.steps):
            for rows, columns, tile in self._exponentials(step):
                table[:, step, rows, columns] = tile
        return table

    def _exponentials(self, step: int) -> Iterator[tuple[slice, slice, Tensor]]:
        for rows, columns, scores in self._tiles(step):
            yield rows, columns, (scores - self.scale[:, step, :, columns]).exp_()

    def push(self, t: int, x: Tensor) -> Tensor:
        """This rank's columns `[B, n]` of `x [B, n]` times the table of step t, summed over the rows of all ranks."""
        step = min(t, self.steps - 1)
        if self.kept is not None:
            return self.shards.scattered_sum(push(self.kept[:, step], x))
        out = x.new_zeros(len(x), self.n_to)
        for rows, columns, tile in self._exponentials(step):
            out[:, columns] += push(tile, x[:, rows])
        return self.shards.scattered_sum(out)

    def pull(self, t: int, y: Tensor) -> Tensor:
        """This rank's rows of the table times `y [B, n]` for the columns of all ranks: `[B, n]`."""
        step = min(t, self.steps - 1)
        y = self.shards.gathered(y)
        if self.kept is not None:
            return pull(self.kept[:, step], y)
        out = y.new_zeros(len(y), self.n_from)
        for rows, columns, tile in self._exponentials(step):
            out[:, rows] += pull(tile, y[:, columns])
        return out

    def gradient(self, x: Tensor, y: Tensor, tensors: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """The gradient of `sum_t x_t @ table_t @ y_t` in this rank's tensors, for its x and y `[T-1, B, n]`.

        Every rank gets the messages y and the factors of each other rank in turn, and returns the gradient of the factors.
        """
        x, y = self.by_table(x).mT, self.by_table(y)
        chunk = tile_rows(self.groups * self.steps * max(self.shards.sizes), self.device)
        blocks, left, right, (own, *other) = list[Tensor](), None, None, tensors
        for p in self.shards.filled:
            columns = self.shards.columns(p)
            visiting = from_rank(self.shards, p, y, -1)
            scale = self.scale[..., columns]
            if not other:
                rows = (own[..., columns], x)
                blocks.append(streamed(_weights(scale), Parts(rows, (visiting,)), chunk, 1).rows[0])
                continue
            factors = from_rank(self.shards, p, other[0], -2)
            gradients = streamed(_factor_gradients(scale), Parts((own, x), (factors, visiting)), chunk, 1)
            back = to_rank(self.shards, p, gradients.whole[0], -2)
            left = gradients.rows[0] if left is None else left + gradients.rows[0]
            right = back if right is None else right + back
        if left is None or right is None:
            return (torch.cat(blocks, -1),)
        return left, right


def _weights(scale: Tensor) -> Tile:
    """The gradient in the scores of a tile of rows."""

    def tile(parts: Parts) -> Parts:
        (scores, x), (y,) = parts
        return Parts(((scores - scale).exp() * product(x, y),))

    return tile


def _factor_gradients(scale: Tensor) -> Tile:
    """The gradients in the factors of a tile of rows, and in those of the columns."""

    def tile(parts: Parts) -> Parts:
        (left, x), (right, y) = parts
        weight = (product(left, right.mT) - scale).exp() * product(x, y)
        return Parts((product(weight, right),), (product(weight.mT, left),))

    return tile
