"""Mixtures of other emissions."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from tailsum.hmm.dirichlet import drawn_rows, free_rows, log_dirichlet, most_likely_rows
from tailsum.hmm.draws import choice
from tailsum.hmm.emission import Emission, Statistics
from tailsum.numerics.check import at_least
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import finite


class Mixture(Emission):
    """Each state has a mixture of k components of another emission.

    `emission` gets `N * k` states: component c of state n is number `n * k + c`. `logits [N, k]` are the weights of components, minus
    infinity for one that is not used; they start even, or as those given. `prior` less one is added to the counts of components
    (a Dirichlet distribution); one means maximum likelihood. The emission has its own priors.

    With `Gaussian`, an M-step is that of EM: it takes covariances about the new means. hmmlearn's GMMHMM takes them about the old
    ones, with which the likelihood may go down; its weights and means are the same. Its default is maximum likelihood: here,
    `Gaussian(d, covariance_prior=0.0)`.

    >>> from tailsum.hmm import Gaussian, Mixture
    >>> Mixture(3, Gaussian(2)).of(4)(torch.randn(10, 2)).shape
    torch.Size([10, 4])
    """

    allowed: Tensor

    def __init__(
        self,
        k: int,
        emission: Emission,
        *,
        logits: Float[Tensor, "n k"] | None = None,
        prior: float | Float[Tensor, "#n #k"] = 1.0,
    ) -> None:
        super().__init__()
        at_least(1, k=k)
        self.k, self.emission, self.prior, self._given = k, emission, prior, logits
        self.event_dim, self.lags = emission.event_dim, emission.lags

    def make(self, n_states: int) -> None:
        self.emission.of(n_states * self.k)
        even = torch.zeros(n_states, self.k) if self._given is None else self._given
        self.logits = nn.Parameter(drawn_rows((n_states, self.k), even, "logits"))
        self.register_buffer("allowed", self.logits.detach() > -torch.inf)

    @property
    def weights(self) -> Float[Tensor, "n k"]:
        """The probability of each component in each state."""
        return self.logits.softmax(-1)

    def checked(self, data: Shaped[Tensor, "*batch_T_event"]) -> Shaped[Tensor, "*batch_T_event"]:
        return self.emission.checked(data)

    def missing(self, data: Shaped[Tensor, "*batch_T_event"]) -> Bool[Tensor, "*batch T"]:
        return self.emission.missing(data)

    def blank(self, like: Shaped[Tensor, "*batch_T_event"]) -> Shaped[Tensor, "*batch_T_event"]:
        return self.emission.blank(like)

    def example(self) -> Shaped[Tensor, "1 *event"]:
        return self.emission.example()

    def forward(self, data: Shaped[Tensor, "*batch_T_event"]) -> Float[Tensor, "*batch T n"]:
        return log_sum_exp(self.components(data), -1)

    def components(self, data: Shaped[Tensor, "*batch_T_event"]) -> Float[Tensor, "*batch T n k"]:
        """The log-density of each observation together with each component."""
        return self.emission(data).unflatten(-1, (-1, self.k)) + self.logits.log_softmax(-1)

    def statistics(self, data: Shaped[Tensor, "*batch_T_event"], weight: Float[Tensor, "*batch T n"]) -> Statistics:
        joint = self.components(data)
        shares = weight[..., None] * (joint - finite(log_sum_exp(joint, -1))[..., None]).exp()
        seen = shares.masked_fill(self.emission.missing(data)[..., None, None], 0.0)
        own = seen.flatten(0, -3).sum(0, dtype=torch.double)
        return (own, *self.emission.statistics(data, shares.flatten(-2)))

    def maximise(self, statistics: Statistics) -> None:
        self.logits.data = most_likely_rows(self.logits, statistics[0], self.prior, self.allowed)
        self.emission.maximise(statistics[1:])

    def log_prior(self) -> Float[Tensor, ""]:
        return log_dirichlet(self.logits.log_softmax(-1), self.prior) + self.emission.log_prior()

    def start(self, data: Shaped[Tensor, "rows *event"], generator: torch.Generator | None) -> None:
        """Components from the data, as states of their own: those of a state are neighbours. Weights are even."""
        self.emission.start(data, generator)
        self.logits.data = self.logits.masked_fill(self.logits > -torch.inf, 0.0)

    def draw(
        self,
        states: Int[Tensor, "*shape"],
        generator: torch.Generator | None = None,
        past: Shaped[Tensor, "*shape_lags_event"] | None = None,
    ) -> Shaped[Tensor, "*shape_event"]:
        weights = self.logits.detach().softmax(-1)[states.flatten()]
        component = choice(weights, 1, generator).view(states.shape)
        return self.emission.draw(states * self.k + component, generator, past)

    @property
    def n_free(self) -> int:
        return free_rows(self.allowed) + self.emission.n_free
