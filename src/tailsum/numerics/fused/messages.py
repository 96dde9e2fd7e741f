"""Messages on a graph of pairs of variables: many iterations in one launch, whose programs meet after each stage.

The reference is `graphs.propagate.Propagation`. Messages `[B, D, N]` are numbered as `graphs.wiring` says. An instance of the batch has
programs of its own, each of which sends some of the messages of a stage. Every sum has its own maximum, so that results
are right for scores of any range, and a cavity is the sum of the other messages: nothing is subtracted again.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp, finite, log_of
from tailsum.numerics.fused.message_slopes import pull_kernel, table_kernel
from tailsum.numerics.fused.scores import at_once, meet, meets
from tailsum.numerics.kernels import ALIGNED
from tailsum.numerics.reduce import Reduce, highest

TOGETHER = 32  # iterations of a launch


class Wiring(Protocol):
    """What the kernels read of a `graphs.wiring.Wiring`."""

    source: Tensor
    back: Tensor
    into: Tensor
    begin: Tensor
    order: Tensor
    starts: Tensor
    stage: Tensor
    most: int
    widest: int

    @property
    def stages(self) -> int: ...

    def tables(self, shared: Sequence[bool]) -> Any: ...


@triton.jit
def _arriving(messages, into, first, last, without, i, n, K: tl.constexpr):
    """The sum [N] of the messages `into[first:last]` but one."""
    total = tl.where(i < n, 0.0, 0.0)
    for start in range(first, last, K):
        k = start + tl.arange(0, K)
        message = tl.load(into + k, k < last, 0)
        there = (k < last) & (message != without)
        place = message.to(tl.int64)[:, None] * n + i[None, :]
        total += tl.sum(tl.load(messages + place, there[:, None] & (i < n)[None, :], 0.0, cache_modifier=".cg"), 0)
    return total


@triton.jit
def _sent(raw, cavity, tables, n, pitch, i, J: tl.constexpr, HIGHEST: tl.constexpr):
    """Store `log sum_i exp(cavity_i + score(i, j))` for every j, or the maximum, in `raw`; return it."""
    for start in range(0, n, J):
        j = start + tl.arange(0, J)
        within = (i < n)[:, None] & (j < pitch)[None, :]
        joint = cavity[:, None] + tl.load(tables + i[:, None] * pitch + j[None, :], within, -float("inf"))
        top = tl.max(joint, 0)
        if HIGHEST:
            total = top
        else:
            total = log_of(top, tl.sum(exp(joint - finite(top)[None, :]), 0))
        tl.store(raw + j, total, j < n)
    tl.debug_barrier()  # what other threads of this program have stored
    return tl.load(raw + i, i < n, -float("inf"), cache_modifier=".cg")


@triton.jit(do_not_specialize=["limit", "batch"])
def _pass(
    messages, fresh, cavities, raw, unary, tables, table_of, source, back, into, begin, order, starts,
    change, count, moved, counter, limit, batch, nodes, size, n, pitch, stages, table_step, tolerance, damping, programs,
    N: tl.constexpr, J: tl.constexpr, K: tl.constexpr,
    HIGHEST: tl.constexpr, KEEP: tl.constexpr, AT_ONCE: tl.constexpr, MEET: tl.constexpr,
):  # fmt: skip
    """Iterate the messages of each instance until they change by at most the tolerance; KEEP the cavities of the last one.

    AT_ONCE: all messages are sent from those of the iteration before.
    """
    member = tl.program_id(0) % programs
    group, groups = tl.program_id(0) // programs, tl.num_programs(0) // programs
    counter += group
    i = tl.arange(0, N)
    met = 0
    for b in range(group, batch, groups):
        row = tl.cast(b, tl.int64)
        own = messages + row * size * n
        last = tl.load(change + b)
        done = 0
        while (done < limit) & (last > tolerance):
            most = 0.0
            for stage in range(stages):
                stop = tl.load(starts + stage + 1)
                for place in range(tl.load(starts + stage) + member, stop, programs):
                    message = tl.load(order + place)
                    here = (row * size + message) * n
                    node = tl.load(source + message)
                    first, end = tl.load(begin + node), tl.load(begin + node + 1)
                    before = tl.load(messages + here + i, i < n, -float("inf"), cache_modifier=".cg")
                    cavity = tl.load(unary + (row * nodes + node) * n + i, i < n, -float("inf"))
                    cavity += _arriving(own, into, first, end, tl.load(back + message), i, n, K)
                    table = tables + row * table_step + tl.load(table_of + message).to(tl.int64) * n * pitch
                    sent = _sent(raw + here, cavity, table, n, pitch, i, J, HIGHEST)
                    if KEEP:
                        tl.store(cavities + here + i, cavity, i < n)
                    after = sent - finite(tl.max(sent, 0))
                    either = (after == -float("inf")) | (before == -float("inf"))
                    after = tl.where(either, after, after + damping * (finite(before) - finite(after)))
                    if AT_ONCE:
                        tl.store(fresh + here + i, after, i < n)
                    else:
                        tl.store(messages + here + i, after, i < n)
                    same = after == before
                    scale = tl.where(after == -float("inf"), 1.0, tl.maximum(tl.abs(after), 1.0))
                    step = tl.abs(tl.where(same, 0.0, after) - tl.where(same, 0.0, before))
                    most = tl.maximum(most, tl.max(step / scale, 0))
                if stage == stages - 1:
                    tl.atomic_max(moved + done * batch + b, most / (1.0 - damping))
                met += programs
                meet(counter, met, MEET)
            if AT_ONCE:
                for message in range(member, size, programs):
                    here = (row * size + message) * n
                    after = tl.load(fresh + here + i, i < n, 0.0, cache_modifier=".cg")
                    tl.store(messages + here + i, after, i < n)
                met += programs
                meet(counter, met, MEET)
            last = tl.load(moved + done * batch + b, cache_modifier=".cg")
            done += 1
        if member == 0:
            tl.store(change + b, last)
            tl.store(count + b, tl.load(count + b) + done)


class Swept(NamedTuple):
    """Messages `[B, D, N]`, for each instance how many iterations there were and the last change, and what derivatives need."""

    messages: Tensor
    iterations: Tensor
    change: Tensor
    cavities: Tensor
    raw: Tensor  # before damping, and before the largest entry is subtracted


class Pulled(NamedTuple):
    """The weights `[B, D, N]`, as in `Swept` what became of them, and what the last iteration went by (`pull_kernel`)."""

    weight: Tensor
    iterations: Tensor
    change: Tensor
    flow: Tensor
    slopes: Tensor


class Sweeps:
    """A graph as the kernels take it: scores of variables `[B, V, N]`, and tables `[b, f, n, m]` of groups of factors."""

    def __init__(self, unary: Tensor, tables: Sequence[Tensor], wiring: Wiring, damping: float) -> None:
        (self.batch, self.nodes, self.n), self.size = unary.shape, len(wiring.source)
        self.unary, self.wiring, self.damping = unary.contiguous(), wiring, damping
        self.pitch = -(-self.n // ALIGNED) * ALIGNED
        self.groups = [table.shape for table in tables]
        self.shared = tuple(table.shape[1] == 1 for table in tables)
        self.tables = self._both_ways(tables)
        side = max(ALIGNED, triton.next_power_of_2(self.n))
        degree = min(8, 4096 // side, max(2, triton.next_power_of_2(wiring.most)))
        # Tiles of more entries would spill registers. Four programs of four warps, 128 registers a thread, fill a multiprocessor.
        self.options: dict[str, Any] = {"N": side, "K": degree, "num_warps": max(1, min(4, side**2 // 1024))}
        self.columns, self.rows = min(side, 4096 // side), min(side, 8192 // side)
        together = 4 * at_once(unary.device) if meets() else 0
        self.programs = max(1, min(wiring.widest, together // self.batch))
        self.instances = self.batch if self.programs == 1 else min(self.batch, together // self.programs)
        if self.programs > 1:
            self.options["maxnreg"] = 128

    def _both_ways(self, tables: Sequence[Tensor]) -> Tensor:
        """All tables and their transposes, `[b, T, N, pitch]`, filled up with minus infinity."""
        most = max(len(table) for table in tables)
        pieces: list[Tensor] = []
        for table in tables:
            ways = [
                F.pad(x, (0, self.pitch - x.shape[-1], 0, self.n - x.shape[-2]), value=-torch.inf)
                for x in (table, table.mT)
            ]
            pieces.append(torch.stack(ways, 2).flatten(1, 2).expand(most, -1, -1, -1))
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)).contiguous()

    @property
    def _scheme(self) -> tuple[Tensor, ...]:
        wiring = self.wiring
        table_of = wiring.tables(self.shared).of
        return table_of, wiring.source, wiring.back, wiring.into, wiring.begin, wiring.order, wiring.starts

    @property
    def _sizes(self) -> tuple[int, ...]:
        step = 0 if len(self.tables) == 1 else self.tables.stride(0)
        return self.size, self.n, self.pitch, self.wiring.stages, step

    def _state(self) -> tuple[Tensor, Tensor]:
        """No iterations so far, and no bound on the change."""
        new = self.unary.new_full
        return new((self.batch,), 0, dtype=torch.long), new((self.batch,), torch.inf)

    def _blocks(self, limit: int, tolerance: float, change: Tensor) -> Any:
        """How many iterations each launch is to make at most, and the changes that it fills in; until nothing moves."""
        for start in range(0, limit, TOGETHER):
            if start and not bool((change > tolerance).any()):
                return
            counter = torch.zeros(self.instances, dtype=torch.int32, device=change.device)
            yield min(TOGETHER, limit - start), change.new_zeros(2, TOGETHER, self.batch), counter

    def pass_on(self, messages: Tensor, limit: int, tolerance: float, *, highest: bool, keep: bool) -> Swept:
        """Messages after at most `limit` iterations; `keep` what derivatives need."""
        messages = messages.reshape(self.batch, self.size, self.n).clone(memory_format=torch.contiguous_format)
        raw, at_once = torch.empty_like(messages), self.wiring.stages == 1
        fresh = torch.empty_like(messages) if at_once else messages
        cavities = torch.empty_like(messages) if keep else raw
        count, change = self._state()
        for steps, moved, counter in self._blocks(limit, tolerance, change):
            _pass[(self.programs * self.instances,)](
                messages, fresh, cavities, raw, self.unary, self.tables, *self._scheme, change, count, moved, counter,
                steps, self.batch, self.nodes, *self._sizes, tolerance, self.damping, self.programs, **self.options,
                J=self.columns, HIGHEST=highest, KEEP=keep, AT_ONCE=at_once, MEET=self.programs > 1,
            )  # fmt: skip
        return Swept(messages, count, change, cavities, raw)

    def pull(self, given: Tensor, weight: Tensor, point: Tensor, swept: Swept, limit: int, tolerance: float) -> Pulled:
        """Weights after at most `limit` iterations from `weight`; `swept` is one iteration from the messages `point`."""
        shape = (self.batch, self.size, self.n)
        given, point = given.reshape(shape).contiguous(), point.reshape(shape).contiguous()
        weight = weight.reshape(shape).clone(memory_format=torch.contiguous_format)
        flow, slopes = torch.empty_like(weight), torch.empty_like(weight)
        count, change = self._state()
        for steps, (moved, largest), counter in self._blocks(limit, tolerance, change):
            pull_kernel[(self.programs * self.instances,)](
                weight, given, flow, slopes, point, swept.cavities, swept.raw, self.tables, *self._scheme, self.wiring.stage,
                change, count, moved, largest, counter,
                steps, self.batch, *self._sizes, tolerance, self.damping, self.programs, **self.options,
                J=self.rows, MEET=self.programs > 1,
            )  # fmt: skip
        return Pulled(weight, count, change, flow, slopes)

    def node_slopes(self, slopes: Tensor) -> Tensor:
        """The gradient in the scores of variables from that in cavities."""
        return torch.zeros_like(self.unary).index_add_(1, self.wiring.source, slopes)

    def table_slopes(self, swept: Swept, flow: Tensor) -> list[Tensor]:
        """The gradients in the tables of each group."""
        best = (swept.raw == swept.raw.amax(-1, keepdim=True)) & (swept.raw > -torch.inf)
        flow = flow - best * (flow.sum(-1, keepdim=True) / best.sum(-1, keepdim=True).clamp_(min=1))
        (own, count), n, tables = self.tables.shape[:2], self.n, self.wiring.tables(self.shared)
        shared = self.batch // own
        tile = min(64, max(ALIGNED, triton.next_power_of_2(n)))
        tiles = triton.cdiv(n, tile)
        splits = max(1, min(512 // (own * count * tiles**2), self.size * shared // count))
        found = flow.new_empty(splits, own, count, n, n)
        table_kernel[(splits * own * count, tiles, tiles)](
            found, swept.cavities, swept.raw, flow, self.tables, tables.by_table, tables.ranges, self.batch, shared,
            self.size, n, self.pitch, count, self._sizes[-1], splits, I=tile, J=tile, num_warps=4,
        )  # fmt: skip
        first, slopes = 0, list[Tensor]()
        for b, f, n_from, n_to in self.groups:
            ways = found[:, :, first : first + 2 * f].sum(0).unflatten(1, (f, 2))
            of_group = (ways[:, :, 0] + ways[:, :, 1].mT)[..., :n_from, :n_to]
            slopes.append(of_group.sum(0, keepdim=True) if b < own else of_group)
            first += 2 * f
        return slopes


def forward(
    messages: Tensor, unary: Tensor, *tables: Tensor, wiring: Wiring, damping: float, reduce: Reduce, **_: Any
) -> tuple[Tensor, Any] | None:
    """One iteration of the messages `[B, Z]`."""
    sweeps = Sweeps(unary, tables, wiring, damping)
    swept = sweeps.pass_on(messages, 1, 0.0, highest=reduce is highest, keep=True)
    return swept.messages.flatten(1), (messages, unary, *tables, *swept)


def backward(
    kept: Any, grad: Tensor, wanted: Sequence[bool], *, wiring: Wiring, damping: float, **_: Any
) -> Sequence[Tensor | None]:
    """The gradients in the messages before, in the scores of variables and in tables."""
    messages, unary, *rest = kept
    tables, swept = rest[:-5], Swept(*rest[-5:])
    sweeps = Sweeps(unary, tables, wiring, damping)
    pulled = sweeps.pull(torch.zeros_like(grad), grad, messages, swept, 1, 0.0)
    of_tables = sweeps.table_slopes(swept, pulled.flow) if any(wanted[2:]) else [None] * len(tables)
    return pulled.weight.flatten(1), sweeps.node_slopes(pulled.slopes), *of_tables
