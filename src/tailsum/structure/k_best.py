"""The k best configurations of any structure from its best one alone (Lawler 1972).

The configurations other than the best are partitioned by the first of its parts that they lack: those without the
first, those with the first and without the second, and so on. Each of these is a best configuration again, under scores
that forbid one part and demand others. So each further configuration costs as many searches as one has parts, and these
run as one batch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Best(NamedTuple):
    """The best configurations, best first, and their scores (minus infinity where there are fewer than asked for)."""

    configurations: Any
    scores: Float[Tensor, "k *batch"]


class Found(NamedTuple):
    """Best configurations `[M, *batch]` in global ids, what they use of each table, and their scores."""

    configurations: Any
    used: Sequence[Tensor]
    scores: Tensor


@torch.no_grad()
def k_best(
    k: int, tables: Sequence[Tensor], batch: torch.Size, bonus: float, solve: Callable[[list[Tensor]], Found]
) -> Best:
    """The k best configurations, each field `[k, *batch, ...]`, of the parts that `tables [*batch, *part]` score.

    `solve` finds the best under tables `[M, *batch, *part]`. `bonus` outweighs everything that a configuration can gain or
    lose.
    """
    search = _Search(tables, batch, bonus, solve)
    none = torch.zeros(1, *batch, sum(search.sizes), dtype=torch.bool, device=tables[0].device)
    pool = search.solve(none, none)
    found: list[_Solutions] = []
    for count in range(k):
        chosen = pool.at(pool.scores.argmax(0, keepdim=True))
        found.append(chosen)
        pool = pool.without(chosen)
        if count + 1 < k:
            pool = pool.and_those_of(search.branch(chosen))
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
    """Solutions `[M, *batch]` with the parts they were made to have and to lack, `[M, *batch, part]`."""

    configuration: Any
    scores: Tensor
    used: Tensor
    demanded: Tensor
    banned: Tensor
    number: Tensor

    def at(self, index: Tensor) -> "_Solutions":
        def pick(x: Tensor) -> Tensor:
            wanted = index.reshape(*index.shape, *(1,) * (x.dim() - index.dim()))
            return x.take_along_dim(wanted, 0)

        return _Solutions(stacked([self.configuration], lambda x: pick(x[0])), *map(pick, self[1:]))

    def without(self, chosen: "_Solutions") -> "_Solutions":
        return self._replace(scores=self.scores.masked_fill(self.number == chosen.number, -math.inf))

    def and_those_of(self, *others: "_Solutions") -> "_Solutions":
        all_of = (self, *others)
        fields = zip(*(solutions[1:] for solutions in all_of), strict=True)
        joined = stacked([solutions.configuration for solutions in all_of], torch.cat)
        return _Solutions(joined, *map(torch.cat, fields))


class _Search:
    """Best configurations with some parts demanded and some banned."""

    def __init__(
        self, tables: Sequence[Tensor], batch: torch.Size, bonus: float, solve: Callable[[list[Tensor]], Found]
    ) -> None:
        self.tables, self.bonus, self.best = tables, bonus, solve
        self.sizes = [table.shape[len(batch) :].numel() for table in tables]
        self.solved = 0

    def solve(self, demanded: Tensor, banned: Tensor) -> _Solutions:
        count, changed = len(demanded), []
        changes = zip(self.tables, demanded.split(self.sizes, -1), banned.split(self.sizes, -1), strict=True)
        for table, more, less in changes:
            shape = (count, *table.shape)
            bonus = more.reshape(shape) * self.bonus
            changed.append((table + bonus).masked_fill(less.reshape(shape), -math.inf))
        configuration, parts, scores = self.best(changed)
        flat = [x.reshape(*demanded.shape[:-1], size) for x, size in zip(parts, self.sizes, strict=True)]
        used = torch.cat(flat, -1) > 0
        held = used.any(-1) & ~(demanded & ~used).any(-1) & ~(banned & used).any(-1)
        number = torch.arange(self.solved, self.solved + count, device=held.device)
        self.solved += count
        number = number.reshape(-1, *(1,) * (held.dim() - 1)).expand(held.shape)
        return _Solutions(configuration, scores.masked_fill(~held, -math.inf), used, demanded, banned, number)

    def branch(self, chosen: _Solutions) -> _Solutions:
        """The best of each class of configurations that lack a part of the chosen ones."""
        free = (chosen.used & ~chosen.demanded)[0]
        order = free.long().cumsum(-1)
        step = torch.arange(1, max((1, *order[..., -1].flatten().tolist())) + 1, device=free.device)
        step = step.reshape(-1, *(1,) * free.dim())
        demanded = chosen.demanded | (free & (order < step))
        banned = chosen.banned | (free & (order == step))
        solutions = self.solve(demanded, banned)
        exists = (step[..., 0] <= order[..., -1]) & (chosen.scores > -math.inf)
        return solutions._replace(scores=solutions.scores.masked_fill(~exists, -math.inf))
