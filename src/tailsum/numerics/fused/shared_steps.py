"""Steps of a chain whose sequences share a table: products of many messages at once with exponentiated scores.

As `chains.scan` computes them in plain torch, with what comes before and after each product in the same kernel. The entries of
the table, `exp(score - scale)` with the highest score of each column as its scale, are read, or made from factors in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.scores import Pairs, score_tile
from tailsum.numerics.table import Table


@triton.jit
def rounded(x):
    """To the nearest number that tf32 has: tensor cores would cut the last bits off, always downwards."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & ~0x1FFF).to(tl.float32, bitcast=True)


@triton.jit
def _product_tile(x, entries, total, PRECISION: tl.constexpr):
    if PRECISION == "tf32":
        x, entries = rounded(x), rounded(entries)
    return tl.dot(x, entries, total, input_precision=PRECISION)


@triton.jit(do_not_specialize=["t"])
def _push_kernel(
    node, alpha, total, shift, column_scale, left, right, scale, t, batch, n, m, per_group,
    group_l, row_l, column_l, group_r, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, R: tl.constexpr, I: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(2).to(tl.int64)
    r = group * per_group + tl.program_id(1) * R + tl.arange(0, R)
    inside = r < (group + 1) * per_group
    j = tl.program_id(0) * J + tl.arange(0, J)
    left, right = left + group * group_l, right + group * group_r
    before = alpha + ((t - 1) * batch + r) * n
    common = tl.load(shift + (t - 1) * batch + r, inside, 0.0)
    common = tl.where(common == -float("inf"), 0.0, common)
    sums = tl.zeros([R, J], tl.float32)
    if SIZE > 0:
        scales = tl.load(scale + group * m + j, j < m, 0.0)
    for start in range(0, n, I):
        i = start + tl.arange(0, I)
        sent = tl.load(before[:, None] + i[None, :], inside[:, None] & (i < n)[None, :], -float("inf"))
        mass = tl.exp(sent - common[:, None])
        if SIZE == 0:
            place = left + i[:, None].to(tl.int64) * row_l + j[None, :].to(tl.int64) * column_l
            entries = tl.load(place, (i < n)[:, None] & (j < m)[None, :], 0.0)
        else:
            scores = score_tile(left, right, i, j, n, m, row_l, column_l, row_r, width, SIZE, PRECISION)
            entries = tl.exp(scores - scales[None, :])
        sums = _product_tile(mass, entries, sums, PRECISION)
    here = (t * batch + r[:, None]) * m + j[None, :]
    within = inside[:, None] & (j < m)[None, :]
    tl.store(total + here, sums, within)
    value = tl.load(node + here, within, -float("inf")) + tl.log(sums)
    value += tl.load(column_scale + group * m + j, j < m, 0.0)[None, :]
    tl.store(alpha + here, value, within)
    tl.atomic_max(shift + t * batch + r, tl.max(tl.where(within, value, -float("inf")), 1), inside)


@triton.jit(do_not_specialize=["s", "t"])
def _flow_kernel(
    source, inlet, after, before, x, h, left, right, scale, s, t, batch, n, m, per_group,
    group_l, row_l, column_l, group_r, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, R: tl.constexpr, I: tl.constexpr, J: tl.constexpr,
    REVERSE: tl.constexpr, INLET: tl.constexpr,
):  # fmt: skip
    """`h_t = E (before_s x_s + inlet_s)`, `x_t = source_t + after_t h_t`; n states sum to m states."""
    group = tl.program_id(2).to(tl.int64)
    r = group * per_group + tl.program_id(1) * R + tl.arange(0, R)
    inside = r < (group + 1) * per_group
    j = tl.program_id(0) * J + tl.arange(0, J)
    left, right = left + group * group_l, right + group * group_r
    sums = tl.zeros([R, J], tl.float32)
    if SIZE > 0 and not REVERSE:
        scales = tl.load(scale + group * m + j, j < m, 0.0)[None, :]
    for start in range(0, n, I):
        i = start + tl.arange(0, I)
        place = (s * batch + r[:, None]) * n + i[None, :]
        within = inside[:, None] & (i < n)[None, :]
        sent = tl.load(before + place, within, 0.0) * tl.load(x + place, within, 0.0)
        if INLET:
            sent += tl.load(inlet + place, within, 0.0)
        if SIZE == 0:
            entry = left + i[:, None].to(tl.int64) * row_l + j[None, :].to(tl.int64) * column_l
            entries = tl.load(entry, (i < n)[:, None] & (j < m)[None, :], 0.0)
        else:
            scores = score_tile(left, right, i, j, n, m, row_l, column_l, row_r, width, SIZE, PRECISION)
            if REVERSE:
                scales = tl.load(scale + group * n + i, i < n, 0.0)[:, None]
            entries = tl.exp(scores - scales)
        sums = _product_tile(sent, entries, sums, PRECISION)
    here = (t * batch + r[:, None]) * m + j[None, :]
    within = inside[:, None] & (j < m)[None, :]
    tl.store(h + here, sums, within)
    result = tl.load(source + here, within, 0.0) + tl.load(after + here, within, 0.0) * sums
    tl.store(x + here, result, within)


@triton.jit
def _weight_kernel(
    out, early, late, left, right, scale, rows, n, m, blocks_j,
    row_l, column_l, row_r, width, row_x, row_y,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, I: tl.constexpr, J: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """`E(i, j) sum_r early(r, i) late(r, j)`: the gradient in the scores of one table."""
    i = (tl.program_id(0) // blocks_j) * I + tl.arange(0, I)
    j = (tl.program_id(0) % blocks_j) * J + tl.arange(0, J)
    sums = tl.zeros([I, J], tl.float32)
    for start in range(0, rows, R):
        r = start + tl.arange(0, R)
        x = tl.load(early + r[None, :].to(tl.int64) * row_x + i[:, None], (r < rows)[None, :] & (i < n)[:, None], 0.0)
        y = tl.load(late + r[:, None].to(tl.int64) * row_y + j[None, :], (r < rows)[:, None] & (j < m)[None, :], 0.0)
        sums = _product_tile(x, y, sums, PRECISION)
    within = (i < n)[:, None] & (j < m)[None, :]
    scores = score_tile(left, right, i, j, n, m, row_l, column_l, row_r, width, SIZE, PRECISION)
    entries = tl.exp(scores - tl.load(scale + j, j < m, 0.0)[None, :])
    tl.store(out + i[:, None].to(tl.int64) * m + j[None, :], sums * entries, within)


def forward_steps(node: Tensor, table: Table) -> tuple[Tensor, Tensor, Tensor]:
    """Messages `[T, B, N]` less their highest, the highest `[T, B]`, and the sum that entered each state."""
    length, batch, n = node.shape
    alpha, total = torch.empty_like(node), torch.ones_like(node)
    shift = node.new_full((length, batch), -torch.inf)
    alpha[0], shift[0] = node[0], node[0].amax(-1)
    for t in range(1, length):
        step, blocks = min(t - 1, table.steps - 1), _Blocks.of(table)
        entries = _entries(table, step, False)
        _push_kernel[blocks.grid(n, batch, table.groups)](
            node, alpha, total, shift, table.column_scale[step], *entries, t, batch, n, n, batch // table.groups,
            *_strides(*entries[:2], table.kept is None), **blocks.options, PRECISION=table.precision,
        )  # fmt: skip
    highest = shift.clamp_(min=torch.finfo(node.dtype).min)
    return alpha.sub_(highest[..., None]), highest, total


def flow_steps(
    table: Table, reverse: bool, source: Tensor, inlet: Tensor | None, after: Tensor, before: Tensor
) -> tuple[Tensor, Tensor]:
    """As `chains.scan` has it: `x_t = source_t + after_t h_t`, `h_t = E (before_s x_s + inlet_s)`."""
    length, batch, n = source.shape
    source, after, before = source.contiguous(), after.contiguous(), before.contiguous()
    x, h = torch.empty_like(source), torch.zeros_like(source)
    order = range(length - 1, -1, -1) if reverse else range(length)
    x[order[0]] = source[order[0]]
    blocks = _Blocks.of(table)
    for s, t in zip(order, order[1:], strict=False):
        entries = _entries(table, min(s, t, table.steps - 1), reverse)
        _flow_kernel[blocks.grid(n, batch, table.groups)](
            source, source if inlet is None else inlet.contiguous(), after, before, x, h, *entries, s, t, batch, n, n,
            batch // table.groups, *_strides(*entries[:2], table.kept is None), **blocks.options,
            PRECISION=table.precision, REVERSE=reverse, INLET=inlet is not None,
        )  # fmt: skip
    return x, h


def weights(x: Tensor, y: Tensor, params: tuple[Tensor, ...], scale: Tensor, precision: str) -> Tensor:
    """`exp(score - scale) * (x @ y)` for x `[G, S, N, R]` and y `[G, S, R, M]`: the gradient in the scores `[G, S, N, M]`."""
    groups, steps, n, rows = x.shape
    m, from_factors = y.shape[-1], len(params) == 2
    out = x.new_empty(groups, steps, n, m)
    x, y = (x if x.stride(-2) == 1 else x.mT.contiguous().mT), y.contiguous()
    left, right = params[0], params[-1]
    if from_factors:
        left, right = left.contiguous(), right.contiguous()
    size = max(16, triton.next_power_of_2(left.shape[-1])) if from_factors else 0
    blocks = triton.cdiv(m, 128)
    for g in range(groups):
        for s in range(steps):
            _weight_kernel[triton.cdiv(n, 128) * blocks,](
                out[g, s], x[g, s], y[g, s], left[g, s], right[g, s], scale[g, s], rows, n, m, blocks,
                *left.stride()[2:], right.stride(2), left.shape[-1], x.stride(-1), y.stride(-2),
                SIZE=size, PRECISION=precision, I=128, J=128, R=32, num_warps=8, num_stages=3,
            )  # fmt: skip
    return out


class _Blocks:
    """The sizes of tiles, measured on a Hopper GPU."""

    def __init__(self, rows: int, options: dict[str, int]) -> None:
        self.rows, self.options = rows, options

    @staticmethod
    def of(table: Table) -> "_Blocks":
        size = 0 if table.kept is not None else max(16, triton.next_power_of_2(table.params[0].shape[-1]))
        sizes = {"I": 64, "J": 64, "num_warps": 4, "num_stages": 4} if size == 0 else {"I": 64, "J": 64, "num_warps": 4, "num_stages": 2}
        return _Blocks(16, {"SIZE": size, "R": 16, **sizes})

    def grid(self, n: int, batch: int, groups: int) -> tuple[int, int, int]:
        return triton.cdiv(n, self.options["J"]), triton.cdiv(batch // groups, self.rows), groups


def _entries(table: Table, step: int, transposed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What a step's entries are made from: the kept table twice, or its factors; and the scale of each column `[G, M]`."""
    scale = table.scales[step]
    if table.kept is not None:
        kept = table.kept[:, step].mT if transposed else table.kept[:, step]
        return kept, kept, scale
    left, right = (p[:, step] for p in table.params)
    return (right, left, scale) if transposed else (left, right, scale)


def _strides(left: Tensor, right: Tensor, from_factors: bool) -> tuple[int, ...]:
    return (*left.stride(), right.stride(0), right.stride(1), left.shape[-1] if from_factors else 0)
