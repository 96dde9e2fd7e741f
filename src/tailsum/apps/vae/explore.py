"""What a model has learned: where its states occur in the training sentences, and a page to browse it all.

Words and states are numbers. An occurrence is one word of one sentence with the state that a sample from q gave it;
"<end>" counts as a word.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.apps.files import whole
from tailsum.apps.text import Vocabulary
from tailsum.apps.vae.data import END, Corpus, Numbered
from tailsum.apps.vae.evaluate import drawn, n_batches
from tailsum.apps.vae.generate import sample_prior
from tailsum.apps.vae.run import Run, read_json
from tailsum.nn.estimator import Estimator
from tailsum.nn.structured_vae import StructuredVAE

CONTEXTS = 3  # for each state
AROUND = 7  # words to each side of the one in question
WORDS_IN_FILE = 10
PRIOR_SAMPLES = 20


class Context(NamedTuple):
    """A word of a sentence, and some words to its left and right."""

    left: list[str]
    word: str
    right: list[str]


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

    def ranked(self) -> list[int]:
        """All states, those in use most often first."""
        return self.counts.argsort(descending=True, stable=True).tolist()

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


@torch.no_grad()
def gather(
    model: StructuredVAE,
    sentences: Sequence[Numbered],
    estimator: Estimator,
    seed: int = 0,
    step: Callable[[], None] = lambda: None,
) -> Occurrences:
    """One sample from q for every sentence; `step` is called after each batch.

    How often states occur in it is the aggregated posterior, the paper's Figure 2.
    """
    states: list[list[int]] = [[]] * len(sentences)
    for chosen, sampled, lengths in drawn(model, sentences, estimator, seed):
        for number, row, length in zip(chosen, sampled.tolist(), lengths.tolist(), strict=True):
            states[number] = row[:length]
        step()
    return Occurrences.of(sentences, states, model.decoder.n_states)


def n_steps(corpus: Corpus) -> int:
    """How often `explore` calls `step`."""
    return n_batches(corpus.train) + 1


def explore(
    run: Run,
    corpus: Corpus,
    model: StructuredVAE,
    estimator: Estimator,
    step: Callable[[], None] = lambda: None,
    seed: int = 0,
    trained: int | None = None,
) -> Path:
    """Write the page `index.html` about a run into its folder, its pictures in `plots`, and `states.csv`; gives the page.

    The same model and seed give the same files. The model is that of step `trained`: what `tailsum evaluate` found of
    the run at another step is left out.
    """
    from tailsum.apps.vae.report import Findings, write_page  # noqa: PLC0415  (heavy, and only here)

    path = run.folder / "evaluation.json"
    evaluation = read_json(path) if path.exists() else {}
    if not isinstance(evaluation, dict):
        raise ValueError(f"{path} must hold an object: got a {type(evaluation).__name__}")
    if trained is not None and evaluation.get("step") != trained:
        evaluation = {}
    found = gather(model, corpus.train, estimator, seed, step)
    write_states(run.folder / "states.csv", found, corpus.vocabulary)
    (end,) = corpus.vocabulary.encode([END])
    samples = sample_prior(model.decoder, PRIOR_SAMPLES, run.settings.longest + 1, end, seed)
    examples = found.examples(CONTEXTS, seed)
    page = write_page(
        run.folder,
        Findings(run.settings, corpus.vocabulary, found, examples, samples, run.losses(), evaluation),
    )
    step()
    return page


def write_states(path: Path, found: Occurrences, vocabulary: Vocabulary) -> None:
    """All states as a table, those in use most often first: how often each occurs, and its most frequent words."""
    counts, words = found.counts.tolist(), found.words_of(WORDS_IN_FILE)
    with whole(path) as file:
        writer = csv.writer(file)
        writer.writerow(["state", "count", "words"])
        for state in found.ranked():
            said = vocabulary.decode([word for word, _ in words[state]])
            writer.writerow([state, counts[state], " ".join(said)])
