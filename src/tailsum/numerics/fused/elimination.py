"""Sums over non-projective dependency trees: words eliminated one by one in one launch, one program for each sentence.

The reference is `dependencies/arborescence.py`, in float64 as here. The log weights of n words are a matrix `[n + 1, n]` by head
(the root first) and child. The matrices of all n are kept one after another, n descending, for the backward pass.
"""

# pyright: reportArgumentType=false

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import finite, log_of
from tailsum.numerics.fused.reference import Saved, with_reference

LONGEST = 1024  # words of a sentence: a row of weights is one tile


@triton.jit
def _before(n):
    """How many numbers the matrices of 1 to n words have together."""
    return n * (n + 1) * (n + 2) // 3  # fits 32 bits for all sentences up to LONGEST


@triton.jit
def _entering(matrix, n, MULTIROOT: tl.constexpr, C: tl.constexpr):
    """The scores of the heads of the last of n words, root first, and the log of their sum.

    With one root only the last word attaches to it, and the first row has no other use.
    """
    h = tl.arange(0, C)
    there = (h < n) if MULTIROOT else ((h < n) & ((h > 0) | (h == n - 1)))
    into = tl.load(matrix + h * n + n - 1, there, -float("inf"))
    top = finite(tl.max(into, 0))
    return into, log_of(top, tl.sum(tl.exp(into - top), 0))


