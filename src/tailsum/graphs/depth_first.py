"""The variables of a forest in depth-first order, in all trees at the same time."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from tailsum.graphs.layers import Links, Visit, visits_of


class Arrival(NamedTuple):
    """A visit of one variable of each tree, and the messages of the branches that have ended since the last visit.

    `ended` are successive steps. In each, the root of a branch sends a message to the variable that the branch hangs
    from, at `position` of their factor.
    """

    visit: Visit
    ended: list[list[Links]]


def depth_first(variables: Sequence[Int[Tensor, "_ 2"]], n_nodes: int, device: torch.device) -> list[Arrival]:
    """The variables of a forest of pairs in depth-first order."""
    order, above = _orders(variables, n_nodes)
    rank = [0] * n_nodes
    for tree in order:
        for place, node in enumerate(tree):
            rank[node] = place
    layers = visits_of(variables, rank, device)
    ended: list[list[list[tuple[int, int, int, int]]]] = [[] for _ in layers]
    for tree in order:
        for place, (last, node) in enumerate(itertools.pairwise(tree), 1):
            done, step = last, 0
            while done != above[node][3]:  # up to the variable that `node` hangs from
                if step == len(ended[place]):
                    ended[place].append([])
                ended[place][step].append(above[done])
                done, step = above[done][3], step + 1
    with torch.device(device):
        return [Arrival(visit, list(map(_grouped, steps))) for visit, steps in zip(layers, ended, strict=True)]


def _orders(
    variables: Sequence[Int[Tensor, "_ 2"]], n_nodes: int
) -> tuple[list[list[int]], dict[int, tuple[int, int, int, int]]]:
    """The variables of each tree, depth first; for each but the first, the group, factor, position and variable above it."""
    joined: list[list[tuple[int, int, int, int]]] = [[] for _ in range(n_nodes)]
    for g, group in enumerate(variables):
        for f, pair in enumerate(group.tolist()):
            for position in (0, 1):
                joined[pair[1 - position]].append((g, f, position, pair[position]))
    order, above, met = list[list[int]](), dict[int, tuple[int, int, int, int]](), set[int]()
    for root in range(n_nodes):
        if root in met:
            continue
        order.append([])
        stack = [root]
        while stack:
            node = stack.pop()
            met.add(node)
            order[-1].append(node)
            for g, f, position, other in joined[node]:
                if other not in met:
                    above[other] = (g, f, 1 - position, node)
                    stack.append(other)
    return order, above


def _grouped(messages: list[tuple[int, int, int, int]]) -> list[Links]:
    """Factors of one group and position together; `put` are the variables at that position."""
    links: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for g, f, position, node in messages:
        links.setdefault((g, position), []).append((f, node))
    return [Links(g, position, (), *torch.tensor(pairs).T) for (g, position), pairs in sorted(links.items())]
