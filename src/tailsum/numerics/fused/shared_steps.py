"""Steps of a chain whose sequences share a table: products of many messages at once with exponentiated scores.

The reference is `chains.ways.scan`. One kernel has the products, what comes before and after each of them, and the loop over time.
Entries of the table, `exp(score - scale)` with the highest score of each column as the scale, are read, or made from factors.

A step has phases, between which programs wait for one another. First each adds up as many tiles of the table as every other, one
after another by blocks of columns, so that no multiprocessor is left without work; where a block is shared by several programs,
each has a slot for its part of the sums. Then the parts are added up, always in the same order.
"""

# pyright: reportArgumentType=false

from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp, finite
from tailsum.numerics.fused.products import FAST_SCORES, add_split_product, rounded, score_product
from tailsum.numerics.fused.scores import at_once, before_hopper, factor_columns, factor_rows, meet, meets, padded


class Table(Protocol):
    """What the kernels read of a `scores.table.Table`, which imports kernels itself."""

    pairs: Any
    kept: Tensor | None
    storage: Tensor  # of what is kept, filled up with zeros
    groups: int
    steps: int
    scales: Tensor
    column_scale: Tensor
    precision: str


@triton.jit
def _entry_tile(
    left, columns, scale, i, j, n, m, row_l, column_l, width,
    SIZE: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Entries of the table for states i [I], the dimension of the sum, and j [J]."""
    inside = (i < n)[:, None] & (j < m)[None, :]
    if SIZE == 0:
        entries = tl.load(left + i[:, None].to(tl.int64) * row_l + j[None, :].to(tl.int64) * column_l, inside, 0.0)
    else:
        rows = factor_rows(left, i, n, row_l, width, SIZE)
        if PRECISION == "tf32":
            scores = tl.dot(rows, columns, input_precision=FAST_SCORES)
        else:
            scores = score_product(rows, columns)
        if REVERSE:  # columns of the table are rows of its transpose
            scores -= tl.load(scale + i, i < n, 0.0)[:, None]
        else:
            scores -= tl.load(scale + j, j < m, 0.0)[None, :]
        entries = tl.where(inside, exp(scores), 0.0)
    return entries


@triton.jit
def _store_split(high, low, place, value, within, PRECISION: tl.constexpr):
    """Store messages as the nearest numbers in tf32, and the differences from them."""
    near = rounded(value)
    tl.store(high + place, near, within)
    if PRECISION != "tf32":
        tl.store(low + place, value - near, within)


@triton.jit
def _add_messages(sums, high, low, place, there, entries, PRECISION: tl.constexpr):
    """`sums` plus a product of messages with a tile of entries."""
    x = tl.load(high + place, there, 0.0, cache_modifier=".cg")
    rest = x
    if PRECISION != "tf32":
        rest = tl.load(low + place, there, 0.0, cache_modifier=".cg")
    return add_split_product(sums, x, rest, entries, PRECISION)


@triton.jit
def _add_tiles(
    parts, high, low, left, right, scale, r, inside, sent, batch, n, row_l, column_l, row_r, width, share,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, R: tl.constexpr, I: tl.constexpr, J: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """The sums over this program's `share` of all tiles, to its slots in `parts [slots, B, N]`."""
    program, tiles, blocks = tl.program_id(0), tl.cdiv(n, I), tl.cdiv(n, J)
    tile = program * share
    stop = tl.minimum(tile + share, tiles * blocks)
    while tile < stop:
        block, begin = tile // tiles, tile % tiles
        end = tl.minimum(tiles, begin + stop - tile)
        j = block * J + tl.arange(0, J)
        factors = 0.0 if SIZE == 0 else factor_columns(right, j, n, row_r, width, SIZE)
        sums = tl.zeros([R, J], tl.float32)
        for k in range(begin, end):
            i = k * I + tl.arange(0, I)
            entries = _entry_tile(left, factors, scale, i, j, n, n, row_l, column_l, width, SIZE, REVERSE, PRECISION)
            there = inside[:, None] & (i < n)[None, :]
            sums = _add_messages(sums, high, low, sent + i[None, :], there, entries, PRECISION)
        slot = (program - block * tiles // share) * batch
        tl.store(parts + (slot + r[:, None]) * n + j[None, :], sums, inside[:, None] & (j < n)[None, :])
        tile += end - begin


@triton.jit
def _whole_sums(parts, r, j, block, within, batch, n, share, R: tl.constexpr, I: tl.constexpr, J: tl.constexpr):
    """The sums `[R, J]` of a block of columns, from all slots that have a part of it."""
    tiles = tl.cdiv(n, I)
    sums = tl.zeros([R, J], tl.float32)
    for slot in range((block * tiles + tiles - 1) // share - block * tiles // share + 1):
        place = parts + (slot * batch + r[:, None]) * n + j[None, :]
        sums += tl.load(place, within, 0.0, cache_modifier=".cg")
    return sums


@triton.jit(do_not_specialize=["first", "stop"])
def _push_kernel(
    node, alpha, high, low, total, shift, parts, counter, column_scale, left, right, scale, first, stop, batch, n, share, groups,
    per_group, table_steps, group_l, step_l, row_l, column_l, group_r, step_r, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, R: tl.constexpr, I: tl.constexpr, J: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """Messages `alpha_t = node_t + log(mass_{t-1} E) + column_scale`, and `high + low = mass_t = exp(alpha_t - shift_t)`.

    One PHASE of three, or all of them.
    """
    program, programs, group = tl.program_id(0), tl.num_programs(0), tl.program_id(2).to(tl.int64)
    r = group * per_group + tl.program_id(1) * R + tl.arange(0, R)
    inside = r < (group + 1) * per_group
    counter += group * tl.num_programs(1) + tl.program_id(1)
    blocks, met = tl.cdiv(n, J), 0
    sent = r[:, None] * n
    for t in range(first, stop):
        step = tl.minimum(tl.cast(t - 1, tl.int64), table_steps - 1)
        scales = (step * groups + group) * n
        if PHASE < 2:
            rows, columns = left + group * group_l + step * step_l, right + group * group_r + step * step_r
            _add_tiles(
                parts, high, low, rows, columns, scale + scales, r, inside, sent, batch, n, row_l, column_l, row_r, width,
                share, SIZE, PRECISION, R, I, J, False,
            )  # fmt: skip
        if PHASE == 0:
            met += programs
            meet(counter, met, True)
        if PHASE % 2 == 0:
            for block in range(program, blocks, programs):
                j = block * J + tl.arange(0, J)
                within = inside[:, None] & (j < n)[None, :]
                sums = _whole_sums(parts, r, j, block, within, batch, n, share, R, I, J)
                here = (t * batch + r[:, None]) * n + j[None, :]
                tl.store(total + here, sums, within)
                value = tl.load(node + here, within, -float("inf")) + tl.log(sums)
                value += tl.load(column_scale + scales + j, j < n, 0.0)[None, :]
                tl.store(alpha + here, value, within)
                tl.atomic_max(shift + t * batch + r, tl.max(tl.where(within, value, -float("inf")), 1), inside)
        if PHASE == 0:
            met += programs
            meet(counter, met, True)
        if PHASE % 3 == 0:
            common = finite(tl.load(shift + t * batch + r, inside, 0.0, cache_modifier=".cg"))
            for block in range(program, blocks, programs):  # what this program has written
                j = block * J + tl.arange(0, J)
                within = inside[:, None] & (j < n)[None, :]
                value = tl.load(alpha + (t * batch + r[:, None]) * n + j[None, :], within, -float("inf"))
                _store_split(high, low, sent + j[None, :], exp(value - common[:, None]), within, PRECISION)
        if PHASE == 0:
            met += programs
            meet(counter, met, True)


@triton.jit(do_not_specialize=["first", "stop"])
def _flow_kernel(
    source, inlet, after, before, x, h, high, low, parts, counter, left, right, scale, first, stop, length, batch, n, share, groups,
    per_group, table_steps, group_l, step_l, row_l, column_l, group_r, step_r, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, R: tl.constexpr, I: tl.constexpr, J: tl.constexpr, PHASE: tl.constexpr,
    REVERSE: tl.constexpr, INLET: tl.constexpr,
):  # fmt: skip
    """Steps from s to t: `h_t = E y_s`, `x_t = source_t + after_t h_t`, `high + low = y_t = before_t x_t + inlet_t`.

    One PHASE of two, or both.
    """
    program, programs, group = tl.program_id(0), tl.num_programs(0), tl.program_id(2).to(tl.int64)
    r = group * per_group + tl.program_id(1) * R + tl.arange(0, R)
    inside = r < (group + 1) * per_group
    counter += group * tl.num_programs(1) + tl.program_id(1)
    blocks, met = tl.cdiv(n, J), 0
    for move in range(first, stop):
        if REVERSE:
            t = length - 1 - move
            step = tl.minimum(tl.cast(t, tl.int64), table_steps - 1)
            sent = ((t + 1) * batch + r[:, None]) * n
        else:
            t = move
            step = tl.minimum(tl.cast(t - 1, tl.int64), table_steps - 1)
            sent = ((t - 1) * batch + r[:, None]) * n
        if PHASE < 2:
            rows, columns = left + group * group_l + step * step_l, right + group * group_r + step * step_r
            _add_tiles(
                parts, high, low, rows, columns, scale + (step * groups + group) * n, r, inside, sent, batch, n, row_l, column_l,
                row_r, width, share, SIZE, PRECISION, R, I, J, REVERSE,
            )  # fmt: skip
        if PHASE == 0:
            met += programs
            meet(counter, met, True)
        if PHASE % 2 == 0:
            for block in range(program, blocks, programs):
                j = block * J + tl.arange(0, J)
                within = inside[:, None] & (j < n)[None, :]
                sums = _whole_sums(parts, r, j, block, within, batch, n, share, R, I, J)
                here = (t * batch + r[:, None]) * n + j[None, :]
                tl.store(h + here, sums, within)
                value = tl.load(source + here, within, 0.0) + tl.load(after + here, within, 0.0) * sums
                tl.store(x + here, value, within)
                value *= tl.load(before + here, within, 0.0)
                if INLET:
                    value += tl.load(inlet + here, within, 0.0)
                _store_split(high, low, here, value, within, PRECISION)
        if PHASE == 0:
            met += programs
            meet(counter, met, True)


def forward_steps(node: Tensor, table: Table) -> tuple[Tensor, Tensor, Tensor]:
    """Messages `[T, B, N]` minus the highest one, the highest `[T, B]`, and the sum that entered each state."""
    length, batch, size = node.shape
    launch = _Launch(table, size, batch, False)
    node = launch.filled(node, -torch.inf)
    alpha, total = torch.empty_like(node), torch.ones_like(node)
    shift = node.new_full((length, batch), -torch.inf)
    alpha[0], shift[0] = node[0], node[0].amax(-1)
    lowest, column_scale = torch.finfo(node.dtype).min, launch.filled(table.column_scale, 0.0)
    mass = split(torch.exp(node[0] - shift[0, :, None].clamp(min=lowest)))
    for first, stop, phase in launch.spans(length, phases=3):
        _push_kernel[launch.grid](
            node, alpha, *mass, total, shift, launch.parts, launch.counter, column_scale, *launch.entries, first, stop,
            batch, launch.n, launch.share, *launch.shape, **launch.options, PHASE=phase,
        )  # fmt: skip
    highest = shift.clamp_(min=lowest)
    return alpha[..., :size].sub_(highest[..., None]), highest, total[..., :size]


def flow_steps(
    table: Table, reverse: bool, source: Tensor, inlet: Tensor | None, after: Tensor, before: Tensor
) -> tuple[Tensor, Tensor]:
    """`x_t = source_t + after_t h_t` and `h_t = E (before_s x_s + inlet_s)`, as in `chains.ways.scan`."""
    length, batch, size = source.shape
    launch = _Launch(table, size, batch, reverse)
    source, after, before = (launch.filled(x, 0.0) for x in (source, after, before))
    inlet = None if inlet is None else launch.filled(inlet, 0.0)
    x, h, high, low = torch.empty_like(source), torch.zeros_like(source), *(torch.empty_like(source) for _ in range(2))
    origin = length - 1 if reverse else 0
    x[origin] = source[origin]
    high[origin], low[origin] = split(before[origin] * x[origin] + (0.0 if inlet is None else inlet[origin]))
    for first, stop, phase in launch.spans(length, phases=2):
        _flow_kernel[launch.grid](
            source, source if inlet is None else inlet, after, before, x, h, high, low, launch.parts, launch.counter,
            *launch.entries, first, stop, length, batch, launch.n, launch.share, *launch.shape, **launch.options,
            PHASE=phase, REVERSE=reverse, INLET=inlet is not None,
        )  # fmt: skip
    return x[..., :size], h[..., :size]


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest numbers in tf32, and the differences from them.

    >>> high, low = split(torch.tensor([1.0, 1.0 + 2**-12]))
    >>> high, low * 2**12
    (tensor([1., 1.]), tensor([0., 1.]))
    """
    near = ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return near, x - near


FACTOR_TILE = {"I": 64, "J": 64, "num_warps": 4, "num_stages": 3}  # measured on a Hopper GPU, as the others


def _table_tile(n: int, rows: int, device: torch.device) -> dict[str, int]:
    """Few columns where there are few states, so that there is a program for every multiprocessor; none spills registers."""
    columns = 16 if n < 4096 else 32 if n < 8192 or rows == 64 else 64
    if (
        rows == 16 and columns == 64 and not before_hopper(device)
    ):  # half as many additions of tiles, each of twice as many rows: 6% faster
        return {"I": 64, "J": 64, "num_warps": 4, "num_stages": 4}
    return {"I": 32 if rows * columns > 512 else 64, "J": columns, "num_warps": 4, "num_stages": 5}


class _Launch:
    """How the steps of a chain are launched.

    Products with a table are one launch, whose programs meet after each step. A step with factors is long enough for a launch of
    its own.
    """

    def __init__(self, table: Table, n: int, batch: int, transposed: bool) -> None:
        per_group, kept = batch // table.groups, table.kept
        rows = min(64, max(16, triton.next_power_of_2(per_group)))
        tile = FACTOR_TILE if kept is None else _table_tile(n, rows, table.storage.device)
        if kept is None:
            left, right = (
                p.contiguous() for p in (reversed(table.pairs.tensors) if transposed else table.pairs.tensors)
            )
        else:
            left = right = table.storage.mT if transposed else table.storage
        self.n = n if kept is None else left.shape[-1]
        self.entries = (left, right, table.scales)
        strides = (*left.stride(), *right.stride()[:3], left.shape[-1])
        self.shape = (table.groups, per_group, table.steps, *strides)
        self.options = {"SIZE": padded(left) if kept is None else 0, "PRECISION": table.precision, "R": rows, **tile}
        self.together = kept is not None and meets()
        row_blocks, blocks = triton.cdiv(per_group, rows), triton.cdiv(self.n, tile["J"])
        tiles, programs = triton.cdiv(self.n, tile["I"]), blocks
        if kept is not None:
            stage = 4 * tile["I"] * (tile["J"] + 2 * rows)
            most = at_once(left.device, tile["num_stages"] * stage) or blocks
            programs = min(most, max(blocks, most // (row_blocks * table.groups)))
        self.share = triton.cdiv(blocks * tiles, programs)  # tiles of each program
        even = max(self.share, tiles) % min(self.share, tiles) == 0
        slots = triton.cdiv(tiles, self.share) if even else (tiles - 2) // self.share + 2  # that a block may need
        self.parts = left.new_empty(slots, batch, self.n)
        self.grid = (programs, row_blocks, table.groups)
        self.counter = torch.zeros(row_blocks * table.groups, dtype=torch.int32, device=left.device)

    def filled(self, x: Tensor, value: float) -> Tensor:
        """A tensor, contiguous, with as many states as the table, the further ones of this value."""
        more = self.n - x.shape[-1]
        return torch.nn.functional.pad(x, (0, more), value=value) if more else x.contiguous()

    def spans(self, length: int, phases: int) -> list[tuple[int, int, int]]:
        """First and last step and phase (0 for all) of each launch."""
        if self.together:
            return [(1, length, 0)]
        return [(t, t + 1, phase) for t in range(1, length) for phase in range(1, phases + 1)]
