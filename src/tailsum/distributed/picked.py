"""Selected states of a chain whose states are on several ranks, and what each rank knows of them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.distributed.collectives import summed
from tailsum.distributed.shards import Shards
from tailsum.numerics.tensors import take


class Picked:
    """Selected states, by global ids `[*lead, k]` that are equal on every rank, and which of them this rank has."""

    def __init__(self, index: Int[Tensor, "*lead k"], shards: Shards) -> None:
        self.shards, self.index = shards, index
        self.here = (index >= shards.local.start) & (index < shards.local.stop)
        self.local = torch.where(self.here, index - shards.local.start, 0)

    def together(self, values: Tensor) -> Tensor:
        """The values `[*lead, k, ...]` of all selected states, on every rank, where each rank knows those of its states."""
        here = self.here.reshape(*self.here.shape, *(1,) * (values.dim() - self.here.dim()))
        return summed(self.shards, values.masked_fill(~here, 0.0))

    def rows(self, table: Float[Tensor, "*#lead n d"]) -> Float[Tensor, "*lead k d"]:
        """The selected states' rows of a table in slices."""
        if not table.shape[-2]:  # still a function of the table: all ranks exchange gradients
            lead = torch.broadcast_shapes(table.shape[:-2], self.local.shape[:-1])
            return summed(self.shards, table.sum().expand(*lead, self.local.shape[-1], table.shape[-1]))
        return self.together(take(table, self.local))

    def values(self, x: Float[Tensor, "*lead n"]) -> Float[Tensor, "*lead k"]:
        """The values of the selected states."""
        if not x.shape[-1]:
            return summed(self.shards, x.new_zeros(self.local.shape))
        return self.together(x.gather(-1, self.local))
