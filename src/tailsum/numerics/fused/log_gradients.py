"""Gradients of a chain in log space, from the messages of `fused.log_steps`, with the same shapes."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp, finite
from tailsum.numerics.fused.log_steps import Messages, launches
from tailsum.numerics.fused.products import add_product
from tailsum.numerics.fused.scores import Pairs, before_hopper, factor_rows, meet, score_tile
from tailsum.numerics.kernels import ALIGNED

FACTOR_TILE = {"I": 128, "J": 128, "num_warps": 8, "num_stages": 2}  # measured on a Hopper GPU
OLDER_TILE = {"I": 64, "J": 64, "num_warps": 4, "num_stages": 2}


@triton.jit(do_not_specialize=["first", "stop"])
def _flow_kernel(
    source, grad, x, alpha, entering, highest, counter, last, left, right, centre, first, stop,
    batch, n, per_group, table_steps, x_b, x_t,
    group_l, step_l, row_l, column_l, group_r, step_r, row_r, width,
    SIZE: tl.constexpr, I: tl.constexpr, J: tl.constexpr, SOURCE: tl.constexpr, MEET: tl.constexpr,
):  # fmt: skip
    """Steps `first .. stop` back from the end; without a source they begin with `grad` times the posterior of the last position."""
    b, program, programs = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.num_programs(0)
    left += b // per_group * group_l
    right += b // per_group * group_r
    end = tl.load(last + b)
    for back in range(first, tl.minimum(stop, end + 1)):
        t = end - back
        step = tl.minimum(tl.cast(t, tl.int64), table_steps - 1)
        here, after = (t * batch + b) * n, ((t + 1) * batch + b) * n
        base = tl.load(centre + b // per_group * table_steps + step)
        shift = finite(tl.load(highest + t * batch + b))
        weight = 0.0
        if not SOURCE and back == 0:
            total = tl.zeros([J], tl.float32)
            for start in range(0, n, J):
                j = start + tl.arange(0, J)
                total += exp(tl.load(alpha + here + j, j < n, -float("inf")) - shift)
            mass_sum = tl.sum(total, 0)
            weight = tl.where(mass_sum > 0, tl.load(grad + b).to(tl.float32) / mass_sum, 0.0)
        for start in range(program * I, n, programs * I):
            i = start + tl.arange(0, I)
            mass = tl.load(alpha + here + i, i < n, -float("inf")) - shift
            flow = tl.zeros([I], tl.float32)
            if SOURCE:
                flow += tl.load(source + here + i, i < n, 0.0)
            else:
                flow += exp(mass) * weight
            if back > 0:
                for j_start in range(0, n, J):
                    j = j_start + tl.arange(0, J)
                    total = tl.load(entering + after + j, j < n, float("inf"))
                    total = tl.where(total == -float("inf"), float("inf"), total)
                    sent = tl.load(x + b * x_b + (t + 1) * x_t + j, j < n, 0.0, cache_modifier=".cg")
                    rows, columns = left + step * step_l, right + step * step_r
                    scores = score_tile(rows, columns, i, j, n, n, row_l, column_l, row_r, width, SIZE)
                    chance = exp(mass[:, None] + (scores - base) - total[None, :])
                    flow += tl.sum(chance * sent[None, :], 1)
            tl.store(x + b * x_b + t * x_t + i, flow, i < n)
        meet(counter + b, (back + 1) * programs, MEET)


@triton.jit
def _table_gradient_kernel(
    out, alpha, entering, highest, x, last, left, right, centre, batch, n, per_group, table_steps, rows, split_rows, x_b, x_t,
    group_l, step_l, row_l, column_l, group_r, step_r, row_r, width, blocks_j,
    SIZE: tl.constexpr, I: tl.constexpr, J: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The gradient `[split, G, S, N, N]` in the scores; `rows` is the number of sequences and steps that share a table."""
    table, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    i = tl.program_id(0) // blocks_j * I + tl.arange(0, I)
    j = tl.program_id(0) % blocks_j * J + tl.arange(0, J)
    group, step = table // table_steps, table % table_steps
    left, right = left + group * group_l + step * step_l, right + group * group_r + step * step_r
    scores = score_tile(left, right, i, j, n, n, row_l, column_l, row_r, width, SIZE)
    scores -= tl.load(centre + table)
    total_grad = tl.zeros([I, J], tl.float32)
    stop = tl.minimum(rows, (split + 1) * split_rows)
    for start in range(split * split_rows, stop, UNROLL):
        for more in tl.static_range(UNROLL):
            row = tl.cast(start + more, tl.int64)
            t = step + row // per_group  # all steps share the table, or each has its own
            b = group * per_group + row % per_group
            inside = (row < stop) & (t < tl.load(last + tl.where(row < stop, b, 0)))
            place = tl.where(inside, t * batch + b, 0)
            limit = tl.where(inside, n, 0)
            shift = finite(tl.load(highest + place))
            mass = tl.load(alpha + place * n + i, i < limit, -float("inf")) - shift
            total = tl.load(entering + (place + batch) * n + j, j < limit, float("inf"))
            total = tl.where(total == -float("inf"), float("inf"), total)
            sent = tl.load(x + b * x_b + (t + 1) * x_t + j, j < limit, 0.0)
            total_grad += exp(mass[:, None] + scores - total[None, :]) * sent[None, :]
    tables = tl.num_programs(1).to(tl.int64)
    place = ((split * tables + table) * n + i[:, None]) * n + j[None, :]
    tl.store(out + place, total_grad, (i < n)[:, None] & (j < n)[None, :])


