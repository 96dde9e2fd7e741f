"""Random forests of variables, and ways to pass messages in them."""

from random import Random
from typing import Any

import torch

EXACT = {"tolerance": 1e-13, "iterations": 500}
# The batch dimensions of the scores of single variables and of the others.
OWN = [
    ((), ()), ((2,), (2,)), ((2,), ()), ((), (2,)), ((2, 1), (2, 1)), ((2, 1), ()), ((), (2, 1)), ((1,), (2, 1)),
    ((2, 1), (1, 1)), ((2, 1), (2,)),
]  # fmt: skip


def together(own: tuple) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*own))


def forest(r: Random, v: int) -> list[tuple[int, int]]:
    """The edges of a random forest, in any order, numbering and direction."""
    order = r.sample(range(v), v)
    kind = r.choice(["none", "path", "star", "any", "any", "any"])
    edges = []
    for i in range(1, v):
        if kind == "none" or (kind == "any" and r.random() < 0.25):
            continue
        before = {"path": i - 1, "star": 0}.get(kind, r.randrange(i))
        edges.append(tuple(r.sample((order[i], order[before]), 2)))
    return r.sample(edges, len(edges))


def hyperforest(r: Random, v: int) -> list[tuple[int, ...]]:
    """Factors of two to four variables that form a forest, their variables in any order."""
    order, seen, factors = r.sample(range(v), v), 1, []
    while seen < v:
        more = min(r.randint(1, 3), v - seen)
        if r.random() < 0.8:
            scope = [order[r.randrange(seen)], *order[seen : seen + more]]
            factors.append(tuple(r.sample(scope, len(scope))))
        seen += more
    return r.sample(factors, len(factors))


def ways_to_pass(r: Random) -> dict[str, Any]:
    how: dict[str, Any] = {"schedule": r.choice(["sweep", "flooding"]), "gradient": r.choice(["implicit", "unrolled"])}
    if r.random() < 0.3:
        how |= {"damping": r.choice([0.3, 0.5]), **EXACT}
    return how
