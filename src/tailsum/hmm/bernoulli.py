"""Booleans."""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from tailsum.hmm.clusters import clusters_of
from tailsum.hmm.counting import Counting
from tailsum.hmm.draws import even
from tailsum.hmm.given import given_numbers

_LEAST = 1e-10  # a probability: zero would make a one impossible for good


class Bernoulli(Counting):
    """Each state has the probability of a one, or d probabilities of independent ones `[d]`.

    Data are booleans, or zeros and ones of any dtype; negative numbers and NaN are missing. `logits` (`[N]` or `[N, d]`) say where to
    start; else probabilities are random. `prior` less one is added to the counts of ones and of zeros (a Beta distribution); one
    means maximum likelihood.

    >>> from tailsum.hmm import Bernoulli
    >>> Bernoulli(3).of(2)(torch.tensor([[True, False, True]])).shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        d: int | None = None,
        *,
        logits: Float[Tensor, "n *d"] | None = None,
        prior: float | Float[Tensor, "#n *#d"] = 1.0,
    ) -> None:
        super().__init__(d)
        if not bool(torch.as_tensor(prior >= 1).all()):
            raise ValueError(f"prior must be at least 1: got {prior}")
        self.prior, self._given = prior, logits

    def make(self, n_states: int) -> None:
        logits = given_numbers("logits", self._given, self.shape(n_states))
        self.logits = nn.Parameter(torch.rand(self.shape(n_states)).logit(1e-3) if logits is None else logits)

    @property
    def free(self) -> Tensor:
        return self.logits

    @property
    def probabilities(self) -> Float[Tensor, "n *d"]:
        """The probability of a one in each state."""
        return self.logits.sigmoid()

    def checked(self, data: Shaped[Tensor, "*batch_T_event"]) -> Float[Tensor, "*batch_T_event"]:
        x = super().checked(data)
        if bool((x > 1).any()):
            raise ValueError(f"data must be booleans, or zeros and ones: got {x.nan_to_num().max().item():g}")
        return x

    def density(self, x: Float[Tensor, "rows d"], seen: Float[Tensor, "rows d"]) -> Float[Tensor, "rows n"]:
        logits = self.logits.view(self.n_states, -1)
        return x @ logits.mT - seen @ F.softplus(logits).mT

    def fitted(self, sums: Float[Tensor, "*shape"], counts: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        added = self._added(sums)
        return ((sums + added) / (counts + 2.0 * added)).logit(_LEAST)

    def weight(self) -> float | Tensor:
        return 2.0 * self._added(self.logits)

    def log_prior(self) -> Float[Tensor, ""]:
        return (self._added(self.logits) * (F.logsigmoid(self.logits) + F.logsigmoid(-self.logits))).sum()

    def start(self, data: Float[Tensor, "rows *d"], generator: torch.Generator | None) -> None:
        """Probabilities by k-means, moved halfway to the shares in all data, and a little at random."""
        if not len(data):
            return
        x = torch.where(data >= 0, data, torch.nan).reshape(len(data), -1).double()
        centres = 0.5 * (clusters_of(x, self.n_states, generator).centres + x.nanmean(0).nan_to_num(0.5))
        noisy = centres * (0.75 + 0.5 * even(tuple(centres.shape), centres, generator))
        self.logits.data = noisy.logit(0.02).to(self.logits).view_as(self.logits)

    def draw(
        self,
        states: Int[Tensor, "*shape"],
        generator: torch.Generator | None = None,
        past: Shaped[Tensor, "*shape_lags_event"] | None = None,
    ) -> Bool[Tensor, "*shape_event"]:
        return torch.bernoulli(self.probabilities.detach()[states], generator=generator).bool()

    @property
    def n_free(self) -> int:
        return self.logits.numel()

    def _added(self, like: Tensor) -> Tensor:
        """What the prior adds to the counts of ones, and of zeros."""
        return torch.as_tensor(self.prior).to(like) - 1.0
