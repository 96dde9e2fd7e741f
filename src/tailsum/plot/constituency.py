"""Constituency trees."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from matplotlib.axes import Axes
from matplotlib.path import Path

from tailsum.plot.canvas import Canvas
from tailsum.plot.lettering import Names, named, pill_width
from tailsum.plot.read import Whole, alongside, attribute, before_padding, whole
from tailsum.plot.style import LINE, MARGIN, PILL
from tailsum.plot.words import Words, middles


@runtime_checkable
class Constituents(Protocol):
    """Node i covers the positions `spans[i]`, first to last; parents before children, -1 beyond the last node."""

    @property
    def spans(self) -> Whole: ...
    @property
    def states(self) -> Whole: ...


def tree(
    tree: Constituents,
    *,
    words: Sequence[str] | None = None,
    names: Names | None = None,
    leaf_names: Names | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A constituency tree over its words, which are on one line. The states of the leaves are outlined, not filled.

    `names` names the states, and `leaf_names` those of the leaves if they have other names. A node of state -1 has no name.
    """
    spans, states = _nodes(tree)
    parents, children = _family(spans)
    leaf = [not below for below in children]
    titles = _titles(states, leaf, names, leaf_names)

    n = spans[0].last + 1
    # A node is between the outermost columns of its span: a name that fits each column stays within the span.
    least = [0.0] * n
    for span, title in zip(spans, titles, strict=True):
        for place in span:
            least[place] = max(least[place], pill_width(title) + 6.0)
    line = Words.of(words, n).fitted(least, sum, ax)
    centres, width = middles(line.columns(least))
    level, x = [0] * len(spans), [0.0] * len(spans)
    for i in reversed(range(len(spans))):
        level[i] = max((1 + level[child] for child in children[i]), default=0)
        ends = [x[child] for child in children[i]] or [centres[spans[i].first]]
        x[i] = (min(ends) + max(ends)) / 2

    foot = MARGIN + line.height
    named_leaves = any(leaf[i] and title for i, title in enumerate(titles))
    step = min(32.0, max(25.0, 260.0 / max(1, level[0])))
    y = [foot + (4.0 + PILL / 2 if named_leaves else -PILL / 2) + step * height for height in level]
    canvas = Canvas.on(ax, width, y[0] + PILL / 2 + MARGIN)
    for place, centre in enumerate(centres):
        line.write(canvas, place, centre, foot)
    for i, parent in enumerate(parents):
        if parent is not None:
            start = y[i] if titles[i] or not leaf[i] else foot + 3.0
            canvas.line(_elbow((x[i], start), (x[parent], y[parent])))
    for i, title in enumerate(titles):
        if title:
            canvas.pill(x[i], y[i], states[i], title, filled=not leaf[i])
        elif not leaf[i]:
            canvas.box(x[i], y[i], 5.0, 5.0, LINE)
    return canvas.ax


class _Span(NamedTuple):
    first: int
    last: int


def _nodes(tree: Constituents) -> tuple[list[_Span], list[int]]:
    """The spans and states of the nodes."""
    spans = [_Span(*span) for span in whole("tree.spans", attribute("tree", tree, "spans"), "[2T-1, 2]")]
    n = len(before_padding("tree.spans[:, 0]", [span.first for span in spans]))
    states = whole("tree.states", attribute("tree", tree, "states"), "[2T-1]")
    return spans[:n], alongside("tree.states", states, n, least=-1)


def _family(spans: Sequence[_Span]) -> tuple[list[int | None], list[list[int]]]:
    """The parent of each node, the smallest earlier span around it, and its children."""
    parents: list[int | None] = []
    children: list[list[int]] = [[] for _ in spans]
    for i, (first, last) in enumerate(spans):
        holding = [j for j in range(i) if spans[j].first <= first and last <= spans[j].last]
        parent = min(holding, key=lambda j: (spans[j].last - spans[j].first, -j), default=None)
        if first > last or (first > 0 if i == 0 else parent is None):
            raise ValueError(
                "tree.spans must begin with the root, from position 0, and have parents before children: "
                f"got {[first, last]} as number {i}"
            )
        parents.append(parent)
        if parent is not None:
            children[parent].append(i)
    for (first, last), below in zip(spans, children, strict=True):
        parts = sorted(spans[child] for child in below)
        places = [place for part in parts for place in range(part.first, part.last + 1)] or [first]
        if places != list(range(first, last + 1)):
            got = f"got {[first, last]} with parts {[tuple(part) for part in parts]}"
            raise ValueError(f"tree.spans must be split into their parts: {got}")
    return parents, children


def _titles(states: Sequence[int], leaf: Sequence[bool], names: Names | None, leaf_names: Names | None) -> list[str]:
    """The name of each node."""
    if not leaf_names:
        return named("names", names, states)
    inner = named("names", names, [-1 if end else state for state, end in zip(states, leaf, strict=True)])
    outer = named("leaf_names", leaf_names, [state if end else -1 for state, end in zip(states, leaf, strict=True)])
    return [a or b for a, b in zip(inner, outer, strict=True)]


def _elbow(start: tuple[float, float], end: tuple[float, float]) -> Path:
    """A line up, round a corner, and across."""
    (x, y), (to, top) = start, end
    bend = min(7.0, abs(to - x), top - y)
    corner = [(x, top - bend), (x, top), (x + math.copysign(bend, to - x), top)]
    return Path([start, *corner, end], [Path.MOVETO, Path.LINETO, Path.CURVE3, Path.CURVE3, Path.LINETO])
