"""What a hidden Markov model is: its parameters, the chain of some data, and expected counts."""

import functools
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tailsum.chains.linear_chain import LinearChain
from tailsum.hmm.counts import Counts
from tailsum.hmm.course import Course
from tailsum.hmm.dirichlet import Prior, drawn_rows, free_rows, log_dirichlet, most_likely_rows, noisy_rows
from tailsum.hmm.emission import Emission
from tailsum.hmm.sequences import Data, Lengths, Sequences, sequences
from tailsum.hmm.transition import Transition, full, row_normaliser
from tailsum.numerics.check import at_least
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential


class MarkovModel(nn.Module):
    """The parameters of a hidden Markov model of N states, and their likelihood."""

    initial_allowed: Tensor
    fitted: Course | None = None  # how the last fit went

    def __init__(
        self,
        n_states: int,
        emission: Emission,
        *,
        initial: Float[Tensor, " n"] | None = None,
        transition: Float[Tensor, "n n"] | Transition | None = None,
        initial_prior: Prior = 1.0,
    ) -> None:
        super().__init__()
        at_least(1, n_states=n_states)
        if not isinstance(emission, Emission):
            raise ValueError(f"emission must be an Emission, such as Categorical(10): got {emission}")
        self.n_states, self.initial_prior = n_states, initial_prior
        self.emission = emission.of(n_states)
        self.initial_logits = nn.Parameter(drawn_rows((n_states,), initial, "initial"))
        self.register_buffer("initial_allowed", self.initial_logits.detach() > -torch.inf)
        self.transition = transition if isinstance(transition, Transition) else full(n_states, transition)
        if not self.transition.takes_inputs and self.transition().n_to != n_states:
            raise ValueError(f"transition must be for {n_states} states: got {self.transition().n_to}")
        self._one_dtype()

    def _one_dtype(self) -> None:
        """All parameters in the widest dtype that one of them has."""
        dtypes = [x.dtype for x in self.parameters()]
        self.to(functools.reduce(torch.promote_types, dtypes))

    def extra_repr(self) -> str:
        return f"n_states={self.n_states}"

    # Probabilities.

    @property
    def initial(self) -> Float[Tensor, " n"]:
        """The log-probabilities of the first state."""
        return self.initial_logits.log_softmax(-1)

    @property
    def device(self) -> torch.device:
        return self.initial_logits.device

    def transition_table(self) -> Float[Tensor, "n n"]:
        """The log-probabilities of all moves (from, to): for models small enough for a table."""
        return self.transition().block().log_softmax(-1)

    # The chain of some data.

    def sequences(
        self, data: Data, lengths: Lengths = None, inputs: Data | None = None, states: Data | None = None
    ) -> Sequences:
        """The data as one padded batch, checked."""
        return sequences(self.emission, data, lengths, inputs, states)

    def chain(self, given: Sequences) -> Any:
        """The distribution of the states given a padded batch: a structure."""
        return self.chain_and_rows(given)[0]

    def chain_and_rows(
        self, given: Sequences, ahead: Float[Tensor, "#B n"] | None = None
    ) -> tuple[LinearChain, Float[Tensor, "B T n"]]:
        """The same, and the logarithms of what leaves each state, which its scores of states are less by.

        `ahead` are log-probabilities of the first state, other than the model's.
        """
        pairs = self.transition(given.inputs)
        return self._chain(given, self.emission(given.data), pairs, row_normaliser(pairs), ahead)

    def _chain(
        self, given: Sequences, nodes: Tensor, pairs: Potential, rows: Tensor, ahead: Tensor | None = None
    ) -> tuple[LinearChain, Tensor]:
        first = (self.initial if ahead is None else ahead)[..., None, :]
        nodes = torch.cat((nodes[:, :1] + first, nodes[:, 1:]), 1)
        left = torch.where(given.inside[:, 1:, None], finite(rows), 0.0)
        left = torch.cat((left, torch.zeros_like(nodes[:, :1])), 1)  # nothing leaves the last position
        nodes = nodes - left
        return LinearChain(self._known(given, nodes), pairs, given.lengths), left

    def _known(self, given: Sequences, nodes: Tensor) -> Tensor:
        """Scores of states, minus infinity for others than the known ones."""
        if given.states is None:
            return nodes
        known = given.states[..., None]
        others = (known >= 0) & (known != torch.arange(self.n_states, device=nodes.device))
        return nodes.masked_fill(others & given.inside[..., None], -math.inf)

    # Counts, for EM.

    @torch.no_grad()
    def expected(self, given: Sequences) -> Counts:
        """The expected counts of all parameters, from a padded batch."""
        nodes, own = self.emission(given.data), self.transition(given.inputs)
        rows = row_normaliser(own)
        with torch.enable_grad():
            nodes = nodes.detach().requires_grad_()
            pairs = own.map(lambda x: x.detach().requires_grad_())
            total = self._chain(given, nodes, pairs, rows)[0].log_partition()
            chances, *moves = torch.autograd.grad(total.sum(), (nodes, *pairs.tensors), materialize_grads=True)
        return self._counted(given, total, chances, tuple(moves))

    def _counted(self, given: Sequences, total: Tensor, chances: Tensor, moves: tuple[Tensor, ...]) -> Counts:
        """Counts from the log-likelihoods, the probabilities of states at positions, and the expected numbers of moves."""
        return Counts(
            total.detach().double().sum(),
            given.lengths.double().sum(),
            chances[:, 0].sum(0),
            moves,
            self.emission.statistics(given.data, chances),
        )

    def no_counts(self) -> Counts:
        """Counts of no data at all."""
        data = self.emission.blank(self.emission.example())
        return self.expected(self.sequences(data)) * 0.0

    @torch.no_grad()
    def maximise(self, counts: Counts) -> None:
        """The parameters under which these counts are most likely: the second half of a step of EM."""
        self.initial_logits.data = most_likely_rows(
            self.initial_logits, counts.initial, self.initial_prior, self.initial_allowed
        )
        self.transition.maximise(counts.transition)
        self.emission.maximise(counts.emission)

    @torch.no_grad()
    def start(self, given: Sequences, generator: torch.Generator | None = None) -> None:
        """Parameters to begin a fit with: emissions from the data, first states and moves at random."""
        seen = given.inside & ~self.emission.missing(given.data)
        self.emission.start(given.data[seen], generator)
        self.initial_logits.data = noisy_rows(self.initial_logits, self.initial_allowed, generator)
        self.transition.start(generator)

    def log_prior(self) -> Float[Tensor, ""]:
        """The log-density of the parameters under their priors, up to a constant."""
        own = log_dirichlet(self.initial, self.initial_prior)
        return own + self.transition.log_prior() + self.emission.log_prior()

    @property
    def n_free(self) -> int:
        """How many numbers the model has that are free: its degrees of freedom."""
        return free_rows(self.initial_allowed) + self.transition.n_free + self.emission.n_free
