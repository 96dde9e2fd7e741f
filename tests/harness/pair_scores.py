"""Scores of pairs of states in every form: their leaves, the potential, and the table that it stands for.

A new potential is one line of `STRUCTURED`: every test of chains, segments, dependencies and graphs then has it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tailsum as ts
from harness.case import Case

Leaf = tuple[Any, ...]  # leading dimensions, those of the case or (), and the sizes of the others


class Form(NamedTuple):
    """A potential between n and n states as its documentation has it, and the chain that `ChainCase.small` has of it."""

    leaves: Callable[[tuple[int, ...], int], list[Leaf]]  # from the leading dimensions and n
    potential: Callable[..., Any]  # from n and the leaves
    score: Callable[
        ..., Tensor | None
    ]  # from n, i, j and the leaves: of a single pair, `[*lead]`; None if it is impossible
    chain: dict[str, Any]


def part(n: int) -> int:
    """The size of one part of a product."""
    return 2 if n % 2 == 0 else 1


def arcs(n: int) -> Tensor:
    """Two arcs or fewer from each state, in no order."""
    pairs = {(i, (2 * i + 1) % n) for i in range(n)} | {(i, (i + 1) % n) for i in range(n - 1, -1, -1)}
    return torch.tensor(sorted(pairs, key=lambda pair: (pair[0] * 7 + pair[1] * 3) % 5)).T


def score_of_arc(n: int, i: int, j: int, x: Tensor) -> Tensor | None:
    place = arcs(n).T.tolist()
    return x[..., place.index([i, j])] if [i, j] in place else None


def sum_of_ways(ways: Tensor) -> Tensor:
    """The logarithm of the sum; where all ways are forbidden, with a gradient of zero, not NaN."""
    none = (ways == -torch.inf).all(-1)
    return ways.masked_fill(none[..., None], 0.0).logsumexp(-1).masked_fill(none, -torch.inf)


# fmt: off
STRUCTURED = {
    "banded": Form(
        lambda lead, n: [(lead, 3, n)], lambda n, x: ts.Banded(x),
        lambda n, i, j, x: x[..., j - i + 1, i] if abs(j - i) <= 1 else None, {"n": 3},
    ),
    "sparse": Form(
        lambda lead, n: [(lead, arcs(n).shape[1])], lambda n, x: ts.Sparse(arcs(n), x, n),
        score_of_arc, {"n": 3, "lead": "time"},
    ),
    "low rank": Form(
        lambda lead, n: [(lead, n, 2), ((), 2, n)], lambda n, *x: ts.LowRank(*x),
        lambda n, i, j, x, y: sum_of_ways(x[..., i, :] + y[..., :, j]), {"n": 3, "lead": "batch"},
    ),
    "kronecker": Form(
        lambda lead, n: [(lead, part(n), part(n)), ((), n // part(n), n // part(n))], lambda n, *x: ts.Kronecker(*x),
        lambda n, i, j, x, y: x[..., i // (m := n // part(n)), j // m] + y[..., i % m, j % m], {"n": 4, "lead": "both"},
    ),
    "kronecker of bands": Form(
        lambda lead, n: [((), 3, part(n)), (lead, 3, n // part(n))],
        lambda n, x, y: ts.Kronecker(ts.Banded(x), ts.Banded(y)),
        lambda n, i, j, x, y: x[..., j // m - i // m + 1, i // m] + y[..., j % m - i % m + 1, i % m]
        if abs(j // (m := n // part(n)) - i // m) <= 1 and abs(j % m - i % m) <= 1 else None, {"n": 6},
    ),
    "monarch": Form(
        lambda lead, n: [(lead, n // (k := part(n)), k, k), (lead, k, n // k, n // k)], lambda n, *x: ts.Monarch(*x),
        lambda n, i, j, x, y: x[..., i // (k := part(n)), i % k, j % k] + y[..., j % k, i // k, j // k], {"n": 4},
    ),
}
# fmt: on
PAIRS = ("dense", "factored", "half factored", "gated", "scored", *STRUCTURED)


class PairScores:
    """Scores between n and n states that vary with `lead`; `used [*batch, *steps]` says which the sentences have.

    Their leaves are drawn for the case. A function forbids pairs itself, as often as the case forbids scores.
    """

    def __init__(self, case: Case, kind: str, lead: tuple[int, ...], n: int, used: Tensor):
        assert kind in PAIRS
        self.case, self.kind, self.n = case, kind, n
        sizes = {
            "dense": [(lead, n, n)],
            "factored": [(lead, n, 2), (lead, n, 2)],
            "half factored": [(lead, n, 2), ((), n, 2)],
            "gated": [((), n, 2), ((), n, 2), (lead, 2)],
            "scored": [((), n, 2), ((), n, 2), *([(lead, 2)] if lead else [])],
        }
        sizes = STRUCTURED[kind].leaves(lead, n) if kind in STRUCTURED else sizes[kind]
        for own, *size in sizes:
            known = case.given is not None and own != ()
            used_here = used[(..., *[None] * len(size))].expand(*used.shape, *size) if known else None
            case.leaf(*own, *size, finite=kind not in ("dense", *STRUCTURED), used=used_here, seen=kind != "scored")
        self.banned = torch.rand(n, n, generator=case.generator) < case.forbidden if kind == "scored" else None

    def structured(self, leaves: list[Tensor]) -> Any:
        """A potential that multiplies without a table, however few its states are."""
        made = STRUCTURED[self.kind].potential(self.n, *leaves)
        made.table_below = 0
        return made

    def potential(self, leaves: list[Tensor]) -> Any:
        """As the library takes it."""
        if self.kind == "dense":
            return leaves[0]
        if self.kind in STRUCTURED:
            return self.structured(leaves)
        if self.kind == "gated":
            return ts.Gated(*leaves)
        if self.kind != "scored":
            return ts.Factored(*leaves)
        left, right, *context = leaves

        def function(i: Tensor, j: Tensor, c: Tensor | float = 0.0) -> Tensor:
            return torch.tanh(left[i] * right[j] + c).sum(-1).masked_fill(self.banned[i, j], self.case.mask)

        return ts.Scored(function, self.n, self.n, *context)

    def table(self, leaves: list[Tensor]) -> Tensor:
        """What the potential stands for, `[*lead, n, n]`."""
        if self.kind == "dense":
            return leaves[0]
        if self.kind in STRUCTURED:
            return self.structured_table(leaves)
        if self.kind == "gated":
            left, right, gate = leaves
            return (left * gate[..., None, :]) @ right.mT
        if self.kind != "scored":
            return leaves[0] @ leaves[1].mT
        left, right, *context = leaves
        extra = context[0][..., None, None, :] if context else 0.0
        return torch.tanh(left[:, None] * right + extra).sum(-1).masked_fill(self.banned, self.case.mask)

    def structured_table(self, leaves: list[Tensor]) -> Tensor:
        """Entry by entry."""
        pairs = [(i, j) for i in range(self.n) for j in range(self.n)]
        scores = [STRUCTURED[self.kind].score(self.n, i, j, *leaves) for i, j in pairs]
        known = next(x for x in scores if x is not None)
        never = torch.full_like(known, -torch.inf)
        return torch.stack([never if x is None else x for x in scores], -1).unflatten(-1, (self.n, self.n))


def spread(values: Tensor, states: list[Tensor], n: int) -> Tensor:
    """Values `[k_1, .., k_r]` of some states of r variables, over all n states of each."""
    known = [s[:size] for s, size in zip(states, values.shape, strict=True)]
    place = torch.meshgrid(*known, indexing="ij")
    return torch.zeros([n] * len(states)).double().index_put(place, values.double(), accumulate=True)
