"""The structured VAE: its two models, the training bound (the paper's Eqs. 1, 32 and 33), and importance weights."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from tailsum.chains.linear_chain import LinearChain
from tailsum.nn.decoder import Joint, Probes, as_sample
from tailsum.nn.estimator import Estimator
from tailsum.nn.inference import CRFInference
from tailsum.numerics.check import as_whole, at_least
from tailsum.structure.relaxed import RelaxedSample


class Elbo(NamedTuple):
    """The parts of the evidence lower bound of each sentence: log p(words | states), log p(states), entropy of q."""

    words: Float[Tensor, "*batch"]
    states: Float[Tensor, "*batch"]
    entropy: Float[Tensor, "*batch"]

    @property
    def total(self) -> Float[Tensor, "*batch"]:
        """The bound."""
        return self.words + self.states + self.entropy


@runtime_checkable
class GenerativeModel(Protocol):
    """The interface of a decoder: its number of states, and a call that scores words and states, as in `Decoder`."""

    n_states: int

    def __call__(
        self,
        words: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"],
        sample: RelaxedSample,
        seen: Int[Tensor, "B T"] | None = None,
        probes: Probes | None = None,
        /,
    ) -> Joint:
        """The log-probabilities of words and (relaxed) states; `seen` and `probes` as in `Decoder.forward`."""
        ...


class StructuredVAE(nn.Module):
    """An inference network (encoder and CRF) and a generative model, over words `[B, T]` with `lengths [B]`, or a list."""

    def __init__(self, encoder: nn.Module, inference: CRFInference, decoder: GenerativeModel) -> None:
        super().__init__()
        if not isinstance(decoder, GenerativeModel):
            raise ValueError(
                "decoder must have n_states, a number, and be called with (words, lengths, sample, seen, probes) for a "
                f"Joint, as tailsum.nn.Decoder is: got {type(decoder).__name__}"
            )
        if len(inference.states) != decoder.n_states:
            got = f"{len(inference.states)} and {decoder.n_states}"
            raise ValueError(f"inference and decoder must have equally many states: got {got}")
        self.encoder, self.inference = encoder, inference
        self.decoder: Any = decoder  # may have other methods, known to its author

    def posterior(self, words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | Sequence[int]) -> LinearChain:
        """The distribution over the states of each sentence, `q(x | y)`."""
        lengths = as_whole("lengths", lengths, words.device)
        return self.inference(self.encoder(words, lengths), lengths)

    def elbo(
        self,
        words: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | Sequence[int],
        estimator: Estimator,
        temperature: float = 1.0,
        hard: bool = False,
        word_dropout: float = 0.0,
        prior_weight: float = 1.0,
    ) -> Elbo:
        """The bound of each sentence, from one relaxed sample of its states.

        `hard` samples are one-hot, with the gradient of the relaxed ones (straight-through). `word_dropout` is the share of
        words that the decoder reads as "<unk>", so that it must learn them from the states. `prior_weight` scales the
        gradient by which log p(states) moves the posterior towards the prior. It changes no value, and the prior itself
        gets its full gradient.
        """
        lengths = as_whole("lengths", lengths, words.device)
        encoded = turned(self.encoder(words, lengths), lengths)
        small = estimator.sketch(self.inference(encoded, lengths))
        # Samples are drawn from the last position to the first: turned, each state depends on those before it, as in the decoder.
        sample = small.rsample(temperature, hard)
        states = sample.states if small.kept is None else turned(sample.states, lengths)
        assert sample.chances is not None
        weights, chosen, chances = (turned(x, lengths) for x in (sample.weights, sample.hard, sample.chances))
        sample = RelaxedSample(weights, states, chosen, chances)
        probes = estimator.probe(sample)
        towards = estimator.prior_weights(sample)
        towards = prior_weight * towards + (1 - prior_weight) * towards.detach()
        sample = sample._replace(chances=towards)
        seen = words.masked_fill(torch.rand(words.shape, device=words.device) < word_dropout, 0)
        joint = self.decoder(words, lengths, sample, seen, probes)
        return Elbo(joint.words, joint.states, estimator.entropy(small))

    @torch.no_grad()
    def weigh(
        self,
        words: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | Sequence[int],
        estimator: Estimator,
        n_samples: int,
    ) -> "Weighed":
        """Importance weights `p(x, y) / q(x | y)` at samples from q: each has mean `p(y)`.

        This holds for samples from a sketch too, with its log-partition, which is unbiased, in place of the exact one.
        """
        at_least(1, n_samples=n_samples)
        lengths = as_whole("lengths", lengths, words.device)
        small = estimator.sketch(self.posterior(words, lengths))
        states = small.sample((n_samples,))
        log_q = small.score(states) - small.log_partition()
        joint = self.decoder(words, lengths, as_sample(states, small.dtype))
        bound = Elbo(joint.words.mean(0), joint.states.mean(0), -log_q.mean(0))
        return Weighed(joint.total - log_q, bound, small.kept is not None)


class Weighed(NamedTuple):
    """Log importance weights, the parts of the bound (means over samples), and whether samples are from a sketch."""

    log_weights: Float[Tensor, "n_samples B"]
    bound: Elbo
    sketched: bool


def turned(x: Shaped[Tensor, "B T *rest"], lengths: Int[Tensor, " B"]) -> Shaped[Tensor, "B T *rest"]:
    """Each sentence reversed, with its padding still at the end."""
    place = torch.arange(x.shape[1], device=x.device)
    place = torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)
    return x.take_along_dim(place.reshape(*place.shape, *[1] * (x.dim() - 2)), 1)
