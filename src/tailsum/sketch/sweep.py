"""Sweeps: messages from landmark states to all states of the neighbouring nodes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Neighbours
from tailsum.sketch.selection import Selection, Subset

FAR = 1000.0  # nats below the best message: such states were only reached through masks, such as -1e4 or -1e9


class Sweep(ABC):
    """Beliefs about all states, from messages that landmarks, a few selected states of each node, send to its neighbours.

    Minus infinity in `log_q` means that a state is forbidden, never just that no landmark reached it.
    """

    landmarks, rounds = 512, 1  # unless `Lookahead` sets them
    lists: Neighbours | None = None  # of neighbours, if they are used

    def set_neighbours(self, neighbours: Neighbours | int, landmarks: int) -> None:  # noqa: B027  (not every sweep can use them)
        """Add messages from neighbours to those of that many landmarks. A number is the size of lists to make here."""

    @abstractmethod
    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        """One round of messages from landmarks at each node, which the beliefs of earlier rounds select."""

    @abstractmethod
    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch_node n"]:
        """How much each state matters under the current beliefs."""

    @abstractmethod
    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        """Select node after node, from messages of the states kept so far and the current beliefs."""


def send(potential: Potential, messages: Tensor, kept: Subset) -> Tensor:
    """The message from the kept states to all states of the neighbouring node."""
    return potential.message(kept.index, messages.gather(-1, kept.index) + kept.log_weight)


def fill_unreached(sent: Tensor) -> Tensor:
    """An estimated message, with the mean over the reached states for those that no selected state reaches.

    Where transitions are forbidden, such a state may still matter: minus infinity would rule it out, and bias whatever
    is selected by this message.
    """
    here = reached(sent, sent.amax(-1, keepdim=True))
    count = here.sum(-1, keepdim=True).clamp_(min=1)
    return torch.where(here, sent, sent.masked_fill(~here, 0.0).sum(-1, keepdim=True) / count)


def reached(sent: Float[Tensor, "*lead n"], top: Float[Tensor, "*lead 1"]) -> Bool[Tensor, "*lead n"]:
    """Which states an estimated message is informative about, given its highest number.

    It is not where it came through a finite mask, which would rule a state out as minus infinity does: where it is
    further below the best than any real score, or where a mask left it no digits.
    """
    return (sent > top - FAR) & (top.abs() < 1.0 / torch.finfo(sent.dtype).eps)


def together(kept: Sequence[Subset]) -> Subset:
    """The subsets of successive positions, stacked."""
    return Subset(torch.stack([k.index for k in kept], -2), torch.stack([k.log_weight for k in kept], -2))
