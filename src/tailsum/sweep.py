"""Sweeps along a chain: messages from the selected states of each position to all states of the next, and back."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.kernels.message import message
from tailsum.potential import Potential
from tailsum.propose import Sweep
from tailsum.select import Selection, Subset


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

    def forward(
        self, selection: Selection, backward: Float[Tensor, "*batch T n"], generator: torch.Generator | None
    ) -> tuple[Float[Tensor, "*batch T n"], Subset]:
        message, messages, kept = self.nodes[..., 0, :], [self.nodes[..., 0, :]], []
        for t in range(self.nodes.shape[-2]):
            if t > 0:
                sent = _send(self.onward.at_step(t - 1), message, kept[-1])
                message = self.nodes[..., t, :] + sent
                messages.append(self.nodes[..., t, :] + _known(sent))
            # Given the states kept so far, this message is exact: a state that it does not reach is not needed.
            kept.append(selection(message + backward[..., t, :], generator))
        index, log_weight = torch.stack([k.index for k in kept], -2), torch.stack([k.log_weight for k in kept], -2)
        return torch.stack(messages, -2), Subset(index, log_weight)

    def backward(
        self, selection: Selection, forward: Float[Tensor, "*batch T n"], generator: torch.Generator | None
    ) -> Float[Tensor, "*batch T n"]:
        messages = torch.zeros_like(self.nodes)
        for t in range(self.nodes.shape[-2] - 1, 0, -1):
            kept = selection(forward[..., t, :] + messages[..., t, :], generator)
            sent = _send(self.back.at_step(t - 1), self.nodes[..., t, :] + messages[..., t, :], kept)
            inside = None if self.lengths is None else (t < self.lengths)[..., None]
            messages[..., t - 1, :] = _known(sent) if inside is None else torch.where(inside, _known(sent), 0.0)
        return messages


def _send(potential: Potential, messages: Tensor, kept: Subset) -> Tensor:
    return message(potential, kept.index, messages.gather(-1, kept.index) + kept.log_weight)


def _known(sent: Tensor) -> Tensor:
    """A message with the mean (of the logarithms) of what the other states got in place of minus infinity.

    Where transitions are forbidden, a state that no selected state reaches may still matter: nothing is known of it. To
    give it minus infinity would rule it out, and bias whatever is selected by this message.
    """
    unknown = sent == -math.inf
    count = (~unknown).sum(-1, keepdim=True).clamp_(min=1)
    return torch.where(unknown, sent.masked_fill(unknown, 0.0).sum(-1, keepdim=True) / count, sent)
