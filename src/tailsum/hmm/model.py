"""Hidden Markov models with parameters: built on `LinearChain`, learned by EM or by gradients."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.linear_chain import LinearChain
from tailsum.hmm.fitted import FittedModel
from tailsum.hmm.generate import Drawn, drawn, stationary
from tailsum.hmm.moves import Moves
from tailsum.hmm.online import Online, filtered, filtered_logs, fixed_lag
from tailsum.hmm.sequences import Data, Lengths
from tailsum.hmm.streaming import smoothed_chunks, streamed_log_likelihood
from tailsum.numerics.check import at_least


class HiddenMarkov(FittedModel):
    """A hidden Markov model of N states: how it starts, how it moves, and what each state says.

    `emission` is `Categorical(n)`, `Gaussian(d)`, another of this room, or your own `Emission`. `initial` and `transition` are
    where to start, log-probabilities `[N]` and `[N, N]` (minus infinity stays forbidden), or a `Transition` such as
    `left_to_right(N)` or `Scores(Embedded(N, d))`; without them, random ones. `initial_prior` less one is added to the counts of
    first states.

    Data are one sequence `[T, ..]`, a batch `[B, T, ..]` with `lengths`, a list of sequences, or a column of sequences with their
    lengths. Missing observations are NaN, or -1 for whole numbers.

    >>> from tailsum.hmm import Categorical, HiddenMarkov
    >>> data = torch.randint(4, (20, 30))
    >>> model = HiddenMarkov(3, Categorical(4)).fit(data, steps=5, progress=False)
    >>> model.decode(data).shape, model.posterior(data).entropy().shape
    (torch.Size([20, 30]), torch.Size([20]))
    """

    def posterior(
        self, data: Data, lengths: Lengths = None, *, inputs: Data | None = None, states: Data | None = None
    ) -> LinearChain:
        """The distribution of the states given the data, with all operations of a `LinearChain`.

        Its `log_partition()` is the log-likelihood of each sequence, with gradients in the parameters. `states` are those that
        are known, -1 elsewhere.
        """
        return self.chain(self.sequences(data, lengths, inputs, states))

    # What data say.

    @torch.no_grad()
    def smooth(self, data: Data, lengths: Lengths = None, **given: Any) -> Float[Tensor, "B T n"]:
        """The probability of each state at each position, given all observations."""
        return self.posterior(data, lengths, **given).marginals()

    @torch.no_grad()
    def decode(self, data: Data, lengths: Lengths = None, **given: Any) -> Int[Tensor, "B T"]:
        """The most likely path through the states; -1 in the padding."""
        return self.posterior(data, lengths, **given).argmax()

    @torch.no_grad()
    def filter(self, data: Data, lengths: Lengths = None, **given: Any) -> Float[Tensor, "B T n"]:
        """The probability of each state at each position, given the observations up to there; zero in the padding."""
        return filtered(self, self.sequences(data, lengths, **given))

    @torch.no_grad()
    def fixed_lag(self, lag: int, data: Data, lengths: Lengths = None) -> Float[Tensor, "B T n"]:
        """The same given the observations up to `lag` positions later."""
        at_least(0, lag=lag)
        return fixed_lag(self, self.sequences(data, lengths), lag)

    def online(self, batch_shape: Sequence[int] = ()) -> Online:
        """A filter for observations that come one at a time, or chunk by chunk."""
        return Online(self, batch_shape)

    # What comes next, and new sequences.

    @torch.no_grad()
    def predict(self, steps: int, data: Data, lengths: Lengths = None) -> Float[Tensor, "B steps n"]:
        """The distribution of the state at each of the positions after the end of each sequence."""
        return self._log_predict(steps, data, lengths).exp()

    def _log_predict(self, steps: int, data: Data, lengths: Lengths) -> Tensor:
        at_least(1, steps=steps)
        given, moves, found = self.sequences(data, lengths), Moves(self.transition), list[Tensor]()
        logs, _ = filtered_logs(self, given)
        ahead = logs[torch.arange(len(logs), device=logs.device), given.lengths - 1].log_softmax(-1)
        for _ in range(steps):
            ahead = moves.ahead(ahead)
            found.append(ahead)
        return torch.stack(found, 1)

    @torch.no_grad()
    def forecast(
        self,
        steps: int,
        data: Data,
        lengths: Lengths = None,
        *,
        draws: int = 100,
        generator: torch.Generator | None = None,
    ) -> Drawn:
        """How each sequence may go on: `draws` random continuations, `[draws, B, steps, *event]`, and their states."""
        if self.emission.lags:
            raise ValueError("emission must not depend on earlier observations: draw its continuations yourself")
        return drawn(self, self._log_predict(1, data, lengths)[:, 0], draws, steps, generator)

    @torch.no_grad()
    def sample(self, n: int, length: int, generator: torch.Generator | None = None) -> Drawn:
        """New sequences `[n, length, *event]`, and their states."""
        at_least(1, n=n, length=length)
        found = drawn(self, self.initial[None], n, length, generator)
        return Drawn(found.data[:, 0], found.states[:, 0])

    @torch.no_grad()
    def stationary(self) -> Float[Tensor, " n"]:
        """The distribution of the state in the long run."""
        return stationary(self.transition_table().exp())

    @torch.no_grad()
    def durations(self) -> Float[Tensor, " n"]:
        """How many positions the model stays in each state, in the mean; infinity in states that nothing leaves."""
        return -1.0 / torch.expm1(self.transition_table().double().diagonal())

    # Sequences that do not fit in memory.

    def streamed_log_likelihood(self, chunks: Iterable[Data]) -> Float[Tensor, " B"]:
        """The log-likelihood of sequences that come in chunks `[B, L, *event]`, in float64; one chunk is held at a time."""
        return streamed_log_likelihood(self, chunks)

    def smooth_chunks(self, chunks: Sequence[Data]) -> Iterator[tuple[int, Float[Tensor, "B L n"]]]:
        """`smooth` of sequences in chunks `[B, L, *event]`: the number and the probabilities of each, the last chunk first.

        Each `chunks[i]` is asked for twice, and may be read from a disk then. One is held at a time.
        """
        return smoothed_chunks(self, chunks)
