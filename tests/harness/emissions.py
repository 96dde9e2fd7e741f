"""Emissions of hidden Markov models: small random instances with data, and the same models in hmmlearn."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tailsum.hmm import (
    Autoregressive,
    Bernoulli,
    Categorical,
    Emission,
    Gaussian,
    HiddenMarkov,
    Independent,
    Mixture,
    Poisson,
)

N, D = 3, 2


class Case(NamedTuple):
    """How to make an emission, and data `[B, T, *event]` for it, without anything missing."""

    make: Callable[[], Emission]
    data: Callable[[int, int], Tensor]


def vectors(b: int, t: int) -> Tensor:
    """Vectors about three centres."""
    return torch.randn(b, t, D) @ torch.tensor([[1.0, 0.4], [0.0, 0.7]]) + 3.0 * torch.randint(3, (b, t, 1))


def counts(b: int, t: int) -> Tensor:
    return torch.poisson(torch.tensor([1.0, 4.0, 9.0])[torch.randint(3, (b, t))]).long()


def count_vectors(b: int, t: int) -> Tensor:
    return torch.stack((counts(b, t), counts(b, t)), -1)


def booleans(b: int, t: int) -> Tensor:
    return torch.rand(b, t) < 0.4


def boolean_vectors(b: int, t: int) -> Tensor:
    return torch.rand(b, t, D) < torch.tensor([0.3, 0.6])


def symbols(b: int, t: int) -> Tensor:
    return torch.randint(4, (b, t))


def joined(b: int, t: int) -> Tensor:
    return torch.cat((vectors(b, t), symbols(b, t)[..., None], counts(b, t)[..., None]), -1)


PRIORS = {"mean_prior": 0.5, "mean_weight": 0.7, "covariance_prior": 0.3, "covariance_weight": 4.0}
CASES = {
    **{kind: Case(lambda kind=kind: Gaussian(D, kind), vectors) for kind in ("diagonal", "full", "tied", "spherical")},
    **{
        f"{kind}, priors": Case(lambda kind=kind: Gaussian(D, kind, **PRIORS), vectors)
        for kind in ("diagonal", "full", "tied", "spherical")
    },
    "poisson": Case(Poisson, counts),
    "poisson, priors": Case(lambda: Poisson(D, rate_prior=2.0, rate_weight=1.5), count_vectors),
    "bernoulli": Case(Bernoulli, booleans),
    "bernoulli, priors": Case(lambda: Bernoulli(D, prior=1.7), boolean_vectors),
    "mixture": Case(lambda: Mixture(2, Gaussian(D, "full"), prior=1.2), vectors),
    "mixture of symbols": Case(lambda: Mixture(2, Categorical(4, prior=1.1)), symbols),
    "mixture of booleans": Case(lambda: Mixture(2, Bernoulli(D)), boolean_vectors),
    "independent": Case(lambda: Independent(Gaussian(D), Categorical(4), Poisson()), joined),
    "autoregressive": Case(lambda: Autoregressive(D, covariance="full", ridge=0.3), vectors),
    "autoregressive, lags": Case(lambda: Autoregressive(D, 2, "spherical"), vectors),
    "autoregressive, tied": Case(lambda: Autoregressive(D, 2, "tied", ridge=0.0), vectors),
    "autoregressive mixture": Case(lambda: Mixture(2, Autoregressive(D)), vectors),
}


def model_of(emission: Emission, n: int = N) -> HiddenMarkov:
    """A model with random moves."""
    return HiddenMarkov(n, emission, initial=torch.randn(n), transition=torch.randn(n, n))


def like_hmmlearn(theirs: object, emission: Emission) -> HiddenMarkov:
    """A model with the first states and the moves of one of hmmlearn."""
    initial, moves = (torch.as_tensor(np.log(x)) for x in (theirs.startprob_, theirs.transmat_))
    return HiddenMarkov(len(initial), emission, initial=initial, transition=moves)


def begun(theirs: object, seed: int = 0, n: int = N) -> object:
    """A model of hmmlearn with random first states and moves."""
    random = np.random.default_rng(seed)
    theirs.startprob_, theirs.transmat_ = random.dirichlet(np.ones(n)), random.dirichlet(np.ones(n), n)
    return theirs


def agree(ours: HiddenMarkov, theirs: object, x: np.ndarray, lengths: list[int], atol: float = 1e-9) -> float:
    """Compares likelihoods, state probabilities and paths; the largest deviation."""
    score, chances, path = theirs.score(x, lengths), theirs.predict_proba(x, lengths), theirs.predict(x, lengths)
    own = x[:, 0] if ours.emission.event_dim == 0 else x
    smoothed, decoded = ours.smooth(own, lengths), ours.decode(own, lengths)
    inside = torch.arange(smoothed.shape[1]) < torch.tensor(lengths)[:, None]
    worst = max(abs(ours.score(own, lengths) - score) / len(x), np.abs(smoothed[inside].numpy() - chances).max())
    worst = max(worst, np.abs(ours.transition_table().detach().exp().numpy() - theirs.transmat_).max())
    worst = max(worst, np.abs(ours.initial.detach().exp().numpy() - theirs.startprob_).max())
    assert worst < atol
    same = decoded.clone()  # of paths that are equally likely, each has its own
    same[inside] = torch.as_tensor(path)
    chain = ours.posterior(own, lengths)
    torch.testing.assert_close(chain.score(same), chain.score(decoded), rtol=0, atol=atol)
    return float(worst)
