"""Best paths and sampled paths of a chain: the maximum over the states before, and walks back along messages."""

# Kernels are called with plain numbers for Triton's own types.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.scores import Pairs, score_tile

# Tiles, measured on a Hopper GPU.
TABLE_TILE = {"I": 8, "J": 128, "num_warps": 4}
FACTOR_TILE = {"I": 128, "J": 32, "num_warps": 4}


@triton.jit
def _best_kernel(
    best, out, left, right, centre, rows, n, m, splits, chunk, per_group, group_l, row_l, column_l, group_r, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, R: tl.constexpr, I: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """`out(r, j) = max_i best(r, i) + score(i, j)`, for R sequences that share a table."""
    group = tl.program_id(2).to(tl.int64)
    first = group * per_group + tl.program_id(1) // splits * R
    begin = tl.program_id(1) % splits * chunk
    stop = tl.minimum(n, begin + chunk)
    r = first + tl.arange(0, R)
    inside = r < (group + 1) * per_group
    j = tl.program_id(0) * J + tl.arange(0, J)
    left, right = left + group * group_l, right + group * group_r
    base = tl.load(centre + group)
    top = tl.full([R, J], -float("inf"), tl.float32)
    row, column = r[:, None] + 0 * j[None, :], j[None, :].to(tl.int64) + 0 * r[:, None]
    if SIZE == 0:
        # Every thread loads what it needs itself: nothing is exchanged among them.
        for start in range(begin, stop, I):
            for more in tl.static_range(I):
                i = tl.cast(start + more, tl.int64)
                sent = tl.load(
                    best + i * rows + row, row < tl.where(i < stop, (group + 1) * per_group, 0), -float("inf")
                )
                scores = tl.load(left + i * row_l + column * column_l, column < tl.where(i < stop, m, 0), -float("inf"))
                top = tl.maximum(top, sent + (scores - base))
    else:
        for start in range(begin, stop, I):
            i = start + tl.arange(0, I)
            scores = score_tile(left, right, i, j, n, m, row_l, column_l, row_r, width, SIZE, PRECISION) - base
            for one in tl.static_range(R):
                here = first + one
                limit = tl.where(here < (group + 1) * per_group, stop, 0)
                sent = tl.load(best + i * rows + here, i < limit, -float("inf"))
                found = tl.max(sent[:, None] + scores, 0)
                top = tl.where((r == here)[:, None], tl.maximum(top, found[None, :]), top)
    tl.atomic_max(out + r[:, None] * m + j[None, :], top, inside[:, None] & (j < m)[None, :])


@triton.jit(do_not_specialize=["seed"])
def _walk_kernel(
    messages, paths, last, left, right, seed, length, batch, n, per_group, table_steps,
    group_l, step_l, row_l, column_l, group_r, step_r, row_r, width,
    SIZE: tl.constexpr, I: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    """A path from the last position back: at each, the best state given the next, or one drawn (by Gumbel noise)."""
    b, count = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    end = tl.load(last + b)
    left += b // per_group * group_l
    right += b // per_group * group_r
    path = paths + (count * batch + b) * length
    state = end * 0
    for back in range(length):
        t = length - 1 - back
        if t <= end:
            step = tl.minimum(tl.cast(t, tl.int64), table_steps - 1)
            highest, found = -float("inf"), end * 0
            for start in range(0, n, I):
                i = start + tl.arange(0, I)
                logits = tl.load(messages + (t * batch + b) * n + i, i < n, -float("inf"))
                if t < end:
                    far = i.to(tl.int64)
                    if SIZE == 0:
                        logits += tl.load(left + step * step_l + far * row_l + state * column_l, i < n, -float("inf"))
                    else:
                        d = tl.arange(0, SIZE)
                        one = tl.load(right + step * step_r + state * row_r + d, d < width, 0.0)
                        rows = tl.load(
                            left + step * step_l + far[:, None] * row_l + d[None, :],
                            (i < n)[:, None] & (d < width)[None, :], 0.0,
                        )  # fmt: skip
                        logits += tl.sum(rows * one[None, :], 1)
                if SAMPLE:
                    uniform = tl.rand(seed, ((count * batch + b) * length + t) * n + i) + 2.3e-10
                    wait = tl.where(uniform < 1e-3, uniform * (1 + 0.5 * uniform), -tl.log(1 - uniform))
                    logits -= tl.log(wait)
                top = tl.max(logits, 0)
                place = tl.argmax(logits, 0) + start
                found = tl.where(top > highest, place.to(tl.int64), found)
                highest = tl.maximum(highest, top)
            state = found
            tl.store(path + t, state)
        else:
            tl.store(path + t, -1)


def best_step(best: Tensor, pairs: Pairs, step: int) -> Tensor:
    """The best path into each state one step later, less the centre of the table: `[B, N]` from `[B, N]`."""
    batch, n = best.shape
    out, best = torch.full_like(best, -torch.inf), best.T.contiguous()  # by state: its sequences lie together
    left, right = pairs.left[:, step], pairs.right[:, step]
    rows = min(16, triton.next_power_of_2(pairs.per_group(batch)))
    tile = FACTOR_TILE if pairs.size else TABLE_TILE
    blocks = triton.cdiv(n, tile["J"])
    splits = max(1, min(triton.cdiv(n, 512), 640 // blocks))
    grid = blocks, triton.cdiv(pairs.per_group(batch), rows) * splits, pairs.groups
    chunk = triton.cdiv(triton.cdiv(n, splits), tile["I"]) * tile["I"]
    _best_kernel[grid](
        best, out, left, right, pairs.centre[:, step].contiguous(), batch, n, n, splits, chunk, pairs.per_group(batch),
        *left.stride(), right.stride(0), right.stride(1), left.shape[-1],
        SIZE=pairs.size, PRECISION=pairs.precision, R=rows, **tile,
    )  # fmt: skip
    return out


def walk(messages: Tensor, pairs: Pairs, last: Tensor, count: int = 1, seed: int | None = None) -> Tensor:
    """Paths `[count, B, T]` back along messages `[T, B, N]` from the position `last [B]`; -1 after it.

    Each state is drawn given the next, or without a `seed` is the best.
    """
    length, batch, n = messages.shape
    paths = torch.empty(count, batch, length, dtype=torch.long, device=messages.device)
    block = min(4096 if not pairs.size else 512, triton.next_power_of_2(n))
    _walk_kernel[batch, count](
        messages, paths, last.contiguous(), pairs.left, pairs.right, seed or 0, length, batch, n, pairs.per_group(batch), pairs.steps,
        *pairs.strides, SIZE=pairs.size, I=block, SAMPLE=seed is not None, num_warps=16 if n > 1024 else 4,
    )  # fmt: skip
    return paths
