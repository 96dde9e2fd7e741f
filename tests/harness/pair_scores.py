"""Scores of pairs of states in every form: their leaves, the potential, and the table that it stands for."""

from typing import Any

import torch
from torch import Tensor

import tailsum as ts
from harness.case import Case

PAIRS = ("dense", "factored", "half factored", "gated", "scored")


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
        }[kind]
        for own, *size in sizes:
            known = case.given is not None and own != ()
            used_here = used[(..., *[None] * len(size))].expand(*used.shape, *size) if known else None
            case.leaf(*own, *size, finite=kind != "dense", used=used_here, seen=kind != "scored")
        self.banned = torch.rand(n, n, generator=case.generator) < case.forbidden if kind == "scored" else None

    def potential(self, leaves: list[Tensor]) -> Any:
        """As the library takes it."""
        if self.kind == "dense":
            return leaves[0]
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
        if self.kind == "gated":
            left, right, gate = leaves
            return (left * gate[..., None, :]) @ right.mT
        if self.kind != "scored":
            return leaves[0] @ leaves[1].mT
        left, right, *context = leaves
        extra = context[0][..., None, None, :] if context else 0.0
        return torch.tanh(left[:, None] * right + extra).sum(-1).masked_fill(self.banned, self.case.mask)


def spread(values: Tensor, states: list[Tensor], n: int) -> Tensor:
    """Values `[k_1, .., k_r]` of some states of r variables, over all n states of each."""
    known = [s[:size] for s, size in zip(states, values.shape, strict=True)]
    place = torch.meshgrid(*known, indexing="ij")
    return torch.zeros([n] * len(states)).double().index_put(place, values.double(), accumulate=True)
