"""The page itself. Whatever comes from a text or a file is escaped."""

import dataclasses
from collections.abc import Sequence
from html import escape

from tailsum.apps.paper.report.wording import number
from tailsum.apps.report.html import document, embedded
from tailsum.apps.report.picture import Picture
from tailsum.apps.text import UNKNOWN
from tailsum.apps.vae.data import END
from tailsum.apps.vae.explore import Context
from tailsum.apps.vae.generate import Generated
from tailsum.apps.vae.report.findings import Findings, at, curve
from tailsum.apps.vae.report.scores import NAMES, bound_table, likelihood_table
from tailsum.apps.vae.settings import Settings
from tailsum.plot.style import state_colour

TITLE = "What the model has learned"
CARDS, OPEN = 60, 12  # states on the page, and how many of them are seen at once
CHIPS = 12  # words of a state

STYLE = """
h3 { font-size: 1.05rem; margin: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; margin: 28px 0 0; }
.tile { border: 1px solid var(--line); border-radius: 8px; background: var(--soft); padding: 12px 16px; }
.tile p { margin: 0; }
.tile .value { font-size: 1.7rem; line-height: 1.3; font-weight: 600; letter-spacing: -.01em;
  font-variant-numeric: tabular-nums; }
.tile .what { font-size: .9375rem; }
.card { border: 1px solid var(--line); border-left: 6px solid var(--line); border-radius: 8px; padding: 12px 16px;
  margin: 14px 0; scroll-margin-top: 12px; }
.card:target { outline: 2px solid var(--link); outline-offset: 2px; }
.card header { max-width: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; align-items: baseline;
  gap: 2px 12px; }
.card .share { color: var(--quiet); font-size: .875rem; font-variant-numeric: tabular-nums; }
.chips { list-style: none; display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0 0; padding: 0; }
.chips li { background: var(--soft); border: 1px solid var(--line); border-radius: 999px; padding: 1px 10px;
  font-size: .9375rem; overflow-wrap: anywhere; }
.chips small, .quiet { color: var(--quiet); font-variant-numeric: tabular-nums; }
.lines { list-style: none; margin: 10px 0 0; padding: 0; font-size: .9375rem; }
.lines li { display: grid; grid-template-columns: 45% auto minmax(0, 1fr); gap: 0 .5em; line-height: 1.7; }
.lines .left { display: flex; justify-content: flex-end; overflow: hidden; white-space: nowrap; color: var(--quiet); }
.lines .right { overflow: hidden; white-space: nowrap; text-overflow: ellipsis; color: var(--quiet); }
details > summary { cursor: pointer; color: var(--link); margin: 16px 0; }
summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.said { list-style: none; margin: 16px 0; padding: 0; }
.said > li { display: flex; flex-wrap: wrap; gap: 6px 8px; padding: 12px 0; border-bottom: 1px solid var(--line); }
.word { display: inline-flex; flex-direction: column; align-items: center; line-height: 1.35; color: inherit;
  text-decoration: none; overflow-wrap: anywhere; }
.word small { font-size: .6875rem; line-height: 1.3; padding: 0 6px; border-radius: 999px; color: #1f2328;
  font-variant-numeric: tabular-nums; }
a.word:hover span, a.word:focus-visible span { text-decoration: underline; }
@media (max-width: 600px) {
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; } .tile { padding: 10px 12px; } .tile .value { font-size: 1.3rem; }
  .lines li { display: block; margin: 6px 0; line-height: 1.45; }
  .lines .left, .lines .right { display: inline; white-space: normal; }
  figure { overflow-x: auto; } figure img { max-width: none; width: 640px; } figcaption { position: sticky; left: 0; }
  dl { grid-template-columns: minmax(0, max-content) 1fr; }
}
"""


