"""Samples of the trees of a grammar with rules of low rank: one program walks down each tree, from a chart of sums.

At each span the rank of the rule is chosen by the sums over splits, then the split, then each child. The order of nodes is that of
`parses.py`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.chart import children, first_row, is_lost, reachable
from tailsum.numerics.fused.grammar import place_of
from tailsum.numerics.fused.low_rank import Grammar
from tailsum.numerics.fused.parses import better, chosen_state, logarithm, noisy


@triton.jit(do_not_specialize=["seed"])
def _walk(
    states, peaks, head, both, ranks, merged, nodes, sentences, lengths, seed, B, T, N, P, R,
    L: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """One tree, to `nodes [2T-1, 3]`, from exponentiated factors `head [N, R]` and `both [N+P, 2 R]`, left ones first.

    `ranks [rows, 2, R]` and `merged [longer rows, R]` are those of `low_rank.py`.
    """
    tree = tl.program_id(0).to(tl.int64)
    b = tl.load(sentences + tree).to(tl.int32)
    n = tl.load(lengths + b).to(tl.int32)
    nodes += tree * (2 * T - 1) * 3
    each = R + T + 2 * (N + P)  # random numbers of a node
    number = tree * 2 * T * each
    if n > 1:
        row = (first_row(n, B, T) + b * (T - n + 1)).to(tl.int64)
        whole = states + place_of(row, n, B, T, N, P)
        root = chosen_state(whole, None, N, 1, seed, number + (2 * T - 1) * each, True, L)
        tl.store(nodes, 0)
        tl.store(nodes + 1, n - 1)
        tl.store(nodes + 2, root)
    tl.debug_barrier()
    for node in range(tl.where(n > 1, 2 * n - 1, 0)):
        i, j = tl.load(nodes + node * 3).to(tl.int32), tl.load(nodes + node * 3 + 1).to(tl.int32)
        if j > i:
            width = j - i + 1
            own = number + node * each
            row = (first_row(width, B, T) + b * (T - width + 1) + i).to(tl.int64)
            of_head = head + tl.load(nodes + node * 3 + 2) * R
            rank = chosen_state(of_head, merged + (row - B * T) * R, R, 1, seed, own, True, L)
            of_split = tl.full((S,), -float("inf"), tl.float32)
            size = tl.full((S,), 1, tl.int32)
            for start in range(1, width, S):
                s = start + tl.arange(0, S)
                left, right = children(b, i, s, width, B, T)
                logits = logarithm(tl.load(ranks + left * 2 * R + rank, s < width, 0.0))
                logits += logarithm(tl.load(ranks + (right * 2 + 1) * R + rank, s < width, 0.0))
                logits += tl.load(peaks + left, s < width, 0.0) + tl.load(peaks + right, s < width, 0.0)
                of_split, size = better(of_split, size, noisy(logits, seed, own + R + s), s)
            split = tl.max(tl.where(of_split == tl.max(of_split, 0), size, 1), 0)
            left, right = children(b, i, split, width, B, T)
            factors, own = both + rank, own + R + T
            skip = tl.where(split == 1, N, 0) * 2 * R
            x = states + place_of(left, split, B, T, N, P)
            l = chosen_state(x, factors + skip, tl.where(split == 1, P, N), 2 * R, seed, own, True, L)
            skip = tl.where(width - split == 1, N, 0) * 2 * R + R
            x, own = states + place_of(right, width - split, B, T, N, P), own + N + P
            r = chosen_state(x, factors + skip, tl.where(width - split == 1, P, N), 2 * R, seed, own, True, L)
            place = nodes + (node + 1) * 3
            tl.store(place, i)
            tl.store(place + 1, i + split - 1)
            tl.store(place + 2, l)
            place = nodes + (node + 2 * split) * 3
            tl.store(place, i + split)
            tl.store(place + 1, j)
            tl.store(place + 2, r)
        tl.debug_barrier()


class Samples:
    """Samples of the trees of sentences, from one chart of sums."""

    def __init__(self, spans: Tensor, head: Tensor, left: Tensor, right: Tensor, lengths: Tensor) -> None:
        scores = spans, head, left, right
        self.grammar, self.lengths = Grammar.summed(*scores), lengths
        chart = self.grammar.chart
        self.lost = is_lost(chart, lambda: Grammar.summed(*map(reachable, scores), reach=True).chart)
        self.possible = chart.log_sums(lengths) > -torch.inf

    def drawn(self, sentences: Tensor, seed: int) -> Tensor:
        """A tree for each of the `sentences [R]`, `[R, 2T-1, 3]`, -1 in the padding; arbitrary where none is possible."""
        grammar, chart = self.grammar, self.grammar.chart
        nodes = torch.full((len(sentences), 2 * chart.length - 1, 3), -1, device=sentences.device)
        tensors = (chart.states, chart.peaks, grammar.head, grammar.both, grammar.ranks, grammar.merged)
        sizes = (chart.batch, chart.length, chart.n_heads, chart.n_leaves, grammar.rank)
        if len(sentences):
            _walk[(len(sentences),)](*tensors, nodes, sentences, self.lengths, seed, *sizes, L=128, S=32, num_warps=4)
        return nodes
