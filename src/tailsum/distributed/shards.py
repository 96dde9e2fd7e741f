"""The states of a chain in slices, one for each rank of a process group, and the exchanges between ranks.

Rank p has the states `offsets[p] .. offsets[p] + sizes[p] - 1`. Slices may differ in size and may be empty. Without a
process group there is one rank, and nothing is exchanged. Nothing here records gradients: `collectives.py` does.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_process_group_store

Group = dist.ProcessGroup

_FAILURE = "tailsum: what went wrong"  # the store's key where a rank that fails in an operation tells the others
PATIENCE = timedelta(seconds=1)  # how often a waiting rank looks there
_failed: WeakKeyDictionary[Group, str] = WeakKeyDictionary()  # groups whose ranks are out of step, and why


def rank_and_count(group: Group | None) -> tuple[int, int]:
    """This process's rank, and the number of ranks."""
    return (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)


def local_states(n_states: int, group: Group | None = None) -> slice:
    """The slice of this rank if N states are split evenly: the first ranks get one more where N is not divisible.

    >>> local_states(10)  # without a process group
    slice(0, 10, None)
    """
    rank, count = rank_and_count(group)
    return slice(*(n_states // count * p + min(p, n_states % count) for p in (rank, rank + 1)))


class Shards:
    """Slices of the given sizes, and exchanges between the ranks that hold them."""

    def __init__(self, sizes: list[int], rank: int = 0, group: Group | None = None) -> None:
        self.sizes, self.rank, self.group = sizes, rank, group
        self.count, self.n_states = len(sizes), sum(sizes)
        self.offsets = [sum(sizes[:p]) for p in range(len(sizes))]
        self.local = self.columns(rank)  # the states of this rank
        self.exchanges = 0  # how many have begun

    def columns(self, p: int) -> slice:
        """The states of rank p."""
        return slice(self.offsets[p], self.offsets[p] + self.sizes[p])

    def all_reduce(self, x: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """The sum, or another reduction, over the ranks: a new tensor, or `x` itself if there is one rank."""
        if self.count == 1:
            return x
        x = x.clone(memory_format=torch.contiguous_format)
        self._wait(dist.all_reduce(x, op, group=self._ready(), async_op=True))
        return x

    def highest(self, x: Tensor) -> Tensor:
        """The maximum over the last dimension of all slices; minus infinity where there are no states."""
        highest = x.amax(-1) if x.shape[-1] else x.new_full(x.shape[:-1], -math.inf)
        return self.all_reduce(highest, dist.ReduceOp.MAX)

    def summed(self, x: Tensor) -> Tensor:
        """The sum over the last dimension of all slices."""
        return self.all_reduce(x.sum(-1))

    def anywhere(self, x: Tensor) -> bool:
        """Whether any entry on any rank is true."""
        here = x.any()
        return bool(here if self.count == 1 else self.all_reduce(here.int(), dist.ReduceOp.MAX))

    def stacked(self, x: Tensor) -> Tensor:
        """The tensors of all ranks, of one shape: `[ranks, ...]`."""
        if self.count == 1:
            return x[None]
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in self.sizes]
        self._wait(dist.all_gather(parts, x.contiguous(), group=self._ready(), async_op=True))
        return torch.stack(parts)

    def gathered(self, x: Tensor) -> Tensor:
        """`[..., n]` of all ranks as `[..., N]`. Slices are padded to one size, as not every backend takes uneven ones."""
        if self.count == 1:
            return x
        padded = torch.nn.functional.pad(x, (0, max(self.sizes) - x.shape[-1]))
        return torch.cat([part[..., :size] for part, size in zip(self.stacked(padded), self.sizes, strict=True)], -1)

    def scattered_sum(self, x: Tensor) -> Tensor:
        """This rank's slice `[..., n]` of `[..., N]` summed over the ranks."""
        if self.count == 1:
            return x
        if not self.has_reduce_scatter():
            return self.all_reduce(x)[..., self.local].contiguous()
        most = max(self.sizes)
        parts = [torch.nn.functional.pad(x[..., self.columns(p)], (0, most - self.sizes[p])) for p in range(self.count)]
        parts = [part.contiguous() for part in parts]
        out = torch.empty_like(parts[0])
        self._wait(dist.reduce_scatter(out, parts, group=self._ready(), async_op=True))
        return out[..., : self.sizes[self.rank]].contiguous()

    def from_rank(self, p: int, x: Tensor, dim: int) -> Callable[[], Tensor]:
        """Start to fetch rank p's slice of a tensor that is cut along `dim`: call the result to get it.

        `x` is the slice of this rank.
        """
        if self.count == 1:
            return lambda: x
        shape = list(x.shape)
        shape[dim] = self.sizes[p]
        part = x.contiguous() if self.rank == p else x.new_empty(shape)
        transfer = dist.broadcast(part, self._global(p), group=self._ready(), async_op=True)

        def arrived() -> Tensor:
            self._wait(transfer)
            return part

        return arrived

    def to_rank(self, p: int, x: Tensor) -> Tensor | None:
        """The sum of `x` over the ranks on rank p; None on the others."""
        if self.count == 1:
            return x
        x = x.clone(memory_format=torch.contiguous_format)
        self._wait(dist.reduce(x, self._global(p), group=self._ready(), async_op=True))
        return x if self.rank == p else None

    def visits(self, x: Tensor, dim: int) -> Iterator[tuple[int, Tensor]]:
        """The slices of all ranks in turn: the next one is fetched while one is used."""
        ranks = self.filled
        coming = self.from_rank(ranks[0], x, dim)
        for i, p in enumerate(ranks):
            part = coming()
            if i + 1 < len(ranks):
                coming = self.from_rank(ranks[i + 1], x, dim)
            yield p, part

    def has_reduce_scatter(self) -> bool:
        """Whether the backend has it: older versions of gloo do not."""
        return self._is_nccl

    @property
    def filled(self) -> list[int]:
        """The ranks that have states."""
        return [p for p, size in enumerate(self.sizes) if size]

    @property
    def place(self) -> torch.device:
        """The device of tensors that the backend exchanges."""
        return torch.device("cuda", torch.cuda.current_device()) if self._is_nccl else torch.device("cpu")

    def abandon(self, error: BaseException) -> None:
        """Make the ranks that wait for this one, now or later, raise an error; later uses of the group raise it too."""
        if self.count == 1 or self._members in _failed:
            return
        text = f"rank {self.rank} failed within an operation: {type(error).__name__}: {error}"
        _failed[self._members] = text
        with contextlib.suppress(RuntimeError):  # the process that held the store may have ended
            _get_process_group_store(self._members).set(_FAILURE, text)

    def _ready(self) -> Group:
        """The group, at the start of an exchange."""
        if self._members in _failed:
            text = _failed[self._members]
            raise RuntimeError(f"the ranks of this process group are out of step, make another: {text}")
        self.exchanges += 1
        return self._members

    def _wait(self, exchange: Any) -> None:
        """Wait until an exchange is done, or until a rank has failed, whose part would never come."""
        while not self._is_nccl:
            try:
                exchange.wait(PATIENCE)
            except RuntimeError:
                if exchange.is_completed():
                    break  # just now, or with an error of its own
                store = _get_process_group_store(self._members)
                if store.check([_FAILURE]):
                    text = _failed[self._members] = store.get(_FAILURE).decode()
                    raise RuntimeError(text) from None
            else:
                return
        exchange.wait()

    @cached_property
    def _members(self) -> Group:
        group = self.group or dist.group.WORLD
        assert group is not None  # there is one wherever ranks are several
        return group

    @cached_property
    def _is_nccl(self) -> bool:
        return self.count > 1 and dist.get_backend(self.group) == "nccl"

    def _global(self, p: int) -> int:
        return p if self.group is None else dist.get_global_rank(self.group, p)
