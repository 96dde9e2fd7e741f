"""Hidden Markov models with parameters: built on `LinearChain`, learned by EM or by gradients."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tailsum.chains.linear_chain import LinearChain
from tailsum.hmm.counts import Counts
from tailsum.hmm.dirichlet import Prior, drawn_rows, free_rows, log_dirichlet, most_likely_rows, noisy_rows
from tailsum.hmm.emission import Emission
from tailsum.hmm.fit import Fit
from tailsum.hmm.sequences import Data, Lengths, Sequences, sequences
from tailsum.hmm.transition import Transition, full, row_normaliser
from tailsum.numerics.check import at_least
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential


class HiddenMarkov(nn.Module):
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
        self.n_states, self.initial_prior = n_states, initial_prior
        self.emission = emission.of(n_states)
        self.initial_logits = nn.Parameter(drawn_rows((n_states,), initial, "initial"))
        self.transition = transition if isinstance(transition, Transition) else full(n_states, transition)

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

    def posterior(
        self, data: Data, lengths: Lengths = None, *, inputs: Data | None = None, states: Data | None = None
    ) -> LinearChain:
        """The distribution of the states given the data, with all operations of a `LinearChain`.

        Its `log_partition()` is the log-likelihood of each sequence, with gradients in the parameters. `states` are those that
        are known, -1 elsewhere.
        """
        return self.chain(self.sequences(data, lengths, inputs, states))

    def chain(self, given: Sequences) -> LinearChain:
        """The same of a padded batch."""
        potential = self.transition(given.inputs)
        return self._chain(given, self.emission(given.data), potential, row_normaliser(potential))

    def _chain(self, given: Sequences, nodes: Tensor, pairs: Potential, rows: Tensor) -> LinearChain:
        """The posterior under scores of observations and of moves; `rows` are the logarithms of what leaves each state."""
        nodes = torch.cat((nodes[:, :1] + self.initial, nodes[:, 1:]), 1)
        if nodes.shape[1] > 1:
            left = torch.where(given.inside[:, 1:, None], finite(rows), 0.0)
            nodes = torch.cat((nodes[:, :-1] - left, nodes[:, -1:]), 1)
        if given.states is not None:
            known = given.states[..., None]
            others = (known >= 0) & (known != torch.arange(self.n_states, device=nodes.device))
            nodes = nodes.masked_fill(others & given.inside[..., None], -math.inf)
        return LinearChain(nodes, pairs, given.lengths)

    # What data say.

    def log_likelihood(self, data: Data, lengths: Lengths = None, **given: Any) -> Float[Tensor, " B"]:
        """The log-likelihood of each sequence, with gradients in the parameters."""
        return self.posterior(data, lengths, **given).log_partition()

    @torch.no_grad()
    def score(self, data: Data, lengths: Lengths = None, **given: Any) -> float:
        """The log-likelihood of all sequences together."""
        return self.log_likelihood(data, lengths, **given).double().sum().item()

    @torch.no_grad()
    def smooth(self, data: Data, lengths: Lengths = None, **given: Any) -> Float[Tensor, "B T n"]:
        """The probability of each state at each position, given all observations."""
        return self.posterior(data, lengths, **given).marginals()

    @torch.no_grad()
    def decode(self, data: Data, lengths: Lengths = None, **given: Any) -> Int[Tensor, "B T"]:
        """The most likely path through the states; -1 in the padding."""
        return self.posterior(data, lengths, **given).argmax()

    # Counts, for EM.

    @torch.no_grad()
    def counts(self, data: Data, lengths: Lengths = None, **given: Any) -> Counts:
        """The expected counts of all parameters, which `maximise` makes new parameters of. They add up over batches."""
        return self.expected(self.sequences(data, lengths, **given))

    @torch.no_grad()
    def expected(self, given: Sequences) -> Counts:
        """The same of a padded batch."""
        nodes, own = self.emission(given.data), self.transition(given.inputs)
        rows = row_normaliser(own)
        with torch.enable_grad():
            nodes = nodes.detach().requires_grad_()
            pairs = own.map(lambda x: x.detach().requires_grad_())
            total = self._chain(given, nodes, pairs, rows).log_partition()
            chances, *moves = torch.autograd.grad(total.sum(), (nodes, *pairs.tensors), materialize_grads=True)
        whole = total.new_tensor
        return Counts(
            total.detach().double().sum(),
            whole(float(len(given.lengths))).double(),
            given.lengths.double().sum(),
            chances[:, 0].sum(0),
            tuple(moves),
            self.emission.statistics(given.data, chances),
        )

    def no_counts(self) -> Counts:
        """Counts of no data at all."""
        data = self.emission.blank(self.emission.example())
        return self.expected(self.sequences(data)) * 0.0

    @torch.no_grad()
    def maximise(self, counts: Counts) -> None:
        """The parameters under which these counts are most likely: the second half of a step of EM."""
        self.initial_logits.data = most_likely_rows(self.initial_logits, counts.initial, self.initial_prior)
        self.transition.maximise(counts.transition)
        self.emission.maximise(counts.emission)

    @torch.no_grad()
    def start(self, given: Sequences, generator: torch.Generator | None = None) -> None:
        """Parameters to begin a fit with: emissions from the data, first states and moves at random."""
        seen = given.inside & ~self.emission.missing(given.data)
        self.emission.start(given.data[seen], generator)
        self.initial_logits.data = noisy_rows(self.initial_logits, generator)
        self.transition.start(generator)

    def log_prior(self) -> Float[Tensor, ""]:
        """The log-density of the parameters under their priors, up to a constant."""
        own = log_dirichlet(self.initial, self.initial_prior)
        return own + self.transition.log_prior() + self.emission.log_prior()

    @property
    def n_free(self) -> int:
        """How many numbers the model has that are free: its degrees of freedom."""
        return free_rows(self.initial_logits[None]) + self.transition.n_free + self.emission.n_free

    def fit(self, data: Data, lengths: Lengths = None, **how: Any) -> "HiddenMarkov":
        """Learn all parameters from data; see `fit.Fit` for what can be given. `fitted` holds its course."""
        self.fitted = Fit(**how).run(self, data, lengths)
        return self
