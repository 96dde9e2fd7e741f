"""Long chains of few states: blocks of time side by side, so that the loop in Python is over the steps of one block.

All blocks run at once, as a batch, from guesses of the messages before them (`small_steps.py`). Most chains forget where they
started within a block. So where each block ends is where the next one starts, and after a second run nothing changes any more,
which proves the result: a step brings messages no further apart. What flows back or forward along the chain forgets all
but one number: its sum, or a constant that all states share. This is carried from block to block (`run_flow`).

Chains that do not forget are run three times. First from every unit vector at the start of every block at once, which gives
what each block does to any start. Then from block to block, which gives all starts. Then within all blocks.

As in `small_steps.py` there are R sequences for each of G tables, `[steps, G, N, R]`. The K blocks of L steps become more
sequences where all share one table, `[L, 1, N, K R]`, and more tables elsewhere, `[L, K G, N, R]`: in both, `[L, P, N, Q]`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from tailsum.chains import plan

SHORTEST = 400  # steps: in shorter chains the loop takes less time than its preparation
SHORTEST_BLOCK = 64  # steps: messages seldom forget their start within fewer
LARGEST = 25_000  # of B N^2 (N + 10): the same where a block starts from every unit vector
RUNS = 5  # from guesses, at most
COPIED = 1_000  # numbers of the tables of sequences of their own, which blocks need a copy of for each step


class Steps(NamedTuple):
    """The steps `x_t = source_t + after_t * table (before_t * x_{t-1} + inlet_t)`: each `[steps, G, N, R]`."""

    source: Tensor
    after: Tensor
    before: Tensor
    inlet: Tensor | None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Steps":
        """The same change of all of them."""
        source, after, before = map(change, self[:3])
        return Steps(source, after, before, None if self.inlet is None else change(self.inlet))


class Blocks(NamedTuple):
    """K blocks of L steps, all by one table or each by tables of its own; in `reverse` the last step comes first."""

    blocks: int
    length: int
    one_table: bool
    reverse: bool

    def cut(self, x: Tensor) -> Tensor:
        """`[steps, G, N, R]` as `[L, P, N, Q]`; steps beyond the end are zero."""
        more = self.blocks * self.length - len(x)
        padded = F.pad(x, (0, 0) * (x.dim() - 1) + ((more, 0) if self.reverse else (0, more)))
        return self._side_by_side(padded.unflatten(0, (self.blocks, self.length)))

    def joined(self, x: Tensor, steps: int) -> Tensor:
        """The inverse of `cut`."""
        if self.one_table:
            x = x.unflatten(3, (self.blocks, -1)).permute(3, 0, 1, 2, 4)
        else:
            x = x.unflatten(1, (self.blocks, -1)).transpose(0, 1)
        return x.flatten(0, 1)[-steps if self.reverse else 0 :][:steps]

    def of_tables(self, tables: Tensor, steps: int) -> Tensor:
        """Tables `[steps or 1, G, N, N]` as `[L or 1, P, N, N]`."""
        return tables if self.one_table else self.cut(tables.expand(steps, -1, -1, -1))

    def order(self) -> range:
        """The steps of a block, the first to be run first."""
        return range(self.length - 1, -1, -1) if self.reverse else range(self.length)

    def first(self, x: Tensor) -> Tensor:
        """What all blocks have at their first step."""
        return x[self.order()[0]]

    def last(self, x: Tensor) -> Tensor:
        """What all blocks have at their last step."""
        return x[self.order()[-1]]

    def by_block(self, moved: Tensor) -> Tensor:
        """`[P, Q, ..]` as `[K, G, R, ..]`, in the order in which the blocks follow each other."""
        blocks = (
            moved[0].unflatten(0, (self.blocks, 1, -1)) if self.one_table else moved.unflatten(0, (self.blocks, -1))
        )
        return blocks.flip(0) if self.reverse else blocks

    def apart(self, x: Tensor) -> Tensor:
        """`[P, N, Q]` as `[K, G, N, R]`, in that order."""
        return self.by_block(x.mT).mT

    def starts(self, values: Tensor) -> Tensor:
        """The inverse of `apart`."""
        return self._side_by_side((values.flip(0) if self.reverse else values)[:, None])[0].contiguous()

    def following(self, first: Tensor, ends: Tensor) -> Tensor:
        """Where all blocks start, `[K, G, N, R]`, if the first starts at `[G, N, R]` and each of the others where one ends."""
        return torch.cat((first[None], self.apart(ends)[:-1]))

    def _side_by_side(self, x: Tensor) -> Tensor:
        """`[K, L, G, N, R]` as `[L, P, N, Q]`."""
        return x.permute(1, 2, 3, 0, 4).flatten(3) if self.one_table else x.transpose(0, 1).flatten(1, 2)


def blocks(steps: int, batch: int, tables: Tensor, *, reverse: bool = False) -> Blocks | None:
    """How to cut a chain of so many steps by `tables [S, G, N, N]`; None where it is faster as it is."""
    (count, groups, n, _), one_table = tables.shape, tables.shape[:2] == (1, 1)
    if steps < SHORTEST or batch * n > plan.WIDEST or (count < groups and groups * n**2 > COPIED):
        return None
    length = max(SHORTEST_BLOCK, math.isqrt(steps // 4))
    return Blocks(-(-steps // length), length, one_table, reverse)


def run_masses(
    run: Callable[..., tuple[Tensor, Tensor]], first: Tensor, weight: Tensor, tables: Tensor, cut: Blocks
) -> tuple[Tensor, Tensor] | None:
    """`entered [L, P, N, Q]` and `top [L, P, Q]` by `run`, or None where that is not possible.

    `first [G, N, R]` is the message before the first block, `weight` and `tables` are those of all blocks.
    """
    ends = weight[-1] / weight[-1].amax(-2, keepdim=True)  # as if the messages before had been flat
    rounding = 64 * torch.finfo(weight.dtype).eps
    for _ in range(RUNS):
        starts = cut.following(first, ends)
        entered, top = run(cut.starts(starts), weight, tables)
        ends = entered[-1] * weight[-1] / top[-1, :, None]
        settled = (cut.following(first, ends) - starts).abs() <= rounding * starts  # NaN is not
        if bool(settled.all()):
            return entered, top
    if _too_large(first):
        return None
    return run(starts_of_masses(first, weight, tables, cut), weight, tables)


def run_flow(
    run: Callable[..., tuple[Tensor, Tensor]], first: Tensor, steps: Steps, tables: Tensor, cut: Blocks
) -> tuple[Tensor, Tensor] | None:
    """What scan.Flow calls x and h, `[L, P, N, Q]` by `run`, or None where that is not possible.

    `first [G, N, R]` is the value before the first block. Back in time a chain forgets all of a value but its sum, forward
    all but its mean under the probabilities of the states. If a start is wrong by d in that, all later ones are too.
    """
    keeps_sum = cut.reverse
    mass = cut.apart(cut.last(steps.after)).roll(1, 0) if keeps_sum else cut.apart(cut.first(steps.before))
    mass = mass / mass.sum(-2, keepdim=True).clamp(min=torch.finfo(mass.dtype).tiny)
    starts = torch.zeros_like(mass)
    starts[0] = first
    if keeps_sum and steps.inlet is None:  # the sums are known
        sums = cut.apart(steps.source.sum(0)).sum(-2, keepdim=True)
        starts[1:] = mass[1:] * (sums.cumsum(0)[:-1] + first.sum(-2, keepdim=True))
    rounding = 16 * cut.blocks * torch.finfo(starts.dtype).eps
    how = {"inlet": steps.inlet, "reverse": cut.reverse}
    for _ in range(RUNS):
        x, h = run(cut.starts(starts), *steps[:3], tables, **how)
        wrong = cut.following(first, cut.last(x)) - starts
        lasting = (wrong if keeps_sum else mass * wrong).sum(-2, keepdim=True).cumsum(0).roll(1, 0)
        lasting[0] = 0.0
        off = wrong.abs().sum(0).amax(1)  # what a block is off by, all later ones may keep
        starts += wrong.add_(mass * lasting if keeps_sum else lasting)
        if bool((off <= rounding * starts.abs().amax((0, 2))).all()):
            return x, h
    if _too_large(first):
        return None
    return run(starts_of_flow(first, steps, tables, cut), *steps[:3], tables, **how)


def _too_large(first: Tensor) -> bool:
    """Whether a run from every unit vector takes longer than the steps one by one."""
    groups, n, rows = first.shape
    return groups * rows * n**2 * (n + 10) > LARGEST


def starts_of_masses(first: Tensor, weight: Tensor, tables: Tensor, cut: Blocks) -> Tensor:
    """Messages before every block, their highest one: `[P, N, Q]`, of `mass_t = weight_t * (table' mass_{t-1})`.

    `first [G, N, R]` is the message before the first block, `weight [L, P, N, Q]` and `tables [L or 1, P, N, N]` (from, to).
    """
    weight = weight.double().transpose(2, 3)[..., None, :]
    length, count, rows, _, n = weight.shape
    moved = torch.eye(n, dtype=torch.float64, device=first.device).repeat(count, rows, 1, 1)  # from each state
    scale = moved.new_zeros(count, rows, n, 1)
    for here, table in zip(weight, tables.double().expand(length, -1, -1, -1), strict=True):
        moved = torch.bmm(moved.flatten(1, 2), table).view_as(moved).mul_(here)
        highest = moved.amax(-1, keepdim=True)
        highest.masked_fill_(highest == 0, 1.0)
        moved.div_(highest)
        scale += highest.log()
    message, starts = first.transpose(1, 2).double().log(), list[Tensor]()
    for onward, lost in zip(cut.by_block(moved), cut.by_block(scale[..., 0]), strict=True):
        message = message - message.amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
        starts.append(message.exp())
        ahead = message + lost
        highest = ahead.amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
        sent = (ahead - highest).exp_()[..., None, :] @ onward
        message = sent[..., 0, :].log_() + highest
    return cut.starts(torch.stack(starts).mT).to(first.dtype)


def starts_of_flow(first: Tensor, steps: Steps, tables: Tensor, cut: Blocks) -> Tensor:
    """Values before every block, `[P, N, Q]`.

    `first [G, N, R]` is the value before the first block, the steps are `[L, P, N, Q]`, and `tables [L or 1, P, N, N]` (to,
    from).
    """
    source, after, before, inlet = steps.each(lambda x: x.double().transpose(2, 3))
    length, count, rows, n = source.shape
    units = torch.eye(n, dtype=torch.float64, device=first.device).repeat(count, rows, 1, 1)
    moved = F.pad(units, (0, 0, 0, 1))  # from each state, and from nothing: [P, Q, N + 1, N]
    tables = tables.double().mT.expand(length, -1, -1, -1)
    for t in cut.order():
        moved = moved * before[t, :, :, None]
        if inlet is not None:
            moved[:, :, -1] += inlet[t]
        moved = torch.bmm(moved.flatten(1, 2), tables[t]).view_as(moved).mul_(after[t, :, :, None])
        moved[:, :, -1] += source[t]
    value, starts = first.transpose(1, 2).double(), list[Tensor]()
    for onward in cut.by_block(moved):
        starts.append(value)
        value = (value[..., None, :] @ onward[..., :n, :])[..., 0, :] + onward[..., n, :]
    return cut.starts(torch.stack(starts).mT).to(first.dtype)


def settled(
    run: Callable[[NDArray[Any], int | None], None], ends: Callable[[], NDArray[Any]], start: NDArray[Any]
) -> None:
    """Run blocks of time from guesses of the messages before them, until each starts as the block before it ends.

    `start [.., K]` are the guesses, right for the first block, `run` runs all blocks or one, and `ends` gives all their last
    messages. All run side by side while that halves the number of wrong starts, else one by one.
    """
    run(start, None)
    together = start.shape[-1]
    if together == 1:
        return
    while True:
        found = ends()[..., :-1]
        wrong = np.flatnonzero((found != start[..., 1:]).any(tuple(range(found.ndim - 1))))
        if not len(wrong):
            return
        if len(wrong) <= together:
            start[..., 1:] = found
            run(start, None)
            together = len(wrong) // 2
        else:
            block = int(wrong[0]) + 1
            start[..., block] = found[..., block - 1]
            run(start[..., block : block + 1], block)
