"""Sweeps along a chain: messages from the selected states of each position to all states of the next, and back."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.scores.potential import Potential
from tailsum.sketch.selection import Optimal, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached, send, together


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
        self.pilot: Subset | None = None  # landmarks of the positions 1 .. T-1, which sent the messages in `future`

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        if self.pilot:  # the first sweep has only the node scores
            self.past, _ = self._forward(Optimal(max(1, landmarks // 2)), generator)
        self.future, self.pilot = self._backward(Optimal(landmarks), generator)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T n"]:
        past, _ = self._forward(Optimal(landmarks), generator)
        return past + self.future

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        kept = self._forward(selection, generator)[1]
        return Subset(kept.index, kept.log_weight, self.pilot)

    def _forward(self, selection: Selection, generator: torch.Generator | None) -> tuple[Tensor, Subset]:
        """Messages of the earlier positions to every state (node scores included), and the states selected on the way."""
        message, messages, kept = self.nodes[..., 0, :], [self.nodes[..., 0, :]], []
        for t in range(self.nodes.shape[-2]):
            if t > 0:
                sent = send(self.onward.at_step(t - 1), message, kept[-1])
                message = self.nodes[..., t, :] + sent
                messages.append(self.nodes[..., t, :] + fill_unreached(sent))
            # Given the states kept so far this message is exact: a state that it does not reach has no mass.
            kept.append(selection(message + self.future[..., t, :], generator))
        return torch.stack(messages, -2), together(kept)

    def _backward(self, selection: Selection, generator: torch.Generator | None) -> tuple[Tensor, Subset | None]:
        """Messages of the later positions to every state, and the states selected to send them."""
        messages, kept = torch.zeros_like(self.nodes), []
        for t in range(self.nodes.shape[-2] - 1, 0, -1):
            kept.append(selection(self.past[..., t, :] + messages[..., t, :], generator))
            sent = send(self.back.at_step(t - 1), self.nodes[..., t, :] + messages[..., t, :], kept[-1])
            sent = fill_unreached(sent)
            messages[..., t - 1, :] = (
                sent if self.lengths is None else torch.where((t < self.lengths)[..., None], sent, 0.0)
            )
        return messages, together(kept[::-1]) if kept else None
