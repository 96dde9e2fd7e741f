"""What the page about a run says: the template `vae.html` has its words, and this the numbers in them."""

import dataclasses
from typing import Any

from tailsum.apps.report.wording import number, percent
from tailsum.apps.text import UNKNOWN
from tailsum.apps.vae.data import END
from tailsum.apps.vae.report.findings import Findings, at, curve
from tailsum.apps.vae.report.scores import baselines, tables
from tailsum.apps.vae.settings import Settings
from tailsum.plot.style import state_colour

CARDS, OPEN = 60, 12  # states on the page, and how many of them are seen at once
CHIPS = 12  # words of a state
SECTIONS = {
    "use": "States in use",
    "transitions": "What follows what",
    "states": "The states",
    "sentences": "Sentences of its own",
    "evaluation": "How well it does",
    "training": "Training",
    "settings": "Settings",
}
PICTURES_ONLY = {"transitions", "training"}  # sections that are there only where something was drawn


def content(findings: Findings, drawn: set[str]) -> dict[str, Any]:
    """All that the template asks for but the pictures; `drawn` are the sections that have some."""
    found, words = findings.occurrences, findings.vocabulary
    used = int((found.counts > 0).sum())
    shown = found.ranked()[: min(CARDS, used)]
    covered = found.counts.sort(descending=True).values.cumsum(0).tolist()
    return {
        "title": "What the model has learned",
        "contents": {name: title for name, title in SECTIONS.items() if name in drawn or name not in PICTURES_ONLY},
        "settings": findings.settings,
        "tiles": _tiles(findings, used),
        "half": next(place for place, count in enumerate(covered, 1) if 2 * count >= covered[-1]),
        "cards": _cards(findings, shown),
        "open": OPEN,
        "unknown": UNKNOWN if UNKNOWN in words.words else "",
        "said": [list(zip(words.decode(each.words), each.states, strict=True)) for each in findings.samples],
        "linked": set(shown),
        "end": END,
        "colour": state_colour,
        "tables": tables(findings.evaluation),
        "chosen": _chosen(findings.settings),
    }


def _tiles(findings: Findings, used: int) -> list[tuple[str, str, str]]:
    """A few numbers, what each is, and a word about it."""
    found = findings.occurrences
    steps = [0, *curve(findings.losses, "train").index]
    sentences = f"{len(found.sentences):,} sentences, {len(found.words):,} words"
    return [
        *_score(findings),
        (f"{used:,} of {found.n_states:,}", "states in use", "in one sample for every training sentence"),
        (number(found.perplexity), "perplexity of their use", "so many states, used alike, would be as hard to guess"),
        (f"{steps[-1]:,}", "steps of training", sentences),
    ]


def _score(findings: Findings) -> list[tuple[str, str, str]]:
    """The likelihood of the test part, or of the dev part, beside that of the best of the others."""
    for part in ("test", "dev"):
        if (value := at(findings.evaluation, part, "per_word")) is not None:
            scores = {name: at(found, part, "per_word") for name, found in baselines(findings.evaluation).items()}
            known = {name: score for name, score in scores.items() if score is not None}
            best = min(known, key=known.__getitem__, default="")
            note = f"{best}: {known[best]:.3f}" if best else "by importance sampling"
            return [(f"{value:.3f}", f"nats per word of the {part} part", note)]
    dev = curve(findings.losses, "dev")
    note = "at its best in training, by a few samples"
    return [] if dev.empty else [(f"{dev.min():.3f}", "nats per word of the dev part", note)]


def _cards(findings: Findings, shown: list[int]) -> list[dict[str, Any]]:
    """For each state its share of all words, its most frequent words, and some places where it occurs."""
    found, vocabulary = findings.occurrences, findings.vocabulary
    counts, words = found.counts.tolist(), found.words_of(CHIPS)
    return [
        {
            "state": state,
            "share": f"{percent(counts[state] / len(found.words))} of all words ({counts[state]:,})",
            "words": [(vocabulary.words[word], percent(times / counts[state])) for word, times in words[state]],
            "contexts": [found.context(at, vocabulary) for at in findings.examples[state]],
        }
        for state in shown
    ]


def _chosen(settings: Settings) -> dict[str, dict[str, str]]:
    """The settings that were chosen, then those left as they were."""
    parts: dict[str, dict[str, str]] = {"Chosen": {}, "Left as they were": {}}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        part = parts["Left as they were" if value == field.default else "Chosen"]
        part[field.name.replace("_", " ")] = "none" if value is None else str(value)
    return parts
