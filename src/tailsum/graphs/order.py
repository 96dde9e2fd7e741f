"""Orders in which the variables of a graph are summed out one by one, and the tables that this needs.

Summing out a variable joins all its scores in a table over it and its neighbours, which are then neighbours of each
other. A good order keeps all tables small; the best one is hard to find, so these are greedy.
"""

import functools
import heapq
import math
from collections.abc import Callable
from typing import NamedTuple

Scopes = tuple[tuple[int, ...], ...]
LIMIT = 1 << 22  # entries of all tables together
_FEW_NODES = 500


class Bucket(NamedTuple):
    """A variable to be summed out, and its neighbours at that time: all are summed out later."""

    node: int
    scope: tuple[int, ...]


@functools.lru_cache(maxsize=64)
def elimination_order(scopes: Scopes, sizes: tuple[int, ...]) -> tuple[Bucket, ...] | None:
    """An order whose tables have at most `LIMIT` entries together; None if neither of two greedy orders is so good.

    `sizes` are the numbers of states. Variables with one state are left out: they join nothing.
    """

    def weight(node: int, near: dict[int, set[int]]) -> int:
        return math.prod((sizes[node], *(sizes[other] for other in near[node])))

    def fill(node: int, near: dict[int, set[int]]) -> int:
        """How many pairs of neighbours become neighbours of each other."""
        return sum(len(near[node] - near[other]) - 1 for other in near[node]) // 2

    if math.prod(sizes[node] for node in max(scopes, key=len, default=())) > LIMIT:
        return None
    order = _greedy(scopes, sizes, weight)
    if order is None and len(sizes) <= _FEW_NODES:  # slower, and often better
        order = _greedy(scopes, sizes, fill)
    return order


Cost = Callable[[int, dict[int, set[int]]], int]


def _greedy(scopes: Scopes, sizes: tuple[int, ...], cost: Cost) -> tuple[Bucket, ...] | None:
    """The order in which the next variable always has the lowest cost; None if it needs too many entries."""
    near: dict[int, set[int]] = {node: set() for node, size in enumerate(sizes) if size > 1}
    for scope in scopes:
        wide = [node for node in scope if node in near]
        for node in wide:
            near[node].update(other for other in wide if other != node)
    latest = {node: cost(node, near) for node in near}
    heap = [(value, node) for node, value in latest.items()]
    heapq.heapify(heap)
    buckets, entries = list[Bucket](), 0
    while heap:
        value, node = heapq.heappop(heap)
        if latest.get(node) != value:  # out of date
            continue
        del latest[node]
        scope = near.pop(node)
        buckets.append(Bucket(node, tuple(sorted(scope))))
        entries += math.prod((sizes[node], *(sizes[other] for other in scope)))
        if entries > LIMIT:
            return None
        for other in scope:
            near[other] |= scope
            near[other] -= {node, other}
        for other in {x for y in scope for x in near[y]} | scope:
            value = cost(other, near)
            if value != latest[other]:
                latest[other] = value
                heapq.heappush(heap, (value, other))
    return tuple(buckets)