def page(findings: Findings, shots: Sequence[tuple[Picture, bytes]]) -> str:
    """The whole page, with pictures that were saved."""
    cards = _shown(findings)
    sections = [
        ("use", "States in use", _use(findings)),
        ("transitions", "What follows what", ""),
        ("states", "The states", _states(findings, cards)),
        ("sentences", "Sentences of its own", _sentences(findings, set(cards))),
        ("evaluation", "How well it does", _evaluation(findings)),
        ("training", "Training", ""),
        ("settings", "Settings", _settings(findings.settings)),
    ]
    made: dict[str, tuple[str, str]] = {}
    for name, title, words in sections:
        drawn = [embedded(png, picture.caption) for picture, png in shots if picture.section == name]
        if parts := [part for part in (words, *drawn) if part]:
            made[name] = (title, "\n".join(parts))
    body = [
        _header(findings, {name: title for name, (title, _) in made.items()}),
        "<main>",
        *(f'<section id="{n}">\n<h2>{escape(title)}</h2>\n{text}\n</section>' for n, (title, text) in made.items()),
        "</main>",
        '<footer>All states and their words: <a href="states.csv">states.csv</a>.</footer>',
    ]
    return document(TITLE, body, STYLE)


def _text(words: str) -> str:
    return f"<p>{escape(words)}</p>"


def percent(share: float) -> str:
    """A share, to two digits or so.

    >>> [percent(x) for x in (1.0, 0.342, 0.0342, 0.00342, 0.00001)]
    ['100%', '34%', '3.4%', '0.34%', '<0.01%']
    """
    value = 100 * share
    if value >= 9.95:
        return f"{value:.0f}%"
    return f"{value:.1f}%" if value >= 0.995 else f"{value:.2f}%" if value >= 0.005 else "<0.01%"


# The head.


def _header(findings: Findings, titles: dict[str, str]) -> str:
    settings = findings.settings
    source = "Python's own documentation" if settings.data is None else settings.data
    lead = (
        f"A structured VAE with {settings.states:,} latent states, trained on {source}: what the states stand for, how they "
        "follow one another, and what the model says by itself."
    )
    entries = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in titles.items())
    tiles = "\n".join(
        f'<div class="tile"><p class="value">{escape(value)}</p><p class="what">{escape(what)}</p>'
        f'<p class="note">{escape(note)}</p></div>'
        for value, what, note in headline(findings)
    )
    return (
        f'<header>\n<h1>{escape(TITLE)}</h1>\n<p class="lead">{escape(lead)}</p>\n'
        f'<nav aria-label="Sections"><ul>{entries}</ul></nav>\n<div class="tiles">\n{tiles}\n</div>\n</header>'
    )


def headline(findings: Findings) -> list[tuple[str, str, str]]:
    """A few numbers, what each is, and a word about it."""
    found = findings.occurrences
    used = int((found.counts > 0).sum())
    steps = curve(findings.losses, "train").steps
    sentences = f"{len(found.sentences):,} sentences, {len(found.words):,} words"
    return [
        *_score(findings),
        (f"{used:,} of {found.n_states:,}", "states in use", "in one sample for every training sentence"),
        (number(found.perplexity), "perplexity of their use", "so many states, used alike, would be as hard to guess"),
        (f"{steps[-1] if steps else 0:,}", "steps of training", sentences),
    ]


def _score(findings: Findings) -> list[tuple[str, str, str]]:
    """The likelihood of the test part, or of the dev part, beside that of the best of the others."""
    for part in ("test", "dev"):
        if (value := at(findings.evaluation, part, "per_word")) is not None:
            others = findings.evaluation.get("baselines")
            scores = {name: at(others, name, part, "per_word") for name in others} if isinstance(others, dict) else {}
            known = {name: score for name, score in scores.items() if score is not None}
            best = min(known, key=known.__getitem__, default="")
            note = f"{NAMES.get(best, best)}: {known[best]:.3f}" if best else "by importance sampling"
            return [(f"{value:.3f}", f"nats per word of the {part} part", note)]
    if values := curve(findings.losses, "dev").values:
        return [(f"{min(values):.3f}", "nats per word of the dev part", "at its best in training, by a few samples")]
    return []


# The states.


def _use(findings: Findings) -> str:
    found = findings.occurrences
    counts = found.counts.sort(descending=True).values.cumsum(0).tolist()
    half = next(place for place, covered in enumerate(counts, 1) if 2 * covered >= counts[-1])
    cover = "One state covers" if half == 1 else f"{half:,} states cover"
    return _text(
        f"Each word of the training sentences, and “{END}” behind them, was given a state: one sample from the inference "
        f"network's distribution over all states of the sentence. {cover} half of all words or more."
    )


