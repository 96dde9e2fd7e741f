"""Relaxed samples: weights between zero and one in place of a choice."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor


class RelaxedSample(NamedTuple):
    """A differentiable sample: weights on the parts of a structure in place of zeros and ones.

    On a chain the weights `[.., T, n]` of each position sum to one. `states` are the global ids of the states that they
    refer to, and `hard` is the discrete sample that was relaxed. In the padding, and where nothing is possible, all weights
    are zero and `hard` is -1. On a chain, `chances` are the probabilities `[.., T, n]` of each state given the `hard` states
    of all later positions: used as weights, they add no noise at one position.
    """

    weights: Float[Tensor, "*sample_batch_part n"]
    states: Int[Tensor, "*batch_node n"]
    hard: Any
    chances: Float[Tensor, "*sample_batch_node n"] | None = None

    def mix(self, embeddings: Float[Tensor, "all d"]) -> Float[Tensor, "*sample_batch_part d"]:
        """The mean of the states' embeddings under the weights: the input of a decoder."""
        states = self.states
        while states.dim() > 1 and (states.stride(0) == 0 or states.shape[0] == 1):  # the same for all: embedded once
            states = states[0]
        kept = F.embedding(states, embeddings).to(self.weights.dtype)
        return self.weights @ kept if states.dim() == 1 else (self.weights[..., None, :] @ kept)[..., 0, :]


torch.serialization.add_safe_globals([RelaxedSample])  # for torch.load(.., weights_only=True)
