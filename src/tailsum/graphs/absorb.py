"""Absorbs factors over a subset of the variables of a larger factor: their scores are added to the larger one's.

The model stays the same, with fewer loops: two factors that share two variables make one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from tailsum.graphs.factor_scores import FactorTable


class Place(NamedTuple):
    """The position of a factor's scores: a factor of a group, and axes of its table."""

    group: int
    factor: int
    axes: tuple[int, ...]


class Absorbed(NamedTuple):
    """The groups of factors that are left, and the places of all the original factors."""

    variables: list[Int[Tensor, "_ _"]]
    tables: list[FactorTable]
    places: list[list[Place]]


def absorbed(variables: Sequence[Int[Tensor, "_ _"]], tables: Sequence[FactorTable]) -> Absorbed | None:
    """The same model without factors within larger ones; None if there are no such factors."""
    scopes = [[tuple(scope) for scope in group.tolist()] for group in variables]
    into = _into(scopes)
    if not into:
        return None
    kept = [[f for f in range(len(group)) if (g, f) not in into] for g, group in enumerate(scopes)]
    left = [g for g, factors in enumerate(kept) if factors]
    rows = [_rows(table, len(group)) for table, group in zip(tables, scopes, strict=True)]
    for (g, f), (to, at) in into.items():
        rows[to][at] = rows[to][at] + _spread(rows[g][f], scopes[g][f], scopes[to][at])
    changed = {to for to, _ in into.values()}
    larger = [
        _stacked([rows[g][f] for f in kept[g]], tables[g].arity) if g in changed else _selected(tables[g], kept[g])
        for g in left
    ]

    def place(factor: tuple[int, int], scope: tuple[int, ...]) -> Place:
        g, f = into.get(factor, factor)
        return Place(left.index(g), kept[g].index(f), tuple(scopes[g][f].index(v) for v in scope))

    places = [[place((g, f), scope) for f, scope in enumerate(group)] for g, group in enumerate(scopes)]
    return Absorbed([variables[g][kept[g]] for g in left], larger, places)


def _into(scopes: list[list[tuple[int, ...]]]) -> dict[tuple[int, int], tuple[int, int]]:
    """For each factor within a larger one, the first larger one that is itself within no other."""
    if len({len(scope) for group in scopes for scope in group}) < 2:
        return {}
    largest_first = sorted(
        ((g, f) for g, group in enumerate(scopes) for f in range(len(group))), key=lambda x: -len(scopes[x[0]][x[1]])
    )
    at: dict[int, list[tuple[tuple[int, int], frozenset[int]]]] = {}  # by variable, the factors that may absorb
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


def _selected(table: FactorTable, factors: list[int]) -> FactorTable:
    """The tables of the given factors; a table that all share stays shared."""
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
