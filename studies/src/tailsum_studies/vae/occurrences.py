"""Where the states of a model occur: words of sentences with the states that a sample from q gave them.

Words and states are numbers. "<end>" counts as a word.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum_studies.text import Vocabulary
from tailsum_studies.vae.data import END, Numbered

AROUND = 7  # words to each side of the one in question


class Context(NamedTuple):
    """A word of a sentence, and some words to its left and right."""

    left: list[str]
    word: str
    right: list[str]


class Information(NamedTuple):
    """How much states tell of their words, in nats: what each adds to I(state; word), and what it adds by chance."""

    of_states: Float[Tensor, " N"]
    by_chance: Float[Tensor, " N"]  # the same for states that were shuffled among the words
    of_words: float  # the entropy of the words: all that there is to tell

    @property
    def net(self) -> Float[Tensor, " N"]:
        """Without what chance would add: many rare states seem to tell much of few words."""
        return self.of_states - self.by_chance

    def as_json(self) -> dict[str, float]:
        """The sums over all states."""
        return {"net": self.net.sum().item(), "by_chance": self.by_chance.sum().item(), "of_words": self.of_words}


@dataclass(frozen=True)
class Occurrences:
    """The words of some sentences, one sentence after the other, and one state for each of them."""

    sentences: Sequence[Numbered]
    words: Int[Tensor, " n"]
    states: Int[Tensor, " n"]
    sentence: Int[Tensor, " n"]
    place: Int[Tensor, " n"]  # in the sentence
    n_states: int

    @classmethod
    def of(cls, sentences: Sequence[Numbered], states: Sequence[Sequence[int]], n_states: int) -> "Occurrences":
        """From the states of each sentence."""
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        words, flat = (torch.tensor([x for row in rows for x in row]) for rows in (sentences, states))
        sentence = torch.arange(len(lengths)).repeat_interleave(lengths)
        place = torch.cat([torch.arange(len(row)) for row in sentences])
        return cls(sentences, words, flat, sentence, place, n_states)

    @property
    def counts(self) -> Int[Tensor, " N"]:
        """How often each state occurs."""
        return self.states.bincount(minlength=self.n_states)

    @property
    def perplexity(self) -> float:
        """How many states, used equally often, would be as hard to guess."""
        share = self.counts.double() / len(self.states)
        return torch.special.entr(share).sum().exp().item()

    @cached_property
    def information(self) -> Information:
        """How much the states tell of the words at the same place."""
        order = torch.randperm(len(self.states), generator=torch.Generator().manual_seed(0))
        words = torch.special.entr(self.words.bincount().double() / len(self.words)).sum().item()
        return Information(self._of_states(self.states), self._of_states(self.states[order]), words)

    def _of_states(self, states: Int[Tensor, " n"]) -> Float[Tensor, " N"]:
        """For each state s the sum over words w of `p(s, w) log(p(s, w) / (p(s) p(w)))`."""
        width = int(self.words.max()) + 1
        keys, counts = (states * width + self.words).unique(return_counts=True)
        state, word = keys // width, keys % width
        expected = states.bincount(minlength=self.n_states)[state].double() * self.words.bincount()[word]
        found = counts / len(states) * (counts * len(states) / expected).log()
        return found.new_zeros(self.n_states).index_add(0, state, found)

    def ranked(self) -> list[int]:
        """All states, those that tell most of their words first; unused ones last."""
        net = self.information.net.masked_fill(self.counts == 0, -math.inf)
        return net.argsort(descending=True, stable=True).tolist()

    def words_of(self, most: int) -> list[list[tuple[int, int]]]:
        """For each state its most frequent words, and how often it has each."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.n_states)]
        for state, word, count in _frequent_pairs(self.states, self.words):
            if len(found[state]) < most:
                found[state].append((word, count))
        return found

    def transitions(self) -> list[tuple[int, int, int]]:
        """Pairs of states of neighbouring words, and how often they occur: the most frequent first."""
        same = self.sentence[1:] == self.sentence[:-1]
        return _frequent_pairs(self.states[:-1][same], self.states[1:][same])

    def how_late(self) -> Float[Tensor, " N"]:
        """Where in a sentence each state stands on average, from 0, its first word, to 1, its last; unused ones at 0."""
        lengths = torch.tensor([len(sentence) for sentence in self.sentences])[self.sentence]
        late = self.place.double() / (lengths - 1).clamp(min=1)
        return late.new_zeros(self.n_states).index_add(0, self.states, late) / self.counts.clamp(min=1)

    def examples(self, most: int, seed: int = 0) -> list[list[int]]:
        """For each state some of its occurrences, drawn at random, no two from the same words around them."""
        order = torch.randperm(len(self.states), generator=torch.Generator().manual_seed(seed))
        found: list[dict[tuple[int, ...], int]] = [{} for _ in range(self.n_states)]
        for at, state in zip(order.tolist(), self.states[order].tolist(), strict=True):
            if len(found[state]) < most:
                found[state].setdefault(self._around(at), at)
        return [list(seen.values()) for seen in found]

    def _around(self, at: int) -> tuple[int, ...]:
        sentence, place = self.sentences[int(self.sentence[at])], int(self.place[at])
        return tuple(sentence[max(0, place - AROUND) : place + AROUND + 1])

    def context(self, at: int, vocabulary: Vocabulary, around: int = AROUND) -> Context:
        """An occurrence with the words around it; "<end>" is shown only where it is the word in question."""
        place = int(self.place[at])
        words = vocabulary.decode(self.sentences[int(self.sentence[at])])
        right = [word for word in words[place + 1 : place + 1 + around] if word != END]
        return Context(words[max(0, place - around) : place], words[place], right)


def _frequent_pairs(first: Int[Tensor, " n"], second: Int[Tensor, " n"]) -> list[tuple[int, int, int]]:
    """Pairs of numbers and how often they stand side by side, the most frequent first."""
    if not len(first):
        return []
    width = int(second.max()) + 1
    keys, counts = (first * width + second).unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)
    return list(
        zip((keys[order] // width).tolist(), (keys[order] % width).tolist(), counts[order].tolist(), strict=True)
    )
