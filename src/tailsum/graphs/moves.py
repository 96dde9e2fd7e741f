"""Moves of a search on a graph with loops: sets of variables that contain no loop.

With all other variables held fixed, messages find the best states of all variables of a set. The moves of a cover
include every change of one variable, or of two that share a factor.
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
    """Random sets; each pair of variables that share a factor is in one of them, except for some pairs of dense graphs."""
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
        moves.append(free)
        missing = {(u, v) for u, v in missing if not (free[u] and free[v])}
    with torch.inference_mode(False):
        return torch.tensor(moves)


def _forest(candidates: Sequence[tuple[int, ...]], factors: list[list[int]], size: int) -> list[bool]:
    """Which variables are in a set: candidates in order, except for those that would close a loop."""
    parent, free = list(range(size)), [False] * len(factors)

    def root(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for node in itertools.chain(*candidates):
        roots = [root(f) for f in factors[node]]
        if not free[node] and len(set(roots)) == len(roots):
            free[node] = True
            for other in roots:
                parent[other] = node
    return free
