"""Factors over some of the variables of a larger factor: their scores are added to those of the larger one.

The model is the same, and two factors that share two variables are a loop less.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from tailsum.graphs.factor_scores import FactorTable


class Place(NamedTuple):
    """Where the scores of a factor are: in a factor of a group, over some axes of its table."""

    group: int
    factor: int
    axes: tuple[int, ...]


class Absorbed(NamedTuple):
    """The groups of factors that are left, and the places of all factors as they were given."""

    variables: list[Int[Tensor, "_ _"]]
    tables: list[FactorTable]
    places: list[list[Place]]


def absorbed(variables: Sequence[Int[Tensor, "_ _"]], tables: Sequence[FactorTable]) -> Absorbed | None:
    """The same factors without those within larger ones; None if there are none of these."""
    scopes = [[tuple(scope) for scope in group.tolist()] for group in variables]
    into = _into(scopes)
    if not into:
        return None
    kept = [[f for f in range(len(group)) if (g, f) not in into] for g, group in enumerate(scopes)]
    left = [g for g, factors in enumerate(kept) if factors]
    rows = [_rows(tables[g], len(scopes[g])) for g in range(len(scopes))]
    for (g, f), (to, at) in into.items():
        rows[to][at] = rows[to][at] + _spread(rows[g][f], scopes[g][f], scopes[to][at])
    changed = {to for to, _ in into.values()}
    found = [
        _stacked([rows[g][f] for f in kept[g]], tables[g].arity) if g in changed else _some(tables[g], kept[g])
        for g in left
    ]
    places = []
    for g, group in enumerate(scopes):
        here = [(into.get((g, f), (g, f)), scope) for f, scope in enumerate(group)]
        places.append([
            Place(left.index(to), kept[to].index(at), tuple(scopes[to][at].index(v) for v in scope))
            for (to, at), scope in here
        ])  # fmt: skip
    return Absorbed([variables[g][kept[g]] for g in left], found, places)


def _into(scopes: list[list[tuple[int, ...]]]) -> dict[tuple[int, int], tuple[int, int]]:
    """For each factor within a larger one, the first that is within no other."""
    if len({len(scope) for group in scopes for scope in group}) < 2:
        return {}
    largest_first = sorted(
        ((g, f) for g, group in enumerate(scopes) for f in range(len(group))), key=lambda x: -len(scopes[x[0]][x[1]])
    )
    at: dict[int, list[tuple[tuple[int, int], frozenset[int]]]] = {}  # for each variable, the factors to absorb others
    into: dict[tuple[int, int], tuple[int, int]] = {}
    for g, f in largest_first:
        scope = frozenset(scopes[g][f])
        larger = next((place for place, other in at.get(scopes[g][f][0], ()) if scope < other), None)
        if larger is not None:
            into[g, f] = larger
            continue
        for node in scope:
            at.setdefault(node, []).append(((g, f), scope))
    return into


def _rows(table: FactorTable, count: int) -> list[Tensor]:
    """The scores `[*batch, n_1, .., n_r]` of each factor."""
    each = table.scores.unbind(-table.arity - 1)
    return list(each) if len(each) == count else list(each) * count


def _some(table: FactorTable, factors: list[int]) -> FactorTable:
    """The tables of some factors; one that all share stays one."""
    if table.lead[-1] == 1:
        return table
    index = torch.tensor(factors, device=table.scores.device)
    return table.map(lambda x: x.index_select(-table.arity - 1, index))


def _spread(scores: Tensor, scope: tuple[int, ...], larger: tuple[int, ...]) -> Tensor:
    """Scores over `scope` that broadcast against those over `larger`."""
    lead, shape = scores.shape[: -len(scope)], dict(zip(scope, scores.shape[-len(scope) :], strict=True))
    order = sorted(range(len(scope)), key=lambda axis: larger.index(scope[axis]))
    moved = scores.permute(*range(len(lead)), *(len(lead) + axis for axis in order))
    return moved.reshape(*lead, *(shape.get(node, 1) for node in larger))


def _stacked(rows: list[Tensor], arity: int) -> FactorTable:
    return FactorTable(torch.stack(list(torch.broadcast_tensors(*rows)), -arity - 1), arity)
