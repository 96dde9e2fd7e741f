"""Expected counts: what a step of EM needs from the data. They add up over batches and over ranks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from tailsum.hmm.emission import Statistics


@dataclass(frozen=True)
class Counts:
    """How often each parameter is used, in the mean over the states that the data leave possible.

    `initial [N]` counts first states, `transition` the moves (one tensor for each of the potential's), `emission` holds the
    statistics of the observations. `log_likelihood` is that of all sequences, and `positions` their length together.
    """

    log_likelihood: Float[Tensor, ""]
    positions: Float[Tensor, ""]
    initial: Float[Tensor, " n"]
    transition: tuple[Tensor, ...]
    emission: Statistics

    def __add__(self, other: "Counts") -> "Counts":
        """The counts of both data together."""
        theirs = iter(other.tensors())
        return self.each(lambda x: x + next(theirs))

    def __mul__(self, factor: float) -> "Counts":
        """The counts of so many times the data."""
        return self.each(lambda x: x * factor)

    def each(self, change: Callable[[Tensor], Tensor]) -> "Counts":
        """The same with each tensor changed."""
        return Counts(
            change(self.log_likelihood),
            change(self.positions),
            change(self.initial),
            tuple(map(change, self.transition)),
            tuple(map(change, self.emission)),
        )

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which `each` changes them."""
        found = list[Tensor]()
        self.each(lambda x: found.append(x) or x)
        return found

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> "Counts":
        """The sum over the ranks of a process group, on every rank."""

        def summed(x: Tensor) -> Tensor:
            x = x.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(x, group=group)
            return x

        return self.each(summed)
