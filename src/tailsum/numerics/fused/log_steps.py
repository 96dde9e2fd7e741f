"""Steps of a chain in log space: sums over the states before, gradients that flow back, and their gradient in the scores.

For tables of each sequence's own, and for few states: the exponential of every score is taken for every sequence, with a
running maximum, so that scores may have any range. The loop over time is in the kernel where one program can do a whole step.

Messages are `[T, B, N]`; pair scores are a table `[G, S, N, M]`, or factors `[G, S, N, d]` and `[G, S, M, d]`, as in
`numerics.table`. The reference is `numerics.log_steps`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.scores import Pairs, score_tile


@triton.jit(do_not_specialize=["first", "steps"])
def _enter_kernel(
    node, alpha, entering, shift, left, right, centre, first, steps, batch, n, m, per_group, table_steps,
    group_l, step_l, row_l, column_l, group_r, step_r, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, I: tl.constexpr, J: tl.constexpr, MAXIMUM: tl.constexpr,
):  # fmt: skip
    b, program, programs = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.num_programs(0)
    left += b // per_group * group_l
    right += b // per_group * group_r
    for t in range(first, first + steps):
        step = tl.minimum(tl.cast(t - 1, tl.int64), table_steps - 1)
        before = alpha + ((t - 1) * batch + b) * n
        here = (t * batch + b) * n
        common = tl.load(shift + (t - 1) * batch + b)
        common = tl.where(common == -float("inf"), 0.0, common)
        base = tl.load(centre + (b // per_group) * table_steps + step)
        highest = -float("inf")
        for start in range(program * J, m, programs * J):
            j = start + tl.arange(0, J)
            top = tl.full([J], -float("inf"), tl.float32)
            total = tl.zeros([J], tl.float32)
            for i_start in range(0, n, I):
                i = i_start + tl.arange(0, I)
                sent = tl.load(before + i, i < n, -float("inf")) - common
                scores = score_tile(
                    left + step * step_l, right + step * step_r, i, j, n, m, row_l, column_l, row_r, width, SIZE, PRECISION
                )
                reach = sent[:, None] + (scores - base)
                new = tl.maximum(top, tl.max(reach, 0))
                if not MAXIMUM:
                    finite = tl.where(new == -float("inf"), 0.0, new)
                    total = total * tl.exp(top - finite) + tl.sum(tl.exp(reach - finite[None, :]), 0)
                top = new
            found = top
            if not MAXIMUM:
                finite = tl.where(top == -float("inf"), 0.0, top)
                found = finite + tl.log(total)
                tl.store(entering + here + j, found, j < m)
            value = tl.load(node + here + j, j < m, -float("inf")) + found
            tl.store(alpha + here + j, value, j < m)
            highest = tl.maximum(highest, tl.max(value, 0))
        if programs == 1:
            tl.store(shift + t * batch + b, highest)
        else:
            tl.atomic_max(shift + t * batch + b, highest)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["last", "steps"])
def _flow_kernel(
    source, x, log_mass, entering, left, right, centre, last, steps, batch, n, m, per_group, table_steps,
    group_l, step_l, row_l, column_l, group_r, step_r, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, I: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    b, program, programs = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.num_programs(0)
    left += b // per_group * group_l
    right += b // per_group * group_r
    for back in range(0, steps):
        t = last - back
        step = tl.minimum(tl.cast(t, tl.int64), table_steps - 1)
        here = (t * batch + b) * n
        after = ((t + 1) * batch + b) * m
        base = tl.load(centre + (b // per_group) * table_steps + step)
        for start in range(program * I, n, programs * I):
            i = start + tl.arange(0, I)
            mass = tl.load(log_mass + here + i, i < n, -float("inf"))
            flow = tl.load(source + here + i, i < n, 0.0)
            for j_start in range(0, m, J):
                j = j_start + tl.arange(0, J)
                total = tl.load(entering + after + j, j < m, float("inf"))
                total = tl.where(total == -float("inf"), float("inf"), total)
                sent = tl.load(x + after + j, j < m, 0.0)
                scores = score_tile(
                    left + step * step_l, right + step * step_r, i, j, n, m, row_l, column_l, row_r, width, SIZE, PRECISION
                )
                chance = tl.exp(mass[:, None] + (scores - base) - total[None, :])
                flow += tl.sum(chance * sent[None, :], 1)
            tl.store(x + here + i, flow, i < n)
        tl.debug_barrier()


@triton.jit
def _table_gradient_kernel(
    out, log_mass, entering, x, left, right, centre, batch, n, m, per_group, table_steps, rows, split_rows,
    group_l, step_l, row_l, column_l, group_r, step_r, row_r, width, blocks_j,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, I: tl.constexpr, J: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The gradient `[split, G, S, N, M]` in the scores; `rows` is how many sequences and steps share a table."""
    table, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    i = tl.program_id(0) // blocks_j * I + tl.arange(0, I)
    j = tl.program_id(0) % blocks_j * J + tl.arange(0, J)
    group, step = table // table_steps, table % table_steps
    scores = score_tile(
        left + group * group_l + step * step_l, right + group * group_r + step * step_r, i, j, n, m,
        row_l, column_l, row_r, width, SIZE, PRECISION,
    )  # fmt: skip
    scores -= tl.load(centre + table)
    found = tl.zeros([I, J], tl.float32)
    for start in range(split * split_rows, tl.minimum(rows, (split + 1) * split_rows), UNROLL):
        for more in tl.static_range(UNROLL):
            row = tl.cast(start + more, tl.int64)
            inside_n, inside_m = i < tl.where(row < rows, n, 0), j < tl.where(row < rows, m, 0)
            t = step + row // per_group  # all steps share the table, or each has its own
            b = group * per_group + row % per_group
            place = t * batch + b
            mass = tl.load(log_mass + place * n + i, inside_n, -float("inf"))
            total = tl.load(entering + (place + batch) * m + j, inside_m, float("inf"))
            total = tl.where(total == -float("inf"), float("inf"), total)
            sent = tl.load(x + (place + batch) * m + j, inside_m, 0.0)
            found += tl.exp(mass[:, None] + scores - total[None, :]) * sent[None, :]
    tables = tl.num_programs(1).to(tl.int64)
    place = ((split * tables + table) * n + i[:, None]) * m + j[None, :]
    tl.store(out + place, found, (i < n)[:, None] & (j < m)[None, :])


