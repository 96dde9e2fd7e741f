"""Sweeps along a chain: messages from the selected states of each position to all states of the next, and back."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.kernels.message import message
from tailsum.potential import Potential
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
        self.looked = False

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        if self.looked:  # the first time, the node scores are all that is known
            self.past, _ = self._forward(Optimal(max(1, landmarks // 2)), generator)
        self.future = self._backward(Optimal(landmarks), generator)
        self.looked = True

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T n"]:
        past, _ = self._forward(Optimal(landmarks), generator)
        return past + self.future

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        return self._forward(selection, generator)[1]

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
        index, log_weight = torch.stack([k.index for k in kept], -2), torch.stack([k.log_weight for k in kept], -2)
        return torch.stack(messages, -2), Subset(index, log_weight)

    def _backward(self, selection: Selection, generator: torch.Generator | None) -> Tensor:
        """Messages of the later positions to every state."""
        messages = torch.zeros_like(self.nodes)
        for t in range(self.nodes.shape[-2] - 1, 0, -1):
            kept = selection(self.past[..., t, :] + messages[..., t, :], generator)
            sent = send(self.back.at_step(t - 1), self.nodes[..., t, :] + messages[..., t, :], kept)
            inside = None if self.lengths is None else (t < self.lengths)[..., None]
            messages[..., t - 1, :] = known(sent) if inside is None else torch.where(inside, known(sent), 0.0)
        return messages


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
