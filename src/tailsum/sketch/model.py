"""What sketches ask of a model: proposals, sweeps and replicates know no more of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.sketch.selection import Selection
from tailsum.sketch.sweep import Sweep

This = TypeVar("This", bound="Model")


class Model(ABC):
    """Nodes with N states each, which can be sketched."""

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
        """The L1 norm of each state's embedding; a ValueError where the states have none."""

    @abstractmethod
    def sweep(self) -> Sweep:
        """Messages between neighbouring nodes, for `Lookahead`."""

    @abstractmethod
    def sketch(
        self: This,
        k: int | None = None,
        *,
        proposal: Callable[..., Tensor] | None = None,
        selection: Selection | None = None,
        generator: torch.Generator | None = None,
    ) -> This:
        """The model restricted to a small weighted subset of the states at each node."""

    @abstractmethod
    def log_partition(self) -> Float[Tensor, "*batch"]:
        """Log of the sum over all configurations."""

    @abstractmethod
    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats."""


Propose = Callable[[Model], Tensor]  # any function from a model to `log_q [*batch, *node, N]` is a proposal
