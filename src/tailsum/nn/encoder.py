"""Encoders learned from scratch: a vector for each word in its context, `[B, T, size]`."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tailsum.nn.words import checked_inside


class LSTMEncoder(nn.Module):
    """Word embeddings, and a bidirectional LSTM over them.

    >>> LSTMEncoder(n_words=50, size=16)(torch.ones(2, 5, dtype=torch.long), torch.tensor([5, 3])).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, n_words: int, size: int = 128, dropout: float = 0.0) -> None:
        super().__init__()
        if size % 2:
            raise ValueError(f"size must be even, half for each direction: got {size}")
        self.size = size
        self.words = nn.Embedding(n_words, size)
        self.lstm = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | Sequence[int]
    ) -> Float[Tensor, "B T size"]:
        """A vector for each word: its embedding plus the LSTM's output."""
        inside = checked_inside(words, lengths, self.words.num_embeddings)
        embedded = self.dropout(self.words(words.masked_fill(~inside, 0)))
        packed = pack_padded_sequence(embedded, inside.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        read, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=words.shape[1])
        return embedded + read


class TransformerEncoder(nn.Module):
    """Word and position embeddings, and layers of self-attention over them.

    >>> TransformerEncoder(n_words=50, size=16, longest=9)(torch.ones(2, 5, dtype=torch.long), torch.tensor([5, 3])).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self, n_words: int, size: int = 128, longest: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if size % heads:
            raise ValueError(f"size must be a multiple of {heads}, the number of heads: got {size}")
        self.size, self.longest = size, longest
        self.words = nn.Embedding(n_words, size)
        self.places = nn.Parameter(0.1 * torch.randn(longest, size))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(size, heads, 2 * size, dropout, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | Sequence[int]
    ) -> Float[Tensor, "B T size"]:
        """A vector for each word in its context."""
        steps = words.shape[1]
        if steps > self.longest:
            raise ValueError(f"words must have at most {self.longest} positions, as this encoder was made: got {steps}")
        inside = checked_inside(words, lengths, self.words.num_embeddings)
        read = self.dropout(self.words(words.masked_fill(~inside, 0)) + self.places[:steps])
        for layer in self.layers:
            read = layer(read, src_key_padding_mask=~inside)
        return read
