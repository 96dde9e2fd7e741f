"""Sums over the trees of a grammar with a table of rules: three launches a width forward, five backward.

The reference is `DenseRule` in `trees/rules`. Splits are merged into pairs of children, then one product contracts the pairs
with the rules. Kinds of pairs: 0, two nonterminals; 1, a preterminal and a nonterminal; 2, a nonterminal and a preterminal; and
3, two preterminals, for spans of two words alone.
"""

# pyright: reportArgumentType=false

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.chart import Chart, children, first_row, highest_split, is_lost, reachable, split_weights
from tailsum.numerics.fused.reference import with_reference
from tailsum.numerics.precision import product
from tailsum.numerics.tensors import finite


@triton.jit
def _kind(kind, width, N, P):
    """For a kind of pairs: the numbers of left and right states, the sizes of left children, and where its pairs begin."""
    left = tl.where((kind == 0) | (kind == 2), N, P)
    right = tl.where(kind <= 1, N, P)
    low = tl.where(kind == 0, 2, tl.where(kind == 2, width - 1, 1))
    high = tl.where(kind == 0, width - 1, tl.where(kind == 2, width, 2))
    start = tl.where(kind == 1, N * N, tl.where(kind == 2, N * N + P * N, 0))
    return left, right, low, high, start


@triton.jit
def _place(row, size, B, T, N, P):
    """Where the states of rows begin: the rows of single positions come first."""
    leaves = B * T
    return tl.where(size == 1, row * P, leaves * P + (row - leaves) * N)


@triton.jit(do_not_specialize=["width"])
def _merge(states, peaks, tops, pairs, B, T, N, P, width, Q, L: tl.constexpr, S: tl.constexpr):
    """The weights of pairs of children `[spans, Q]` of all spans of a width, summed over splits, in units of `exp(tops)`."""
    span, block, count = tl.program_id(0), tl.program_id(1), T - width + 1
    b, i = span // count, span % count
    heads, leaves = tl.cdiv(N, L), tl.cdiv(P, L)
    first, second = heads * heads, heads * heads + leaves * heads
    kind = tl.where(width == 2, 3, tl.where(block < first, 0, tl.where(block < second, 1, 2)))
    block -= tl.where(kind == 1, first, tl.where(kind == 2, second, 0))
    n_left, n_right, low, high, begin = _kind(kind, width, N, P)
    across = tl.cdiv(n_right, L)
    l, r = block // across * L + tl.arange(0, L), block % across * L + tl.arange(0, L)
    top = highest_split(peaks, b, i, width, B, T, S)
    tl.store(tops + first_row(width, B, T) + span, top)
    total = tl.zeros((L, L), tl.float32)
    for start in range(low, high, S):
        s = start + tl.arange(0, S)
        left, right = children(b, i, s, width, B, T)
        weight = split_weights(peaks, left, right, s < high, top)
        left, right = _place(left, s, B, T, N, P), _place(right, width - s, B, T, N, P)
        x = tl.load(states + left[None, :] + l[:, None], (s < high)[None, :] & (l < n_left)[:, None], 0.0)
        y = tl.load(states + right[:, None] + r[None, :], (s < high)[:, None] & (r < n_right)[None, :], 0.0)
        total += tl.dot(x * weight[None, :], y, input_precision="tf32x3")
    place = pairs + span.to(tl.int64) * Q + begin + l[:, None] * n_right + r[None, :]
    tl.store(place, total, (l < n_left)[:, None] & (r < n_right)[None, :])


