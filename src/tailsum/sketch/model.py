"""The interface that proposals need from a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.sketch.sweep import Sweep


class Model(ABC):
    """A model of nodes with N states each that can be sketched."""

    batch_shape: torch.Size
    node_shape: torch.Size
    n_states: int
    dtype: torch.dtype
    device: torch.device
    lengths: Int[Tensor, "*batch"] | None = None  # of sequences, where they differ

    @abstractmethod
    def node_scores(self) -> Float[Tensor, "*batch_node n"]:
        """Scores of every state of every node, without weights."""

    @abstractmethod
    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        """The L1 norm of each state's embedding; a ValueError if states have no embeddings."""

    @abstractmethod
    def sweep(self) -> Sweep:
        """Messages between neighbouring nodes, for `Lookahead`."""

    @for_authors
    def sequence_lengths(self) -> Int[Tensor, " B"]:
        """The length of each sequence, the batch flattened."""
        if self.lengths is None:
            return torch.full((self.batch_shape.numel(),), self.node_shape[0], device=self.device)
        return self.lengths.reshape(-1)

    @for_authors
    def inside(self) -> Bool[Tensor, "*batch T"]:
        """Which positions are not padding."""
        positions = torch.arange(self.node_shape[0], device=self.device)
        return positions < self.sequence_lengths().reshape(*self.batch_shape, 1)


Propose = Callable[[Model], Tensor]
"""A proposal, be it a `Proposal` or a function: from a model to `log_q [*batch, *node, N]`."""
