"""Sweeps along the starts of a semi-Markov model's segments: messages from selected states to all states, and back."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.tensors import at_step
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Near, Neighbours
from tailsum.sketch.selection import Landmarks, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached, together


class SegmentSweep(Sweep):
    """Messages along the positions where segments of a semi-Markov model start: `segment [*batch, T, D, N]`.

    Segments that reach beyond their sequence have score minus infinity. The last leading dimension of `pairs` is the
    duration of the first segment, as in the model's `transition`. If it is 1, messages of all durations are summed first.
    """

    def __init__(
        self, segment: Float[Tensor, "*batch T D n"], pairs: Potential, lengths: Int[Tensor, "*batch"]
    ) -> None:
        self.segment, self.lengths = segment, lengths
        self.onward, self.back = pairs, pairs.transposed()
        self.by_duration = bool(pairs.lead) and pairs.lead[-1] > 1
        self.near: Near | None = None  # messages from neighbouring states
        self.entering = torch.zeros_like(segment[..., 0, :])  # messages from the segments before a start
        self.leaving = self._leaving(None, None)  # log mass of the segments from a start on
        self.looked = False

    def set_neighbours(self, neighbours: Neighbours | int, landmarks: int) -> None:
        if not self.by_duration and (isinstance(neighbours, Neighbours) or landmarks < self.segment.shape[-1]):
            onward, back = _without_durations(self.onward), _without_durations(self.back)
            self.near = Near(onward, back, neighbours, self.segment.device)
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
            if start > 0:  # messages from the kept states of every start whose segments may end here
                ways = range(start - 1, max(-1, start - 1 - self.segment.shape[-2]), -1)
                index = torch.stack([kept[t].index for t in ways], -2)
                values = [entering[t] + self.segment[..., t, start - t - 1, :] for t in ways]
                value = [v.gather(-1, kept[t].index) + kept[t].log_weight for v, t in zip(values, ways, strict=True)]
                entering.append(self._sum_of_messages(start, index, torch.stack(value, -2)))
            kept.append(selection(entering[start] + self.leaving[..., start, :], generator))
        return together(kept)

    def _sum_of_messages(self, start: int, index: Tensor, value: Tensor) -> Tensor:
        """The messages to all states at a start, from the values of some states by duration, `[*batch, D, k]`."""
        if not self.by_duration:
            index, value = index.flatten(-2)[..., None, :], value.flatten(-2)[..., None, :]
        return self._at(self.onward, start, value.shape[-2]).message(index, value).logsumexp(-2)

    def _entering(self, selection: Selection, generator: torch.Generator | None) -> Tensor:
        """Messages to the states of every start, from landmarks among the segments that end there."""
        entering = [torch.zeros_like(self.segment[..., 0, 0, :])]
        for start in range(1, self.segment.shape[-3]):
            ways = range(start - 1, max(-1, start - 1 - self.segment.shape[-2]), -1)
            ending = torch.stack([entering[t] + self.segment[..., t, start - t - 1, :] for t in ways], -2)
            ending = ending if self.by_duration else ending.logsumexp(-2, keepdim=True)
            exits = self.exits[start][..., : ending.shape[-2], :]
            kept = selection((ending + exits).logsumexp(-2), generator)
            index = kept.index[..., None, :].expand(*ending.shape[:-1], -1)
            sent = self._sum_of_messages(start, index, ending.gather(-1, index) + kept.log_weight[..., None, :])
            if self.near is not None:
                sent = self.near.onward.at_step(start - 1).joined(sent, ending[..., 0, :], kept)
            entering.append(torch.where((start < self.lengths)[..., None], fill_unreached(sent), 0.0))
        return torch.stack(entering, -2)

    def _leaving(self, selection: Selection | None, generator: torch.Generator | None) -> Tensor:
        """Log mass of a segment and all after it, for every start and state, from landmarks at the next start."""
        *_, length, longest, _ = self.segment.shape
        exits = [torch.zeros_like(self.segment[..., 0, :1, :])] * (length + 1)  # [*batch, D or 1, n]
        leaving = [exits[0][..., 0, :]] * length
        for start in range(length - 1, -1, -1):
            durations = range(min(longest, length - start))
            after = [exits[start + d + 1] for d in durations]
            ways = [self.segment[..., start, d, :] + x[..., min(d, x.shape[-2] - 1), :] for d, x in enumerate(after)]
            inside = (start < self.lengths)[..., None]
            leaving[start] = torch.where(inside, torch.stack(ways).logsumexp(0), 0.0)
            if selection is not None and start > 0:
                kept = selection(self.entering[..., start, :] + leaving[start], generator)
                pairs = self._at(self.back, start, min(longest, start))
                value = (leaving[start].gather(-1, kept.index) + kept.log_weight)[..., None, :]
                shape = (*value.shape[:-2], pairs.lead[-1] if self.by_duration else 1, value.shape[-1])
                sent = pairs.message(kept.index[..., None, :].expand(shape), value.expand(shape))
                if self.near is not None:
                    back = self.near.back.at_step(start - 1)
                    sent = back.joined(sent[..., 0, :], leaving[start], kept)[..., None, :]
                sent = fill_unreached(sent.flatten(-2)).unflatten(-1, sent.shape[-2:])
                exits[start] = torch.where(inside[..., None], sent, 0.0)
        self.exits = exits
        return torch.stack(leaving, -2)

    def _at(self, pairs: Potential, start: int, durations: int) -> Potential:
        """The potential of the boundary before a start, for this many durations before it: `[*batch, D or 1, n, n]`."""
        last = pairs.trailing

        def here(x: Tensor) -> Tensor:
            if x.dim() <= last:
                return x
            return at_step(x, last + 1, start - 1).narrow(-last - 1, 0, min(durations, x.shape[-last - 1]))

        return pairs.map(here)


def _without_durations(pairs: Potential) -> Potential:
    """The potential of each boundary: transitions do not depend on durations."""
    last = pairs.trailing
    return pairs.map(lambda x: x.squeeze(-last - 1) if x.dim() > last else x)
