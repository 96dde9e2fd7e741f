"""The k best configurations of any structure, by searches for the best one (Lawler 1972).

The configurations other than the best are partitioned by the first of its parts that they lack: those without the
first part, those with the first and without the second, and so on. The best of each class is found by scores that ban
one part and demand others. So each further configuration costs one search for each of its parts, in one batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Best(NamedTuple):
    """The k best configurations, best first, and their scores (minus infinity where there are fewer than k)."""

    configurations: Any
    scores: Float[Tensor, "k *batch"]


class Found(NamedTuple):
    """Best configurations `[M, *batch]` in global ids, the parts of each table that they use, and their scores."""

    configurations: Any
    used: Sequence[Tensor]
    scores: Tensor


@torch.no_grad()
def k_best(
    k: int, tables: Sequence[Tensor], batch: torch.Size, bonus: float, solve: Callable[[list[Tensor]], Found]
) -> Best:
    """The k best configurations, each field `[k, *batch, ...]`, of the parts that `tables [*batch, *part]` score.

    `solve` finds the best under tables `[M, *batch, *part]`. `bonus` exceeds any difference between two scores.
    """
    search = _Search(tables, [table.shape[len(batch) :].numel() for table in tables], bonus, solve)
    none = torch.zeros(1, *batch, sum(search.sizes), dtype=torch.bool, device=tables[0].device)
    pool = search.solve(none, none)
    found: list[_Solutions] = []
    for count in range(k):
        place = pool.scores.argmax(0, keepdim=True)
        found.append(pool.at(place))
        if count + 1 < k:
            rest = pool._replace(scores=pool.scores.scatter(0, place, -math.inf))
            pool = rest.and_those_of(search.branch(found[-1]))
    best = found[0].and_those_of(*found[1:])
    return Best(best.configuration, best.scores)


def stacked(configurations: Sequence[Any], combine: Callable[[list[Tensor]], Tensor]) -> Any:
    """One configuration from several, tensor by tensor."""
    first = configurations[0]
    if isinstance(first, Tensor):
        return combine(list(configurations))
    names = [name for name, x in first._asdict().items() if x is not None]
    return first._replace(**{name: combine([getattr(c, name) for c in configurations]) for name in names})


class _Solutions(NamedTuple):
    """Solutions `[M, *batch]`, and the parts that each uses, must use and must not, `[M, *batch, part]`."""

    configuration: Any
    scores: Tensor
    used: Tensor
    demanded: Tensor
    banned: Tensor

    def at(self, index: Tensor) -> "_Solutions":
        def pick(x: Tensor) -> Tensor:
            return x.take_along_dim(index.reshape(*index.shape, *(1,) * (x.dim() - index.dim())), 0)

        return _Solutions(stacked([self.configuration], lambda x: pick(x[0])), *map(pick, self[1:]))

    def and_those_of(self, *others: "_Solutions") -> "_Solutions":
        configurations, *fields = zip(self, *others, strict=True)
        return _Solutions(stacked(configurations, torch.cat), *map(torch.cat, fields))


@dataclass(frozen=True)
class _Search:
    """Best configurations with some parts demanded and some banned. `sizes` are the numbers of parts of each table."""

    tables: Sequence[Tensor]
    sizes: list[int]
    bonus: float
    best: Callable[[list[Tensor]], Found]

    def solve(self, demanded: Tensor, banned: Tensor) -> _Solutions:
        changed = []
        changes = zip(self.tables, demanded.split(self.sizes, -1), banned.split(self.sizes, -1), strict=True)
        for table, more, less in changes:
            shape = (len(demanded), *table.shape)
            bonus = more.reshape(shape) * self.bonus
            changed.append((table + bonus).masked_fill(less.reshape(shape), -math.inf))
        configuration, parts, scores = self.best(changed)
        flat = [x.reshape(*demanded.shape[:-1], size) for x, size in zip(parts, self.sizes, strict=True)]
        used = torch.cat(flat, -1) > 0
        held = used.any(-1) & ~(demanded & ~used).any(-1) & ~(banned & used).any(-1)
        return _Solutions(configuration, scores.masked_fill(~held, -math.inf), used, demanded, banned)

    def branch(self, chosen: _Solutions) -> _Solutions:
        """The best of each class of configurations that lack a part of the chosen ones."""
        free = (chosen.used & ~chosen.demanded)[0]
        order = free.long().cumsum(-1)
        step = torch.arange(1, max((1, *order[..., -1].flatten().tolist())) + 1, device=free.device)
        step = step.reshape(-1, *(1,) * free.dim())
        solutions = self.solve(chosen.demanded | (free & (order < step)), chosen.banned | (free & (order == step)))
        exists = (step[..., 0] <= order[..., -1]) & (chosen.scores > -math.inf)
        return solutions._replace(scores=solutions.scores.masked_fill(~exists, -math.inf))
