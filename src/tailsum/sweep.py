"""Sweeps along a chain: messages from the selected states of each position to all states of the next, and back."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.kernels.message import message
from tailsum.potential import Potential, Scored, at_step
from tailsum.propose import Sweep
from tailsum.select import Optimal, Selection, Subset


class ChainSweep(Sweep):
    """Messages along the positions of a chain with node scores `[*batch, T, N]`; padding sends none."""

    def __init__(
        self,
        nodes: Float[Tensor, "*batch T n"],
        pairs: Potential,
        lengths: Int[Tensor, "*batch"] | None,
    ) -> None:
        self.nodes, self.lengths = nodes, lengths
        self.onward, self.back = pairs, pairs.transposed()
        self.past, self.future = nodes, torch.zeros_like(nodes)
        self.landmarks: Subset | None = None  # of the positions 1 .. T-1, whose messages are the future

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        if self.landmarks:  # the first time, the node scores are all that is known
            self.past, _ = self._forward(Optimal(max(1, landmarks // 2)), generator)
        self.future, self.landmarks = self._backward(Optimal(landmarks), generator)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T n"]:
        past, _ = self._forward(Optimal(landmarks), generator)
        return past + self.future

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        kept = self._forward(selection, generator)[1]
        return Subset(kept.index, kept.log_weight, self.landmarks)

    def _forward(self, selection: Selection, generator: torch.Generator | None) -> tuple[Tensor, Subset]:
        """Messages of the earlier positions to every state (node scores included), and the states selected on the way."""
        message, messages, kept = self.nodes[..., 0, :], [self.nodes[..., 0, :]], []
        for t in range(self.nodes.shape[-2]):
            if t > 0:
                sent = send(self.onward.at_step(t - 1), message, kept[-1])
                message = self.nodes[..., t, :] + sent
                messages.append(self.nodes[..., t, :] + known(sent))
            # Given the states kept so far, this message is exact: a state that it does not reach is not needed.
            kept.append(selection(message + self.future[..., t, :], generator))
        return torch.stack(messages, -2), _together(kept)

    def _backward(self, selection: Selection, generator: torch.Generator | None) -> tuple[Tensor, Subset | None]:
        """Messages of the later positions to every state, and the states that were selected to send them."""
        messages, kept = torch.zeros_like(self.nodes), []
        for t in range(self.nodes.shape[-2] - 1, 0, -1):
            kept.append(selection(self.past[..., t, :] + messages[..., t, :], generator))
            sent = send(self.back.at_step(t - 1), self.nodes[..., t, :] + messages[..., t, :], kept[-1])
            inside = None if self.lengths is None else (t < self.lengths)[..., None]
            messages[..., t - 1, :] = known(sent) if inside is None else torch.where(inside, known(sent), 0.0)
        return messages, _together(kept[::-1]) if kept else None


class SegmentSweep(Sweep):
    """Messages along the positions where segments of a semi-Markov model start: `segment [*batch, T, D, N]`.

    Segments that reach beyond their sequence have score minus infinity.
    """

    def __init__(
        self, segment: Float[Tensor, "*batch T D n"], pairs: Potential, lengths: Int[Tensor, "*batch"]
    ) -> None:
        self.segment, self.lengths = segment, lengths
        self.onward, self.back = pairs, pairs.transposed()
        self.entering = torch.zeros_like(segment[..., 0, :])  # messages from what lies before a start
        self.leaving = self._leaving(None, None)  # of a start and what lies after it
        self.looked = False

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        if self.looked:
            self.entering = self._entering(Optimal(max(1, landmarks // 2)), generator)
        self.leaving = self._leaving(Optimal(landmarks), generator)
        self.looked = True

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T n"]:
        return self._entering(Optimal(landmarks), generator) + self.leaving

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        entering, kept = [self.entering[..., 0, :]], list[Subset]()
        for start in range(self.segment.shape[-3]):
            if start > 0:  # from the kept states of every start from which a segment may end here
                ways = range(start - 1, max(-1, start - 1 - self.segment.shape[-2]), -1)
                index = torch.cat([kept[t].index for t in ways], -1)
                values = [entering[t] + self.segment[..., t, start - t - 1, :] for t in ways]
                value = [v.gather(-1, kept[t].index) + kept[t].log_weight for v, t in zip(values, ways, strict=True)]
                entering.append(message(_boundary(self.onward, start), index, torch.cat(value, -1)))
            kept.append(selection(entering[start] + self.leaving[..., start, :], generator))
        return _together(kept)

    def _entering(self, selection: Selection, generator: torch.Generator | None) -> Tensor:
        """Messages to the states of every start from landmarks among the segments that end there."""
        entering = [torch.zeros_like(self.segment[..., 0, 0, :])]
        for start in range(1, self.segment.shape[-3]):
            ways = range(start - 1, max(-1, start - 1 - self.segment.shape[-2]), -1)
            ending = torch.stack([entering[t] + self.segment[..., t, start - t - 1, :] for t in ways]).logsumexp(0)
            kept = selection(ending + self.exits[..., start, :], generator)
            sent = known(send(_boundary(self.onward, start), ending, kept))
            entering.append(torch.where((start < self.lengths)[..., None], sent, 0.0))
        return torch.stack(entering, -2)

    def _leaving(self, selection: Selection | None, generator: torch.Generator | None) -> Tensor:
        """For every start and state, a segment and all that follows it, by messages from landmarks at the next start."""
        *_, length, longest, _ = self.segment.shape
        exits = [torch.zeros_like(self.segment[..., 0, 0, :])] * (length + 1)
        leaving = [exits[0]] * length
        for start in range(length - 1, -1, -1):
            ways = [self.segment[..., start, d, :] + exits[start + d + 1] for d in range(min(longest, length - start))]
            leaving[start] = torch.stack(ways).logsumexp(0)
            leaving[start] = torch.where((start < self.lengths)[..., None], leaving[start], 0.0)
            if selection is not None and start > 0:
                kept = selection(self.entering[..., start, :] + leaving[start], generator)
                sent = known(send(_boundary(self.back, start), leaving[start], kept))
                exits[start] = torch.where((start < self.lengths)[..., None], sent, 0.0)
        self.exits = torch.stack(exits, -2)
        return torch.stack(leaving, -2)


def _together(kept: Sequence[Subset]) -> Subset:
    """The selections of successive positions as one."""
    return Subset(torch.stack([k.index for k in kept], -2), torch.stack([k.log_weight for k in kept], -2))


def _boundary(pairs: Potential, start: int) -> Potential:
    """The potential of the boundary before a start; transitions do not depend on durations."""
    trailing = 1 if isinstance(pairs, Scored) else 2
    return pairs.map(lambda x: at_step(x.squeeze(-trailing - 1), trailing, start - 1) if x.dim() > trailing else x)


def send(potential: Potential, messages: Tensor, kept: Subset) -> Tensor:
    """The message of the kept states to all states of the neighbour."""
    return message(potential, kept.index, messages.gather(-1, kept.index) + kept.log_weight)


def known(sent: Tensor) -> Tensor:
    """A message with the mean (of the logarithms) of what the other states got in place of minus infinity.

    Where transitions are forbidden, a state that no selected state reaches may still matter: nothing is known of it. To
    give it minus infinity would rule it out, and bias whatever is selected by this message.
    """
    unknown = sent == -math.inf
    count = (~unknown).sum(-1, keepdim=True).clamp_(min=1)
    return torch.where(unknown, sent.masked_fill(unknown, 0.0).sum(-1, keepdim=True) / count, sent)
