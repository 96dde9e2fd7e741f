"""The best tree of a grammar with a table of rules: a chart of maxima, two launches a width, and a walk down each tree.

The reference is `DenseRule.reader` with maxima. Splits are merged into pairs of children as in `grammar.py`, with maxima in place
of sums. There are no back-pointers: the walk reads the rules of a head again (`parses.py`).
"""

# pyright: reportArgumentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.chart import children, first_row
from tailsum.numerics.fused.grammar import by_pairs, kind_of, place_of
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.parses import walked

PROGRAMS = 1024  # enough for a device


@triton.jit(do_not_specialize=["width"])
def _merge(states, pairs, B, T, N, P, width, Q, L: tl.constexpr):
    """The highest sum of each pair of children `[spans, Q]` of all spans of a width, over splits."""
    span, block, count = tl.program_id(0), tl.program_id(1), T - width + 1
    b, i = span // count, span % count
    heads, leaves = tl.cdiv(N, L), tl.cdiv(P, L)
    first, second = heads * heads, heads * heads + leaves * heads
    kind = tl.where(width == 2, 3, tl.where(block < first, 0, tl.where(block < second, 1, 2)))
    block -= tl.where(kind == 1, first, tl.where(kind == 2, second, 0))
    n_left, n_right, low, high, begin = kind_of(kind, width, N, P)
    across = tl.cdiv(n_right, L)
    l, r = block // across * L + tl.arange(0, L), block % across * L + tl.arange(0, L)
    best = tl.full((L, L), -float("inf"), tl.float32)
    for s in range(low, high):
        left, right = children(b, i, s + 0 * span, width, B, T)
        x = tl.load(states + place_of(left, s, B, T, N, P) + l, l < n_left, -float("inf"))
        y = tl.load(states + place_of(right, width - s, B, T, N, P) + r, r < n_right, -float("inf"))
        best = tl.maximum(best, x[:, None] + y[None, :])
    place = pairs + span.to(tl.int64) * Q + begin + l[:, None] * n_right + r[None, :]
    tl.store(place, best, (l < n_left)[:, None] & (r < n_right)[None, :])


@triton.jit(do_not_specialize=["width"])
def _contract(
    spans, pairs, rules, states, B, T, N, P, width, Q, stride, per_group,
    I: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Raise the `states` of all spans of a width to the highest sum of pairs of children and their rules `[G, N, Q]`.

    The third axis of programs shares out the pairs.
    """
    count, blocks = T - width + 1, tl.cdiv(per_group, I)
    group = (tl.program_id(0) // blocks).to(tl.int64)
    span = tl.program_id(0) % blocks * I + tl.arange(0, I)
    valid, span = span < per_group, group * per_group + span
    h = tl.program_id(1) * H + tl.arange(0, H)
    rules += (group * N + h[None, :, None]) * Q
    pairs += span[:, None, None] * Q
    best = tl.full((I, H, K), -float("inf"), tl.float32)
    share = tl.cdiv(tl.cdiv(Q, K), tl.num_programs(2)) * K
    begin = tl.program_id(2) * share
    for start in range(begin, tl.minimum(begin + share, Q), K):
        k = (start + tl.arange(0, K))[None, None, :]
        x = tl.load(pairs + k, valid[:, None, None] & (k < Q), -float("inf"))
        y = tl.load(rules + k, (h < N)[None, :, None] & (k < Q), -float("inf"))
        best = tl.maximum(best, x + y)
    inside = valid[:, None] & (h < N)[None, :]
    b, i = span // count, span % count
    score = tl.load(spans + ((b * T + i) * T + i + width - 1)[:, None] * stride + h[None, :], inside, 0.0)
    place = place_of(first_row(width, B, T) + span, width, B, T, N, P)
    tl.atomic_max(states + place[:, None] + h[None, :], tl.max(best, 2) + score, inside, sem="relaxed")


def _chart(spans: Tensor, rules: Tensor) -> Tensor:
    """The highest score of the trees of each span and state, in the order of `Chart.states`."""
    (batch, length, _, stride), (groups, heads, states) = spans.shape, rules.shape[:3]
    leaves, rows = states - heads, batch * length
    tables = [x.contiguous() for x in by_pairs(rules, heads)]
    best = spans.new_full((rows * leaves + rows * (length - 1) // 2 * heads,), -torch.inf)
    best[: rows * leaves].view(batch, length, leaves).copy_(spans.diagonal(0, 1, 2).mT[..., :leaves])
    side = 32 if heads <= 32 else 64
    n, p = triton.cdiv(heads, side), triton.cdiv(leaves, side)
    for width in range(2, length + 1):
        table, count = tables[width > 2], batch * (length - width + 1)
        sizes = (batch, length, heads, leaves, width, table.shape[-1])
        pairs = spans.new_empty(count, table.shape[-1])
        _merge[(count, p * p if width == 2 else n * n + 2 * n * p)](best, pairs, *sizes, L=side)
        grid = (groups * triton.cdiv(count // groups, 16), triton.cdiv(heads, 16))
        shares = max(1, min(PROGRAMS // (grid[0] * grid[1]), sizes[-1] // 256))
        _contract[(*grid, shares)](spans, pairs, table, best, *sizes, stride, count // groups, I=16, H=16, K=32)
    return best


def forward(spans: Tensor, rules: Tensor, *, lengths: Tensor) -> tuple[Tensor, Kept]:
    """The best trees, `[B, 2T-1, 3]`: first and last position and state of each span, -1 throughout where none is possible."""
    spans = spans.contiguous()
    best = _chart(spans, rules)
    batch, length = spans.shape[:2]
    width = lengths.clamp(min=2)
    skip = batch * length
    row = batch * ((width - 1) * (length + 1) - (width - 1) * width // 2) - skip
    row = row + torch.arange(batch, device=spans.device) * (length - width + 1)
    leaves = rules.shape[2] - rules.shape[1]
    highest = best[skip * leaves :].view(-1, rules.shape[1])[row].amax(-1)
    possible = (highest > -torch.inf) & (lengths > 1)
    trees = walked(best, None, rules, lengths, torch.arange(batch, device=spans.device), length)
    return trees.masked_fill(~possible[:, None, None], -1), ()
