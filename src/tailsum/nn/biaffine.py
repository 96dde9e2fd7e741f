"""Scores of pairs of positions, from a vector for each position: the first layer of a parser."""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn

from tailsum.numerics.check import at_least, check_floating


class Biaffine(nn.Module):
    """Biaffine scores `[B, T, T, n_scores]` of pairs (i, j): bilinear in the outputs of two small layers.

    >>> Biaffine(size=16, hidden=8, n_scores=3)(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 5, 3])
    """

    def __init__(self, size: int, hidden: int, n_scores: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        at_least(1, size=size, hidden=hidden, n_scores=n_scores)
        self.size = size
        self.first, self.second = (
            nn.Sequential(nn.Linear(size, hidden), nn.LeakyReLU(0.1), nn.Dropout(dropout)) for _ in range(2)
        )
        # A constant one is appended to each vector, so that the scores have linear terms too.
        self.weight = nn.Parameter(torch.randn(n_scores, hidden + 1, hidden + 1) / hidden)

    def forward(self, encoded: Float[Tensor, "B T size"]) -> Float[Tensor, "B T T n_scores"]:
        """The scores of all pairs (i, j)."""
        check_floating("encoded", encoded)
        if encoded.dim() != 3 or encoded.shape[-1] != self.size:
            raise ValueError(f"encoded must be [B, T, {self.size}]: got {list(encoded.shape)}")
        first, second = (F.pad(layer(encoded), (0, 1), value=1.0) for layer in (self.first, self.second))
        return torch.einsum("bih,nhk,bjk->bijn", first, self.weight, second)
