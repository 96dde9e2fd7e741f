"""Sweeps along a chain: messages from the selected states of each position to all states of the next, and back."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from tailsum.chains.shared_products import SharedProducts, shared_products
from tailsum.numerics.kernels import fused
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Near, Neighbours
from tailsum.sketch.selection import Landmarks, Optimal, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached, send, together

if TYPE_CHECKING:
    from tailsum.chains.fused_sweep import FusedSweep


class ChainSweep(Sweep):
    """Messages along the positions of a chain with node scores `[*batch, T, N]`; padding sends none."""

    def __init__(
        self,
        nodes: Float[Tensor, "*batch T n"],
        pairs: Potential,
        lengths: Int[Tensor, "*batch"] | None,
        same_states: bool = True,
    ) -> None:
        self.nodes, self.lengths, self.same_states = nodes, lengths, same_states
        self.onward, self.back = pairs, pairs.transposed()
        self.past, self.future = nodes, torch.zeros_like(nodes)
        self._products: dict[bool, SharedProducts | None] = {}  # back and onward, if all steps share them
        self.near: Near | None = None  # messages from neighbouring states
        self.pilot: Subset | None = None  # landmarks of the positions 1 .. T-1, which sent the messages in `future`

    def set_neighbours(self, neighbours: Neighbours | int, landmarks: int) -> None:
        needed = isinstance(neighbours, Neighbours) or landmarks < self.nodes.shape[-1]
        if self.same_states and needed:
            self.near = Near(self.onward, self.back, neighbours, self.nodes.device)
            self.lists = self.near.lists
            if self.lists is not None:  # fewer landmarks are as accurate
                self.landmarks, self.rounds = 192, 0

    # Operations over all states, which a sweep whose states are on several devices overrides.

    def selecting(self, landmarks: int) -> Selection:
        """The selection of this many landmarks."""
        return Landmarks(landmarks)

    def sent(self, t: int, value: Tensor, kept: Subset, back: bool = False) -> Float[Tensor, "*batch n"]:
        """The message from the kept states at one end of step t, with their values, to all states at the other."""
        pairs, count = self.back if back else self.onward, kept.index.shape[-1]
        if back not in self._products:  # decided at the first selection; later ones have about as many states
            *batch, length, _ = self.nodes.shape
            self._products[back] = shared_products(pairs, count, math.prod(batch), length - 1)
        if (shared := self._products[back]) is not None:
            sums = shared.sums(kept.index, value.gather(-1, kept.index) + kept.log_weight)
            if sums is not None:
                return sums
        return send(pairs.at_step(t), value, kept)

    def joined(
        self, t: int, value: Tensor, kept: Subset, sent: Tensor, back: bool = False
    ) -> Float[Tensor, "*batch n"]:
        """The message `sent`, with the part from each state's neighbours made exact, if there are neighbours."""
        if self.near is None:
            return sent
        return (self.near.back if back else self.near.onward).at_step(t).joined(sent, value, kept)

    def filled(self, sent: Float[Tensor, "*batch n"], landmarks: int) -> Float[Tensor, "*batch n"]:
        """The message of so many landmarks, with finite numbers for states that it did not reach; that of all states is exact."""
        return sent if landmarks >= sent.shape[-1] else fill_unreached(sent)

    def suits_kernels(self, selection: Selection) -> bool:
        """Whether kernels can sweep: all steps and sequences share the scores, and fewer than all states are selected."""
        pairs = self.onward
        if not fused(self.nodes) or not self.nodes.numel() or pairs.lead.numel() != 1:
            return False
        if pairs.for_kernels is None:
            return False
        return isinstance(selection, Optimal | Landmarks) and selection.k < self.nodes.shape[-1]

    # Sweeps.

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        if self.pilot:  # the first sweep has only the node scores
            self.past = self._past(max(1, landmarks // 2), generator)
        self.future, self.pilot = self._future(landmarks, generator)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T n"]:
        return self._past(landmarks, generator) + self.future

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        if self.suits_kernels(selection):
            subset = self._fused().sequence(self._flat(self.future), self.onward, selection, generator)
            return replace(self._shaped_subset(subset), pilot=self.pilot)
        message, kept = self.nodes[..., 0, :], list[Subset]()
        for t in range(self.nodes.shape[-2]):
            if t > 0:
                message = self.nodes[..., t, :] + self.sent(t - 1, message, kept[-1])
            # Given the states kept so far this message is exact: a state that it does not reach has no mass.
            kept.append(selection(message + self.future[..., t, :], generator))
        return replace(together(kept), pilot=self.pilot)

    def _past(self, landmarks: int, generator: torch.Generator | None) -> Tensor:
        """Messages from the earlier positions to every state, node scores included."""
        selection = self.selecting(landmarks)
        if self.suits_kernels(selection):
            assert isinstance(selection, Landmarks)
            near = None if self.near is None else self.near.onward
            return self._shaped(self._fused().past(self._flat(self.future), self.onward, near, selection.k, generator))
        messages = [self.nodes[..., 0, :]]
        for t in range(1, self.nodes.shape[-2]):
            kept = selection(messages[-1] + self.future[..., t - 1, :], generator)
            sent = self.joined(t - 1, messages[-1], kept, self.sent(t - 1, messages[-1], kept))
            messages.append(self.nodes[..., t, :] + self.filled(sent, landmarks))
        return torch.stack(messages, -2)

    def _future(self, landmarks: int, generator: torch.Generator | None) -> tuple[Tensor, Subset | None]:
        """Messages from the later positions to every state, and the states selected to send them."""
        selection = self.selecting(landmarks)
        if self.suits_kernels(selection):
            assert isinstance(selection, Landmarks)
            sweep, near = self._fused(), None if self.near is None else self.near.back
            past = sweep.nodes if self.past is self.nodes else self._flat(self.past)
            messages, subset = sweep.future(past, self.back, near, selection.k, generator)
            return self._shaped(messages), None if subset is None else self._shaped_subset(subset)
        messages, kept = torch.zeros_like(self.nodes), []
        for t in range(self.nodes.shape[-2] - 1, 0, -1):
            kept.append(selection(self.past[..., t, :] + messages[..., t, :], generator))
            value = self.nodes[..., t, :] + messages[..., t, :]
            sent = self.sent(t - 1, value, kept[-1], back=True)
            sent = self.filled(self.joined(t - 1, value, kept[-1], sent, back=True), landmarks)
            sent = sent if self.lengths is None else torch.where((t < self.lengths)[..., None], sent, 0.0)
            messages[..., t - 1, :] = sent
        return messages, together(kept[::-1]) if kept else None

    def _fused(self) -> "FusedSweep":
        from tailsum.chains.fused_sweep import FusedSweep  # noqa: PLC0415

        lengths = None if self.lengths is None else self.lengths.expand(self.nodes.shape[:-2]).reshape(-1)
        return FusedSweep(self._flat(self.nodes), lengths)

    @staticmethod
    def _flat(x: Tensor) -> Float[Tensor, "B T n"]:
        return x.reshape(-1, *x.shape[-2:]).contiguous()

    def _shaped(self, x: Tensor) -> Shaped[Tensor, "*batch T k"]:
        return x.reshape(*self.nodes.shape[:-2], *x.shape[1:])

    def _shaped_subset(self, subset: Subset) -> Subset:
        return Subset(self._shaped(subset.index), self._shaped(subset.log_weight))
