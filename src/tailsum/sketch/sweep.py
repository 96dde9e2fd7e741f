"""Sweeps: messages from landmark states to all states of the neighbouring nodes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tailsum.scores.message import message
from tailsum.scores.potential import Potential
from tailsum.sketch.neighbours import Neighbours
from tailsum.sketch.selection import Selection, Subset

FAR = 1000.0  # nats below the best message: a state that far down was reached through masks alone, such as -1e4 or -1e9


class Sweep(ABC):
    """Beliefs about all states, from messages of landmarks, a few selected states of each node, to its neighbours.

    In `log_q` minus infinity means forbidden, never just not reached by a landmark.
    """

    landmarks, rounds = 512, 1  # unless given to `Lookahead`
    lists: Neighbours | None = None  # of neighbours, if they are used

    def set_neighbours(self, neighbours: Neighbours | int, landmarks: int) -> None:  # noqa: B027  (not every sweep can use them)
        """Add messages from neighbours, beside so many landmarks: by given lists, or by lists of a given size, made here."""

    @abstractmethod
    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        """One round of messages from landmarks at each node, selected by the beliefs of earlier rounds."""

    @abstractmethod
    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch_node n"]:
        """How much each state matters, by the current beliefs."""

    @abstractmethod
    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        """Select node after node, by messages from the states kept so far and by the current beliefs."""


def send(potential: Potential, messages: Tensor, kept: Subset) -> Tensor:
    """The message of the kept states to all states of the neighbour."""
    return message(potential, kept.index, messages.gather(-1, kept.index) + kept.log_weight)


def fill_unreached(sent: Tensor) -> Tensor:
    """Replace what a guessed message says of states that no selected state reaches, by the mean over the others.

    A state that no selected state reaches, where transitions are forbidden, may still matter: minus infinity would rule
    it out, and bias whatever is selected by this message.
    """
    here = reached(sent, sent.amax(-1, keepdim=True))
    count = here.sum(-1, keepdim=True).clamp_(min=1)
    return torch.where(here, sent, sent.masked_fill(~here, 0.0).sum(-1, keepdim=True) / count)


def reached(sent: Float[Tensor, "*lead n"], top: Float[Tensor, "*lead 1"]) -> Bool[Tensor, "*lead n"]:
    """Which states a guessed message says something about, given its highest number.

    Nothing where it came through a finite mask, which would rule a state out as minus infinity does: where it is further
    below the best than any score that is meant as a number, or has no digits left beside a mask.
    """
    return (sent > top - FAR) & (top.abs() < 1.0 / torch.finfo(sent.dtype).eps)


def together(kept: Sequence[Subset]) -> Subset:
    """The subsets of successive positions, stacked."""
    return Subset(torch.stack([k.index for k in kept], -2), torch.stack([k.log_weight for k in kept], -2))
