"""How well a model does: the likelihood of sentences by importance sampling, the parts of the bound, the states in use."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.nn import Elbo, Estimator, StructuredVAE
from tailsum_studies.check import at_least
from tailsum_studies.vae.baselines import Score, score
from tailsum_studies.vae.data import Numbered, in_evaluation
from tailsum_studies.vae.settings import EXACT_UP_TO

BATCH = 100  # sentences
SAMPLES_AT_ONCE = 20  # of each sentence of a batch
SCORES_AT_ONCE = 1 << 29  # of words and states at all positions of all samples: 2 GiB, and about as much beside them


@dataclass(frozen=True)
class Likelihood:
    """What importance sampling found of some sentences, in nats; `bound` has the mean parts of the ELBO of a sentence.

    The standard error of `nll` is that of a mean over sentences. `sampling_error` is the part of it, about, that more
    samples of the states would remove (nan where there is but one draw); too few samples also make the likelihood look
    worse than it is, never better.
    """

    nll: Score
    sampling_error: float
    bound: Elbo
    sentences: int
    samples: int


def log_mean_exp(log_weights: Float[Tensor, "n *rest"]) -> Float[Tensor, "*rest"]:
    """The logarithm of the mean of the exponentials along the first dimension, in double precision.

    >>> log_mean_exp(torch.tensor([-200.0, -200.0, -torch.inf])).item()  # log(2/3) - 200
    -200.40546510810816
    """
    return log_weights.double().logsumexp(0) - math.log(len(log_weights))


def sums_for(model: StructuredVAE, trained: Estimator) -> Estimator:
    """How to sum in evaluation: exactly, or, with very many states, as in training."""
    exact = Estimator("full", trained.kept)
    return exact if model.decoder.n_states <= EXACT_UP_TO else trained.with_neighbours(model.inference.transition)


@torch.no_grad()
def likelihood(
    model: StructuredVAE,
    sentences: Sequence[Numbered],
    estimator: Estimator,
    n_samples: int = 100,
    seed: int = 0,
    step: Callable[[], None] = lambda: None,
) -> Likelihood:
    """The likelihood of sentences by importance sampling from q; `step` is called after each batch."""
    at_least(1, n_samples=n_samples, sentences=len(sentences))
    log_p = torch.empty(len(sentences), dtype=torch.double)
    variance, bound = torch.empty_like(log_p), torch.zeros(3, dtype=torch.double)
    choices = len(model.decoder.word_bias) + model.decoder.n_states
    for chosen, batch in in_evaluation(model, sentences, BATCH, seed):
        parts, sketched = list[Tensor](), False
        at_once = max(1, min(SAMPLES_AT_ONCE, SCORES_AT_ONCE // (batch.words.numel() * choices)))
        for done in range(0, n_samples, at_once):
            count = min(at_once, n_samples - done)
            weighed = model.weigh(*batch, estimator, count)
            parts.append(weighed.log_weights.double().cpu())
            sketched |= weighed.sketched
            bound += count / n_samples * torch.stack([part.double().sum().cpu() for part in weighed.bound])
        log_weights = torch.cat(parts)
        log_p[chosen] = log_mean_exp(log_weights)
        if sketched:  # those of one sketch belong together: each sketch counts as one draw
            log_weights = torch.stack([log_mean_exp(part) for part in parts])
        variance[chosen] = _variance_of_log(log_weights - log_p[chosen])
        step()
    n = len(sentences)
    nll = score(log_p, [len(sentence) for sentence in sentences])
    return Likelihood(nll, variance.sum().sqrt().item() / n, Elbo(*(bound / n)), n, n_samples)


def _variance_of_log(relative: Float[Tensor, "n B"]) -> Float[Tensor, " B"]:
    """The variance of the logarithm of a mean, from the logarithms of what it is a mean of, less its own.

    By the delta method it is the variance of the mean, relative to its square. One draw alone says nothing of it.
    """
    n = len(relative)
    return relative.exp().var(0) / n if n > 1 else relative.new_full(relative.shape[1:], math.nan)


@torch.no_grad()
def drawn(
    model: StructuredVAE, sentences: Sequence[Numbered], estimator: Estimator, seed: int = 0
) -> Iterator[tuple[list[int], Int[Tensor, "B T"], Int[Tensor, " B"]]]:
    """One sample of the states of each sentence, in batches: which sentences, their states, their lengths."""
    for chosen, batch in in_evaluation(model, sentences, BATCH, seed):
        states = estimator.sketch(model.posterior(*batch)).sample()
        yield chosen, states.cpu(), batch.lengths.cpu()


def n_batches(sentences: Sequence[Numbered]) -> int:
    """How often `step` is called for some sentences."""
    return math.ceil(len(sentences) / BATCH)