def _shown(findings: Findings) -> list[int]:
    found = findings.occurrences
    used = int((found.counts > 0).sum())
    return found.ranked()[: min(CARDS, used)]


def _states(findings: Findings, shown: Sequence[int]) -> str:
    found = findings.occurrences
    counts, words = found.counts.tolist(), found.words_of(CHIPS)
    most = f"the {len(shown):,} states" if len(shown) > 1 else "the one state"
    intro = (
        f"Here are {most} in use most often, each with its most frequent words (and the share of its occurrences that they "
        "make up), and a few places where it occurs, picked at random."
    )
    unknown = f" “{UNKNOWN}” stands for all rare words." if UNKNOWN in findings.vocabulary.words else ""
    cards = [_card(findings, state, counts[state], words[state]) for state in shown]
    rest = "\n".join(cards[OPEN:])
    more = f"\n<details>\n<summary>{len(cards) - OPEN} more states</summary>\n{rest}\n</details>" if rest else ""
    return _text(intro + unknown) + "\n" + "\n".join(cards[:OPEN]) + more


def _card(findings: Findings, state: int, count: int, words: Sequence[tuple[int, int]]) -> str:
    found, vocabulary = findings.occurrences, findings.vocabulary
    chips = "".join(
        f"<li>{escape(vocabulary.words[word])} <small>{escape(percent(times / count))}</small></li>"
        for word, times in words
    )
    lines = "\n".join(_line(found.context(at, vocabulary)) for at in findings.examples[state])
    share = f"{percent(count / len(found.words))} of all words ({count:,})"
    return (
        f'<article class="card" id="state-{state}" style="border-left-color: {state_colour(state)}">\n'
        f'<header><h3>State {state}</h3><span class="share">{escape(share)}</span></header>\n'
        f'<ul class="chips" aria-label="Words">{chips}</ul>\n<ul class="lines" aria-label="Contexts">\n{lines}\n</ul>\n'
        "</article>"
    )


def _line(context: Context) -> str:
    left, right = (escape(" ".join(side)) for side in (context.left, context.right))
    return (
        f'<li><span class="left"><span>{left}</span></span> <b>{escape(context.word)}</b> '
        f'<span class="right">{right}</span></li>'
    )


# Its own sentences.


def _sentences(findings: Findings, linked: set[int]) -> str:
    intro = (
        "Drawn from the generative model alone, without any text to read: a state, a word given the state, the next state, "
        "and so on to the end. Below each word is its state."
    )
    return (
        _text(intro)
        + '\n<ul class="said">\n'
        + "\n".join(_said(findings, sample, linked) for sample in findings.samples)
        + "\n</ul>"
    )


def _said(findings: Findings, sample: Generated, linked: set[int]) -> str:
    words = findings.vocabulary.decode(sample.words)
    return f"<li>{''.join(_word(w, s, s in linked) for w, s in zip(words, sample.states, strict=True))}</li>"


def _word(word: str, state: int, linked: bool) -> str:
    tag, link = ("a", f' href="#state-{state}"') if linked else ("span", "")
    shown = f'<span class="quiet">{escape(word)}</span>' if word == END else f"<span>{escape(word)}</span>"
    return f'<{tag} class="word"{link}>{shown}<small style="background: {state_colour(state)}">{state}</small></{tag}> '


# How well it does, and how it was made.


def _evaluation(findings: Findings) -> str:
    tables = [likelihood_table(findings.evaluation), bound_table(findings.evaluation)]
    found = "\n".join(table for table in tables if table)
    return (
        found or "<p>Not known yet: <code>tailsum evaluate</code> finds the likelihood of the dev and test parts.</p>"
    )


def _settings(settings: Settings) -> str:
    """Those that were chosen first, then those left as they were."""
    chosen: list[tuple[str, str]] = []
    left: list[tuple[str, str]] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        (left if value == field.default else chosen).append((field.name, "none" if value is None else str(value)))
    parts = [("Chosen", chosen), ("Left as they were", left)]
    return "\n".join(f"<h3>{title}</h3>\n{_list(entries)}" for title, entries in parts if entries)


def _list(entries: Sequence[tuple[str, str]]) -> str:
    lines = "\n".join(f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(value)}</dd>" for name, value in entries)
    return f"<dl>\n{lines}\n</dl>"
