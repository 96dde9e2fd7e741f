"""The best path of chains of few states in one launch: maxima along the chain, and the way back; `small_chains.py` has the shapes."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import finite
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.scores import unmasked
from tailsum.numerics.fused.small_tables import HELD, highest_score, last_position, tile, turned_scores


@triton.jit
def _best_kernel(
    node,
    table,
    last,
    entering,
    origin,
    paths,
    length,
    n,
    per_group,
    N: tl.constexpr,
    J: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """Paths `[B, T]`, -1 after the last position, and throughout where there is none; `origin` is where the best path comes from."""
    b = tl.program_id(0).to(tl.int64)
    end = last_position(last, b, length, RAGGED)
    i = tl.arange(0, N)
    inside = i < n
    table += b // per_group * n * n
    base = highest_score(table, n, N, J)
    scores = tl.zeros([J, N], tl.float32)
    if J == N:
        scores = turned_scores(table, i, i, n) - base
    message = tl.zeros([N], tl.float32)
    coming = tl.load(node + b * length * n + i, inside, -float("inf"))
    for t in range(end + 1):
        row = (b * length + t) * n
        here = unmasked(coming)
        following = (b * length + tl.minimum(t + 1, end)) * n
        coming = tl.load(node + following + i, inside, -float("inf"))  # so that the next step need not wait for it
        best = tl.zeros([N], tl.float32)
        if t > 0:
            if J == N:
                best, state = tl.max(message[None, :] + scores, 1, return_indices=True)
                tl.store(origin + row + i, state, inside)
            else:
                for start in range(0, n, J):
                    j = start + tl.arange(0, J)
                    reach = message[None, :] + (turned_scores(table, i, j, n) - base)
                    part, state = tl.max(reach, 1, return_indices=True)
                    tl.store(entering + b * n + j, part, j < n)
                    tl.store(origin + row + j, state, j < n)
                tl.debug_barrier()
                best = tl.load(entering + b * n + i, inside, -float("inf"))
                tl.debug_barrier()
        message = here - finite(tl.max(here, 0)) + best
        message -= finite(tl.max(message, 0))
    highest, state = tl.max(message, 0, return_indices=True)
    possible = highest > -float("inf")
    tl.debug_barrier()
    for back in range(length):
        t = length - 1 - back
        if t < end:
            state = tl.load(origin + (b * length + t + 1) * n + state).to(tl.int32)
        tl.store(paths + b * length + t, tl.where(possible & (t <= end), state, -1))


def forward(node: Tensor, table: Tensor, *, last: Tensor | None = None) -> tuple[Tensor, Kept]:
    """The best path `[B, T]` of each sequence."""
    node, table = node.contiguous(), table.contiguous()
    batch, length, n = node.shape
    paths = torch.empty(batch, length, dtype=torch.long, device=node.device)
    origin = torch.empty(batch, length, n, dtype=torch.int16, device=node.device)
    held = n <= HELD
    _best_kernel[batch,](
        node, table, table if last is None else last, node if held else node.new_empty(batch, n), origin, paths, length, n,
        batch // len(table), RAGGED=last is not None, **tile(n, held),
    )  # fmt: skip
    return paths, ()
