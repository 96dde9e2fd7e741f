"""Sentences as numbered words, in batches of about equally long ones; the order follows from a seed and the step alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tailsum_studies.check import at_least
from tailsum_studies.text import Sentence, Split, Vocabulary, sentences
from tailsum_studies.vae.seeds import mixed, seeded

Numbered = list[int]
END = "<end>"  # the last word of every sentence, as `tailsum.nn.PretrainedEncoder` reads it


class Batch(NamedTuple):
    """Sentences as numbers of words, the last of which is "<end>", with zeros behind it; and how many each has."""

    words: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(self.words.to(device), self.lengths.to(device))


@dataclass(frozen=True)
class Corpus:
    """A vocabulary, and sentences numbered by it: those to train on, to watch training by, and to test on at the end."""

    vocabulary: Vocabulary
    train: list[Numbered]
    dev: list[Numbered]
    test: list[Numbered]

    @classmethod
    def of(cls, split: Split, n_words: int = 10_000, rare: int = 1, longest: int = 40) -> "Corpus":
        """Number the words of a text, `n_words` at most; those that occur no more than `rare` times become "<unk>".

        Sentences of more than `longest` words are left out.
        """
        at_least(1, n_words=n_words, longest=longest)
        parts = [[[*sentence, END] for sentence in part if len(sentence) <= longest] for part in split]
        for name, part in zip(Split._fields, parts, strict=True):
            if not part:
                raise ValueError(f"the {name} part must have sentences of up to {longest} words: got none")
        words = Vocabulary.of((sentence[:-1] for sentence in parts[0]), n_words, rare).words
        vocabulary = Vocabulary((words[0], END, *words[1:]))
        return cls(vocabulary, *([vocabulary.encode(sentence) for sentence in part] for part in parts))

    @classmethod
    def read(cls, path: Path | None, n_words: int = 10_000, rare: int = 1, longest: int = 40) -> "Corpus":
        """The sentences of a file or a folder, or of Python's own documentation (see `tailsum_studies.text.sentences`)."""
        return cls.of(sentences(path), n_words, rare, longest)

    def sentence(self, numbers: Sequence[int]) -> Sentence:
        """The words of a sentence, without "<end>" and what follows it."""
        words = self.vocabulary.decode(numbers)
        return words[: words.index(END)] if END in words else words


def batch_of(sentences: Sequence[Sequence[int]]) -> Batch:
    """Sentences as tensors.

    >>> batch_of([[5, 3, 1], [4, 1]])
    Batch(words=tensor([[5, 3, 1],
            [4, 1, 0]]), lengths=tensor([3, 2]))
    """
    words = pad_sequence([torch.tensor(sentence) for sentence in sentences], batch_first=True)
    return Batch(words, torch.tensor([len(sentence) for sentence in sentences]))


class Order:
    """Batches without end: every epoch all sentences once, those of a batch about equally long, in random order.

    What comes at a step depends on the seed and the step alone, so that training can start anywhere.
    """

    def __init__(self, lengths: Sequence[int], size: int, seed: int) -> None:
        at_least(1, size=size, sentences=len(lengths))
        self.lengths, self.size, self.seed = lengths, size, seed
        self.per_epoch = math.ceil(len(lengths) / size)
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def at(self, step: int) -> list[int]:
        """The numbers of the sentences of a step."""
        epoch, place = divmod(step, self.per_epoch)
        return self._epoch(epoch)[place]

    def _shuffled(self, epoch: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(mixed(self.seed, epoch))
        everything = torch.randperm(len(self.lengths), generator=generator).tolist()
        everything.sort(key=self.lengths.__getitem__)  # stable: equally long ones stay shuffled
        starts = self.size * torch.randperm(self.per_epoch, generator=generator)
        return [everything[start : start + self.size] for start in starts.tolist()]


def in_turn(sentences: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """The numbers of all sentences in batches, short ones first."""
    ranked = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    return [ranked[start : start + size] for start in range(0, len(ranked), size)]


def in_evaluation(
    model: nn.Module, sentences: Sequence[Sequence[int]], size: int, seed: int = 0
) -> Iterator[tuple[list[int], Batch]]:
    """Batches on a model's device, each with random numbers of its own; the model is not in training meanwhile."""
    device, training = next(model.parameters()).device, model.training
    model.eval()
    try:
        for number, chosen in enumerate(in_turn(sentences, size)):
            with seeded(mixed(seed, number), device):
                yield chosen, batch_of([sentences[i] for i in chosen]).to(device)
    finally:
        model.train(training)


def evenly(sentences: list[Numbered], at_most: int) -> list[Numbered]:
    """So many sentences at most, at equal distances.

    >>> evenly([[1], [2], [3], [4], [5]], 3)
    [[1], [3], [5]]
    """
    return sentences[:: -(-len(sentences) // at_most)]
