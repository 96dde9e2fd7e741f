"""The sweeps of `ChainSweep` by kernels: a few launches a position, and no synchronisation with the host."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.fused import landmarks
from tailsum.numerics.fused.select import Selector
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import NearMessages
from tailsum.sketch.selection import Landmarks, Optimal, Selection, Subset
from tailsum.sketch.sweep import fill_unreached


class FusedSweep:
    """Messages along a chain with node scores `[B, T, N]` and pair scores that all steps and sequences share."""

    def __init__(self, nodes: Float[Tensor, "B T n"], lengths: Int[Tensor, " B"] | None) -> None:
        self.nodes, self.lengths = nodes, lengths
        self.batch, self.length, self.n = nodes.shape
        self._selector = Selector(self.batch, self.n, self.length, nodes.device)

    def future(
        self, past: Float[Tensor, "B T n"], back: Potential, near: NearMessages | None, k: int, generator: torch.Generator | None
    ) -> tuple[Float[Tensor, "B T n"], Subset | None]:
        """Messages of the later positions to every state, and the k states of each that were selected to send them."""
        messages = torch.zeros_like(self.nodes)
        if self.length == 1:
            return messages, None
        send, kept = landmarks.Sender(_params(back)), self._subset(self.length - 1, k)
        beside = None if near is None else _near(near)
        marks = self._marks(generator)
        sent = torch.empty_like(self.nodes[:, 0])
        same = past is self.nodes
        for t in range(self.length - 1, 0, -1):
            value = self.nodes[:, t] + messages[:, t]
            log_q = value if same else past[:, t] + messages[:, t]
            index, log_weight = kept.index[:, t - 1], kept.log_weight[:, t - 1]
            self._selector(log_q, marks[t], index, log_weight, False, value)
            send(sent, value, index, log_weight)
            if beside is not None:
                landmarks.join(sent, sent, value, self._selector.excess, self._selector.highest, beside)
            found = sent if isinstance(back, Factored) else fill_unreached(sent)  # which reach every state
            messages[:, t - 1] = found if self.lengths is None else torch.where((t < self.lengths)[:, None], found, 0.0)
        return messages, kept

    def sequence(
        self, future: Float[Tensor, "B T n"], onward: Potential, selection: Selection, generator: torch.Generator | None
    ) -> Subset:
        """States kept at position after position, by messages from those kept before and by the future."""
        assert isinstance(selection, Optimal | Landmarks)
        send, kept = landmarks.Sender(_params(onward)), self._subset(self.length, selection.k)
        marks, ordered = self._marks(generator), isinstance(selection, Optimal)
        message = self.nodes[:, 0]
        log_q = message + future[:, 0]
        for t in range(self.length):
            if t > 0:
                value, message = message, torch.empty_like(log_q)
                before = kept.index[:, t - 1], kept.log_weight[:, t - 1]
                send(message, value, *before, add=self.nodes[:, t], also=future[:, t], log_q=log_q)
            self._selector(log_q, marks[t], kept.index[:, t], kept.log_weight[:, t], ordered)
        return kept

    def _subset(self, length: int, k: int) -> Subset:
        device = self.nodes.device
        index = torch.zeros(self.batch, length, k, dtype=torch.long, device=device)
        return Subset(index, torch.full((self.batch, length, k), -torch.inf, device=device))  # empty

    def _marks(self, generator: torch.Generator | None) -> Tensor:
        shape, device = (self.length, self.batch), self.nodes.device
        return torch.rand(shape, dtype=torch.float64, device=device, generator=generator)


def _params(potential: Potential) -> tuple[Tensor, ...]:
    """A table `[N, N]`, or factors `[N, d]`."""
    return tuple(x.reshape(x.shape[-2:]) for x in potential.table_params())


def _near(near: NearMessages) -> landmarks.Near:
    return landmarks.Near(near.partners, near.scale.reshape(-1).float(), near.weight.reshape(near.partners.shape).float())
