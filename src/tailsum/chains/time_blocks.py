"""Long chains of few states: blocks of time side by side, so that the loop in Python is over the steps of one block.

A linear recursion `x_t = A_t x_{t-1} + c_t` is run three times. First from every unit vector at the start of every block at
once, which gives what each block does to any start. Then from block to block, which gives all starts. Then within all
blocks at once, as a batch (`small_steps.py`). A chain of T positions takes some 3 sqrt(T) steps in place of T, at N times the
arithmetic.

Here states come before sequences, `[T, N, B]`, and the K blocks of L steps stand before the batch: `[L, N, K * B]`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

SHORTEST = 400  # steps: in shorter chains the loop takes less time than its preparation
LARGEST = 25_000  # of B N^2 (N + 10): where a step has more to compute, the loop is not what takes the time
STEPS_A_BLOCK = 7.0  # how much longer a step takes for all blocks than from one block to the next


class Blocks(NamedTuple):
    """K blocks of L steps."""

    blocks: int
    length: int

    def cut(self, x: Tensor) -> Tensor:
        """`[steps, N, B]` as `[L, N, K B]`; steps after the last are zero."""
        padded = F.pad(x, (0, 0, 0, 0, 0, self.blocks * self.length - len(x)))
        return padded.unflatten(0, self).permute(1, 2, 0, 3).flatten(2)

    def joined(self, x: Tensor, steps: int) -> Tensor:
        """The inverse of `cut`."""
        return x.unflatten(2, (self.blocks, -1)).permute(2, 0, 1, 3).flatten(0, 1)[:steps]


class Steps(NamedTuple):
    """The steps `x_t = source_t + after_t * table (before_t * x_{t-1} + inlet_t)`: each `[steps, N, B]`."""

    source: Tensor
    after: Tensor
    before: Tensor
    inlet: Tensor | None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Steps":
        """The same change of all of them."""
        source, after, before = map(change, self[:3])
        return Steps(source, after, before, None if self.inlet is None else change(self.inlet))


def blocks(steps: int, batch: int, n: int) -> Blocks | None:
    """How to cut a chain of so many steps; None where it is faster as it is."""
    if steps < SHORTEST or batch * n**2 * (n + 10) > LARGEST:
        return None
    length = math.ceil(math.sqrt(steps / STEPS_A_BLOCK))
    return Blocks(-(-steps // length), length)


def starts_of_masses(first: Tensor, weight: Tensor, table: Tensor, cut: Blocks) -> Tensor:
    """Messages before every block, their highest one: `[N, K B]`, of `mass_t = weight_t * (table' mass_{t-1})`.

    `first [N, B]` is the message before the first block, `weight [L, N, K B]` and `table [N, N]` (from, to).
    """
    (n, batch), count = first.shape, cut.blocks
    by_row, table = weight.double().transpose(1, 2)[:, :, None], table.double()  # [L, K B, 1, N]
    moved = torch.eye(n, dtype=torch.float64, device=first.device).repeat(
        count * batch, 1, 1
    )  # from each state to each
    scale = moved.new_zeros(count * batch, n, 1)
    for here in by_row:
        moved = torch.mm(moved.view(-1, n), table).view_as(moved).mul_(here)
        highest = moved.amax(-1, keepdim=True)
        highest.masked_fill_(highest == 0, 1.0)
        moved.div_(highest)
        scale += highest.log()
    moved, scale = moved.view(count, batch, n, n), scale.view(count, batch, n)
    message, starts = first.mT.double().log(), list[Tensor]()
    for block in range(count):
        message = message - message.amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
        starts.append(message)
        ahead = message + scale[block]
        highest = ahead.amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
        sent = (ahead - highest).exp_()[:, None] @ moved[block]
        message = sent[:, 0].log_() + highest
    return torch.stack(starts).exp().to(first.dtype).permute(2, 0, 1).flatten(1)


def starts_of_flow(first: Tensor, steps: Steps, table: Tensor, cut: Blocks) -> Tensor:
    """Values before every block, `[N, K B]`.

    `first [N, B]` is the value before the first block, the steps are `[L, N, K B]`, and `table` is `[N, N]` (to, from).
    """
    (n, batch), count = first.shape, cut.blocks
    source, after, before, inlet = steps.each(lambda x: x.double().transpose(1, 2))  # [L, K B, N]
    units, table = torch.eye(n, dtype=torch.float64, device=first.device).repeat(count * batch, 1, 1), table.double()
    moved = F.pad(units, (0, 0, 0, 1))  # from each state, and from nothing: [K B, N + 1, N]
    for t in range(cut.length):
        moved = moved * before[t, :, None]
        if inlet is not None:
            moved[:, -1] += inlet[t]
        moved = torch.mm(moved.view(-1, n), table.mT).view_as(moved).mul_(after[t, :, None])
        moved[:, -1] += source[t]
    moved = moved.view(count, batch, n + 1, n)
    value, starts = first.mT.double(), list[Tensor]()
    for block in range(count):
        starts.append(value)
        value = (value[:, None] @ moved[block, :, :n])[:, 0] + moved[block, :, n]
    return torch.stack(starts).to(first.dtype).permute(2, 0, 1).flatten(1)
