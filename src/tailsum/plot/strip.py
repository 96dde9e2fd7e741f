"""Chains and segmentations: coloured blocks over words, in as many lines as necessary."""

import itertools
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from matplotlib.axes import Axes

from tailsum.plot.canvas import Canvas, size_of
from tailsum.plot.lettering import Names, named, pill_width
from tailsum.plot.read import Whole, alongside, attribute, before_padding, whole
from tailsum.plot.style import INK, MARGIN, NAME, state_colour
from tailsum.plot.words import Words

BLOCK = 24.0  # the height of a block


@runtime_checkable
class Segments(Protocol):
    """Segment i covers `durations[i]` positions from `starts[i]`; beyond the last segment are -1, 0 and -1."""

    @property
    def starts(self) -> Whole: ...
    @property
    def durations(self) -> Whole: ...
    @property
    def states(self) -> Whole: ...


def chain(
    states: Whole, *, words: Sequence[str] | None = None, names: Names | None = None, ax: Axes | None = None
) -> Axes:
    """One cell for each position, in the colour of its state; a long chain runs over several lines.

    >>> axes = chain([0, 1, 2, 3], words="the old man sleeps".split(), names=("DET", "ADJ", "NOUN", "VERB"))
    >>> [text.get_text() for text in axes.texts]
    ['DET', 'the', 'ADJ', 'old', 'NOUN', 'man', 'VERB', 'sleeps']
    """
    ids = before_padding("states", whole("states", states))
    blocks = [range(place, place + 1) for place in range(len(ids))]
    return _strip(blocks, ids, named("names", names, ids), Words.of(words, len(ids)), ax)


def segmentation(
    segments: Segments, *, words: Sequence[str] | None = None, names: Names | None = None, ax: Axes | None = None
) -> Axes:
    """One block for each segment, over the positions that it covers, in the colour of its state.

    >>> from types import SimpleNamespace
    >>> segments = SimpleNamespace(starts=[0, 1, -1], durations=[1, 2, 0], states=[1, 0, -1])
    >>> axes = segmentation(segments, words=["in", "New", "York"], names=("place", "other"))
    >>> [text.get_text() for text in axes.texts]
    ['other', 'in', 'place', 'New', 'York']
    """
    starts, durations, states = (
        whole(f"segments.{name}", attribute("segments", segments, name)) for name in ("starts", "durations", "states")
    )
    starts = before_padding("segments.starts", starts)
    durations = alongside("segments.durations", durations, len(starts), least=1)
    states = alongside("segments.states", states, len(starts), least=0)
    end = 0
    for i, (start, duration) in enumerate(zip(starts, durations, strict=True)):
        if start != end:
            raise ValueError(
                f"segments.starts must follow each other without gaps: got {start} for segment {i}, not {end}"
            )
        end += duration
    blocks = [range(start, stop) for start, stop in itertools.pairwise([*starts, end])]
    return _strip(blocks, states, named("names", names, states), Words.of(words, end), ax)


def _strip(
    blocks: Sequence[range], states: Sequence[int], titles: Sequence[str], words: Words, ax: Axes | None
) -> Axes:
    """Blocks over words; a block that is longer than a line is split."""
    columns = words.columns([24.0] * len(words.texts))
    for block, title in zip(blocks, titles, strict=True):
        missing = pill_width(title) + 4.0 - sum(columns[place] for place in block)
        for place in block:
            columns[place] += max(0.0, missing / len(block))
    limit = (740.0 if ax is None else size_of(ax)[0]) - 2 * MARGIN
    limit = max(limit, *columns, 3 * max(pill_width(title) for title in titles))
    pieces: list[tuple[range, int, str]] = []
    for block, state, title in zip(blocks, states, titles, strict=True):
        parts = _lines([columns[place] for place in block], limit)
        for i, part in enumerate(parts):
            shown = ("… " if i > 0 else "") + title + (" …" if i < len(parts) - 1 else "")
            pieces.append((block[part.start : part.stop], state, shown))
    widths = [sum(columns[place] for place in block) for block, _, _ in pieces]
    lines = _lines(widths, limit)

    pitch = BLOCK + words.height + 20.0
    width = max(sum(widths[line.start : line.stop]) for line in lines) + 2 * MARGIN
    canvas = Canvas.on(ax, width, pitch * len(lines) - 16.0 + 2 * MARGIN)
    for down, line in zip(reversed(range(len(lines))), lines, strict=True):
        x, y = MARGIN, MARGIN + pitch * down + words.height
        for i in line:
            block, state, title = pieces[i]
            middle = x + widths[i] / 2, y + 4.0 + BLOCK / 2
            canvas.box(*middle, widths[i] - 2.0, BLOCK, state_colour(state))
            canvas.write(*middle, title, NAME, INK)
            for place in block:
                words.write(canvas, place, x + columns[place] / 2, y)
                x += columns[place]
    return canvas.ax


def _lines(widths: Sequence[float], limit: float) -> list[range]:
    """Items in as few lines as the limit allows, with lines of about equal width."""

    def fill(limit: float) -> list[range]:
        starts, used = [0], 0.0
        for i, width in enumerate(widths):
            if used + width > limit and i > starts[-1]:
                starts.append(i)
                used = 0.0
            used += width
        return [range(a, b) for a, b in itertools.pairwise([*starts, len(widths)])]

    best, low = fill(limit), 0.0
    for _ in range(16):
        middle = (low + limit) / 2
        lines = fill(middle)
        if len(lines) > len(best) or max(sum(widths[i] for i in line) for line in lines) > middle:
            low = middle
        else:
            best, limit = lines, middle
    return best
