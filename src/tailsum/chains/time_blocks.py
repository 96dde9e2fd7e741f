"""Long chains of few states: blocks of time side by side, so that the loop in Python is over the steps of one block.

A linear recursion `x_t = A_t x_{t-1} + c_t` is run three times. First from every unit vector at the start of every block at
once, which gives what each block does to any start. Then from block to block, which gives all starts. Then within all
blocks at once, as a batch (`small_steps.py`). A chain of T positions takes some 3 sqrt(T) steps in place of T, at N times the
arithmetic.

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

SHORTEST = 400  # steps: in shorter chains the loop takes less time than its preparation
LARGEST = 25_000  # of B N^2 (N + 10): where a step has more to compute, the loop is not what takes the time
STEPS_A_BLOCK = 7.0  # how much longer a step takes for all blocks than from one block to the next


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
    """K blocks of L steps, all by one table or each by tables of its own."""

    blocks: int
    length: int
    one_table: bool

    def cut(self, x: Tensor) -> Tensor:
        """`[steps, G, N, R]` as `[L, P, N, Q]`; steps after the last are zero."""
        padded = F.pad(x, (0, 0) * (x.dim() - 1) + (0, self.blocks * self.length - len(x)))
        return self._side_by_side(padded.unflatten(0, (self.blocks, self.length)))

    def joined(self, x: Tensor, steps: int) -> Tensor:
        """The inverse of `cut`."""
        if self.one_table:
            x = x.unflatten(3, (self.blocks, -1)).permute(3, 0, 1, 2, 4)
        else:
            x = x.unflatten(1, (self.blocks, -1)).transpose(0, 1)
        return x.flatten(0, 1)[:steps]

    def of_tables(self, tables: Tensor, steps: int) -> Tensor:
        """Tables `[steps or 1, G, N, N]` as `[L or 1, P, N, N]`."""
        return tables if self.one_table else self.cut(tables.expand(steps, -1, -1, -1))

    def by_block(self, moved: Tensor) -> Tensor:
        """`[P, Q, ..]` as `[K, G, R, ..]`."""
        return moved[0].unflatten(0, (self.blocks, 1, -1)) if self.one_table else moved.unflatten(0, (self.blocks, -1))

    def starts(self, values: list[Tensor]) -> Tensor:
        """The values `[G, R, N]` at the start of each block, as `[P, N, Q]`."""
        return self._side_by_side(torch.stack(values).transpose(2, 3)[:, None])[0]

    def _side_by_side(self, x: Tensor) -> Tensor:
        """`[K, L, G, N, R]` as `[L, P, N, Q]`."""
        return x.permute(1, 2, 3, 0, 4).flatten(3) if self.one_table else x.transpose(0, 1).flatten(1, 2)


def blocks(steps: int, batch: int, n: int, *, one_table: bool) -> Blocks | None:
    """How to cut a chain of so many steps; None where it is faster as it is."""
    if steps < SHORTEST or batch * n**2 * (n + 10) > LARGEST:
        return None
    length = math.ceil(math.sqrt(steps / STEPS_A_BLOCK))
    return Blocks(-(-steps // length), length, one_table)


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
    return cut.starts(starts).to(first.dtype)


def starts_of_flow(first: Tensor, steps: Steps, tables: Tensor, cut: Blocks) -> Tensor:
    """Values before every block, `[P, N, Q]`.

    `first [G, N, R]` is the value before the first block, the steps are `[L, P, N, Q]`, and `tables [L or 1, P, N, N]` (to,
    from).
    """
    source, after, before, inlet = steps.each(lambda x: x.double().transpose(2, 3))
    length, count, rows, n = source.shape
    units = torch.eye(n, dtype=torch.float64, device=first.device).repeat(count, rows, 1, 1)
    moved = F.pad(units, (0, 0, 0, 1))  # from each state, and from nothing: [P, Q, N + 1, N]
    for t, table in enumerate(tables.double().mT.expand(length, -1, -1, -1)):
        moved = moved * before[t, :, :, None]
        if inlet is not None:
            moved[:, :, -1] += inlet[t]
        moved = torch.bmm(moved.flatten(1, 2), table).view_as(moved).mul_(after[t, :, :, None])
        moved[:, :, -1] += source[t]
    value, starts = first.transpose(1, 2).double(), list[Tensor]()
    for onward in cut.by_block(moved):
        starts.append(value)
        value = (value[..., None, :] @ onward[..., :n, :])[..., 0, :] + onward[..., n, :]
    return cut.starts(starts).to(first.dtype)


def settled(
    run: Callable[[NDArray[Any], int | None], None], ends: Callable[[], NDArray[Any]], start: NDArray[Any]
) -> None:
    """Run blocks of time from guesses of the messages before them, until each starts as the block before it ends.

    `start [.., K]` are the guesses, right for the first block, `run` runs all blocks or one, and `ends` gives all their last
    messages. All run side by side while that halves the number of wrong starts, else one by one.
    """
    run(start, None)
    together = start.shape[-1]
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
