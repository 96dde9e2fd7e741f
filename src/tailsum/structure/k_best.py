"""The k best configurations of any structure from its best one alone (Lawler 1972).

The configurations other than the best are partitioned by the first of its parts that they lack: those without the
first, those with the first and without the second, and so on. Each of these is a best configuration again, under scores
that forbid one part and demand others. So each further configuration costs as many searches as one has parts, and these
run as one batch.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.scores.potential import Dense


class Best(NamedTuple):
    """The best configurations, best first, and their scores (minus infinity where there are fewer than asked for)."""

    configurations: Any
    scores: Float[Tensor, "k *batch"]


@torch.no_grad()
def k_best(model: Any, k: int) -> Best:
    """The k best configurations of a model, in original numbers, each field `[k, *batch, ...]`."""
    search = _Search(model)
    shape = (1, *model.batch_shape)
    none = torch.zeros(*shape, search.n_parts, dtype=torch.bool, device=model.device)
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

        return _Solutions(_combined([self.configuration], lambda x: pick(x[0])), *map(pick, self[1:]))

    def without(self, chosen: "_Solutions") -> "_Solutions":
        return self._replace(scores=self.scores.masked_fill(self.number == chosen.number, -math.inf))

    def and_those_of(self, *others: "_Solutions") -> "_Solutions":
        all_of = (self, *others)
        fields = zip(*(solutions[1:] for solutions in all_of), strict=True)
        joined = _combined([solutions.configuration for solutions in all_of], torch.cat)
        return _Solutions(joined, *map(torch.cat, fields))


def _combined(configurations: list[Any], combine: Callable[[list[Tensor]], Tensor]) -> Any:
    """One configuration from several, tensor by tensor."""
    first = configurations[0]
    if isinstance(first, Tensor):
        return combine(configurations)
    names = [name for name, x in first._asdict().items() if x is not None]
    return first._replace(**{name: combine([getattr(c, name) for c in configurations]) for name in names})


class _Search:
    """Best configurations with some parts demanded and some banned."""

    def __init__(self, model: Any) -> None:
        self.model, self.terms = model, model._distinct()
        noisy = model.part_terms
        self.tables = [term.scores.double() for term in self.terms[:noisy] if isinstance(term, Dense)]
        self.rest = tuple(term.map(lambda x: x.double() if x.is_floating_point() else x) for term in self.terms[noisy:])
        self.sizes = [table.shape[len(model.batch_shape) :].numel() for table in self.tables]
        self.n_parts, self.solved = sum(self.sizes), 0
        # A demanded part gets a bonus that outweighs everything else that a configuration can gain or lose.
        self.bonus = 1.0 + 2 * model._n_scores() * sum(term.bound() for term in self.terms)

    def solve(self, demanded: Tensor, banned: Tensor) -> _Solutions:
        count = len(demanded)
        model = self.model._in_batch((count, *self.model.batch_shape))
        model.dtype = torch.float64
        tables = []
        for table, more, less in zip(
            self.tables, demanded.split(self.sizes, -1), banned.split(self.sizes, -1), strict=True
        ):
            shape = (count, *table.shape)
            bonus = more.reshape(shape) * self.bonus
            tables.append(Dense((table + bonus).masked_fill(less.reshape(shape), -math.inf)))
        own = model.best((*tables, *self.rest))
        used = (
            torch.cat(
                [x.reshape(*demanded.shape[:-1], size) for x, size in zip(model._used(own), self.sizes, strict=True)],
                -1,
            )
            > 0
        )
        configuration = self.model._original(own)
        held = used.any(-1) & ~(demanded & ~used).any(-1) & ~(banned & used).any(-1)
        scores = self.model.score(configuration).masked_fill(~held, -math.inf)
        number = torch.arange(self.solved, self.solved + count, device=held.device)
        self.solved += count
        number = number.reshape(-1, *(1,) * (held.dim() - 1)).expand(held.shape)
        return _Solutions(configuration, scores, used, demanded, banned, number)

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