@triton.jit
def _factor_gradient_kernel(
    out, own, other, log_mass, entering, x, batch, n, m, per_group, table_steps, rows,
    group_own, step_own, row_own, group_other, step_other, row_other, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, I: tl.constexpr, J: tl.constexpr, LEFT: tl.constexpr,
):  # fmt: skip
    """The gradient `[G, S, N, d]` in the left factors (LEFT), or `[G, S, M, d]` in the right ones.

    `n` and `m` are the numbers of states of `own` and of `other`: of left and right, or the other way round.
    """
    table = tl.program_id(1).to(tl.int64)
    group, step = table // table_steps, table % table_steps
    own += group * group_own + step * step_own
    other += group * group_other + step * step_other
    i = tl.program_id(0) * I + tl.arange(0, I)
    d = tl.arange(0, SIZE)
    found = tl.zeros([I, SIZE], tl.float32)
    for start in range(0, m, J):
        j = start + tl.arange(0, J)
        scores = score_tile(own, other, i, j, n, m, row_own, 1, row_other, width, SIZE, PRECISION)
        weight = tl.zeros([I, J], tl.float32)
        for row in range(0, rows):
            t = step + row // per_group
            place = t * batch + group * per_group + row % per_group
            if LEFT:
                mass = tl.load(log_mass + place * n + i, i < n, -float("inf"))[:, None]
                total = tl.load(entering + (place + batch) * m + j, j < m, float("inf"))[None, :]
                sent = tl.load(x + (place + batch) * m + j, j < m, 0.0)[None, :]
            else:
                mass = tl.load(log_mass + place * m + j, j < m, -float("inf"))[None, :]
                total = tl.load(entering + (place + batch) * n + i, i < n, float("inf"))[:, None]
                sent = tl.load(x + (place + batch) * n + i, i < n, 0.0)[:, None]
            total = tl.where(total == -float("inf"), float("inf"), total)
            weight += tl.exp(mass + scores - total) * sent
        columns = tl.load(other + j[:, None].to(tl.int64) * row_other + d[None, :], (j < m)[:, None] & (d < width)[None, :], 0.0)
        found += tl.dot(weight, columns, input_precision=PRECISION)
    place = (table * n + i[:, None]) * width + d[None, :]
    tl.store(out + place, found, (i < n)[:, None] & (d < width)[None, :])


