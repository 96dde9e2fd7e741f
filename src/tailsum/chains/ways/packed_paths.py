"""The best paths of chains of few states on a CPU, where calls take more time than arithmetic. Chosen there.

Scores are rounded to whole multiples of a unit, and sums of these are exact. The last bits of a number are free: in the score
of a pair they hold the state that it comes from, so one maximum gives the best score into a state and where it comes from.

Blocks of time run side by side: maxima forget where they started (Maleki, Musuvathi and Mytkowicz, 2014), and as sums are
exact, equal messages prove it (`settled`). K blocks of L steps of B sequences are arrays `[L, N, B, K]`.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.chains.ways.following import follow
from tailsum.chains.ways.time_blocks import settled
from tailsum.numerics.tensors import finite, unmasked
from tailsum.scores.potential import Potential

SHORTEST = 128  # steps of a block: messages usually forget their start within fewer
CACHE = 5 << 17  # bytes of the sums of a step: they are written and read again
RENEWED = 4  # messages are brought back to zero after so many steps
COARSEST = {torch.float32: 1e-5, torch.float64: 1e-7}  # nats: the largest unit


class _Unit(NamedTuple):
    """Which whole numbers stand for scores: 32-bit integers, or those that float64 has, which also has minus infinity."""

    dtype: torch.dtype
    scale: float  # units in a nat
    bits: int  # for the state: the last ones of an integer, the first ones after the point of float64

    def numbers(self, scores: Tensor) -> Tensor:
        """Whole numbers of units, integers in the memory of the scores."""
        if self.dtype == torch.float64:
            return scores.double().mul_(self.scale).round_()
        scores.mul_(self.scale).round_().mul_(1 << self.bits)
        return scores.view(self.dtype).copy_(scores)

    def states(self, n: int) -> Tensor:
        """What to add to the scores of pairs from each of the states `0 .. n-1`."""
        states = torch.arange(n, dtype=self.dtype)
        return states / (1 << self.bits) if self.dtype == torch.float64 else states

    @property
    def lowest(self) -> int | float:
        """The lowest number, in place of minus infinity, which less itself is NaN."""
        return torch.finfo(self.dtype).min if self.dtype == torch.float64 else torch.iinfo(self.dtype).min

    def without_state(self, numbers: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The numbers without the states they come from."""
        return (
            np.floor(numbers, out) if self.dtype == torch.float64 else np.bitwise_and(numbers, -(1 << self.bits), out)
        )

    def state(self, numbers: np.ndarray) -> np.ndarray:
        """The states that finite numbers come from."""
        if self.dtype == torch.float64:
            return ((numbers - np.floor(numbers)) * (1 << self.bits)).astype(np.intp)
        return numbers & ((1 << self.bits) - 1)


