"""The interface that proposals need from a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.sketch.sweep import Sweep


class Model(ABC):
    """A model of nodes with N states each that can be sketched."""

    batch_shape: torch.Size
    node_shape: torch.Size
    n_states: int
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def node_scores(self) -> Float[Tensor, "*batch_node n"]:
        """Scores of every state of every node, without weights."""

    @abstractmethod
    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        """The L1 norm of each state's embedding; a ValueError if states have no embeddings."""

    @abstractmethod
    def sweep(self) -> Sweep:
        """Messages between neighbouring nodes, for `Lookahead`."""


Propose = Callable[[Model], Tensor]
"""A proposal, be it a `Proposal` or a function: from a model to `log_q [*batch, *node, N]`."""
