"""Best paths and sampled paths of a chain: maxima over the states before, and walks back along the messages."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import finite
from tailsum.numerics.fused.kernel import unseen
from tailsum.numerics.fused.scores import Pairs, at_once, meet, meets, score_tile

FACTOR_TILE = {"I": 128, "J": 32, "num_warps": 4}
BLOCK = 1024  # states of one program of `_settle_kernel`
LARGE = 4096  # states: from here on, several programs share the search for one state of a path
CHUNK = 512  # states that one of them looks at, at least
PROGRAMS = 528  # about four for each multiprocessor


@triton.jit
def _best_kernel(
    sent, best, left, right, centre, rows, n, m, splits, chunk, per_group, group_l, row_l, column_l, group_r, row_r, width,
    SIZE: tl.constexpr, R: tl.constexpr, I: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """`best(s, r, j) = max_i sent(i, r) + score(i, j)` over the s-th part of the states i, for R sequences that share a table."""
    group = tl.program_id(2).to(tl.int64)
    first = group * per_group + tl.program_id(1) // splits * R
    begin = tl.program_id(1) % splits * chunk
    stop = tl.minimum(n, begin + chunk)
    limit = (group + 1) * per_group
    j = tl.program_id(0) * J + tl.arange(0, J)
    left, right = left + group * group_l, right + group * group_r
    base = tl.load(centre + group)
    best += tl.program_id(1) % splits * rows * m
    if SIZE == 0:
        # A maximum for each sequence, in as many registers as a thread has columns. All threads load the same message, and
        # exchange nothing.
        top = ()
        for _ in tl.static_range(R):
            top = top + (tl.full([J], -float("inf"), tl.float32),)  # noqa: RUF005  (Triton cannot unpack)
        for start in range(begin, stop, I):
            for more in tl.static_range(I):
                i = tl.cast(start + more, tl.int64)
                # Beyond the last state there is room in `sent`, and no scores are read.
                scores = tl.load(
                    left + i * row_l + j.to(tl.int64) * column_l, j < tl.where(i < stop, m, 0), -float("inf")
                )
                scores -= base
                higher = ()
                for one in tl.static_range(R):
                    message = tl.load(sent + i * rows + first + one)
                    higher = higher + (tl.maximum(top[one], message + scores),)  # noqa: RUF005
                top = higher
        for one in tl.static_range(R):
            tl.store(best + (first + one) * m + j, top[one], j < tl.where(first + one < limit, m, 0))
    else:
        r = first + tl.arange(0, R)
        top = tl.full([R, J], -float("inf"), tl.float32)
        for start in range(begin, stop, I):
            i = start + tl.arange(0, I)
            scores = score_tile(left, right, i, j, n, m, row_l, column_l, row_r, width, SIZE) - base
            for one in tl.static_range(R):
                here = first + one
                message = tl.load(sent + i * rows + here, i < tl.where(here < limit, stop, 0), -float("inf"))
                highest = tl.max(message[:, None] + scores, 0)
                top = tl.where((r == here)[:, None], tl.maximum(top, highest[None, :]), top)
        tl.store(best + r[:, None] * m + j[None, :], top, (r < limit)[:, None] & (j < m)[None, :])


@triton.jit
def _settle_kernel(node, parts, before, best, sent, shift, batch, n, splits, BLOCK: tl.constexpr):
    """Messages minus the highest one `before`, to `best` and `sent`, from the maxima of all parts; their highest to `shift`."""
    b = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    for part in range(splits):
        top = tl.maximum(top, tl.load(parts + (part * batch + b) * n + j, j < n, -float("inf")))
    common = finite(tl.load(before + b))
    value = tl.load(node + b * n + j, j < n, -float("inf")) + (top - common)
    tl.store(best + b * n + j, value, j < n)
    tl.store(sent + j.to(tl.int64) * batch + b, value, j < n)  # by state, its sequences together
    tl.atomic_max(shift + b, tl.max(value, 0))


@triton.jit
def _key(value, place):
    """A whole number that is higher for a higher value, and for a lower place where values are equal."""
    bits = value.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) + (0x7FFFFFFF - place)


@triton.jit(do_not_specialize=["seed", "first", "stop"])
def _walk_kernel(
    messages, paths, last, left, right, keys, counter, seed, first, stop, length, batch, n, chunk, per_group, table_steps,
    group_l, step_l, row_l, column_l, group_r, step_r, row_r, width,
    SIZE: tl.constexpr, I: tl.constexpr, SAMPLE: tl.constexpr, APART: tl.constexpr, MEET: tl.constexpr,
):  # fmt: skip
    """A path from the last position back: at each, the best state given the next one, or a sampled one (by Gumbel noise).

    If APART, each program looks at a part of the states, and they agree on the highest of their `keys [paths, T]`.
    """
    b, count, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    end = tl.load(last + b)
    left += b // per_group * group_l
    right += b // per_group * group_r
    path = (count * batch + b) * length
    state = end * 0
    for back in range(first, stop):
        t = length - 1 - back
        if t <= end:
            step = tl.minimum(tl.cast(t, tl.int64), table_steps - 1)
            if APART and t < end:
                state = (0x7FFFFFFF - (tl.load(keys + path + t + 1, cache_modifier=".cg") & 0xFFFFFFFF)).to(tl.int64)
            highest, best = -float("inf"), end * 0
            for start in range(part * chunk, tl.minimum(n, part * chunk + chunk), I):
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
                    uniform = tl.rand(seed, (path + t) * n + i) + 2.3e-10
                    wait = tl.where(uniform < 1e-3, uniform * (1 + 0.5 * uniform), -tl.log(1 - uniform))
                    logits -= tl.log(wait)
                top = tl.max(logits, 0)
                place = tl.argmax(logits, 0) + start
                best = tl.where(top > highest, place.to(tl.int64), best)
                highest = tl.maximum(highest, top)
            if APART:
                tl.atomic_max(keys + path + t, _key(highest, best))
            else:
                state = best
                tl.store(paths + path + t, state)
        elif not APART:
            tl.store(paths + path + t, -1)
        if MEET:
            meet(counter + count * batch + b, (back + 1 - first) * tl.num_programs(2), MEET)


def best_messages(node: Tensor, pairs: Pairs) -> Tensor:
    """The score of the best path into each state `[T, B, N]`, from scores of states `[T, B, N]`.

    At each position a common number is subtracted, so that scores do not grow with the length.
    """
    length, batch, n = node.shape
    node, best, shift = node.contiguous(), torch.empty_like(node), node.new_full((length, batch), -torch.inf)
    best[0], shift[0] = node[0], node[0].amax(-1)
    together = pairs.per_group(batch)
    rows = min(16, triton.next_power_of_2(together))
    tile = FACTOR_TILE if pairs.size else _table_tile(rows, n)
    blocks, row_blocks = triton.cdiv(n, tile["J"]), triton.cdiv(together, rows)
    splits = max(1, min(triton.cdiv(n, 16), PROGRAMS // (blocks * row_blocks * pairs.groups)))
    chunk = triton.cdiv(triton.cdiv(n, splits), tile["I"]) * tile["I"]
    parts, centre = node.new_empty(splits, batch, n), pairs.centre.mT.contiguous()
    sent = node.new_zeros((n + tile["I"]) * batch + rows)
    sent[: n * batch] = node[0].T.flatten()
    for t in range(1, length):
        step = min(t, pairs.steps) - 1
        left, right = pairs.left[:, step], pairs.right[:, step]
        _best_kernel[blocks, row_blocks * splits, pairs.groups](
            sent, parts, left, right, centre[step], batch, n, n, splits, chunk, together,
            *left.stride(), right.stride(0), right.stride(1), left.shape[-1],
            SIZE=pairs.size, R=rows, **tile,
        )  # fmt: skip
        _settle_kernel[triton.cdiv(n, BLOCK), batch](
            node[t], parts, shift[t - 1], best[t], sent, shift[t], batch, n, splits, BLOCK=BLOCK
        )
    return best


def _table_tile(rows: int, n: int) -> dict[str, int]:
    """Tiles with 64 maxima in the registers of each thread."""
    columns = 512 if rows == 16 else 1024
    return {"I": 4, "J": min(columns, max(32, triton.next_power_of_2(n))), "num_warps": 4}


def walk(messages: Tensor, pairs: Pairs, last: Tensor, count: int = 1, seed: int | None = None) -> Tensor:
    """Paths `[count, B, T]` back along messages `[T, B, N]` from the position `last [B]`, -1 after it.

    Each state is sampled given the next one; without a `seed` it is the best.
    """
    length, batch, n = messages.shape
    programs = min(triton.cdiv(n, CHUNK), at_once(last.device) // max(1, batch * count)) if meets() else 2
    apart = n >= LARGE and programs > 1 and unseen(messages)
    paths = torch.empty(count, batch, length, dtype=torch.long, device=last.device)
    keys = torch.full_like(paths, torch.iinfo(torch.long).min) if apart else paths
    counter = torch.zeros(count * batch if apart else 1, dtype=torch.int32, device=last.device)
    if apart:
        tile = {"I": 1024 if not pairs.size else 128, "num_warps": 4}
        launches = [(0, length)] if meets() else [(back, back + 1) for back in range(length)]
    else:
        block = min(4096 if not pairs.size else 512, triton.next_power_of_2(n))
        tile, launches = {"I": block, "num_warps": 16 if n > 1024 or pairs.size else 4}, [(0, length)]
    chunk = triton.cdiv(n, programs) if apart else n
    for first, stop in launches:
        _walk_kernel[batch, count, programs if apart else 1](
            messages, paths, last.contiguous(), pairs.left, pairs.right, keys, counter, seed or 0, first, stop, length, batch, n, chunk,
            pairs.per_group(batch), pairs.steps, *pairs.strides,
            SIZE=pairs.size, SAMPLE=seed is not None, APART=apart, MEET=apart and stop > first + 1, **tile,
        )  # fmt: skip
    if apart:
        paths = torch.where(
            torch.arange(length, device=last.device) <= last[:, None], 0x7FFFFFFF - (keys & 0xFFFFFFFF), -1
        )
    return paths
