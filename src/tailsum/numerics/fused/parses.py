"""Walks down the trees of grammars with a table of rules: one program reads a tree from its chart, the best one or a sample.

A span of w positions has 2w - 1 nodes. In an order with parents first and left before right, its left child comes next and its
right child after all of the left child's: so every node has its place before its children are known, and needs no stack.

At each span the pair of children is chosen by the sums (or maxima) over splits, then the split. Samples are argmaxima with
Gumbel noise; all their choices at a span are over the exact sums of the chart.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.chart import children, first_row, split_weights
from tailsum.numerics.fused.grammar import Grammar, kind_of, place_of


@triton.jit
def noisy(logits, seed, number):
    """Logits with Gumbel noise, by a number for each that no other has."""
    uniform = tl.rand(seed, number) + 2.3e-10
    wait = tl.where(uniform < 1e-3, uniform * (1 + 0.5 * uniform), -tl.log(1 - uniform))
    return logits - tl.log(wait)


@triton.jit
def logarithm(x):
    """Minus infinity of zero."""
    return tl.where(x > 0, tl.log(tl.where(x > 0, x, 1.0)), -float("inf"))


@triton.jit
def better(best, choice, logits, numbers):
    """The higher of two logits, and its number."""
    return tl.maximum(best, logits), tl.where(logits > best, numbers, choice)


@triton.jit
def chosen_state(weights, more, size, step, seed, number, SAMPLE: tl.constexpr, L: tl.constexpr):
    """The index of the highest of `weights`, or a sample in proportion to `weights * more[step ..]`."""
    best = tl.full((L,), -float("inf"), tl.float32)
    choice = tl.zeros((L,), tl.int32)
    for start in range(0, size, L):
        h = start + tl.arange(0, L)
        if SAMPLE:
            weight = tl.load(weights + h, h < size, 0.0)
            if more is not None:
                weight *= tl.load(more + h.to(tl.int64) * step, h < size, 0.0)
            logits = noisy(logarithm(weight), seed, number + h)
        else:
            logits = tl.load(weights + h, h < size, -float("inf"))
        best, choice = better(best, choice, logits, h)
    return tl.max(tl.where(best == tl.max(best, 0), choice, 0), 0)


@triton.jit(do_not_specialize=["seed"])
def _walk(
    states, peaks, tops, rules, nodes, sentences, lengths, seed, B, T, N, P, per_group,
    SAMPLE: tl.constexpr, L: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """One tree, to `nodes [2T-1, 3]`, from a chart of maxima, or of sums with peaks and tops."""
    tree = tl.program_id(0).to(tl.int64)
    b = tl.load(sentences + tree).to(tl.int32)
    n = tl.load(lengths + b).to(tl.int32)
    C = N + P
    nodes += tree * (2 * T - 1) * 3
    rules += (b // per_group).to(tl.int64) * N * C * C
    if n > 1:
        each = C.to(tl.int64) * C + T  # random numbers of a node
        number = tree * 2 * T * each
        row = (first_row(n, B, T) + b * (T - n + 1)).to(tl.int64)
        whole = states + place_of(row, n, B, T, N, P)
        root = chosen_state(whole, None, N, 1, seed, number + (2 * T - 1) * each, SAMPLE, L)
        tl.store(nodes, 0)
        tl.store(nodes + 1, n - 1)
        tl.store(nodes + 2, root)
    tl.debug_barrier()
    for node in range(tl.where(n > 1, 2 * n - 1, 0)):
        i, j = tl.load(nodes + node * 3).to(tl.int32), tl.load(nodes + node * 3 + 1).to(tl.int32)
        if j > i:
            table = rules + tl.load(nodes + node * 3 + 2) * C * C
            number = (tree * 2 * T + node) * (C.to(tl.int64) * C + T)
            width = j - i + 1
            row = first_row(width, B, T) + b * (T - width + 1) + i
            top = tl.load(tops + row) if SAMPLE else 0.0
            heads, leaves = tl.cdiv(N, L), tl.cdiv(P, L)
            first, second = heads * heads, heads * heads + leaves * heads
            best = tl.full((L, L), -float("inf"), tl.float32)
            choice = tl.zeros((L, L), tl.int32)
            for block in range(tl.where(width == 2, leaves * leaves, second + leaves * heads)):
                kind = tl.where(width == 2, 3, tl.where(block < first, 0, tl.where(block < second, 1, 2)))
                own = block - tl.where(kind == 1, first, tl.where(kind == 2, second, 0))
                n_left, n_right, low, high, _begin = kind_of(kind, width, N, P)
                across = tl.cdiv(n_right, L)
                l, r = own // across * L + tl.arange(0, L), own % across * L + tl.arange(0, L)
                if SAMPLE:
                    total = tl.zeros((L, L), tl.float32)
                else:
                    total = tl.full((L, L), -float("inf"), tl.float32)
                for s in range(low, high):
                    left, right = children(b, i, s + 0 * b, width, B, T)
                    x = states + place_of(left, s, B, T, N, P) + l
                    y = states + place_of(right, width - s, B, T, N, P) + r
                    if SAMPLE:
                        weight = split_weights(peaks, left, right, s < high, top)
                        x, y = tl.load(x, l < n_left, 0.0) * weight, tl.load(y, r < n_right, 0.0)
                        total += x[:, None] * y[None, :]
                    else:
                        x, y = tl.load(x, l < n_left, -float("inf")), tl.load(y, r < n_right, -float("inf"))
                        total = tl.maximum(total, x[:, None] + y[None, :])
                pair = (l + tl.where(kind % 2 == 1, N, 0))[:, None] * C + (r + tl.where(kind >= 2, N, 0))[None, :]
                inside = (l < n_left)[:, None] & (r < n_right)[None, :]
                rule = tl.load(table + pair, inside, -float("inf"))
                if SAMPLE:
                    logits = noisy(logarithm(total) + rule, seed, number + pair)
                else:
                    logits = total + rule
                best, choice = better(best, choice, logits, pair)
            highest = tl.max(tl.max(best, 1), 0)
            pair = tl.max(tl.max(tl.where(best == highest, choice, 0), 1), 0)
            l, r = pair // C, pair % C
            left_leaf, right_leaf = l >= N, r >= N
            l, r = tl.where(left_leaf, l - N, l), tl.where(right_leaf, r - N, r)
            low = tl.where(left_leaf, 1, tl.where(right_leaf, width - 1, 2))
            high = tl.where(left_leaf, 2, tl.where(right_leaf, width, width - 1))
            of_split = tl.full((S,), -float("inf"), tl.float32)
            size = tl.full((S,), 1, tl.int32)
            for start in range(low, high, S):
                s = start + tl.arange(0, S)
                left, right = children(b, i, s, width, B, T)
                x = states + place_of(left, s, B, T, N, P) + l
                y = states + place_of(right, width - s, B, T, N, P) + r
                if SAMPLE:
                    logits = logarithm(tl.load(x, s < high, 0.0)) + logarithm(tl.load(y, s < high, 0.0))
                    logits += tl.load(peaks + left, s < high, 0.0) + tl.load(peaks + right, s < high, 0.0)
                    logits = noisy(logits, seed, number + C.to(tl.int64) * C + s)
                else:
                    logits = tl.load(x, s < high, -float("inf")) + tl.load(y, s < high, -float("inf"))
                of_split, size = better(of_split, size, logits, s)
            split = tl.max(tl.where(of_split == tl.max(of_split, 0), size, 1), 0)
            place = nodes + (node + 1) * 3
            tl.store(place, i)
            tl.store(place + 1, i + split - 1)
            tl.store(place + 2, l)
            place = nodes + (node + 2 * split) * 3
            tl.store(place, i + split)
            tl.store(place + 1, j)
            tl.store(place + 2, r)
        tl.debug_barrier()


class Sums(NamedTuple):
    """What a chart of sums has beside its states, and the seed of its samples."""

    peaks: Tensor
    tops: Tensor
    seed: int


def walked(states: Tensor, sums: Sums | None, rules: Tensor, lengths: Tensor, sentences: Tensor, length: int) -> Tensor:
    """A tree `[R, 2T-1, 3]` of each of the `sentences [R]`: the best one, or a sample from `sums`; -1 in the padding.

    Arbitrary where none is possible.
    """
    heads, size = rules.shape[1:3]
    nodes = torch.full((len(sentences), 2 * length - 1, 3), -1, device=states.device)
    peaks, tops, seed = (states, states, 0) if sums is None else sums
    sizes = (len(lengths), length, heads, size - heads, len(lengths) // len(rules))
    tiles = {"L": 32, "num_warps": 4} if heads <= 32 else {"L": 64, "num_warps": 8}
    tensors = (states, peaks, tops, rules.contiguous(), nodes, sentences, lengths)
    if len(sentences):
        _walk[(len(sentences),)](*tensors, seed, *sizes, SAMPLE=sums is not None, S=64, **tiles)
    return nodes


class Samples:
    """Samples of the trees of sentences, from one chart of sums."""

    def __init__(self, spans: Tensor, rules: Tensor, lengths: Tensor) -> None:
        grammar = Grammar.summed(spans, rules)
        self.chart, self.rules, self.lengths = grammar.chart, rules, lengths
        self.lost = grammar.is_lost(spans, rules)  # products underflowed: read by the reference
        self.possible = self.chart.log_sums(lengths) > -torch.inf

    def drawn(self, sentences: Tensor, seed: int) -> Tensor:
        """A tree for each of the `sentences [R]`, `[R, 2T-1, 3]`; arbitrary where none is possible."""
        sums = Sums(self.chart.peaks, self.chart.tops, seed)
        return walked(self.chart.states[0], sums, self.rules, self.lengths, sentences, self.chart.length)
