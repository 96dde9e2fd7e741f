"""The k best configurations of any structure, by searches for the best one (Lawler 1972).

The configurations other than the best are partitioned by the first of its parts that they lack: those without the
first part, those with the first and without the second, and so on. A part is banned by the score minus infinity, and
demanded by a ban on its rivals, the parts that no configuration has beside it: other scores are unchanged, so that those
of any size cost no digits. Only where a structure does not name enough rivals is the search repeated with a bonus for
demanded parts. Each further configuration costs one search for each of its parts, in one batch.

The same partition serves random draws in place of searches (`distinct.py`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Best(NamedTuple):
    """The best configurations, highest score first, and their scores, in which gradients flow.

    There are k, or as many as the batch element with the most of them has. Where an element has fewer, the others are -1
    throughout and their scores minus infinity.
    """

    configurations: Any
    scores: Float[Tensor, "k *batch"]


class Found(NamedTuple):
    """Best configurations `[M, *batch]` in global ids, the parts of each table that they use, and their scores."""

    configurations: Any
    used: Sequence[Tensor]
    scores: Tensor


class Constraints(NamedTuple):
    """How to demand parts.

    `rivals` maps the demanded parts of each table, booleans `[M, *batch, *part]`, to parts that are incompatible with one
    of them. `bonus` exceeds any difference between two scores; None where scores must not be changed, so that too few
    rivals are an error.
    """

    rivals: Callable[[list[Tensor]], Sequence[Tensor]]
    bonus: float | None


Solve = Callable[[list[Tensor]], Found]
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
    """The k best configurations `[k, *batch, ...]`, or as many as exist, of the parts that `tables [*batch, *part]` score.

    Their scores, too. `solve` finds the best under tables `[M, *batch, *part]`, and none where all is banned.
    `limit(scores [M, *batch], bound [1, *batch])` changes the scores of what was found in classes that a configuration of
    score `bound` was removed from.
    """
    search = _Search(tables, [table.shape[len(batch) :].numel() for table in tables], constraints, solve)
    nothing = torch.zeros(2, *batch, sum(search.sizes), dtype=torch.bool, device=tables[0].device)
    everything = torch.ones_like(nothing[:1])
    pool = search.solve(nothing, torch.cat((everything, nothing[:1])))  # no configuration comes first: it wins ties
    found: list[_Solutions] = []
    while len(found) < k:
        place = pool.scores.argmax(0, keepdim=True)
        best = pool.at(place)
        if batch.numel() and not (best.scores > -math.inf).any():
            break
        found.append(best)
        if len(found) < k:
            rest = pool._replace(scores=pool.scores.scatter(0, place, -math.inf))
            branches = search.branch(best)
            pool = rest.and_those_of(branches._replace(scores=limit(branches.scores, best.scores)))
    if not found:
        return stacked([pool.configuration], lambda x: x[0][:0]), pool.scores[:0]
    best = found[0].and_those_of(*found[1:])
    best = best.at(best.scores.sort(dim=0, descending=True, stable=True).indices)  # scores may be rounded
    return best.configuration, best.scores


def stacked(configurations: Sequence[Any], combine: Callable[[list[Tensor]], Tensor]) -> Any:
    """One configuration from several, tensor by tensor."""
    first = configurations[0]
    if isinstance(first, Tensor):
        return combine(list(configurations))
    names = [name for name, x in first._asdict().items() if x is not None]
    return first._replace(**{name: combine([getattr(c, name) for c in configurations]) for name in names})


def at_index(fields: Sequence[Tensor | None], index: Any, lead: int) -> list[Any]:
    """Every field of configurations at an index of their `lead` leading dimensions, those of samples and batch."""
    count = len(index) if isinstance(index, tuple) else 1
    if count > lead:
        raise ValueError(f"index must be of the {lead} dimensions of samples and batch: got {index}")
    return [None if x is None else x[index] for x in fields]


torch.serialization.add_safe_globals([Best])  # for torch.load(.., weights_only=True)


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
    constraints: Constraints
    best: Solve

    def solve(self, demanded: Tensor, banned: Tensor) -> _Solutions:
        shapes = [(len(demanded), *table.shape) for table in self.tables]
        wanted, less = (
            [x.reshape(shape) for x, shape in zip(flags.split(self.sizes, -1), shapes, strict=True)]
            for flags in (demanded, banned)
        )
        rivals, bonus = self.constraints
        given = zip(self.tables, less, rivals(wanted), strict=True)
        tables = [table.masked_fill(out | rival, -math.inf) for table, out, rival in given]
        found = self._held(tables, demanded, banned)
        if found is None:
            if bonus is None:
                raise ValueError(
                    "rivals names too few parts: some configurations have none of them, nor the demanded ones"
                )
            tables = [table + more * bonus for table, more in zip(tables, wanted, strict=True)]
            found = self._held(tables, demanded, banned, strict=False)
        assert found is not None
        return found

    def _held(self, tables: list[Tensor], demanded: Tensor, banned: Tensor, strict: bool = True) -> _Solutions | None:
        """The best under changed tables; those without a demanded part do not count or, if `strict`, nothing does."""
        configuration, parts, scores = self.best(tables)
        flat = [x.reshape(*demanded.shape[:-1], size) for x, size in zip(parts, self.sizes, strict=True)]
        used = torch.cat(flat, -1) > 0
        lacking = (demanded & ~used).any(-1)
        if strict and (lacking & used.any(-1)).any():
            return None
        scores = scores.masked_fill(lacking | ~used.any(-1), -math.inf)
        return _Solutions(configuration, scores, used, demanded, banned)

    def branch(self, chosen: _Solutions) -> _Solutions:
        """The best of each class of configurations that lack a part of the chosen ones."""
        free = (chosen.used & ~chosen.demanded)[0]
        order = free.long().cumsum(-1)
        step = torch.arange(1, max((1, *order[..., -1].flatten().tolist())) + 1, device=free.device)
        step = step.reshape(-1, *(1,) * free.dim())
        empty = (step > order[..., -1:]) | (chosen.scores == -math.inf)[..., None]
        demanded = chosen.demanded | (free & (order < step))
        return self.solve(demanded & ~empty, chosen.banned | (free & (order == step)) | empty)
