"""The k best paths of chains of few states in one launch; `small_chains.py` has the shapes.

Each state keeps the best paths into it, in their order. Of the paths into the next state, those from one state stay in that order:
so the best that is left is always the next one of some state.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import finite
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.scores import unmasked
from tailsum.numerics.fused.small_tables import highest_score, last_position, tile, turned_scores


@triton.jit
def _take_best(message, rank, scores, j, i, n, K: tl.constexpr):
    """The best of the paths `[J, I]` at these ranks into states j, and where it comes from; there the next rank is the turn."""
    value = (
        tl.load(message + i[None, :] * K + rank, (i < n)[None, :] & (rank < K) & (j < n)[:, None], -float("inf"))
        + scores
    )
    best, state = tl.max(value, 1, return_indices=True)
    chosen = i[None, :] == state[:, None]
    origin = state * K + tl.sum(tl.where(chosen, rank, 0), 1)
    return best, origin, rank + chosen.to(tl.int32)


@triton.jit
def _ranked_kernel(
    node, table, last, message, origin, paths, batch, length, n, per_group, k,
    N: tl.constexpr, J: tl.constexpr, K: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """The k best paths `[k, B, T]`: each state keeps the K best into it, `[N, K]`; `origin` is their state and rank before."""
    b = tl.program_id(0).to(tl.int64)
    end = last_position(last, b, length, RAGGED)
    i, r = tl.arange(0, N), tl.arange(0, K)
    inside = i < n
    table += b // per_group * n * n
    message += b * 2 * n * K
    base = highest_score(table, n, N, J)
    first = unmasked(tl.load(node + b * length * n + i, inside, -float("inf")))
    first -= finite(tl.max(first, 0))
    tl.store(
        message + i[:, None] * K + r[None, :],
        tl.where((r == 0)[None, :], first[:, None], -float("inf")),
        inside[:, None],
    )
    tl.debug_barrier()
    for t in range(1, end + 1):
        row = (b * length + t) * n
        sent, entered = message + (t + 1) % 2 * n * K, message + t % 2 * n * K
        peak = finite(tl.max(unmasked(tl.load(node + row + i, inside, -float("inf"))), 0))
        # Less what was highest before, so that scores do not grow along the chain.
        shift = finite(tl.max(tl.load(sent + i * K, inside, -float("inf")), 0))
        for start in range(0, n, J):
            j = start + tl.arange(0, J)
            scores = turned_scores(table, i, j, n) - base
            here = unmasked(tl.load(node + row + j, j < n, -float("inf"))) - peak - shift
            rank = tl.zeros([J, N], tl.int32)
            for place in range(K):
                best, at, rank = _take_best(sent, rank, scores, j, i, n, K)
                tl.store(entered + j * K + place, best + here, j < n)
                tl.store(origin + (row + j) * K + place, at, j < n)
        tl.debug_barrier()
    ending = message + end % 2 * n * K
    one, rank = tl.arange(0, 1), tl.zeros([1, N], tl.int32)
    at, value = tl.zeros([K], tl.int32), tl.full([K], -float("inf"), tl.float32)
    for place in range(K):
        best, final, rank = _take_best(ending, rank, tl.zeros([1, N], tl.float32), one, i, n, K)
        at, value = tl.where(r == place, final, at), tl.where(r == place, best, value)
    for back in range(length):
        t = length - 1 - back
        if t < end:
            at = tl.load(origin + (b * length + t + 1) * n * K + at)
        state = tl.where((value > -float("inf")) & (t <= end), at // K, -1)
        tl.store(paths + (r.to(tl.int64) * batch + b) * length + t, state, r < k)


def forward(node: Tensor, table: Tensor, *, k: int, last: Tensor | None = None) -> tuple[Tensor, Kept]:
    """The k best paths `[k, B, T]` of each sequence, best first; -1 throughout where there are fewer."""
    node, table = node.contiguous(), table.contiguous()
    batch, length, n = node.shape
    paths = torch.empty(k, batch, length, dtype=torch.long, device=node.device)
    ranks = triton.next_power_of_2(k)
    message = node.new_empty(batch, 2, n, ranks)
    origin = torch.empty(batch, length, n, ranks, dtype=torch.int32, device=node.device)
    _ranked_kernel[batch,](
        node, table, table if last is None else last, message, origin, paths, batch, length, n, batch // len(table), k,
        K=ranks, RAGGED=last is not None, **tile(n, n <= 64),
    )  # fmt: skip
    return paths, ()