def packed_path(node: Tensor, pairs: Potential, last: Tensor) -> Tensor | None:
    """The best path `[B, T]` to the positions `last [B]`, from scores `node [B, T, N]` and a flat potential.

    -1 after the last position, and throughout where there is no path. None where its scores are too far apart for a small
    unit.
    """
    device = node.device
    if node.is_cuda:
        node, pairs, last = node.cpu(), pairs.map(torch.Tensor.cpu), last.cpu()
    (batch, length, n), (groups, count) = node.shape, pairs.lead
    lanes = max(1, CACHE // (4 * n**2))
    if batch > lanes:
        parts = list[Tensor]()
        for i in range(0, batch, lanes):
            few = slice(i, i + lanes)
            part = packed_path(node[few], pairs if groups == 1 else pairs.map(lambda p, few=few: p[few]), last[few])
            if part is None:
                return None
            parts.append(part)
        return torch.cat(parts).to(device)
    blocks = max(1, min(lanes // batch, (length - 1) // SHORTEST))
    steps = -(-(length - 1) // blocks)
    blocks = -(-(length - 1) // steps)
    node = unmasked(node)
    node = node - finite(node.amax(-1, keepdim=True))
    padded = F.pad(node[:, 1:], (0, 0, 0, blocks * steps - length + 1)).contiguous().view(batch * blocks, steps * n)
    here, first = (_copy(x.mT) for x in (padded, node[:, 0]))
    tables = pairs.block()  # without finite masks
    tables = tables - finite(tables.amax((-2, -1), keepdim=True))
    unit = _unit(length, node, tables)
    if unit is None:
        return None
    if count > 1:
        tables = F.pad(tables, (0, 0, 0, 0, 0, blocks * steps - count))
    tables = tables.unflatten(1, (-1, min(steps, tables.shape[1]))).permute(2, 3, 4, 0, 1).contiguous()
    tables = unit.numbers(tables).add_(unit.states(n)[:, None, None, None])
    # New memory takes as long as a pass over it: what is not needed any more is used again.
    room = padded.view(unit.dtype) if unit.dtype == torch.int32 else torch.empty_like(padded, dtype=unit.dtype)
    here, start = unit.numbers(here).view(steps, n, batch, blocks), unit.numbers(first)[..., None]
    messages = _Messages(unit, here, tables, room.view(here.shape))
    guess = torch.cat((start, messages.node[-1, ..., :-1]), -1)
    settled(messages.run, messages.ends, guess.numpy())
    return messages.path(start[..., 0].numpy(), last.numpy(), length).to(device)


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _unit(length: int, node: Tensor, tables: Tensor) -> _Unit | None:
    """The smallest unit in which no sum overflows; None if it is too large."""
    lowest = [x.amin().item() for x in (node, tables)]
    forbidden = -math.inf in lowest
    if forbidden:
        lowest = [finite(x).amin().item() for x in (node, tables)]
    # States that no path leaves to others may fall behind at every step, else only until the best state reaches all.
    steps = (length if forbidden else RENEWED) + 2
    given, spread, bits = node.dtype, max(1.0, -sum(lowest) * steps), (node.shape[-1] - 1).bit_length()
    narrow = given == torch.float32 and not forbidden
    for dtype, digits in ((torch.int32, 31), (torch.float64, 53))[0 if narrow else 1 :]:
        scale = 2.0 ** (digits - bits) / spread
        if 1 / scale <= COARSEST[given]:
            return _Unit(dtype, scale, bits)
    return None


class _Messages:
    """The best score into each state, and the state that it comes from."""

    def __init__(self, unit: _Unit, node: Tensor, tables: Tensor, room: Tensor) -> None:
        self.unit, self.node, self.tables = unit, node, tables
        self.entered, self.known = room, False

    def run(self, start: np.ndarray, block: int | None) -> None:
        """The messages of one block or of all from the messages before them, until they are what they were."""
        node, entered, tables = self.node, self.entered, self.tables
        if block is not None:
            node, entered = (x[..., block : block + 1].contiguous() for x in (node, entered))
            tables = tables[..., block : block + 1].contiguous() if tables.shape[-1] > 1 else tables
        message = torch.from_numpy(start.copy())
        pairs, before, into = node.new_empty(len(message), *message.shape), message[:, None], torch.empty_like(message)
        tables = tables.expand(len(node), *tables.shape[1:])
        rows = zip(tables.unbind(), entered.unbind(), entered.numpy(), node.numpy(), strict=True)
        numbers, came, lowest = message.numpy(), into.numpy(), self.unit.lowest
        for t, (table, known, there, here) in enumerate(rows):
            torch.add(table, before, out=pairs)
            torch.amax(pairs, 0, out=into if self.known else known)
            if self.known:
                if t % RENEWED == 0 and np.array_equal(came, there):
                    break
                there[...] = came
            self.unit.without_state(there, numbers)
            numbers += here
            if t % RENEWED == RENEWED - 1:
                numbers -= np.maximum(numbers.max(0), lowest)
        if block is not None:
            self.entered[..., block : block + 1] = entered
        self.known = True

    def ends(self) -> np.ndarray:
        """The messages after each block, `[N, B, K]`."""
        numbers = self.unit.without_state(self.entered[-1].numpy()) + self.node[-1].numpy()
        return numbers - np.maximum(numbers.max(0), self.unit.lowest)

    def path(self, first: np.ndarray, last: np.ndarray, length: int) -> Tensor:
        """The paths `[B, T]` of sequences with the scores `first [N, B]` of their first states."""
        steps, _, batch, blocks = self.node.shape
        entered, node, sequence = self.entered.numpy(), self.node.numpy(), np.arange(batch)
        block, step = np.divmod(np.maximum(last - 1, 0), steps)
        ending = self.unit.without_state(entered[step, :, sequence, block]) + node[step, :, sequence, block]
        ending = np.where(last[:, None] > 0, ending, first.T)  # [B, N]
        final, moves = ending.argmax(1), np.clip(last[:, None] - steps * np.arange(blocks), 0, steps)
        if entered.dtype.kind == "f":
            np.maximum(entered, self.unit.lowest, out=entered)
        rows, lanes = entered.reshape(steps, -1), batch * blocks
        guess = self.ends().argmax(0) if blocks > 1 else final[:, None]
        states = follow(
            lambda t, state, lane: self.unit.state(rows[t].take(state * lanes + lane)), steps, guess, final, moves
        )
        paths = np.empty((batch, length), np.intp)
        paths[:, :-1], paths[:, -1] = states.reshape(batch, -1)[:, : length - 1], final
        paths[(np.arange(length) > last[:, None]) | (ending.max(1, keepdims=True) == -np.inf)] = -1
        return torch.from_numpy(paths)
