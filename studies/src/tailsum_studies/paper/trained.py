"""Two models with 1,000 states, trained on real sentences by exact maximum likelihood, to measure sketches on.

The paper has no such table. Every loss here sums over all states: the models owe nothing to the estimators that are
measured on them. Batches are `[B, T]`, a sentence in each row, with zeros behind its last word.
"""

import math
import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tailsum import HMM, Factored, LinearChain
from tailsum_studies.check import at_least
from tailsum_studies.files import whole
from tailsum_studies.text import Sentence, Split, Vocabulary

Kind = Literal["crf", "hmm"]

LONGEST = 20  # words in a sentence
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SIZES = (1, 2, 3, 4, 5, 7)  # letters, at most, in the words of each class but the last
N_HINTS = (len(LETTERS) + 1) * (len(SIZES) + 1)


class Batch(NamedTuple):
    """Sentences: the numbers of their words, the hint of each word, and how many words each has."""

    words: Int[Tensor, "B T"]
    hints: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]


class WordModel(nn.Module, ABC):
    """A chain for each sentence of a batch, and the likelihood that training raises."""

    sees_hints: bool

    @abstractmethod
    def chain(self, batch: Batch) -> LinearChain:
        """The distribution over the states of each position."""

    @abstractmethod
    def log_likelihood(self, batch: Batch) -> Float[Tensor, " B"]:
        """The log-probability of the words of each sentence."""


class WordCRF(WordModel):
    """Restores the words of a sentence from hints, `p(words | hints)`: the states are the words."""

    sees_hints = True

    def __init__(self, n_states: int = 1000, size: int = 64) -> None:
        super().__init__()
        self.hints = nn.Embedding(N_HINTS, size)
        self.encoder = nn.Conv1d(size, size, kernel_size=5, padding=2)
        self.states, self.left, self.right = (nn.Parameter(0.1 * torch.randn(n_states, size)) for _ in range(3))

    def chain(self, batch: Batch) -> LinearChain:
        """The distribution over words that fit the hints."""
        inside = torch.arange(batch.hints.shape[1], device=batch.hints.device) < batch.lengths[:, None]
        hints = torch.where(inside[..., None], self.hints(batch.hints), 0.0)
        context = hints + self.encoder(hints.mT).mT.relu()
        return LinearChain(Factored(context, self.states), Factored(self.left, self.right), batch.lengths)

    def log_likelihood(self, batch: Batch) -> Float[Tensor, " B"]:
        """The log-probability of the words of each sentence, given their hints."""
        return self.chain(batch).log_prob(batch.words)


class WordHMM(WordModel):
    """Writes sentences, `p(words)`, by latent states, whose meaning it finds without labels; all tables from embeddings.

    The embeddings start with scores of standard deviation one: states that begin alike would stay alike.
    """

    sees_hints = False

    def __init__(self, n_states: int = 1000, n_words: int = 1000, size: int = 64) -> None:
        super().__init__()
        self.initial = nn.Parameter(torch.zeros(n_states))
        self.left, self.right, self.states, self.words = (
            nn.Parameter(torch.randn(count, size) / size**0.25) for count in (n_states, n_states, n_states, n_words)
        )

    def chain(self, batch: Batch) -> LinearChain:
        """The posterior distribution over the states that may have written the words."""
        initial = self.initial.log_softmax(-1)
        transition = (self.left @ self.right.mT).log_softmax(-1)
        emission = (self.states @ self.words.mT).log_softmax(-1)
        return HMM(initial, transition, emission, batch.words, batch.lengths)

    def log_likelihood(self, batch: Batch) -> Float[Tensor, " B"]:
        """The log-probability of the words of each sentence."""
        return self.chain(batch).log_partition()


