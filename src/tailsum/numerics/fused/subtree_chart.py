"""Inside and outside sums of the subtrees of dependency trees with states: two launches a width up, and two down.

The references are in `dependencies/state_sums.py`. Squares `[B, T, T, ..]` are indexed by first and last word, and arcs by head and
child, with roots on the diagonal. Pairs of states are `[K, K]` (of the head, of the child), or `[G, T, T, K, K]` for each arc.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from tailsum.numerics.fused import subtree_messages as messages
from tailsum.numerics.fused import subtree_steps as steps

SHARED = {"M": 16, "C": 8, "KB": 32}  # words, terms and states of a tile


class Inside(NamedTuple):
    """Scores, and inside sums of all spans: minus infinity where there is none."""

    nodes: Tensor  # [B, T, K]
    arcs: Tensor  # [B, T, T]
    pairs: Tensor
    left: Tensor  # [B, T, T, K]: half subtrees by the state of their head, the last word
    right: Tensor  # and the first
    trees: Tensor  # [B, T, T, T, K]: by the head and its state
    sent: Tensor  # [B, T, T, T, K]: messages to each word outside, by its state; with shared pairs, before arcs, from each inside


class Outside(NamedTuple):
    """Outside sums of all spans."""

    outside: Tensor  # [B, T, T, T, K]: by the head that a subtree is attached to; with shared pairs, before these, at each inside
    above: Tensor  # [B, T, T, T, K]: of trees, without the score of the head's state; arbitrary for heads outside


def row_tiles(size: int) -> dict[str, int]:
    """The tiles of words and states."""
    return {"S": 16, "KB": max(16, min(64, triton.next_power_of_2(size)))}


def _own_tiles(pairs: Tensor) -> dict[str, int]:
    states = row_tiles(pairs.shape[-1])["KB"]
    return {"group": int(len(pairs) > 1), "C": min(32, states), "KB": states}


def _grids(inside: Inside, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The programs of a width, for each span and block of states: of rows, and of messages by shared pairs."""
    batch, length, size = inside.nodes.shape
    spans = batch * (length - width + 1)
    return (spans, triton.cdiv(size, row_tiles(size)["KB"])), (spans, triton.cdiv(size, SHARED["KB"]))


def inside_sums(nodes: Tensor, arcs: Tensor, pairs: Tensor, summed: bool = True) -> Inside:
    """From the smallest spans on; maxima if not `summed`."""
    batch, length, size = nodes.shape
    left, right = (nodes.new_full((batch, length, length, size), -torch.inf) for _ in range(2))
    trees = nodes.new_full((batch, length, length, length, size), -torch.inf)
    turned = pairs.mT.contiguous()
    found = Inside(
        nodes.contiguous(), arcs.contiguous(), pairs.contiguous(), left, right, trees, torch.empty_like(trees)
    )
    for width in range(1, length + 1):
        rows, tiles = _grids(found, width)
        sizes = (length, size, width)
        steps.grow[rows](found.nodes, left, right, trees, found.sent, *sizes, **row_tiles(size), SUM=summed)
        items = (trees, found.arcs, turned, found.sent, *sizes)
        if pairs.dim() == 2:
            messages.send_shared[tiles](*items, **SHARED, SUM=summed)
        elif width < length:
            messages.send_own[(rows[0], length, rows[1])](*items, **_own_tiles(pairs), SUM=summed)
    return found


def under_roots(inside: Inside, lengths: Tensor, multiroot: bool, summed: bool = True) -> tuple[Tensor, Tensor]:
    """Sums of trees of all words before each, and outside sums `[B, T, T]` of subtrees whose heads are roots.

    The former are `[B, T + 1]`: zero for no words.
    """
    batch, length, size = inside.nodes.shape
    alone = inside.nodes.new_empty(batch, length, length)
    before, after = (inside.nodes.new_empty(batch, length + 1) for _ in range(2))
    how = {"SUM": summed, "MULTIROOT": multiroot}
    steps.alone[alone.shape](inside.trees, inside.arcs, alone, length, size, **row_tiles(size), **how)
    block = triton.next_power_of_2(length + 1)
    steps.under_roots[(batch,)](alone, lengths, before, after, length, TB=block, **how)
    free = before[:, :-1, None] + after[:, None, 1:]
    if not multiroot:
        free[:, 1:] = -torch.inf
    return before, free


def outside_sums(inside: Inside, free: Tensor) -> Outside:
    """From the whole sentence on, from those of subtrees whose heads are roots, `free [B, T, T]`."""
    _, length, size = inside.nodes.shape
    nodes, arcs, pairs, *halves, trees, sent = inside
    around = tuple(torch.empty_like(half) for half in halves)
    found = Outside(torch.full_like(trees, -torch.inf), torch.empty_like(trees))
    for width in range(length, 0, -1):
        rows, tiles = _grids(inside, width)
        sizes = (length, size, width)
        last = (nodes, *halves, sent, found.above, *around, *sizes)
        if pairs.dim() == 2:
            messages.receive_shared[tiles](arcs, *halves, *around, found.outside, *sizes, **SHARED)
            messages.pass_shared[tiles](found.outside, arcs, pairs, free, *last, **SHARED, S=16)
        else:
            items = (arcs, pairs, free, *halves, *around, *found, *sizes)
            messages.receive_own[(rows[0], length, rows[1])](*items, **_own_tiles(pairs))
            messages.pass_own[rows](*last, **row_tiles(size))
    return found
