"""A linear-chain CRF over latent states, on top of any encoder: the paper's Eqs. 29 to 31."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tailsum.chains.linear_chain import LinearChain
from tailsum.numerics.check import at_least
from tailsum.scores.factored import Factored


class CRFInference(nn.Module):
    """A linear-chain CRF over N latent states on top of any encoder: `q(x | y)`, the paper's Section 4.

    Each state has an embedding `e`: a state scores `e_i . r_t` at a position, a pair of neighbours `e_i . e_j`.

    >>> q = CRFInference(size=16, n_states=1000)
    >>> q(torch.randn(2, 5, 16), torch.tensor([5, 3]))
    LinearChain(batch=[2], T=5, N=1000)
    """

    def __init__(self, size: int, n_states: int, state_size: int = 64, spread: float = 0.1) -> None:
        super().__init__()
        at_least(1, size=size, n_states=n_states, state_size=state_size)
        self.read = nn.Linear(size, state_size)
        self.states = nn.Parameter(spread * torch.randn(n_states, state_size))

    def forward(
        self, encoded: Float[Tensor, "B T size"], lengths: Int[Tensor, " B"] | Sequence[int] | None = None
    ) -> LinearChain:
        """The distribution over the states of each sentence, from a vector for each word."""
        if encoded.shape[-1:] != (self.read.in_features,):
            raise ValueError(f"encoded must be [B, T, {self.read.in_features}]: got {list(encoded.shape)}")
        return LinearChain(Factored(self.read(encoded), self.states), self.transition, lengths)

    @property
    def transition(self) -> Factored:
        """The scores of pairs of states, shared by all positions and sentences."""
        return Factored(self.states, self.states)
