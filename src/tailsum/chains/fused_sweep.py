"""The sweeps of `ChainSweep` by kernels: a few launches per position, and no synchronisation with the host."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.fused.landmarks import Excess, Near, Sender
from tailsum.numerics.fused.select import Selector
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
        self,
        past: Float[Tensor, "B T n"],
        back: Potential,
        near: NearMessages | None,
        k: int,
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "B T n"], Subset | None]:
        """Messages from the later positions to every state, and the k states of each that were selected to send them."""
        messages = torch.zeros_like(self.nodes)
        if self.length == 1:
            return messages, None
        send, kept, marks = self._sender(back, near), self._subset(self.length - 1, k), self._marks(generator)
        values = self.nodes.clone()  # of the states that a message is a sum over
        same, excess = past is self.nodes, Excess(self._selector.excess, self._selector.highest)
        for t in range(self.length - 1, 0, -1):
            value, out, before = values[:, t], messages[:, t - 1], self.nodes[:, t - 1]
            log_q = value if same else past[:, t] + messages[:, t]
            chosen = kept.index[:, t - 1], kept.log_weight[:, t - 1]
            self._selector(log_q, marks[t], *chosen, False, value)
            send(out, value, *chosen, None if near is None else excess, t, also=before, log_q=values[:, t - 1])
            if not back.always_finite:  # there may be states that no message reaches
                out.copy_(fill_unreached(out))
                torch.add(out, before, out=values[:, t - 1])
        return messages, kept

    def past(
        self,
        future: Float[Tensor, "B T n"],
        onward: Potential,
        near: NearMessages | None,
        k: int,
        generator: torch.Generator | None,
    ) -> Float[Tensor, "B T n"]:
        """Messages from k selected states of each earlier position to every state, node scores included."""
        messages, marks = torch.empty_like(self.nodes), self._marks(generator)
        messages[:, 0] = self.nodes[:, 0]
        send, kept = self._sender(onward, near, ragged=False), self._subset(1, k)
        log_q, excess = messages[:, 0] + future[:, 0], Excess(self._selector.excess, self._selector.highest)
        for t in range(1, self.length):
            value, out = messages[:, t - 1], messages[:, t]
            chosen = kept.index.zero_()[:, 0], kept.log_weight.fill_(-torch.inf)[:, 0]
            self._selector(log_q, marks[t], *chosen, False, value)
            near_excess, node, later = None if near is None else excess, self.nodes[:, t], future[:, t]
            if onward.always_finite:
                send(out, value, *chosen, near_excess, add=node, also=later, log_q=log_q)
            else:  # there may be states that no message reaches
                send(out, value, *chosen, near_excess)
                out.copy_(fill_unreached(out)).add_(node)
                torch.add(out, later, out=log_q)
        return messages

    def sequence(
        self, future: Float[Tensor, "B T n"], onward: Potential, selection: Selection, generator: torch.Generator | None
    ) -> Subset:
        """States kept at one position after another, by messages from those kept before and by the future."""
        assert isinstance(selection, Optimal | Landmarks)
        send, kept = self._sender(onward, None, ragged=False), self._subset(self.length, selection.k)
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

    def _sender(self, pairs: Potential, near: NearMessages | None, ragged: bool = True) -> Sender:
        return Sender(_params(pairs), None if near is None else _near(near), self.lengths if ragged else None)

    def _subset(self, length: int, k: int) -> Subset:
        device = self.nodes.device
        index = torch.zeros(self.batch, length, k, dtype=torch.long, device=device)
        return Subset(index, self.nodes.new_full((self.batch, length, k), -torch.inf))  # empty

    def _marks(self, generator: torch.Generator | None) -> Tensor:
        shape, device = (self.length, self.batch), self.nodes.device
        return torch.rand(shape, dtype=torch.float64, device=device, generator=generator)


def _params(potential: Potential) -> tuple[Tensor, ...]:
    """A table `[N, N]`, or factors `[N, d]`."""
    return tuple(x.reshape(x.shape[-2:]) for x in potential.operator().tensors)


def _near(near: NearMessages) -> Near:
    weight = near.weight.reshape(near.partners.shape)
    return Near(near.partners.T.int().contiguous(), near.scale.reshape(-1).float(), weight.T.float().contiguous())