@triton.jit
def _eliminate(weight, lengths, matrices, entering, T, MULTIROOT: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Fill `matrices [B, size]` from `weight [B, T + 1, T]`, and `entering [B, T]`."""
    b = tl.program_id(0).to(tl.int64)
    size = _before(T)
    matrices += b * size
    weight += b * (T + 1) * T
    entering += b * T
    words = tl.load(lengths + b).to(tl.int32)
    c = tl.arange(0, C)
    matrix = matrices + size - _before(words)
    for start in range(0, words + 1, R):
        h = start + tl.arange(0, R)
        inside = (h <= words)[:, None] & (c < words)[None, :]
        tile = tl.load(weight + h[:, None] * T + c[None, :], inside, 0.0)
        tl.store(matrix + h[:, None] * words + c[None, :], tile, inside)
    tl.debug_barrier()
    for step in range(words):
        n = words - step
        matrix, smaller = matrices + size - _before(n), matrices + size - _before(n - 1)
        _, enter = _entering(matrix, n, MULTIROOT, C)
        tl.store(entering + n - 1, enter)
        out = tl.load(matrix + n * n + c, c < n - 1, -float("inf")) - finite(enter)
        for start in range(0, n, R):
            h = start + tl.arange(0, R)
            inside = (h < n)[:, None] & (c < n - 1)[None, :]
            into = tl.load(matrix + h * n + n - 1, h < n, -float("inf"))
            direct = tl.load(matrix + h[:, None] * n + c[None, :], inside, -float("inf"))
            through = into[:, None] + out[None, :]
            high = finite(tl.maximum(direct, through))
            total = tl.exp(direct - high) + tl.exp(through - high)
            tl.store(smaller + h[:, None] * (n - 1) + c[None, :], log_of(high, total), inside)
        tl.debug_barrier()


@triton.jit
def _restore(matrices, lengths, seeds, grads, T, MULTIROOT: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """The gradient in the weights `[B, T + 1, T]` (zeros before), from the gradient in `entering`, `seeds [B, T]`."""
    b = tl.program_id(0).to(tl.int64)
    size = _before(T)
    matrices += b * size
    grads += b * (T + 1) * T
    seeds += b * T
    words = tl.load(lengths + b).to(tl.int32)
    c = tl.arange(0, C)
    for n in range(1, words + 1):
        matrix = matrices + size - _before(n)
        choices, enter = _entering(matrix, n, MULTIROOT, C)
        divisor = finite(enter)
        out = tl.load(matrix + n * n + c, c < n - 1, -float("inf")) - divisor
        of_out = tl.where(c < 0, out, 0.0)
        for start in range(0, n, R):
            h = start + tl.arange(0, R)
            inside = (h < n)[:, None] & (c < n - 1)[None, :]
            into = tl.load(matrix + h * n + n - 1, h < n, -float("inf"))
            direct = tl.load(matrix + h[:, None] * n + c[None, :], inside, -float("inf"))
            through = into[:, None] + out[None, :]
            high = finite(tl.maximum(direct, through))
            one, other = tl.exp(direct - high), tl.exp(through - high)
            total = one + other
            part = tl.load(grads + h[:, None] * T + c[None, :], inside, 0.0) / tl.where(total > 0, total, 1.0)
            tl.store(grads + h[:, None] * T + c[None, :], part * one, inside)
            passing = part * other
            of_out += tl.sum(passing, 0)
            tl.store(grads + h * T + n - 1, tl.sum(passing, 1), h < n)
        tl.store(grads + n * T + c, of_out, c < n - 1)
        tl.debug_barrier()
        of_enter = tl.load(seeds + n - 1) - tl.sum(of_out, 0)
        place = grads + c * T + n - 1
        grad = tl.load(place, c < n, 0.0) + of_enter * tl.exp(choices - divisor)
        tl.debug_barrier()
        tl.store(place, grad, c < n)
        tl.debug_barrier()


@triton.jit
def _order(root, arc, lengths, order, T, R: tl.constexpr, C: tl.constexpr):
    """The order of elimination `[B, T]`, last first; `root [B, T]` and `arc [B, T, T]` are overwritten."""
    b = tl.program_id(0).to(tl.int64)
    words = tl.load(lengths + b).to(tl.int32)
    root += b * T
    arc += b * T * T
    order += b * T
    c = tl.arange(0, C)
    scores = tl.load(root + c, c < words, -float("inf"))
    best = tl.full((C,), -float("inf"), scores.dtype)
    for start in range(0, words, R):
        h = start + tl.arange(0, R)
        inside = (h < words)[:, None] & (c < words)[None, :]
        best = tl.maximum(best, tl.max(tl.load(arc + h[:, None] * T + c[None, :], inside, -float("inf")), 0))
    tl.store(order + c, c, (c >= words) & (c < T))
    gone = c >= words
    for step in range(words):
        # How far the best head is above the root: unbounded where the word cannot be a root, lowest where it has no head.
        margin = tl.where(scores == -float("inf"), 1e300, best - finite(scores))
        margin = tl.where(best == -float("inf"), -1e300, margin)
        word = tl.argmax(tl.where(gone, -float("inf"), margin), 0)
        tl.store(order + words - 1 - step, word)
        gone = gone | (c == word)
        divisor = finite(tl.sum(tl.where(c == word, best, 0.0), 0))
        out = tl.load(arc + word * T + c, c < words, -float("inf")) - divisor
        scores = tl.maximum(scores, tl.sum(tl.where(c == word, scores, 0.0), 0) + out)
        best = tl.full((C,), -float("inf"), scores.dtype)
        tl.debug_barrier()
        for start in range(0, words, R):
            h = start + tl.arange(0, R)
            inside = (h < words)[:, None] & (c < words)[None, :]
            place = arc + h[:, None] * T + c[None, :]
            into = tl.load(arc + h * T + word, h < words, -float("inf"))
            tile = tl.maximum(tl.load(place, inside, -float("inf")), into[:, None] + out[None, :])
            drop = gone[None, :] | (h == word)[:, None] | (h[:, None] == c[None, :])
            tile = tl.where(drop, -float("inf"), tile)
            best = tl.maximum(best, tl.max(tile, 0))
            tl.debug_barrier()
            tl.store(place, tile, inside)
        tl.debug_barrier()


def _tiles(length: int) -> dict[str, int]:
    columns = max(16, triton.next_power_of_2(length + 1))
    return {"R": max(1, 2048 // columns), "C": columns, "num_warps": 8}


@torch.no_grad()
def elimination_order(weight: Tensor, lengths: Tensor) -> Tensor:
    """The order `[B, T]` in which words are eliminated, last first: see the reference."""
    batch, _, length = weight.shape
    order = torch.empty(batch, length, dtype=torch.long, device=weight.device)
    if batch:
        work = weight[:, 0].clone(), weight[:, 1:].clone(memory_format=torch.contiguous_format)
        _order[(batch,)](*work, lengths, order, length, **_tiles(length))
    return order


def entering_sums(weight: Tensor, lengths: Tensor, multiroot: bool, reference: Callable[[Tensor], Tensor]) -> Tensor:
    """The log weight of all heads of each word when it is eliminated, the last first: `[B, T]`, zero in the padding.

    `weight [B, 1 + T, T]` are log weights by head (the root first) and child, in float64. `reference(weight)` computes the
    same in plain torch, for derivatives of higher order.
    """
    batch, _, length = weight.shape

    def forward(weight: Tensor) -> tuple[Tensor, Saved]:
        matrices = weight.new_empty(batch, length * (length + 1) * (length + 2) // 3)
        entering = weight.new_zeros(batch, length)
        if batch:
            arguments = (weight.contiguous(), lengths, matrices, entering, length)
            _eliminate[(batch,)](*arguments, MULTIROOT=multiroot, **_tiles(length))
        return entering, (matrices,)

    def backward(kept: Saved, grad: Tensor) -> Saved:
        (matrices,) = kept
        of_weight = grad.new_zeros(batch, length + 1, length)
        if batch:
            arguments = (matrices, lengths, grad.contiguous(), of_weight, length)
            _restore[(batch,)](*arguments, MULTIROOT=multiroot, **_tiles(length))
        return (of_weight,)

    return with_reference(forward, backward, reference, weight)
