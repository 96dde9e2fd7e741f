"""What an LSTM knows of each missing word from the rest of the sentence, which it reads in both directions."""

from jaxtyping import Float
from torch import Tensor, nn

from tailsum_studies.gaps.data import Gaps


class Encoder(nn.Module):
    """Vectors of `2 * size` numbers for the missing words."""

    def __init__(self, n_words: int, size: int) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words + 1, size)  # the last one is a gap
        self.lstm = nn.LSTM(size, size, batch_first=True, bidirectional=True)

    def forward(self, gaps: Gaps) -> Float[Tensor, "B T d"]:
        """What is known at each position of the gaps."""
        return self.lstm(self.words(gaps.seen))[0].take_along_dim(gaps.places()[..., None], 1)
