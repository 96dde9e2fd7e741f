"""Symbols `0 .. V-1`."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from tailsum.hmm.dirichlet import drawn_rows, free_rows, log_dirichlet, most_likely_rows, noisy_rows
from tailsum.hmm.draws import choice
from tailsum.hmm.emission import Emission, Statistics
from tailsum.numerics.check import at_least
from tailsum.numerics.transforms import some


class Categorical(Emission):
    """Each state has probabilities of the symbols `0 .. n_symbols-1`; -1 is a missing observation.

    `logits [N, V]` are free numbers, minus infinity for symbols that a state never says. They start as random
    probabilities, or as those given. `prior` less one is added to the counts of each symbol (a Dirichlet distribution); one means
    maximum likelihood.

    >>> from tailsum.hmm import Categorical
    >>> Categorical(3).of(2)(torch.tensor([0, 2, -1])).shape
    torch.Size([3, 2])
    """

    allowed: Tensor

    def __init__(
        self,
        n_symbols: int,
        *,
        logits: Float[Tensor, "n v"] | None = None,
        prior: float | Float[Tensor, "#n #v"] = 1.0,
    ) -> None:
        super().__init__()
        at_least(1, n_symbols=n_symbols)
        self.n_symbols, self.prior, self._given = n_symbols, prior, logits

    def make(self, n_states: int) -> None:
        self.logits = nn.Parameter(drawn_rows((n_states, self.n_symbols), self._given, "logits"))
        self.register_buffer("allowed", self.logits.detach() > -torch.inf)

    def checked(self, data: Shaped[Tensor, "*batch T"]) -> Int[Tensor, "*batch T"]:
        if data.is_floating_point() or data.dtype == torch.bool:
            raise ValueError(f"data must be symbols, whole numbers: got {data.dtype}")
        data = data.long()
        if data.numel() and some((data.amax() >= self.n_symbols) | (data.amin() < -1)):
            raise ValueError(
                f"data must lie between 0 and n_symbols-1 = {self.n_symbols - 1}, or be -1 for missing: "
                f"got {int(data.min())} to {int(data.max())}"
            )
        return data.to(self.logits.device)

    def forward(self, data: Int[Tensor, "*batch T"]) -> Float[Tensor, "*batch T n"]:
        return F.embedding(torch.where(data < 0, self.n_symbols, data), self._rows())

    @property
    def probabilities(self) -> Float[Tensor, "n v"]:
        """The probability of each symbol in each state."""
        return self.logits.softmax(-1)

    def _rows(self) -> Float[Tensor, "rows n"]:
        """The log-probabilities of each symbol, and last those of a missing observation."""
        return F.pad(self.logits.log_softmax(-1).mT, (0, 0, 0, 1))

    def fixed(self) -> Callable[[Tensor], Tensor]:
        rows = self._rows().detach()
        return lambda symbol: rows[symbol.long().clamp(min=-1)]  # -1 is the last row

    def example(self) -> Int[Tensor, " 1"]:
        return torch.zeros(1, dtype=torch.long, device=self.logits.device)

    def statistics(self, data: Int[Tensor, "*batch T"], weight: Float[Tensor, "*batch T n"]) -> Statistics:
        counts = weight.new_zeros(self.n_symbols + 1, self.n_states)
        symbols = torch.where(data < 0, self.n_symbols, data).flatten()
        return (counts.index_add_(0, symbols, weight.reshape(-1, self.n_states))[:-1].mT,)

    def maximise(self, statistics: Statistics) -> None:
        self.logits.data = most_likely_rows(self.logits, statistics[0], self.prior, self.allowed)

    def log_prior(self) -> Float[Tensor, ""]:
        return log_dirichlet(self.logits.log_softmax(-1), self.prior)

    def start(self, data: Int[Tensor, " rows"], generator: torch.Generator | None) -> None:
        """Random probabilities near the shares of the symbols in the data."""
        share = torch.bincount(data, minlength=self.n_symbols).to(self.logits) + 1.0
        self.logits.data = noisy_rows(self.logits, self.allowed, generator, share / share.sum())

    def draw(
        self,
        states: Int[Tensor, "*shape"],
        generator: torch.Generator | None = None,
        past: Int[Tensor, "*shape lags"] | None = None,
    ) -> Int[Tensor, "*shape"]:
        chances = self.logits.detach().softmax(-1)[states.flatten()]
        return choice(chances, 1, generator).reshape(states.shape)

    @property
    def n_free(self) -> int:
        return free_rows(self.allowed)
