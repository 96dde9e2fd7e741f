"""Messages on a graph of pairs of variables: many iterations in one launch, whose programs meet after each stage.

The reference is `graphs.propagate.Propagation`. Messages `[B, D, N]` are numbered as `graphs.wiring` says. An instance of the batch has
programs of its own, each of which sends some of the messages of a stage. Every sum has its own maximum, so that results
are right for scores of any range, and a cavity is the sum of the other messages: nothing is subtracted again.

The sums are products of `exp(cavity - its maximum)` with `exp(score - the maximum of its column)`, made once: an exponential for each
state, none for a pair. Where a sum is so small that these may have vanished, its maximum is that of its own terms.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp, finite, log_of
from tailsum.numerics.fused.message_slopes import pull_kernel, table_kernel
from tailsum.numerics.fused.meeting import meet
from tailsum.numerics.fused.scores import at_once, meets
from tailsum.numerics.kernels import ALIGNED
from tailsum.numerics.reduce import Reduce, highest
from tailsum.numerics.tensors import finite as finite_of

TOGETHER = 1024  # iterations of a launch
ALONE = 2  # up to so many tiles of a stage one program an instance is enough


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

    def tiles(self, size: int, shared: Sequence[bool]) -> tuple[Tensor, Tensor]: ...


@triton.jit
def _cavities(own, unary, into, first, last, back, there, i, n, degree, K: tl.constexpr):
    """The cavities [M, N] of messages: scores of their variables, from `unary [M]`, and all messages to these but one."""
    inside = there[:, None] & (i < n)[None, :]
    total = tl.load(unary[:, None] + i[None, :], inside, -float("inf"))
    for start in range(0, degree, K):
        for k in tl.static_range(K):
            place = first + start + k
            message = tl.load(into + place, there & (place < last), 0)
            other = there & (place < last) & (message != back)
            from_it = own + message.to(tl.int64)[:, None] * n + i[None, :]
            total += tl.load(from_it, inside & other[:, None], 0.0, cache_modifier=".cg")
    return total


@triton.jit
def _products(weight, mass, M: tl.constexpr, N: tl.constexpr, J: tl.constexpr):
    """The product [M, J] of weights [M, N] with a table [N, J], which stays in the registers that it was loaded into."""
    if N <= 32:  # a table of few entries is copied faster than rows are summed one by one
        total = tl.sum(weight[:, :, None] * mass[None, :, :], 1)
    else:
        row = tl.arange(0, M)
        total = tl.zeros([M, J], tl.float32)
        for m in tl.static_range(M):
            one = tl.sum(tl.where((row == m)[:, None], weight, 0.0), 0)
            total = tl.where((row == m)[:, None], tl.sum(one[:, None] * mass, 0)[None, :], total)
    return total


@triton.jit
def _careful(raw, cavity, table, begin, end, pitch, i, n, C: tl.constexpr, HIGHEST: tl.constexpr):
    """Store `log sum_i exp(cavity_i + score(i, j))`, or the maximum, in `raw`: each sum relative to its own maximum."""
    for start in range(begin, end, C):
        j = start + tl.arange(0, C)
        within = (i < n)[:, None] & (j < pitch)[None, :]
        joint = cavity[:, None] + tl.load(table + i[:, None] * pitch + j[None, :], within, -float("inf"))
        top = tl.max(joint, 0)
        if HIGHEST:
            total = top
        else:
            total = log_of(top, tl.sum(exp(joint - finite(top)[None, :]), 0))
        tl.store(raw + j, total, (j < n) & (j < end))


@triton.jit
def _settled(sent, before, damping):
    """Messages [M, J] with their largest entry at zero, damped, and how far they have moved, relative to their size."""
    after = sent - finite(tl.max(sent, 1))[:, None]
    either = (after == -float("inf")) | (before == -float("inf"))
    after = tl.where(either, after, after + damping * (finite(before) - finite(after)))
    same = after == before
    scale = tl.where(after == -float("inf"), 1.0, tl.maximum(tl.abs(after), 1.0))
    step = tl.abs(tl.where(same, 0.0, after) - tl.where(same, 0.0, before))
    return after, tl.max(tl.max(step / scale, 1), 0)


@triton.jit(do_not_specialize=["limit", "batch"])
def _pass(
    messages, cavities, raw, unary, tables, masses, tops, table_of, source, back, into, begin, slots, starts,
    change, count, moved, counter, limit, batch, nodes, size, n, pitch, stages, degree, table_step, mass_step, top_step, tolerance,
    damping, programs, parts,
    M: tl.constexpr, N: tl.constexpr, J: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    HIGHEST: tl.constexpr, KEEP: tl.constexpr, AT_ONCE: tl.constexpr, SPLIT: tl.constexpr, MEET: tl.constexpr,
):  # fmt: skip
    """Iterate the messages of each instance until they change by at most the tolerance; KEEP the cavities of the last one.

    A program sends M messages by one table, `slots`, to J states; SPLIT if there are more, in so many parts. AT_ONCE: all messages are
    sent from those of the iteration before, which are in the other half of `messages`.
    """
    member = tl.program_id(0) % programs
    group, groups = tl.program_id(0) // programs, tl.num_programs(0) // programs
    counter += group
    i, row_of = tl.arange(0, N), tl.arange(0, M)
    met = 0
    for b in range(group, batch, groups):
        row = tl.cast(b, tl.int64)
        last = tl.load(change + b)
        made = tl.load(count + b)
        done = 0
        while (done < limit) & (last > tolerance):
            most = 0.0
            old, new = messages + row * size * n, messages + row * size * n
            if AT_ONCE:
                half = (made + done) % 2
                old += half * batch * size * n
                new += (1 - half) * batch * size * n
            for stage in range(stages):
                start = tl.load(starts + stage)
                tiles = tl.load(starts + stage + 1) - start
                for unit in range(member, tiles * parts, programs):
                    slot, part = slots + (start + unit // parts) * M, unit % parts
                    message = tl.load(slot + row_of)
                    there = message >= 0
                    message = tl.where(there, message, 0)
                    node = tl.load(source + message)
                    first, end = tl.load(begin + node), tl.load(begin + node + 1)
                    table = tl.load(table_of + tl.load(slot)).to(tl.int64)
                    place = message.to(tl.int64) * n
                    j = part * J + tl.arange(0, J)
                    inside = there[:, None] & (j < n)[None, :]
                    if not SPLIT:
                        before = tl.load(old + place[:, None] + j[None, :], inside, -float("inf"), cache_modifier=".cg")
                    scores = unary + (row * nodes + node) * n
                    cavity = _cavities(old, scores, into, first, end, tl.load(back + message), there, i, n, degree, K)
                    if KEEP:
                        if part == 0:
                            kept = cavities + row * size * n + place[:, None] + i[None, :]
                            tl.store(kept, cavity, there[:, None] & (i < n)[None, :])
                    sums = raw + row * size * n
                    low = 0.0
                    sent = tl.where(inside, 0.0, -float("inf"))
                    if not HIGHEST:
                        mass = masses + row * mass_step + table * N * pitch + i[:, None] * pitch + j[None, :]
                        mass = tl.load(mass, (j < pitch)[None, :], 0.0)
                        height = tl.load(tops + row * top_step + table * pitch + j, j < n, -float("inf"))
                        top = tl.max(cavity, 1)
                        weight = exp(cavity - finite(top)[:, None])
                        total = _products(weight, mass, M, N, J)
                        possible = (top > -float("inf"))[:, None] & (height > -float("inf"))[None, :]
                        # What exponentials below 2^-126 lose counts only where the sum is small, too.
                        low = tl.min(tl.min(tl.where(possible, total, 1.0), 1), 0)
                        sent = tl.log(tl.where(total > 0, total, 1.0)) + (finite(top)[:, None] + height[None, :])
                        sent = tl.where(possible & inside, sent, -float("inf"))
                    if low < 3.2311742677852644e-27:  # 2^-88
                        for m in range(M):
                            own = tl.load(slot + m)
                            if own >= 0:
                                one = tl.max(tl.where((row_of == m)[:, None], cavity, -float("inf")), 0)
                                scored = tables + row * table_step + table * n * pitch
                                to = sums + own.to(tl.int64) * n
                                _careful(
                                    to, one, scored, part * J, tl.minimum(n, part * J + J), pitch, i, n, C, HIGHEST
                                )
                        tl.debug_barrier()  # what other threads of this program have stored
                        sent = tl.load(sums + place[:, None] + j[None, :], inside, -float("inf"), cache_modifier=".cg")
                    if KEEP or SPLIT:
                        tl.store(sums + place[:, None] + j[None, :], sent, inside)
                    if not SPLIT:
                        after, step = _settled(sent, before, damping)
                        tl.store(new + place[:, None] + j[None, :], after, inside)
                        most = tl.maximum(most, step)
                if SPLIT:
                    met += programs
                    meet(counter, met, MEET)
                    for place in range(start * M + member, (start + tiles) * M, programs):
                        message = tl.load(slots + place)
                        if message >= 0:
                            state = message.to(tl.int64) * n + i
                            inside = i < n
                            sent = tl.load(raw + row * size * n + state, inside, -float("inf"), cache_modifier=".cg")
                            before = tl.load(old + state, inside, -float("inf"), cache_modifier=".cg")
                            after, step = _settled(sent[None, :], before[None, :], damping)
                            tl.store(new + state[None, :], after, inside[None, :])
                            most = tl.maximum(most, step)
                if stage == stages - 1:
                    tl.atomic_max(moved + done * batch + b, most / (1.0 - damping), sem="relaxed")
                met += programs
                meet(counter, met, MEET)
            last = tl.load(moved + done * batch + b, cache_modifier=".cg")
            done += 1
        if member == 0:
            tl.store(change + b, last)
            tl.store(count + b, made + done)


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


class Tiles(NamedTuple):
    """How many messages a program sends at once, to how many states, in how many parts; its warps, and the programs of an instance."""

    messages: int
    columns: int
    parts: int
    warps: int
    programs: int


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
        self.forward = self._forward(side)
        degree = min(8, 4096 // side, max(2, triton.next_power_of_2(wiring.most)))
        self.options: dict[str, Any] = {"N": side, "K": degree, "num_warps": max(1, min(4, side**2 // 1024))}
        self.rows = min(side, 8192 // side)
        self.programs = max(1, min(wiring.widest, self._together(4) // self.batch))
        if self.programs > 1:
            self.options["maxnreg"] = 128

    def _together(self, warps: int) -> int:
        """How many programs of 128 registers a thread are sure to run at once, so that they can meet."""
        return at_once(self.unary.device) * 16 // warps if meets() else 0

    def _instances(self, programs: int, warps: int) -> int:
        return self.batch if programs == 1 else min(self.batch, self._together(warps) // programs)

    def _forward(self, side: int) -> "Tiles":
        """How the messages of a stage are shared out. More entries of a table, and of products, would spill registers."""
        warps = 8 if side > 64 else 4
        columns = side if side <= 128 else 8192 // side
        at_most = 1 if not all(self.shared) else 16 if side <= 32 else 4 if side != 128 else 2
        together = max(1, self._together(warps) // self.batch)
        parts = -(-self.n // columns)
        needed = -(-self.wiring.widest * parts // together)
        messages = min(at_most, triton.next_power_of_2(needed))
        tiles = -(-self.wiring.widest // messages) * parts
        programs = 1 if tiles <= ALONE and self.batch > 1 else min(tiles, together)
        return Tiles(messages, columns, parts, warps, programs)

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

    @cached_property
    def _masses(self) -> tuple[Tensor, Tensor]:
        """The exponentials of all tables relative to the largest of each column, with rows of zeros, and these largest scores."""
        tops = self.tables.amax(-2)
        masses = (self.tables - finite_of(tops)[..., None, :]).exp_()
        return F.pad(masses, (0, 0, 0, self.options["N"] - self.n)), tops

    @property
    def _scheme(self) -> tuple[Tensor, ...]:
        wiring = self.wiring
        return wiring.tables(self.shared).of, wiring.source, wiring.back, wiring.into, wiring.begin

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
            steps = min(TOGETHER, limit - start)
            counter = torch.zeros(self.batch, dtype=torch.int32, device=change.device)
            yield steps, change.new_zeros(2, steps, self.batch), counter

    def pass_on(self, messages: Tensor, limit: int, tolerance: float, *, highest: bool, keep: bool) -> Swept:
        """Messages after at most `limit` iterations; `keep` what derivatives need."""
        of, at_once = self.forward, self.wiring.stages == 1
        given = messages.reshape(self.batch, self.size, self.n)
        messages = torch.stack((given, given)) if at_once else given.clone(memory_format=torch.contiguous_format)
        raw = torch.empty_like(given, memory_format=torch.contiguous_format)
        cavities = torch.empty_like(raw) if keep else raw
        masses, tops = (self.tables, self.tables) if highest else self._masses
        slots, starts = self.wiring.tiles(of.messages, self.shared)
        count, change = self._state()
        room = {"maxnreg": 128} if of.programs > 1 else {}
        shape = {
            "M": of.messages,
            "N": self.options["N"],
            "J": of.columns,
            "C": min(of.columns, 2048 // self.options["N"]),
        }
        for steps, moved, counter in self._blocks(limit, tolerance, change):
            _pass[(of.programs * self._instances(of.programs, of.warps),)](
                messages, cavities, raw, self.unary, self.tables, masses, tops, *self._scheme, slots, starts,
                change, count, moved, counter, steps, self.batch, self.nodes, *self._sizes[:-1], self.wiring.most,
                *(0 if len(x) == 1 else x.stride(0) for x in (self.tables, masses, tops)), tolerance, self.damping, of.programs, of.parts,
                **shape, K=min(4, triton.next_power_of_2(self.wiring.most)), HIGHEST=highest, KEEP=keep, AT_ONCE=at_once,
                SPLIT=of.parts > 1, MEET=of.programs > 1, num_warps=of.warps, **room,
            )  # fmt: skip
        if at_once:
            messages = torch.where((count % 2 == 0)[:, None, None], messages[0], messages[1])
        return Swept(messages, count, change, cavities, raw)

    def pull(self, given: Tensor, weight: Tensor, point: Tensor, swept: Swept, limit: int, tolerance: float) -> Pulled:
        """Weights after at most `limit` iterations from `weight`; `swept` is one iteration from the messages `point`."""
        shape = (self.batch, self.size, self.n)
        given, point = given.reshape(shape).contiguous(), point.reshape(shape).contiguous()
        weight = weight.reshape(shape).clone(memory_format=torch.contiguous_format)
        flow, slopes = torch.empty_like(weight), torch.empty_like(weight)
        count, change = self._state()
        for steps, (moved, largest), counter in self._blocks(limit, tolerance, change):
            pull_kernel[(self.programs * self._instances(self.programs, 4),)](
                weight, given, flow, slopes, point, swept.cavities, swept.raw, self.tables, *self._scheme,
                self.wiring.order, self.wiring.starts, self.wiring.stage,
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
