"""Sentences with a gap: half of the words of each, in one piece, are missing.

A batch has the sentences with `GAP` in place of the missing words, `[B, S]`, and the missing words themselves, `[B, T]`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tailsum_studies.text import Sentence, Split, Vocabulary

GAP = "<gap>"
SHORTEST, LONGEST = 6, 20  # words in a sentence


class Gaps(NamedTuple):
    """A batch: what is seen, where each gap starts, how many words it has, and which."""

    seen: Int[Tensor, "B S"]
    start: Int[Tensor, " B"]
    lengths: Int[Tensor, " B"]
    words: Int[Tensor, "B T"]

    def places(self) -> Int[Tensor, "B T"]:
        """The positions of the missing words in the sentence; behind a gap, any."""
        return (self.start[:, None] + torch.arange(self.words.shape[1], device=self.start.device)).clamp(
            max=self.seen.shape[1] - 1
        )

    def inside(self) -> Bool[Tensor, "B T"]:
        """Which positions are of a gap, and not behind it."""
        return torch.arange(self.words.shape[1], device=self.start.device) < self.lengths[:, None]

    def to(self, device: torch.device) -> "Gaps":
        """The same on a device."""
        return Gaps(*(x.to(device) for x in self))


@dataclass(frozen=True)
class Text:
    """Sentences as numbers of words. Every word of the training part is in the vocabulary, as a state."""

    vocabulary: Vocabulary
    train: list[Tensor]
    dev: list[Tensor]
    test: list[Tensor]

    @classmethod
    def of(cls, split: Split) -> "Text":
        """The sentences of 6 to 20 words; those of the dev and test parts that have new words are left out."""
        words = {word for sentence in split.train for word in sentence}
        vocabulary = Vocabulary.of(split.train, len(words))

        def numbers(sentences: list[Sentence]) -> list[Tensor]:
            fit = (s for s in sentences if SHORTEST <= len(s) <= LONGEST and words.issuperset(s))
            return [torch.tensor(vocabulary.encode(sentence)) for sentence in fit]

        parts = {name: numbers(part) for name, part in split._asdict().items()}
        for name, found in parts.items():
            if not found:
                raise ValueError(
                    f"the {name} part must have sentences of {SHORTEST} to {LONGEST} words, all of them known from the "
                    "training part: got none"
                )
        return cls(vocabulary, **parts)


def cut(sentences: Sequence[Tensor], gap: int, generator: torch.Generator) -> Gaps:
    """Half of the words of each sentence replaced by `gap`, in one piece that starts anywhere."""
    total = torch.tensor([len(sentence) for sentence in sentences])
    lengths = total // 2
    start = (torch.rand(len(total), generator=generator) * (total - lengths + 1)).long()
    whole = pad_sequence(list(sentences), batch_first=True)
    place = torch.arange(whole.shape[1])
    missing = (place >= start[:, None]) & (place < (start + lengths)[:, None])
    words = pad_sequence([row[hidden] for row, hidden in zip(whole, missing, strict=True)], batch_first=True)
    return Gaps(whole.masked_fill(missing, gap), start, lengths, words)


def batches(sentences: Sequence[Tensor], size: int, gap: int, generator: torch.Generator) -> Iterator[Gaps]:
    """Batches in random order, each gap new, without end."""
    while True:
        for chosen in torch.randperm(len(sentences), generator=generator).split(size):
            yield cut([sentences[i] for i in chosen.tolist()], gap, generator)
