"""How long a hidden semi-Markov model stays in a state: tables of durations, and families with one parameter a state."""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tailsum.hmm.dirichlet import Prior, drawn_rows, free_rows, log_dirichlet, most_likely_rows, noisy_rows
from tailsum.hmm.part import Part
from tailsum.numerics.check import at_least

BISECTIONS = 60  # of the parameter of a family: to the last digits


class Duration(Part):
    """Distributions over durations `1 .. longest`, one for each of N states; the base class."""

    name = "durations"

    def __init__(self, longest: int) -> None:
        super().__init__()
        at_least(1, longest=longest)
        self.longest = longest

    @abstractmethod
    def forward(self) -> Float[Tensor, "D n"]:
        """The log-probability of each duration in each state."""

    @abstractmethod
    def maximise(self, counts: Float[Tensor, "D n"]) -> None:
        """The parameters under which these durations are most likely."""

    def start(self, generator: torch.Generator | None) -> None:
        """Parameters to begin a fit with. Here, those that there are."""

    def log_prior(self) -> Float[Tensor, ""]:
        """The log-density of the parameters under their prior, up to a constant."""
        return torch.zeros((), device=next(self.parameters()).device)


class AnyDuration(Duration):
    """A probability for each duration: `logits [N, D]`, minus infinity for never; `prior` as of `Categorical`."""

    allowed: Tensor

    def __init__(self, longest: int, *, logits: Float[Tensor, "n D"] | None = None, prior: Prior = 1.0) -> None:
        super().__init__(longest)
        self.prior, self._given = prior, logits

    def make(self, n_states: int) -> None:
        self.logits = nn.Parameter(drawn_rows((n_states, self.longest), self._given, "logits"))
        self.register_buffer("allowed", self.logits.detach() > -torch.inf)

    def forward(self) -> Float[Tensor, "D n"]:
        return self.logits.log_softmax(-1).mT

    def maximise(self, counts: Float[Tensor, "D n"]) -> None:
        self.logits.data = most_likely_rows(self.logits, counts.mT, self.prior, self.allowed)

    def start(self, generator: torch.Generator | None) -> None:
        self.logits.data = noisy_rows(self.logits, self.allowed, generator)

    def log_prior(self) -> Float[Tensor, ""]:
        return log_dirichlet(self.logits.log_softmax(-1), self.prior)

    @property
    def n_free(self) -> int:
        return free_rows(self.allowed)


class _Family(Duration):
    """`log p(d) = natural * (d - 1) + base(d) - const`, of durations up to the longest. The mean rises with the parameter."""

    def make(self, n_states: int) -> None:
        self.natural = nn.Parameter(torch.zeros(n_states))
        self.start(None)

    @abstractmethod
    def base(self, more: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
        """The part that no parameter changes, of `more = d - 1`."""

    def forward(self) -> Float[Tensor, "D n"]:
        return self._at(self.natural)

    def _at(self, natural: Float[Tensor, " n"]) -> Float[Tensor, "D n"]:
        more = torch.arange(self.longest, dtype=natural.dtype, device=natural.device)
        return (natural * more[:, None] + self.base(more)[:, None]).log_softmax(0)

    def maximise(self, counts: Float[Tensor, "D n"]) -> None:
        total, more = counts.double().sum(0), torch.arange(self.longest, device=counts.device).double()
        wanted = (more @ counts.double()) / total.clamp(min=1e-300)
        low, high = torch.full_like(total, -40.0), torch.full_like(total, 40.0)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = more @ self._at(middle).exp() > wanted
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        self.natural.data = torch.where(total > 1e-5, ((low + high) / 2).to(self.natural.dtype), self.natural.detach())

    def start(self, generator: torch.Generator | None) -> None:
        """Means of a fifth to a half of the longest duration."""
        share = torch.rand(len(self.natural), generator=generator, dtype=self.natural.dtype).to(self.natural.device)
        counts = torch.zeros(self.longest, len(share), dtype=torch.float64, device=share.device)
        mean = ((0.2 + 0.3 * share) * (self.longest - 1)).long()
        self.maximise(counts.scatter(0, mean[None], 1.0))


class PoissonDuration(_Family):
    """One more than a Poisson number, of durations up to the longest."""

    def base(self, more: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
        return -torch.lgamma(more + 1.0)


class GeometricDuration(_Family):
    """Staying with the same probability at each step, as in a hidden Markov model, up to the longest duration."""

    def base(self, more: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
        return torch.zeros_like(more)


class NegativeBinomialDuration(_Family):
    """One more than a negative binomial number of `size` failures, the same for all states; geometric for a size of one."""

    def __init__(self, longest: int, size: float = 2.0) -> None:
        super().__init__(longest)
        if not size > 0:
            raise ValueError(f"size must be above 0: got {size}")
        self.size = size

    def base(self, more: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
        size = torch.tensor(self.size, dtype=more.dtype, device=more.device)
        return torch.lgamma(more + size) - torch.lgamma(size) - torch.lgamma(more + 1.0)
