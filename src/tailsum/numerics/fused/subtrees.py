"""The log of the sum over dependency trees whose words have states, and its gradients, by the chart of `subtree_chart.py`."""

# pyright: reportArgumentType=false, reportIndexIssue=false

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from tailsum.numerics.fused import subtree_gradients as gradients
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.subtree_chart import (
    SHARED,
    Inside,
    Outside,
    inside_sums,
    outside_sums,
    row_tiles,
    under_roots,
)
from tailsum.numerics.tensors import finite

_ENOUGH = 2048  # programs to occupy a GPU


def forward(nodes: Tensor, arcs: Tensor, pairs: Tensor, *, lengths: Tensor, multiroot: bool) -> tuple[Tensor, Kept]:
    """Log of the sum over all trees of the first `lengths [B]` words.

    The states and heads of a word are scored relative to their sums, so that little is lost in rounding sums over many words.
    """
    states, heads = finite(nodes.logsumexp(-1)), finite(arcs.logsumexp(1))
    inside = inside_sums(nodes - states[..., None], arcs - heads[:, None], pairs)
    before, free = under_roots(inside, lengths, multiroot)
    totals = before.gather(1, lengths[:, None])[:, 0]
    here = torch.arange(nodes.shape[1], device=nodes.device) < lengths[:, None]
    common = torch.where(here, states.double() + heads.double(), 0.0).sum(-1)
    return (totals + common).to(nodes.dtype), (*inside, free, totals)


def backward(kept: Kept, grad: Tensor, wanted: Sequence[bool], **_settings: Any) -> Sequence[Tensor | None]:
    """The gradients in the scores of states, arcs, and pairs of states."""
    *inside, free, totals = kept
    inside = Inside(*inside)
    outer, ends = outside_sums(inside, free), (totals, grad.contiguous())
    of_nodes, of_roots = _to_nodes(inside, outer, free, *ends)
    if inside.pairs.dim() == 2:
        of_arcs = _to_shared_arcs(inside, outer, *ends) if wanted[1] else None
        of_pairs = _to_shared_pairs(inside, outer, *ends) if wanted[2] else None
    else:
        of_arcs, of_pairs = _to_own(inside, outer, *ends) if wanted[1] or wanted[2] else (None, None)
    if of_arcs is not None:
        of_arcs.diagonal(dim1=1, dim2=2).add_(of_roots)
    return of_nodes, of_arcs, of_pairs


def _to_nodes(inside: Inside, outer: Outside, free: Tensor, totals: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Of states, and of roots."""
    batch, length, size = inside.nodes.shape
    tiles = row_tiles(size)
    blocks = triton.cdiv(size, tiles["KB"])
    grads, of_roots = torch.empty_like(inside.nodes), inside.nodes.new_empty(blocks, batch, length)
    items = (inside.trees, outer.above, inside.arcs, free, totals, grad, grads, of_roots)
    gradients.to_nodes[(batch, length, blocks)](*items, length, size, **tiles)
    return grads, of_roots.sum(0)


def _to_shared_arcs(inside: Inside, outer: Outside, totals: Tensor, grad: Tensor) -> Tensor:
    _, length, size = inside.nodes.shape
    grads = torch.empty_like(inside.arcs)
    items = (inside.sent, outer.outside, inside.arcs, totals, grad, grads)
    gradients.to_shared_arcs[grads.shape](*items, length, size, **row_tiles(size))
    return grads


def _to_shared_pairs(inside: Inside, outer: Outside, totals: Tensor, grad: Tensor) -> Tensor:
    batch, length, size = inside.nodes.shape
    blocks = triton.cdiv(size, SHARED["KB"])
    parts = max(1, min(length, _ENOUGH // (batch * blocks**2)))
    grads = inside.nodes.new_empty(batch * parts, size, size)
    items = (inside.trees, outer.outside, inside.pairs, totals, grad, grads)
    gradients.to_shared_pairs[(batch * parts, blocks, blocks)](*items, length, size, parts, R=8, KB=SHARED["KB"])
    return grads.sum(0)


def _to_own(inside: Inside, outer: Outside, totals: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Of arcs, and of pairs of states."""
    batch, length, size = inside.nodes.shape
    block = min(32, row_tiles(size)["KB"])
    parts = triton.cdiv(size, block) ** 2
    of_arcs, of_pairs = inside.nodes.new_empty(parts, *inside.arcs.shape), torch.empty_like(inside.pairs)
    items = (inside.trees, outer.outside, inside.arcs, inside.pairs, totals, grad, of_arcs, of_pairs)
    sizes = (batch, length, size, int(len(inside.pairs) > 1))
    gradients.to_own[(len(inside.pairs) * length**2, parts)](*items, *sizes, R=4, KB=block)
    return of_arcs.sum(0), of_pairs