@dataclass(frozen=True)
class Settings:
    """What to train, and how. As they stand, it takes less than a minute on one core."""

    kind: Kind
    n_states: int = 1000  # and as many words, "<unk>" among them
    size: int = 64  # of embeddings
    steps: int = 800
    batch: int = 32
    rate: float = 2e-2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("crf", "hmm"):
            raise ValueError(f"kind must be 'crf' or 'hmm': got {self.kind!r}")
        at_least(2, n_states=self.n_states)
        at_least(1, size=self.size, steps=self.steps, batch=self.batch)

    def model(self) -> WordModel:
        """A model before training, the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.kind == "crf":
                return WordCRF(self.n_states, self.size)
            return WordHMM(self.n_states, self.n_states, self.size)


@dataclass(frozen=True)
class Record:
    """Test negative log-likelihoods, in nats per word: before training, after it, and of words by their counts alone.

    The CRF sees hints; so the counts that it is compared with are those of the words that share the hint.
    """

    before: float
    after: float
    unigram: float


@dataclass(frozen=True)
class Trained:
    """A trained model, what it was trained with, and how well it does."""

    model: WordModel
    vocabulary: Vocabulary
    settings: Settings
    record: Record


def train(settings: Settings, split: Split, step: Callable[[], None] = lambda: None) -> Trained:
    """Train by exact maximum likelihood: Adam on sentences of up to 20 words; `step` is called after each step."""
    vocabulary = Vocabulary.of(split.train, settings.n_states - 1)
    data, held_out = _short(split.train, "train"), _short(split.test, "test")
    model = settings.model()
    before = _loss_per_word(model, held_out, vocabulary)
    optimiser = torch.optim.Adam(model.parameters(), settings.rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, settings.steps)
    batches = _batches(data, settings.batch, torch.Generator().manual_seed(settings.seed))
    for _ in range(settings.steps):
        batch = batch_of(next(batches), vocabulary)
        loss = -model.log_likelihood(batch).sum() / batch.lengths.sum()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        step()
    unigram = _unigram_per_word(data, held_out, vocabulary, model.sees_hints)
    record = Record(before, _loss_per_word(model, held_out, vocabulary), unigram)
    return Trained(model.eval(), vocabulary, settings, record)


def held_out_batch(
    trained: Trained,
    split: Split,
    n: int = 32,
    generator: torch.Generator | None = None,
) -> Batch:
    """Some of the test sentences, at random, to measure on."""
    held_out = _short(split.test, "test")
    at_least(1, n=n)
    if n > len(held_out):
        raise ValueError(f"n must be at most {len(held_out)}, the number of test sentences: got {n}")
    chosen = torch.randperm(len(held_out), generator=generator)[:n]
    return batch_of([held_out[i] for i in chosen.tolist()], trained.vocabulary)


# Files.


def save(path: Path, trained: Trained) -> None:
    """Write a trained model to a file, whole or not at all."""
    content = {
        "settings": asdict(trained.settings),
        "words": list(trained.vocabulary.words),
        "record": asdict(trained.record),
        "state": trained.model.state_dict(),
    }
    with whole(path, "wb") as file:
        torch.save(content, file)


def load(path: Path, settings: Settings, split: Split) -> Trained:
    """The model of a file; a ValueError if it is not what `train(settings, split)` would give."""
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
        found, words = content["settings"], tuple(content["words"])
        record, state = Record(**content["record"]), content["state"]
    except (EOFError, KeyError, OSError, RuntimeError, TypeError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"{path} must be a trained model: it is missing, damaged or something else ({error})"
        ) from None
    for name, wanted in asdict(settings).items():
        if found.get(name) != wanted:
            raise ValueError(f"{path} must hold a model trained with {name} = {wanted}: got {found.get(name)}")
    vocabulary = Vocabulary.of(split.train, settings.n_states - 1)
    if words != vocabulary.words:
        raise ValueError(f"{path} must hold a model of the words of this text: it was trained on another")
    model = settings.model()
    model.load_state_dict(state)
    return Trained(model.eval(), vocabulary, settings, record)


# Sentences as tensors.


def hint(word: str) -> int:
    """The number of a word's hint: its first letter (none for digits and marks), and about how long it is.

    >>> hint("cat") == hint("cow"), hint("cat") == hint("cattle")
    (True, False)
    """
    size = sum(len(word) > longest for longest in SIZES)
    return (LETTERS.find(word[:1]) + 1) * (len(SIZES) + 1) + size


def batch_of(sentences: Sequence[Sentence], vocabulary: Vocabulary) -> Batch:
    """Sentences as tensors."""
    words = [torch.tensor(vocabulary.encode(sentence)) for sentence in sentences]
    hints = [torch.tensor([hint(word) for word in sentence]) for sentence in sentences]
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    return Batch(pad_sequence(words, batch_first=True), pad_sequence(hints, batch_first=True), lengths)


def _short(sentences: list[Sentence], name: str) -> list[Sentence]:
    found = [sentence for sentence in sentences if 1 <= len(sentence) <= LONGEST]
    if not found:
        raise ValueError(f"split.{name} must have sentences of up to {LONGEST} words: got none")
    return found


def _batches(sentences: list[Sentence], size: int, generator: torch.Generator) -> Iterator[list[Sentence]]:
    """Batches in random order, without end. Those of a batch are about equally long, so that little is padding."""
    while True:
        order = torch.randperm(len(sentences), generator=generator).tolist()
        shuffled = sorted((sentences[i] for i in order), key=len)
        starts = size * torch.randperm(math.ceil(len(order) / size), generator=generator)
        yield from (shuffled[start : start + size] for start in starts.tolist())


# How well a model does.


@torch.no_grad()
def _loss_per_word(model: WordModel, sentences: list[Sentence], vocabulary: Vocabulary) -> float:
    """Negative log-likelihood per word of some 500 sentences."""
    some = sorted(sentences[:: math.ceil(len(sentences) / 500)], key=len)
    batches = [batch_of(some[start : start + 50], vocabulary) for start in range(0, len(some), 50)]
    total = sum(model.log_likelihood(batch).double().sum().item() for batch in batches)
    return -total / sum(map(len, some))


def _unigram_per_word(data: list[Sentence], held_out: list[Sentence], vocabulary: Vocabulary, by_hint: bool) -> float:
    """Negative log-likelihood per word of a word given its hint, or given nothing, from counts (each plus one)."""

    def group(word: str) -> int:
        return hint(word) if by_hint else 0

    def pairs(sentences: list[Sentence]) -> list[tuple[int, int]]:
        return [(group(w), number) for s in sentences for w, number in zip(s, vocabulary.encode(s), strict=True)]

    seen = pairs(data)
    count, total = Counter(seen), Counter(key for key, _ in seen)
    possible = Counter(map(group, vocabulary.words[1:]))  # and "<unk>"
    asked = pairs(held_out)
    return -sum(math.log((count[p] + 1) / (total[p[0]] + possible[p[0]] + 1)) for p in asked) / len(asked)
