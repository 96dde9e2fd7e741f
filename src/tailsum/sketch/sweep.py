"""Sweeps: messages from landmark states to all states of the neighbouring nodes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.scores.message import message
from tailsum.scores.potential import Potential
from tailsum.sketch.selection import Selection, Subset


class Sweep(ABC):
    """What landmark states say of all states: messages from a few selected states of each node to all of its neighbours.

    In what is handed out as a proposal, minus infinity means forbidden, never just not reached by a landmark.
    """

    landmarks = 512  # at each node, unless `Lookahead` says otherwise

    @abstractmethod
    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        """One round of messages from so many landmarks at each node, selected by what earlier rounds found."""

    @abstractmethod
    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch_node n"]:
        """How much each state matters, by what was found."""

    @abstractmethod
    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        """Select node after node, each by the messages that the states kept so far send, and by what was found."""


def send(potential: Potential, messages: Tensor, kept: Subset) -> Tensor:
    """The message of the kept states to all states of the neighbour."""
    return message(potential, kept.index, messages.gather(-1, kept.index) + kept.log_weight)


def fill_unreached(sent: Tensor) -> Tensor:
    """Replace minus infinity in a message by the mean of its finite entries.

    Where transitions are forbidden, a state that no selected state reaches may still matter: the message has no
    information about it. Minus infinity would rule it out, and bias whatever is selected by this message.
    """
    unreached = sent == -math.inf
    count = (~unreached).sum(-1, keepdim=True).clamp_(min=1)
    return torch.where(unreached, sent.masked_fill(unreached, 0.0).sum(-1, keepdim=True) / count, sent)


def together(kept: Sequence[Subset]) -> Subset:
    """The selections of successive positions as one."""
    return Subset(torch.stack([k.index for k in kept], -2), torch.stack([k.log_weight for k in kept], -2))