@triton.jit
def _factor_gradient_kernel(
    out, own, other, alpha, entering, highest, x, last, batch, n, per_group, table_steps, rows, x_b, x_t,
    group_own, step_own, row_own, group_other, step_other, row_other, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, I: tl.constexpr, J: tl.constexpr, LEFT: tl.constexpr,
):  # fmt: skip
    """The gradient `[G, S, N, d]` in the factors `own`, which are the left ones (LEFT) or the right ones; `other` are the others."""
    table = tl.program_id(1).to(tl.int64)
    group, step = table // table_steps, table % table_steps
    own += group * group_own + step * step_own
    other += group * group_other + step * step_other
    i = tl.program_id(0) * I + tl.arange(0, I)
    d = tl.arange(0, SIZE)
    grads = tl.zeros([I, SIZE], tl.float32)
    for start in range(0, n, J):
        j = start + tl.arange(0, J)
        scores = score_tile(own, other, i, j, n, n, row_own, 1, row_other, width, SIZE)
        weight = tl.zeros([I, J], tl.float32)
        for row in range(rows):
            t = step + row // per_group
            b = group * per_group + row % per_group
            if t < tl.load(last + b):
                place = t * batch + b
                shift = finite(tl.load(highest + place))
                if LEFT:
                    mass = tl.load(alpha + place * n + i, i < n, -float("inf"))[:, None] - shift
                    total = tl.load(entering + (place + batch) * n + j, j < n, float("inf"))[None, :]
                    sent = tl.load(x + b * x_b + (t + 1) * x_t + j, j < n, 0.0)[None, :]
                else:
                    mass = tl.load(alpha + place * n + j, j < n, -float("inf"))[None, :] - shift
                    total = tl.load(entering + (place + batch) * n + i, i < n, float("inf"))[:, None]
                    sent = tl.load(x + b * x_b + (t + 1) * x_t + i, i < n, 0.0)[:, None]
                total = tl.where(total == -float("inf"), float("inf"), total)
                weight += exp(mass + scores - total) * sent
        grads = add_product(grads, weight, factor_rows(other, j, n, row_other, width, SIZE), PRECISION)
    place = (table * n + i[:, None]) * width + d[None, :]
    tl.store(out + place, grads, (i < n)[:, None] & (d < width)[None, :])


def flow_back(
    messages: Messages, pairs: Pairs, last: Tensor, grad: Tensor | None = None, source: Tensor | None = None
) -> Tensor:
    """The gradient `[B, T, N]` in the scores of states, from the gradient of log Z `[B]` or of messages, `source [T, B, N]`."""
    length, batch, n = messages.alpha.shape
    x = messages.alpha.new_zeros(batch, length, n)
    start = grad if source is None else source.contiguous()
    assert start is not None
    tile = pairs.tile(n)
    for first, stop, programs, counter in launches(x, length, tile["I"]):
        _flow_kernel[programs, batch](
            start, start, x, messages.alpha, messages.entering, messages.highest, counter, last, *pairs.pointers, first, stop,
            batch, n, pairs.per_group(batch), pairs.steps, *x.stride()[:2], *pairs.strides, SIZE=pairs.size,
            SOURCE=source is not None, MEET=programs > 1 and stop > first + 1, **tile,
        )  # fmt: skip
    return x


def pair_gradient(messages: Messages, x: Tensor, pairs: Pairs, last: Tensor) -> tuple[Tensor, ...]:
    """The gradient in the table of scores, or in the two factors, for the result `x` of `flow_back`."""
    batch, length, n = x.shape
    per_group = pairs.per_group(batch)
    rows, tables = per_group * ((length - 1) // pairs.steps), pairs.groups * pairs.steps
    state = (messages.alpha, messages.entering, messages.highest, x, last)
    sizes = (batch, n, per_group, pairs.steps, rows)
    if pairs.size:
        grads = list[Tensor]()
        for own, other in ((pairs.left, pairs.right), (pairs.right, pairs.left)):
            out = torch.empty_like(own)
            tile = OLDER_TILE if before_hopper(x.device) else FACTOR_TILE
            tile = tile if pairs.size <= 64 else {**tile, "J": tile["J"] // 2}
            _factor_gradient_kernel[triton.cdiv(n, tile["I"]), tables](
                out, own, other, *state, *sizes, *x.stride()[:2], *own.stride()[:3], *other.stride()[:3], own.shape[-1],
                SIZE=pairs.size, PRECISION=pairs.precision, LEFT=not grads, **tile,
            )  # fmt: skip
            grads.append(out)
        return tuple(grads)
    side = min(64, triton.next_power_of_2(n))
    blocks = triton.cdiv(n, side)
    splits = max(1, min(rows // 16, 512 // max(1, blocks * blocks * tables)))
    split_rows = triton.cdiv(rows, splits)
    out = x.new_empty(splits, pairs.groups, pairs.steps, n, n)
    _table_gradient_kernel[blocks * blocks, tables, splits](
        out, *state[:3], x, last, *pairs.pointers, *sizes, split_rows, *x.stride()[:2], *pairs.strides, blocks,
        SIZE=0, I=side, J=side, UNROLL=min(4, split_rows), num_warps=4 if n % ALIGNED == 0 else 8,
    )  # fmt: skip
    return (out[0] if splits == 1 else out.sum(0),)
