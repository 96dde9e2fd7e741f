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
    factors: tuple[
        tuple[int, int, bool], ...
    ]  # group, factor, and whether the message goes to the first axis of its table
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
            base = [sum(sizes[:g]) for g in range(len(sizes))]
            of = [2 * (base[g] + (0 if key[g] else f)) + turned for g, f, turned in self.factors]
            by_table, ranges = _sorted(of, 2 * sum(sizes))
            with torch.inference_mode(False):
                device = self.source.device
                self._tables[key] = Tables(*(_whole(x, device) for x in (of, by_table, ranges)))
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
                self._tiles[key] = tuple(x.to(self.source.device, torch.int32) for x in (slots, starts))
        return self._tiles[key]


@functools.lru_cache(maxsize=32)
def wired(plan: Plan) -> Wiring:
    """The wiring of a plan whose factors all have two variables."""
    source, to, back = list[int](), list[int](), list[int]()
    factors, places, counts = list[tuple[int, int, bool]](), list[int](), dict[int, int]()
    for block in plan.blocks:
        places.append(len(source))
        ends, count = block.variables.tolist(), len(block.factors)
        counts[block.group] = counts.get(block.group, 0) + count
        for position in (0, 1):
            for f, (factor, pair) in enumerate(zip(block.factors.tolist(), ends, strict=True)):
                back.append(places[-1] + (1 - position) * count + f)
                to.append(pair[position])
                source.append(pair[1 - position])
                factors.append((block.group, factor, block.axes[position] == 0))
    stage = [0] * len(source)
    for number, updates in enumerate(plan.stages):
        for update in updates:
            count = len(plan.blocks[update.block].factors)
            for position in update.to:
                first = places[update.block] + position * count
                stage[first : first + count] = [number] * count
    into, begin = _sorted(to, len(plan.layer))
    order, starts = _sorted(stage, len(plan.stages))
    with torch.inference_mode(False):
        return Wiring(
            *(_whole(x, plan.layer.device) for x in (source, back, into, begin, order, starts, stage)),
            most=max((b - a for a, b in itertools.pairwise(begin)), default=0),
            widest=max((b - a for a, b in itertools.pairwise(starts)), default=0),
            factors=tuple(factors),
            counts=tuple(counts[g] for g in sorted(counts)),
        )


def _sorted(keys: list[int], count: int) -> tuple[list[int], list[int]]:
    """The places of keys below `count` in ascending order of keys, and where each key begins, with the end."""
    ranges = [0] * (count + 1)
    for key in keys:
        ranges[key + 1] += 1
    for key in range(count):
        ranges[key + 1] += ranges[key]
    return sorted(range(len(keys)), key=keys.__getitem__), ranges


def _whole(numbers: list[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)
