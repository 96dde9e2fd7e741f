"""Moves of a search on a graph with loops: sets of variables such that no loop passes through them alone.

With all other variables held fixed, messages find the best states of all variables of a set. Changes of one variable,
and of two that share a factor, are among the moves of a cover.
"""

import functools
import itertools
from collections.abc import Sequence
from random import Random

import torch
from jaxtyping import Bool
from torch import Tensor

Scopes = tuple[tuple[int, ...], ...]
_LARGEST_COVER = 16


@functools.lru_cache(maxsize=64)
def cover(scopes: Scopes, n_nodes: int, seed: int) -> Bool[Tensor, "moves V"]:
    """Random sets, of which each pair of variables that share a factor is in one; in dense graphs not each pair is."""
    random = Random(seed)
    factors: list[list[int]] = [[] for _ in range(n_nodes)]
    for f, scope in enumerate(scopes):
        for node in scope:
            factors[node].append(n_nodes + f)
    missing = {pair for scope in scopes for pair in itertools.combinations(scope, 2)}
    moves: list[list[bool]] = []
    while (missing or not moves) and len(moves) < _LARGEST_COVER:
        pairs = random.sample(sorted(missing), len(missing))
        rest = random.sample(range(n_nodes), n_nodes)
        free = _forest([*pairs, *((node,) for node in rest)], factors, n_nodes + len(scopes))
        found = {(u, v) for u, v in missing if free[u] and free[v]}
        moves.append(free)
        missing -= found
    with torch.inference_mode(False):
        return torch.tensor(moves)


def _forest(wanted: Sequence[tuple[int, ...]], factors: list[list[int]], size: int) -> list[bool]:
    """Which variables are in a set, to which the wanted ones are added as long as they close no loop with factors."""
    parent, free = list(range(size)), [False] * len(factors)

    def root(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for nodes in wanted:
        for node in nodes:
            roots = [root(f) for f in factors[node]]
            if not free[node] and len(set(roots)) == len(roots):
                free[node] = True
                for other in roots:
                    parent[other] = node
    return free
