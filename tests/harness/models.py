"""Small random chains of every kind, with the scores they stand for written out."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import tailsum as ts
from harness.enumeration import ChainTruth

KINDS = ("dense", "factored", "scored")
LEADS = ("shared", "time", "batch", "both")


@dataclass
class Case:
    """A chain; its parameters (float64 leaves); and `nodes [B, T, N]`, `pairs [B, T-1, N, N]` without padding's values."""

    chain: ts.LinearChain
    nodes: Tensor
    pairs: Tensor
    lengths: Tensor

    def truths(self) -> list[ChainTruth]:
        return [
            ChainTruth(nodes[:length], pairs[: length - 1])
            for nodes, pairs, length in zip(self.nodes, self.pairs, self.lengths.tolist(), strict=True)
        ]


def build(
    kind: str, lead: str, batch: tuple[int, ...], length: int, n: int, *, factored_emission: bool, ragged: bool,
    forbidden: float, seed: int, scale: float = 1.0,
) -> Case:  # fmt: skip
    g = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64) * scale

    lead_shape = {"shared": (), "time": (length - 1,), "batch": (*batch, 1), "both": (*batch, length - 1)}[lead]
    if kind == "dense":
        table = rand(*lead_shape, n, n)
        table[torch.rand(table.shape, generator=g) < forbidden] = -math.inf
        transition = ts.Dense(table)
    elif kind == "factored":
        left, right = rand(*lead_shape, n, 2), rand(*lead_shape, n, 2)
        transition, table = ts.Factored(left, right), left @ right.mT
    else:
        left, right, context = rand(n, 2), rand(n, 2), rand(*lead_shape, 2)
        if lead == "shared":
            transition = ts.Scored(lambda i, j: torch.tanh(left[i] * right[j]).sum(-1), n, n)
            table = torch.tanh(left[:, None] * right).sum(-1)
        else:
            transition = ts.Scored(lambda i, j, c: torch.tanh(left[i] * right[j] + c).sum(-1), n, n, context)
            table = torch.tanh(left[:, None] * right + context[..., None, None, :]).sum(-1)
    if factored_emission:
        context, states = rand(*batch, length, 2), rand(n, 2)
        emission, nodes = ts.Factored(context, states), context @ states.T
    else:
        nodes = rand(*batch, length, n)
        nodes[torch.rand(nodes.shape, generator=g) < forbidden] = -math.inf
        emission = nodes.clone()
    size = math.prod(batch)
    lengths = torch.full(batch, length)
    if ragged:
        lengths = torch.randint(1, length + 1, batch, generator=g)
        inside = torch.arange(length) < lengths[..., None]
        if not factored_emission:  # whatever stands in the padding must not matter
            emission = torch.where(inside[..., None], emission, math.nan)
    chain = ts.LinearChain(emission, transition, lengths if ragged else None)
    pairs = table.expand(*batch, length - 1, n, n).reshape(size, length - 1, n, n)
    return Case(chain, nodes.reshape(size, length, n), pairs, lengths.reshape(size))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `build`."""
    n = draw(st.integers(1, 4))
    return {
        "kind": draw(st.sampled_from(KINDS)),
        "lead": draw(st.sampled_from(LEADS)),
        "batch": draw(st.sampled_from([(), (1,), (3,), (2, 2)])),
        "length": draw(st.integers(1, {1: 6, 2: 6, 3: 5, 4: 4}[n])),
        "n": n,
        "factored_emission": draw(st.booleans()),
        "ragged": draw(st.booleans()),
        "forbidden": draw(st.sampled_from([0.0, 0.0, 0.15, 0.4])),
        "seed": draw(st.integers(0, 2**32)),
        "scale": draw(st.sampled_from([0.1, 1.0, 5.0])),
    }
