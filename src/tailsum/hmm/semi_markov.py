"""Hidden semi-Markov models with parameters: states whose durations have distributions of their own."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.durations import Durations
from tailsum.chains.segments import Segments
from tailsum.chains.semi_markov import SemiMarkov
from tailsum.hmm.counts import Counts
from tailsum.hmm.dirichlet import Prior
from tailsum.hmm.duration import Duration
from tailsum.hmm.emission import Emission
from tailsum.hmm.fitted import FittedModel
from tailsum.hmm.generate import Drawn, said
from tailsum.hmm.sequences import Data, Lengths, Sequences
from tailsum.hmm.transition import Transition, full, row_normaliser
from tailsum.numerics.check import at_least


class HiddenSemiMarkov(FittedModel):
    """A hidden Markov model that stays in a state for a duration drawn from `durations`, then moves to another one.

    `durations` is `PoissonDuration(D)`, `NegativeBinomialDuration(D)`, `GeometricDuration(D)` or `AnyDuration(D)`: at most D positions.
    The end of a sequence may cut its last segment. Other arguments, and data, are as of `HiddenMarkov`; `transition` is between
    segments, and without one no state follows itself.

    >>> from tailsum.hmm import Categorical, HiddenSemiMarkov, PoissonDuration
    >>> model = HiddenSemiMarkov(3, Categorical(4), PoissonDuration(10))
    >>> model.fit(torch.randint(4, (5, 30)), steps=3).decode(torch.randint(4, (30,))).shape
    torch.Size([1, 30])
    """

    def __init__(
        self,
        n_states: int,
        emission: Emission,
        durations: Duration,
        *,
        initial: Float[Tensor, " n"] | None = None,
        transition: Float[Tensor, "n n"] | Transition | None = None,
        initial_prior: Prior = 1.0,
    ) -> None:
        at_least(2, n_states=n_states)
        if transition is None:
            transition = full(n_states, torch.zeros(n_states, n_states).fill_diagonal_(-math.inf))
        super().__init__(n_states, emission, initial=initial, transition=transition, initial_prior=initial_prior)
        if self.transition.takes_inputs:
            raise ValueError("transition must not depend on inputs in a semi-Markov model")
        self.durations = durations.of(n_states)
        self._one_dtype()

    def posterior(self, data: Data, lengths: Lengths = None, *, states: Data | None = None) -> SemiMarkov:
        """The distribution of the segments given the data, with all operations of a `SemiMarkov`."""
        return self.chain(self.sequences(data, lengths, states=states))

    def chain(self, given: Sequences) -> SemiMarkov:
        return self._segments(given, self.emission(given.data), self.durations(), self.transition_table())

    def _segments(self, given: Sequences, nodes: Tensor, durations: Tensor, pairs: Tensor) -> SemiMarkov:
        nodes = torch.cat((nodes[:, :1] + self.initial, nodes[:, 1:]), 1)
        segments = Durations(self._known(given, nodes), durations)
        return SemiMarkov(segments, pairs, given.lengths, censored=True)

    @torch.no_grad()
    def expected(self, given: Sequences) -> Counts:
        """Expected counts; those of moves are followed by those of durations `[D, N]`."""
        own = self.transition()
        rows = row_normaliser(own)[:, None]
        with torch.enable_grad():
            nodes, durations = (x.detach().requires_grad_() for x in (self.emission(given.data), self.durations()))
            pairs = own.map(lambda x: x.detach().requires_grad_())
            total = self._segments(given, nodes, durations, pairs.block() - rows).log_partition()
            found = torch.autograd.grad(total.sum(), (nodes, durations, *pairs.tensors), materialize_grads=True)
        chances, lasted, *moves = found
        return self._counted(given, total, chances, (*moves, lasted))

    @torch.no_grad()
    def maximise(self, counts: Counts) -> None:
        super().maximise(counts)
        self.durations.maximise(counts.transition[-1])

    @torch.no_grad()
    def start(self, given: Sequences, generator: torch.Generator | None = None) -> None:
        super().start(given, generator)
        self.durations.start(generator)

    def log_prior(self) -> Float[Tensor, ""]:
        return super().log_prior() + self.durations.log_prior()

    @property
    def n_free(self) -> int:
        return super().n_free + self.durations.n_free

    @torch.no_grad()
    def smooth(self, data: Data, lengths: Lengths = None, **given: Any) -> Float[Tensor, "B T n"]:
        """The probability of each state at each position, given all observations."""
        return self.posterior(data, lengths, **given).label_marginals()

    @torch.no_grad()
    def segment(self, data: Data, lengths: Lengths = None, **given: Any) -> Segments:
        """The most likely segments."""
        return self.posterior(data, lengths, **given).argmax()

    @torch.no_grad()
    def decode(self, data: Data, lengths: Lengths = None, **given: Any) -> Int[Tensor, "B T"]:
        """The states of the most likely segments, at each position; -1 in the padding."""
        return self.segment(data, lengths, **given).labels()

    @torch.no_grad()
    def sample(self, n: int, length: int, generator: torch.Generator | None = None) -> Drawn:
        """New sequences `[n, length, *event]`, and their states."""
        at_least(1, n=n, length=length)
        blank = self.emission.blank(self.emission.example()).expand(length, *(-1,) * self.emission.event_dim)
        states = self.posterior(blank).sample((n,), generator=generator).labels()[:, 0]
        return Drawn(said(self, states, generator), states)
