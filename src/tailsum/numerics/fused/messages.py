"""Messages on a graph of pairs of variables: many iterations in one launch, whose programs meet after each stage.

The reference is `graphs.propagate.Propagation`. Messages `[B, D, N]` are numbered as `graphs.wiring` says. An instance of the batch has
programs of its own, each of which sends some of the messages of a stage. Every sum has its own maximum, so that results
are right for scores of any range, and a cavity is the sum of the other messages: nothing is subtracted again.

The sums are products of `exp(cavity - its maximum)` with `exp(score - the maximum of its column)`, made once: an exponential for each
state, none for a pair. Where a sum is so small that these may have vanished, its maximum is that of its own terms.
"""

# pyright: reportCallIssue=false

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
import triton
from torch import Tensor

from tailsum.numerics.fused.message_passes import pass_kernel
from tailsum.numerics.fused.message_slopes import pull_kernel, table_kernel
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
        """The exponentials of all tables relative to the largest of each column, and these largest scores."""
        tops = self.tables.amax(-2)
        return (self.tables - finite_of(tops)[..., None, :]).exp_(), tops

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
            "C": min(of.columns, max(4, 2048 // self.options["N"])),
        }
        for steps, moved, counter in self._blocks(limit, tolerance, change):
            pass_kernel[(of.programs * self._instances(of.programs, of.warps),)](
                messages, cavities, raw, self.unary, self.tables, masses, tops, *self._scheme, slots, starts,
                change, count, moved, counter, steps, self.batch, self.nodes, *self._sizes[:-1], self.wiring.most,
                *(0 if len(x) == 1 else x.stride(0) for x in (self.tables, tops)), tolerance, self.damping, of.programs, of.parts,
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
