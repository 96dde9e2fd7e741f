"""Scores of pairs of states in every form: their leaves, the potential, and the table that it stands for."""

from typing import Any

import torch
from torch import Tensor

import tailsum as ts
from harness.case import Case

STRUCTURED = ("banded", "sparse", "low rank", "kronecker", "monarch")
PAIRS = ("dense", "factored", "half factored", "gated", "scored", *STRUCTURED)


class PairScores:
    """Scores between n and n states that vary with `lead`; `used [*batch, *steps]` says which the sentences have.

    Their leaves are drawn for the case. A function forbids pairs itself, as often as the case forbids scores.
    """

    def __init__(self, case: Case, kind: str, lead: tuple[int, ...], n: int, used: Tensor):
        assert kind in PAIRS
        self.case, self.kind, self.n = case, kind, n
        small = 2 if n % 2 == 0 else 1  # of the parts of a product
        sizes = {
            "dense": [(lead, n, n)],
            "factored": [(lead, n, 2), (lead, n, 2)],
            "half factored": [(lead, n, 2), ((), n, 2)],
            "gated": [((), n, 2), ((), n, 2), (lead, 2)],
            "scored": [((), n, 2), ((), n, 2), *([(lead, 2)] if lead else [])],
            "banded": [(lead, 3, n)],
            "sparse": [(lead, self.arcs(n).shape[1])],
            "low rank": [(lead, n, 2), ((), 2, n)],
            "kronecker": [(lead, small, small), ((), n // small, n // small)],
            "monarch": [(lead, n // small, small, small), (lead, small, n // small, n // small)],
        }[kind]
        for own, *size in sizes:
            known = case.given is not None and own != ()
            used_here = used[(..., *[None] * len(size))].expand(*used.shape, *size) if known else None
            case.leaf(*own, *size, finite=kind not in ("dense", *STRUCTURED), used=used_here, seen=kind != "scored")
        self.banned = torch.rand(n, n, generator=case.generator) < case.forbidden if kind == "scored" else None

    @staticmethod
    def arcs(n: int) -> Tensor:
        """Two arcs or fewer from each state, in no order."""
        pairs = {(i, (2 * i + 1) % n) for i in range(n)} | {(i, (i + 1) % n) for i in range(n - 1, -1, -1)}
        return torch.tensor(sorted(pairs, key=lambda pair: (pair[0] * 7 + pair[1] * 3) % 5)).T

    def structured(self, leaves: list[Tensor]) -> Any:
        """A potential that multiplies without a table, however few its states are."""
        made: Any = {
            "banded": ts.Banded,
            "sparse": lambda scores: ts.Sparse(self.arcs(self.n), scores, self.n),
            "low rank": ts.LowRank,
            "kronecker": ts.Kronecker,
            "monarch": ts.Monarch,
        }[self.kind](*leaves)
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
        """Entry by entry, as the documentation of each potential has it."""
        n, rows = self.n, list[Tensor]()
        never = leaves[0].new_full(
            leaves[0].shape[: -3 if self.kind == "monarch" else -1 if self.kind == "sparse" else -2], -torch.inf
        )
        if self.kind == "low rank":
            ways = leaves[0][..., :, :, None] + leaves[1]
            none = (ways == -torch.inf).all(-2)  # whose gradient is zero, not NaN
            return ways.masked_fill(none[..., None, :], 0.0).logsumexp(-2).masked_fill(none, -torch.inf)
        place = {pair: e for e, pair in enumerate(map(tuple, self.arcs(n).T.tolist()))}
        for i in range(n):
            for j in range(n):
                if self.kind == "banded":
                    score = leaves[0][..., j - i + 1, i] if abs(j - i) <= 1 else never
                elif self.kind == "sparse":
                    score = leaves[0][..., place[i, j]] if (i, j) in place else never
                elif self.kind == "kronecker":
                    m = leaves[1].shape[-1]
                    score = leaves[0][..., i // m, j // m] + leaves[1][..., i % m, j % m]
                else:
                    m = leaves[0].shape[-1]
                    score = leaves[0][..., i // m, i % m, j % m] + leaves[1][..., j % m, i // m, j // m]
                rows.append(score)
        return torch.stack(rows, -1).unflatten(-1, (n, n))


def spread(values: Tensor, states: list[Tensor], n: int) -> Tensor:
    """Values `[k_1, .., k_r]` of some states of r variables, over all n states of each."""
    known = [s[:size] for s, size in zip(states, values.shape, strict=True)]
    place = torch.meshgrid(*known, indexing="ij")
    return torch.zeros([n] * len(states)).double().index_put(place, values.double(), accumulate=True)