@triton.jit(do_not_specialize=["width"])
def _spread(
    states, peaks, tops, pairs, grads, size, B, T, N, P, width, Q,
    L: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Add to `grads [2, size]`, for left and right children, the gradients of their states from those of `pairs`.

    A span is the left child of one span of this width and the right child of one: no two programs write to one place.
    """
    span, block, count = tl.program_id(0), tl.program_id(1), T - width + 1
    b, i = span // count, span % count
    heads, leaves = tl.cdiv(N, L), tl.cdiv(P, L)
    whole = tl.where(width == 2, leaves, 2 * heads + leaves)  # blocks of left states, and as many of right states
    to_left = block < whole
    block = tl.where(to_left, block, block - whole)
    # Left states: N, P, N by kind. Right states: N, N, P.
    first, second = heads, tl.where(to_left, heads + leaves, 2 * heads)
    kind = tl.where(width == 2, 3, tl.where(block < first, 0, tl.where(block < second, 1, 2)))
    block -= tl.where(kind == 1, first, tl.where(kind == 2, second, 0))
    n_left, n_right, low, high, begin = _kind(kind, width, N, P)
    own, others = tl.where(to_left, n_left, n_right), tl.where(to_left, n_right, n_left)
    own_step, other_step = tl.where(to_left, n_right, 1), tl.where(to_left, 1, n_right)
    pairs += span.to(tl.int64) * Q + begin
    grads += tl.where(to_left, 0, size)
    top = tl.load(tops + first_row(width, B, T) + span)
    l = block * L + tl.arange(0, L)
    for start in range(low, high, S):
        s = start + tl.arange(0, S)
        left, right = children(b, i, s, width, B, T)
        weight = split_weights(peaks, left, right, s < high, top)
        left, right = _place(left, s, B, T, N, P), _place(right, width - s, B, T, N, P)
        mine, theirs = tl.where(to_left, left, right), tl.where(to_left, right, left)
        total = tl.zeros((S, L), tl.float32)
        for other in range(0, others, L):
            c = other + tl.arange(0, L)
            y = tl.load(states + theirs[:, None] + c[None, :], (s < high)[:, None] & (c < others)[None, :], 0.0)
            inside = (c < others)[:, None] & (l < own)[None, :]
            g = tl.load(pairs + c[:, None] * other_step + l[None, :] * own_step, inside, 0.0)
            total += tl.dot(y * weight[:, None], g, input_precision="tf32x3")
        inside = (s < high)[:, None] & (l < own)[None, :]
        place = mine[:, None] + l[None, :]
        more = total * tl.load(states + place, inside, 0.0)
        tl.store(grads + place, tl.load(grads + place, inside, 0.0) + more, inside)


@triton.jit
def _divide(left, right, totals, out, size, BLOCK: tl.constexpr):
    """`(left + right) / totals`, zero where the total is zero."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(totals + k, k < size, 1.0)
    ratio = (tl.load(left + k, k < size, 0.0) + tl.load(right + k, k < size, 0.0)) / tl.where(total > 0, total, 1.0)
    tl.store(out + k, tl.where(total > 0, ratio, 0.0), k < size)


def over_totals(left: Tensor, right: Tensor, totals: Tensor) -> Tensor:
    """The gradients in the totals of one width, from the two parts of the gradients in their logarithms."""
    out = torch.empty_like(totals)
    _divide[(triton.cdiv(out.numel(), 1024),)](left, right, totals, out, out.numel(), BLOCK=1024)
    return out


class _Grammar:
    """Exponentiated rules, and the chart of sentences under them."""

    def __init__(self, spans: Tensor, rules: Tensor, reach: bool = False) -> None:
        groups, heads, states = rules.shape[:3]
        self.chart = chart = Chart(spans, heads, states - heads)
        inner, leaf = slice(0, heads), slice(heads, None)
        kinds = (inner, inner), (leaf, inner), (inner, leaf)
        rest = torch.cat([rules[:, :, left, right].flatten(2) for left, right in kinds], -1)  # [G, N, Q]
        scores = rules[:, :, heads:, heads:].flatten(2), rest
        self.scales = [finite(x.amax(-1)) for x in scores]
        self.tables = [(x - scale[..., None]).exp_() for x, scale in zip(scores, self.scales, strict=True)]
        self.groups = groups
        chart.finish(1, None, spans.new_zeros(1, chart.n_leaves), reach)
        for width in range(2, chart.length + 1):
            which = min(width - 2, 1)
            totals = product(self._grouped(self.merged(width)), self.tables[which].mT)
            chart.finish(width, totals.view(-1, heads), self.scales[which], reach)

    def _grouped(self, x: Tensor) -> Tensor:
        return x.view(self.groups, -1, x.shape[-1])

    def _tiles(self) -> dict[str, int]:
        return {"L": 32 if self.chart.n_heads <= 32 else 64, "S": 16, "num_warps": 4}

    def merged(self, width: int) -> Tensor:
        """The pairs of children of all spans of a width, `[rows, Q]`."""
        chart, tiles = self.chart, self._tiles()
        rows, size = chart.batch * (chart.length - width + 1), self.tables[min(width - 2, 1)].shape[-1]
        pairs = chart.spans.new_empty(rows, size)
        heads, leaves = (triton.cdiv(x, tiles["L"]) for x in (chart.n_heads, chart.n_leaves))
        blocks = leaves**2 if width == 2 else heads**2 + 2 * heads * leaves
        sizes = (chart.batch, chart.length, chart.n_heads, chart.n_leaves, width, size)
        _merge[(rows, blocks)](chart.buffer, chart.peaks, chart.tops, pairs, *sizes, **tiles)
        return pairs

    def gradients(self, lengths: Tensor, grad: Tensor, with_rules: bool) -> tuple[Tensor, Tensor | None]:
        """The gradients of the log sums in the scores of spans and of rules."""
        chart, tiles = self.chart, self._tiles()
        both = chart.buffer.new_zeros(2, len(chart.buffer))
        left, right = both
        chart.seed(lengths, grad, left)
        tables = [torch.zeros_like(x) for x in self.tables]
        heads, leaves = (triton.cdiv(x, tiles["L"]) for x in (chart.n_heads, chart.n_leaves))
        for width in range(chart.length, 1, -1):
            which = min(width - 2, 1)
            y = over_totals(chart.of_width(left, width), chart.of_width(right, width), chart.totals[width])
            y = self._grouped(y)
            if with_rules:
                tables[which] += product(y.mT, self._grouped(self.merged(width)))
            pairs = product(y, self.tables[which]).flatten(0, 1)
            sizes = (len(left), chart.batch, chart.length, chart.n_heads, chart.n_leaves, width, pairs.shape[-1])
            blocks = 2 * (leaves if width == 2 else 2 * heads + leaves)
            _spread[(len(pairs), blocks)](chart.buffer, chart.peaks, chart.tops, pairs, both, *sizes, **tiles)
        return chart.unpack(left.add_(right)), self._rules(tables) if with_rules else None

    def _rules(self, tables: list[Tensor]) -> Tensor:
        """The gradient in the scores of rules from the gradients in their exponentials."""
        ends, rest = (x.mul_(table) for x, table in zip(tables, self.tables, strict=True))
        n, p, lead = self.chart.n_heads, self.chart.n_leaves, rest.shape[:2]
        both, last, first = rest.split((n * n, p * n, n * p), -1)
        upper = torch.cat((both.reshape(*lead, n, n), first.reshape(*lead, n, p)), -1)
        return torch.cat((upper, torch.cat((last.reshape(*lead, p, n), ends.reshape(*lead, p, p)), -1)), -2)


def grammar_sum(spans: Tensor, rules: Tensor, lengths: Tensor, reference: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Log of the sum over all trees `[B]` from scores `spans [B, T, T, S]` and `rules [G, N, N+P, N+P]`, T at least 2.

    `reference(spans, rules)` computes the same in plain torch: for derivatives of higher order, and for scores of so wide a
    range that products underflow.
    """
    with torch.no_grad():
        scores = spans.detach(), rules.detach()
        grammar = _Grammar(*scores)
        lost = is_lost(grammar.chart, lambda: _Grammar(*map(reachable, scores), reach=True).chart)
    if lost:
        return reference(spans, rules)
    with_rules = rules.requires_grad
    return with_reference(
        lambda *_: (grammar.chart.log_sums(lengths), ()),
        lambda _, grad: grammar.gradients(lengths, grad, with_rules),
        reference, spans, rules,
    )  # fmt: skip
