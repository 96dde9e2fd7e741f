"""The kernels of `subtrees.py` for gradients: sums, over all spans, of the exponentials of inside and outside sums together.

Relative to the total these are probabilities, so that no sum needs a running maximum. Gradients are those of the log of the sum over
all trees times `seeds [B]`.
"""

# pyright: reportArgumentType=false

import triton
import triton.language as tl

from tailsum.numerics.fused.exponential import exp, finite


@triton.jit
def to_nodes(trees, above, arcs, free, totals, seeds, grads, of_roots, T, K, S: tl.constexpr, KB: tl.constexpr):
    """The gradients of states `[B, T, K]`, and of roots `[blocks, B, T]`: one program for a word and a block of states."""
    b, m, block = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    square = b * T * T * T * K
    trees += square
    above += square
    free += b * T * T
    k = block * KB + tl.arange(0, KB)
    whole = finite(tl.load(totals + b))
    root = tl.load(arcs + b * T * T + m * (T + 1)) - whole
    node, roots = tl.zeros((KB,), tl.float32), tl.zeros((KB,), tl.float32)
    for s in range(m + 1):
        for start in range(m, T, S):
            e = start + tl.arange(0, S)
            inside = (e < T)[:, None] & (k < K)[None, :]
            place = ((s * T + e[:, None]) * T + m) * K + k[None, :]
            x = tl.load(trees + place, inside, -float("inf"))
            node += tl.sum(exp(x + tl.load(above + place, inside, -float("inf")) - whole), 0)
            roots += tl.sum(exp(x + root + tl.load(free + s * T + e, e < T, -float("inf"))[:, None]), 0)
    seed = tl.load(seeds + b)
    tl.store(grads + (b * T + m) * K + k, node * seed, k < K)
    tl.store(of_roots + (block * tl.num_programs(0) + b) * T + m, tl.sum(roots, 0) * seed)


@triton.jit
def to_shared_arcs(sent, outside, arcs, totals, seeds, grads, T, K, S: tl.constexpr, KB: tl.constexpr):
    """The gradients of arcs `[B, T, T]`, zero on the diagonal: one program for each."""
    b, h, m = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    square = b * T * T * T * K
    sent += square
    outside += square
    place = (b * T + h) * T + m
    offset = tl.load(arcs + place) - finite(tl.load(totals + b))
    sums = tl.zeros((KB,), tl.float32)
    first, last = tl.where(h < m, h + 1, 0), tl.where(h > m, h, T)
    for s in range(first, tl.where(h == m, first, m + 1)):
        for start in range(m, last, S):
            e = start + tl.arange(0, S)
            for block in range(0, K, KB):
                k = block + tl.arange(0, KB)
                inside = (e < last)[:, None] & (k < K)[None, :]
                span = (s * T + e[:, None]) * T * K + k[None, :]
                x = tl.load(sent + span + m * K, inside, -float("inf"))
                x += tl.load(outside + span + h * K, inside, -float("inf")) + offset
                sums += tl.sum(exp(x), 0)
    tl.store(grads + place, tl.sum(sums, 0) * tl.load(seeds + b))


@triton.jit
def to_shared_pairs(trees, outside, pairs, totals, seeds, grads, T, K, parts, R: tl.constexpr, KB: tl.constexpr):
    """The gradients of pairs `[B parts, K, K]` (head, child): the spans of a sentence are dealt out by their first word."""
    b, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    square = b * T * T * T * K
    trees += square
    outside += square
    k, c = tl.program_id(1) * KB + tl.arange(0, KB), tl.program_id(2) * KB + tl.arange(0, KB)
    inside = (k < K)[:, None] & (c < K)[None, :]
    place = k[:, None] * K + c[None, :]
    offset = tl.load(pairs + place, inside, -float("inf")) - finite(tl.load(totals + b))
    sums = tl.zeros((KB, KB), tl.float32)
    for s in range(part, T, parts):
        for e in range(s, T):
            for start in range(s, e + 1, R):
                m = (start + tl.arange(0, R))[:, None]
                row = ((s * T + e) * T + m) * K
                x = tl.load(outside + row + k[None, :], (m <= e) & (k < K)[None, :], -float("inf"))
                y = tl.load(trees + row + c[None, :], (m <= e) & (c < K)[None, :], -float("inf"))
                sums += tl.sum(exp(x[:, :, None] + y[:, None, :] + offset[None, :, :]), 0)
    tl.store(grads + tl.program_id(0).to(tl.int64) * K * K + place, sums * tl.load(seeds + b), inside)


@triton.jit
def to_own(
    trees, outside, arcs, pairs, totals, seeds, of_arcs, of_pairs, B, T, K, group, R: tl.constexpr, KB: tl.constexpr
):
    """The gradients of arcs `[blocks, B, T, T]`, zero on the diagonal, and of pairs `[G, T, T, K, K]`.

    A program has an arc and a block of pairs of states, for one sentence, or for all where they share the pairs (`group` zero).
    """
    h, m = tl.program_id(0) % (T * T) // T, tl.program_id(0) % T
    g = (tl.program_id(0) // (T * T)).to(tl.int64)
    blocks = tl.cdiv(K, KB)
    k = tl.program_id(1) // blocks * KB + tl.arange(0, KB)
    c = tl.program_id(1) % blocks * KB + tl.arange(0, KB)
    inside = (k < K)[:, None] & (c < K)[None, :]
    place = tl.program_id(0).to(tl.int64) * K * K + k[:, None] * K + c[None, :]
    pair = tl.load(pairs + place, inside, -float("inf"))
    of_pair = tl.zeros((KB, KB), tl.float32)
    first, last = tl.where(h < m, h + 1, 0), tl.where(h > m, h, T)
    for number in range(tl.where(group == 1, 1, B)):
        b = g + number
        square = b * T * T * T * K
        arc = (b * T + h) * T + m
        offset = pair + (tl.load(arcs + arc) - finite(tl.load(totals + b)))
        sums = tl.zeros((KB, KB), tl.float32)
        for s in range(first, tl.where(h == m, first, m + 1)):
            for start in range(m, last, R):
                e = (start + tl.arange(0, R))[:, None]
                row = square + (s * T + e) * T * K
                x = tl.load(outside + row + h * K + k[None, :], (e < last) & (k < K)[None, :], -float("inf"))
                y = tl.load(trees + row + m * K + c[None, :], (e < last) & (c < K)[None, :], -float("inf"))
                sums += tl.sum(exp(x[:, :, None] + y[:, None, :] + offset[None, :, :]), 0)
        sums *= tl.load(seeds + b)
        of_pair += sums
        tl.store(of_arcs + tl.program_id(1).to(tl.int64) * B * T * T + arc, tl.sum(tl.sum(sums, 1), 0))
    tl.store(of_pairs + place, of_pair, inside)
