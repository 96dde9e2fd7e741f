"""Messages between pairs of variables by number: which variable each comes from, and when it is sent.

The numbers are places in the packed messages of a plan: block after block, first those to the first position.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from tailsum.graphs.layers import Plan


class Tables(NamedTuple):
    """The tables that messages go by. Table 2t is number t of those given, to its columns, and table 2t + 1 is the same transposed."""

    of: Int[Tensor, " D"]
    by_table: Int[Tensor, " D"]  # the messages, table after table
    ranges: Int[Tensor, " T1"]  # where those of each table begin, and their end


@dataclass(frozen=True)
class Wiring:
    """The D messages of a plan whose factors all have two variables."""

    source: Int[Tensor, " D"]  # the variable that the message comes from
    back: Int[Tensor, " D"]  # the message of the same factor in the other direction
    into: Int[Tensor, " D"]  # the messages, by the variables that they go to
    begin: Int[Tensor, " V1"]  # where those to each variable begin, and their end
    order: Int[Tensor, " D"]  # the messages, by the stages in which they are sent
    starts: Int[Tensor, " S1"]  # where those of each stage begin, and their end
    stage: Int[Tensor, " D"]
    most: int  # messages to a variable
    widest: int  # the most messages of a stage
    factors: Int[
        Tensor, "D 3"
    ]  # on the host: group, factor, and whether the message goes to the first axis of its table
    counts: tuple[int, ...]  # of the factors of each group
    _tables: dict[tuple[bool, ...], Tables] = field(default_factory=dict, compare=False)
    _tiles: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict, compare=False)

    @property
    def stages(self) -> int:
        """The number of stages of an iteration."""
        return len(self.starts) - 1

    def tables(self, shared: Sequence[bool]) -> Tables:
        """The tables, where the factors of a group share one table or have one each."""
        key = tuple(shared)
        if key not in self._tables:
            sizes = [1 if one else count for one, count in zip(key, self.counts, strict=True)]
            base = torch.tensor([0, *itertools.accumulate(sizes)])
            group, factor, turned = self.factors.unbind(1)
            of = 2 * (base[group] + torch.where(torch.tensor(key)[group], 0, factor)) + turned
            with torch.inference_mode(False):
                self._tables[key] = Tables(*(_whole(x, self.source) for x in (of, *_sorted(of, 2 * sum(sizes)))))
        return self._tables[key]

    def tiles(self, size: int, shared: Sequence[bool]) -> tuple[Int[Tensor, " M"], Int[Tensor, " S1"]]:
        """The messages by stages, `size` at a time that go by one table, -1 where there are fewer; and where each stage begins in tiles."""
        key = (size, *shared)
        if key not in self._tiles:
            of, stage = self.tables(shared).of.cpu().long(), self.stage.cpu().long()
            many = int(of.max()) + 1
            keys, kind, counts = (stage * many + of).unique(return_inverse=True, return_counts=True)
            tiles, order = (counts + size - 1) // size, kind.argsort(stable=True)
            kind = kind[order]
            place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[kind]
            slots = torch.full((int(tiles.sum()) * size,), -1)
            slots[(tiles.cumsum(0) - tiles)[kind] * size + place] = order
            starts = torch.zeros(self.stages + 1, dtype=torch.long).index_add_(0, keys // many + 1, tiles).cumsum(0)
            with torch.inference_mode(False):
                self._tiles[key] = _whole(slots, self.source), _whole(starts, self.source)
        return self._tiles[key]


@functools.lru_cache(maxsize=32)
def wired(plan: Plan) -> Wiring:
    """The wiring of a plan whose factors all have two variables."""
    blocks, device = plan.blocks, plan.layer.device
    with torch.inference_mode(False):
        ends = torch.cat([torch.zeros(0, 2, dtype=torch.long, device=device), *(x.variables for x in blocks)]).cpu()
        number = torch.cat([torch.zeros(0, dtype=torch.long, device=device), *(x.factors for x in blocks)]).cpu()
        sizes, groups = (
            torch.tensor(x, dtype=torch.long) for x in zip(*((len(x.factors), x.group) for x in blocks), strict=True)
        )
        in_stage = torch.zeros(len(blocks), 2, dtype=torch.long)
        in_stage[
            [b for of in plan.order for b, to in of for _ in to], [p for of in plan.order for _, to in of for p in to]
        ] = torch.tensor([s for s, of in enumerate(plan.order) for _, to in of for _ in to])
        first_axis = torch.tensor([[x.axes[0] == 0, x.axes[1] == 0] for x in blocks])
        block = torch.arange(len(blocks)).repeat_interleave(sizes)
        one = torch.arange(len(number)) + (sizes.cumsum(0) - sizes)[block]  # messages to the first position
        other = one + sizes[block]

        def spread(to_first: Tensor, to_second: Tensor) -> Tensor:
            whole = to_first.new_zeros(2 * len(number))
            whole[one], whole[other] = to_first, to_second
            return whole

        to, source, back = spread(ends[:, 0], ends[:, 1]), spread(ends[:, 1], ends[:, 0]), spread(other, one)
        stage = spread(*in_stage[block].unbind(1))
        factors = torch.stack(
            (spread(groups[block], groups[block]), spread(number, number), spread(*first_axis[block].long().unbind(1))),
            1,
        )
        (into, begin), (order, starts) = _sorted(to, len(plan.layer)), _sorted(stage, len(plan.order))
        return Wiring(
            *(_whole(x, plan.layer) for x in (source, back, into, begin, order, starts, stage)),
            most=int(begin.diff().max()),
            widest=int(starts.diff().max()),
            factors=factors,
            counts=tuple(torch.zeros(int(groups.max()) + 1, dtype=torch.long).index_add_(0, groups, sizes).tolist()),
        )


def _sorted(keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The places of keys below `count` in ascending order of keys, and where each key begins, with the end."""
    begin = torch.zeros(count + 1, dtype=torch.long)
    begin[1:] = keys.bincount(minlength=count).cumsum(0)
    return keys.argsort(stable=True), begin


def _whole(numbers: Tensor, like: Tensor) -> Tensor:
    return numbers.to(like.device, torch.int32)
