"""Segmentations, the configurations of a semi-Markov model."""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Int
from torch import Tensor

from tailsum.structure.k_best import at_index


class Segments(NamedTuple):
    """The first position, the duration and the state of each segment, in order; -1, 0, -1 after the last one."""

    starts: Int[Tensor, "*sample_batch T"]
    durations: Int[Tensor, "*sample_batch T"]
    states: Int[Tensor, "*sample_batch T"]

    def at(self, index: int | tuple[int, ...] | slice | Int[Tensor, "..."]) -> "Segments":
        """Some segmentations of a batch or of samples: `segments.at(0)`; `segments[0]` is the field `starts`."""
        return Segments(*at_index(self, index, self.starts.dim() - 1))

    def labels(self) -> Int[Tensor, "*sample_batch T"]:
        """The state at each position (-1 in the padding).

        >>> tensor = torch.tensor
        >>> Segments(tensor([0, 2, -1]), tensor([2, 1, 0]), tensor([7, 5, -1])).labels().tolist()
        [7, 7, 5]
        """
        which = self.begins().long().cumsum(-1) - 1
        covered = torch.arange(which.shape[-1], device=which.device) < self.durations.sum(-1, keepdim=True)
        return torch.where(covered, self.states.gather(-1, which.clamp(min=0)), -1)

    def begins(self) -> Bool[Tensor, "*sample_batch T"]:
        """Whether a segment starts at each position."""
        present = (self.starts >= 0).long()
        return torch.zeros_like(self.starts).scatter_add(-1, self.starts.clamp(min=0), present) > 0


def overlapping(segments: Bool[Tensor, "*lead T D n"]) -> Bool[Tensor, "*lead T D n"]:
    """The segments (start, duration - 1, state) that share a position with one of `segments`, except for these."""
    length, longest = segments.shape[-3:-1]
    present = segments.any(-1).long()
    after = torch.arange(length, device=present.device)[:, None] + torch.arange(1, longest + 1, device=present.device)
    ended = present.new_zeros(*present.shape[:-2], length + longest)
    ended = ended.index_add(-1, after.flatten(), present.flatten(-2))
    covered = present.sum(-1).cumsum(-1) > ended.cumsum(-1)[..., :length]
    before = F.pad(covered.long().cumsum(-1), (1, 0))  # how many positions before each are covered
    shared = before[..., after.clamp(max=length)] > before[..., :length, None]
    return shared[..., None] & ~segments


torch.serialization.add_safe_globals([Segments])  # for torch.load(.., weights_only=True)