def enter(node: Tensor, pairs: Pairs, maximum: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Messages `alpha [T, B, N]`, what entered each state, and the highest of each message `[T, B]`.

    A message is a sum over the states before of `exp(alpha - highest)`, or a maximum. `pairs` are scores less their centre.
    What entered the states of the first position is zero.
    """
    length, batch, n = node.shape
    alpha, entering = torch.empty_like(node), torch.empty_like(node[:1] if maximum else node)
    shift = node.new_full((length, batch), -torch.inf)
    alpha[0], entering[0], shift[0] = node[0], 0.0, node[0].amax(-1)
    tile = pairs.tile(n)
    for first, steps, programs in pairs.launches(1, length, batch, n, tile.columns):
        _enter_kernel[programs, batch](
            node, alpha, entering, shift, *pairs.pointers, first, steps, batch, n, n, pairs.per_group(batch), pairs.steps,
            *pairs.strides, SIZE=pairs.size, PRECISION=pairs.precision, I=tile.rows, J=tile.columns, MAXIMUM=maximum,
            num_warps=tile.warps,
        )  # fmt: skip
    return alpha, entering, shift


def flow_back(source: Tensor, log_mass: Tensor, entering: Tensor, pairs: Pairs) -> Tensor:
    """`x_t(i) = source_t(i) + sum_j exp(log_mass_t(i) + score(i, j) - entering_{t+1}(j)) x_{t+1}(j)`."""
    length, batch, n = source.shape
    x = torch.empty_like(source)
    x[-1] = source[-1]
    tile = pairs.tile(n)
    for first, steps, programs in pairs.launches(0, length - 1, batch, n, tile.rows):
        last = length - 2 - first
        _flow_kernel[programs, batch](
            source, x, log_mass, entering, *pairs.pointers, last, steps, batch, n, n, pairs.per_group(batch), pairs.steps,
            *pairs.strides, SIZE=pairs.size, PRECISION=pairs.precision, I=tile.rows, J=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
    return x


def pair_gradient(log_mass: Tensor, entering: Tensor, x: Tensor, pairs: Pairs) -> tuple[Tensor, ...]:
    """The gradient in the table of scores, or in their factors, for the `x` that `flow_back` found."""
    length, batch, n = x.shape
    per_group = pairs.per_group(batch)
    rows, tables = per_group * ((length - 1) // pairs.steps), pairs.groups * pairs.steps
    sizes = (batch, n, n, per_group, pairs.steps, rows)
    if pairs.size:
        found = []
        for left in (True, False):
            own, other = (pairs.left, pairs.right) if left else (pairs.right, pairs.left)
            out, tile = torch.empty_like(own), pairs.tile(n)
            _factor_gradient_kernel[triton.cdiv(n, 64), tables](
                out, own, other, log_mass, entering, x, *sizes, *own.stride()[:3], *other.stride()[:3], own.shape[-1],
                SIZE=pairs.size, PRECISION=pairs.precision, I=64, J=32, LEFT=left, num_warps=tile.warps,
            )  # fmt: skip
            found.append(out)
        return tuple(found)
    side = min(64, triton.next_power_of_2(n))
    blocks = triton.cdiv(n, side)
    splits = max(1, min(rows // 16, 512 // max(1, blocks * blocks * tables)))
    split_rows = triton.cdiv(rows, splits)
    out = x.new_empty(splits, pairs.groups, pairs.steps, n, n)
    _table_gradient_kernel[blocks * blocks, tables, splits](
        out, log_mass, entering, x, *pairs.pointers, *sizes, split_rows, *pairs.strides, blocks,
        SIZE=0, PRECISION=pairs.precision, I=side, J=side, UNROLL=min(4, split_rows), num_warps=4,
    )  # fmt: skip
    return (out[0] if splits == 1 else out.sum(0),)
