"""Sweeps along the starts of a semi-Markov model's segments: messages from selected states to all states, and back."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.scores.message import message
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Near, Neighbours
from tailsum.sketch.selection import Landmarks, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached, send, together


class SegmentSweep(Sweep):
    """Messages along the positions where segments of a semi-Markov model start: `segment [*batch, T, D, N]`.

    Segments that reach beyond their sequence have score minus infinity.
    """

    def __init__(
        self, segment: Float[Tensor, "*batch T D n"], pairs: Potential, lengths: Int[Tensor, "*batch"]
    ) -> None:
        self.segment, self.lengths = segment, lengths
        pairs = _without_durations(pairs)
        self.onward, self.back = pairs, pairs.transposed()
        self.near: Near | None = None  # messages from neighbouring states
        self.entering = torch.zeros_like(segment[..., 0, :])  # messages from the segments before a start
        self.leaving = self._leaving(None, None)  # log mass of the segments from a start on
        self.looked = False

    def set_neighbours(self, neighbours: Neighbours | int, landmarks: int) -> None:
        if isinstance(neighbours, Neighbours) or landmarks < self.segment.shape[-1]:
            self.near = Near(self.onward, self.back, neighbours, self.segment.device)
            self.lists = self.near.lists

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        if self.looked:
            self.entering = self._entering(Landmarks(max(1, landmarks // 2)), generator)
        self.leaving = self._leaving(Landmarks(landmarks), generator)
        self.looked = True

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T n"]:
        return self._entering(Landmarks(landmarks), generator) + self.leaving

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        entering, kept = [self.entering[..., 0, :]], list[Subset]()
        for start in range(self.segment.shape[-3]):
            if start > 0:  # from the kept states of every start whose segments may end here
                ways = range(start - 1, max(-1, start - 1 - self.segment.shape[-2]), -1)
                index = torch.cat([kept[t].index for t in ways], -1)
                values = [entering[t] + self.segment[..., t, start - t - 1, :] for t in ways]
                value = [v.gather(-1, kept[t].index) + kept[t].log_weight for v, t in zip(values, ways, strict=True)]
                entering.append(message(self.onward.at_step(start - 1), index, torch.cat(value, -1)))
            kept.append(selection(entering[start] + self.leaving[..., start, :], generator))
        return together(kept)

    def _entering(self, selection: Selection, generator: torch.Generator | None) -> Tensor:
        """Messages to the states of every start from landmarks among the segments that end there."""
        entering = [torch.zeros_like(self.segment[..., 0, 0, :])]
        for start in range(1, self.segment.shape[-3]):
            ways = range(start - 1, max(-1, start - 1 - self.segment.shape[-2]), -1)
            ending = torch.stack([entering[t] + self.segment[..., t, start - t - 1, :] for t in ways]).logsumexp(0)
            kept = selection(ending + self.exits[..., start, :], generator)
            sent = send(self.onward.at_step(start - 1), ending, kept)
            if self.near is not None:
                sent = self.near.onward.at_step(start - 1).joined(sent, ending, kept)
            entering.append(torch.where((start < self.lengths)[..., None], fill_unreached(sent), 0.0))
        return torch.stack(entering, -2)

    def _leaving(self, selection: Selection | None, generator: torch.Generator | None) -> Tensor:
        """Log mass of a segment and all that follow it, for every start and state, by landmarks at the next start."""
        *_, length, longest, _ = self.segment.shape
        exits = [torch.zeros_like(self.segment[..., 0, 0, :])] * (length + 1)
        leaving = [exits[0]] * length
        for start in range(length - 1, -1, -1):
            ways = [self.segment[..., start, d, :] + exits[start + d + 1] for d in range(min(longest, length - start))]
            inside = (start < self.lengths)[..., None]
            leaving[start] = torch.where(inside, torch.stack(ways).logsumexp(0), 0.0)
            if selection is not None and start > 0:
                kept = selection(self.entering[..., start, :] + leaving[start], generator)
                sent = send(self.back.at_step(start - 1), leaving[start], kept)
                if self.near is not None:
                    sent = self.near.back.at_step(start - 1).joined(sent, leaving[start], kept)
                exits[start] = torch.where(inside, fill_unreached(sent), 0.0)
        self.exits = torch.stack(exits, -2)
        return torch.stack(leaving, -2)


def _without_durations(pairs: Potential) -> Potential:
    """The potential of each boundary: transitions do not depend on durations."""
    last = pairs.trailing
    return pairs.map(lambda x: x.squeeze(-last - 1) if x.dim() > last else x)
