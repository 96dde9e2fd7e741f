"""The k best configurations of any structure, by searches for the best one (Lawler 1972).

The configurations other than the best are partitioned into classes by the first of its parts that they lack: those without
the first part, those with the first and without the second, and so on. A part is banned by the score minus infinity. It is
demanded by a ban on its exclusions, the parts that no configuration has together with it, which costs no digits, as other
scores are unchanged. Only if a structure does not name enough exclusions is the search repeated with a bonus for demanded
parts. Each further configuration costs one search for each of its parts, with up to `_TOGETHER` parts in one batch.

A class is stored as the indices of its demanded and banned parts, and only while its best may be among the k: memory grows
with the size of a search, not with their number.

`distinct.py` uses the same partition with random draws in place of searches.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor


class Best(NamedTuple):
    """The best configurations, highest score first, and their scores, in which gradients flow.

    There are k, or as many as the batch element with the most of them has. Where an element has fewer, the others are -1
    throughout and their scores minus infinity.
    """

    configurations: Any
    scores: Float[Tensor, "k *batch"]


class Solved(NamedTuple):
    """Best configurations `[M, *batch]` in global ids, the parts of each table that they use, and their scores."""

    configurations: Any
    used: Sequence[Tensor]
    scores: Tensor


class Constraints(NamedTuple):
    """How to demand parts.

    `exclusions` maps the demanded parts of each table, booleans `[M, *batch, *part]`, to parts that are incompatible with one
    of them. `bonus` exceeds any difference between two scores; None where scores must not be changed, so that too few
    exclusions are an error.
    """

    exclusions: Callable[[list[Tensor]], Sequence[Tensor]]
    bonus: float | None


_TOGETHER = 1 << 22  # parts of all tables in one batch of searches

Solve = Callable[[list[Tensor]], Solved]
Limit = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def k_best(
    k: int,
    tables: Sequence[Tensor],
    batch: torch.Size,
    constraints: Constraints,
    solve: Solve,
    limit: Limit = lambda scores, _: scores,
) -> tuple[Any, Float[Tensor, "k *batch"]]:
    """The k best configurations `[k, *batch, ...]`, or as many as exist, and their scores, best first.

    `tables [*batch, *part]` score the parts. `solve` finds the best configurations under tables `[M, *batch, *part]`, and none
    where all parts are banned. `limit(scores [M, *batch], bound [1, *batch])` changes the scores of the best in classes from
    which a configuration of score `bound` was removed.
    """
    search = _Search(tables, batch, constraints, solve)
    pool, best = search.start(), list[_Solutions]()
    while len(best) < k:
        if batch.numel() and not (pool.scores[0] > -math.inf).any():
            break
        best.append(pool.at(slice(0, 1)))
        pool, missing = pool.at(slice(1, None)), k - len(best)
        if missing:
            for branch in search.branches(best[-1]):
                scores = limit(branch.scores, best[-1].scores)
                pool = pool.and_those_of(branch._replace(scores=scores)).highest(missing)
    if not best:
        return stacked([pool.configuration], lambda x: x[0][:0]), pool.scores[:0]
    in_order = best[0].and_those_of(*best[1:]).highest(k)  # scores may be rounded
    return in_order.configuration, in_order.scores


def stacked(configurations: Sequence[Any], combine: Callable[[list[Tensor]], Tensor]) -> Any:
    """One configuration from several, tensor by tensor."""
    first = configurations[0]
    if isinstance(first, Tensor):
        return combine(list(configurations))
    names = [name for name, x in first._asdict().items() if x is not None]
    return first._replace(**{name: combine([getattr(c, name) for c in configurations]) for name in names})


def at_index(fields: Sequence[Tensor | None], index: Any, lead: int) -> list[Any]:
    """Every field of configurations at an index into their `lead` leading dimensions, samples and batch."""
    count = len(index) if isinstance(index, tuple) else 1
    if count > lead:
        raise ValueError(f"index must be of the {lead} dimensions of samples and batch: got {index}")
    return [None if x is None else x[index] for x in fields]


torch.serialization.add_safe_globals([Best])  # for torch.load(.., weights_only=True)


class _Solutions(NamedTuple):
    """Solutions `[M, *batch]`, and the indices of the parts that each uses, `[M, *batch, any]`, and that its class bans.

    Its class demands the first `fixed` of the parts used. Indices are filled up with -1.
    """

    configuration: Any
    scores: Tensor
    fixed: Tensor
    used: Tensor
    banned: Tensor

    def at(self, place: slice) -> "_Solutions":
        return _Solutions(stacked([self.configuration], lambda x: x[0][place]), *(x[place] for x in self[1:]))

    def highest(self, count: int) -> "_Solutions":
        """The solutions with the highest scores, in order."""
        index = self.scores.sort(dim=0, descending=True, stable=True).indices[:count]

        def pick(x: Tensor) -> Tensor:
            return x.take_along_dim(index.reshape(*index.shape, *(1,) * (x.dim() - index.dim())), 0)

        return _Solutions(stacked([self.configuration], lambda x: pick(x[0])), *map(pick, self[1:]))

    def and_those_of(self, *others: "_Solutions") -> "_Solutions":
        configurations, scores, fixed, used, banned = zip(self, *others, strict=True)
        together = stacked(configurations, torch.cat)
        return _Solutions(together, torch.cat(scores), torch.cat(fixed), _as_wide(used), _as_wide(banned))


class _Search:
    """Searches with some parts demanded and some banned. `sizes` are the numbers of parts in each table."""

    def __init__(self, tables: Sequence[Tensor], batch: torch.Size, constraints: Constraints, solve: Solve) -> None:
        self.tables, self.batch, self.constraints, self.solve = tables, batch, constraints, solve
        self.sizes = [table.shape[len(batch) :].numel() for table in tables]
        self.together = max(1, _TOGETHER // max(1, batch.numel() * sum(self.sizes)))

    def start(self) -> _Solutions:
        """The best configuration of all."""
        free = torch.zeros(2, *self.batch, sum(self.sizes), dtype=torch.bool, device=self.tables[0].device)
        banned = free.clone()
        banned[0] = True
        configuration, scores, used = self._searched(free, banned)
        self.nothing = stacked([configuration], lambda x: x[0][:1])
        none = used.new_zeros(1, *self.batch, dtype=torch.long)
        return self._solutions(
            stacked([configuration], lambda x: x[0][1:]), scores[1:], none, _indices(used[1:]), none[..., None] - 1
        )

    def branches(self, chosen: _Solutions) -> Iterator[_Solutions]:
        """The best of each class of configurations that lack a part of the chosen ones, some classes at a time."""
        count = (chosen.used >= 0).sum(-1)
        classes = max((1, *(count - chosen.fixed).flatten().tolist()))
        place = torch.arange(chosen.used.shape[-1], device=count.device)
        for first in range(0, classes, self.together):
            step = torch.arange(first, min(first + self.together, classes), device=count.device)
            # The place of the part that each class lacks.
            lacking = chosen.fixed + step.reshape(-1, *(1,) * len(self.batch))
            empty = ((lacking >= count) | (chosen.scores == -math.inf))[..., None]
            demanded = self._flags(torch.where(place < lacking[..., None], chosen.used, -1)) & ~empty
            lost = chosen.used.expand(len(step), *chosen.used.shape[1:])
            lost = lost.gather(-1, lacking.clamp(max=len(place) - 1)[..., None])
            banned = torch.cat((chosen.banned.expand(len(step), *chosen.banned.shape[1:]), lost), -1)
            configuration, scores, used = self._searched(demanded, self._flags(banned) | empty)
            used = _indices(used & demanded, used & ~demanded)
            yield self._solutions(configuration, scores, lacking, used, banned)

    def _solutions(self, configuration: Any, scores: Tensor, fixed: Tensor, used: Tensor, banned: Tensor) -> _Solutions:
        """Solutions, with -1 throughout in place of configurations that do not count."""
        never = scores == -math.inf

        def blank(x: list[Tensor]) -> Tensor:
            return torch.where(never.reshape(*never.shape, *(1,) * (x[0].dim() - never.dim())), x[1], x[0])

        return _Solutions(stacked([configuration, self.nothing], blank), scores, fixed, used, banned)

    def _flags(self, parts: Tensor) -> Tensor:
        """Flags `[.., part]` of the parts with the indices `[.., any]`."""
        flags = torch.zeros(*parts.shape[:-1], sum(self.sizes) + 1, dtype=torch.bool, device=parts.device)
        return flags.scatter_(-1, torch.where(parts < 0, sum(self.sizes), parts), True)[..., :-1]

    def _searched(self, demanded: Tensor, banned: Tensor) -> tuple[Any, Tensor, Tensor]:
        """The best configurations, their scores, and the parts that they use, `[M, *batch, part]`."""
        shapes = [(len(demanded), *table.shape) for table in self.tables]
        required, removed = (
            [x.reshape(shape) for x, shape in zip(flags.split(self.sizes, -1), shapes, strict=True)]
            for flags in (demanded, banned)
        )
        exclusions, bonus = self.constraints
        masks = zip(self.tables, removed, exclusions(required), strict=True)
        tables = [table.masked_fill(out | excluded, -math.inf) for table, out, excluded in masks]
        solved = self._checked(tables, demanded)
        if solved is None:
            if bonus is None:
                raise ValueError(
                    "exclusions names too few parts: some configurations have none of them, nor the demanded ones"
                )
            tables = [table + flags * bonus for table, flags in zip(tables, required, strict=True)]
            solved = self._checked(tables, demanded, strict=False)
        assert solved is not None
        return solved

    def _checked(
        self, tables: list[Tensor], demanded: Tensor, strict: bool = True
    ) -> tuple[Any, Tensor, Tensor] | None:
        """The best under changed tables. One without a demanded part does not count; if `strict`, the result is then None."""
        configuration, parts, scores = self.solve(tables)
        flat = [x.reshape(*demanded.shape[:-1], size) for x, size in zip(parts, self.sizes, strict=True)]
        used = torch.cat([x > 0 for x in flat], -1)
        lacking = (demanded & ~used).any(-1)
        if strict and (lacking & used.any(-1)).any():
            return None
        return configuration, scores.masked_fill(lacking | ~used.any(-1), -math.inf), used


def _indices(*flags: Tensor) -> Tensor:
    """The indices of the parts flagged in `[.., part]`, those of the first flags first, filled up with -1."""
    rows = [x.flatten(0, -2) for x in flags]
    row, part = torch.cat([x.nonzero() for x in rows]).unbind(-1)
    order = row.argsort(stable=True)
    row, part = row[order], part[order]
    count = row.bincount(minlength=len(rows[0]))
    place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    parts = row.new_full((len(rows[0]), max((1, *count.tolist()))), -1)
    parts[row, place] = part
    return parts.reshape(*flags[0].shape[:-1], parts.shape[-1])


def _as_wide(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all tensors, filled up with -1 to the same width."""
    width = max(x.shape[-1] for x in parts)
    return torch.cat([F.pad(x, (0, width - x.shape[-1]), value=-1) for x in parts])
