"""Dependency trees."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from matplotlib.axes import Axes
from matplotlib.path import Path

from tailsum.plot.arcs import PORT, Arc, levelled, ports_of, spread
from tailsum.plot.canvas import TIP, Canvas
from tailsum.plot.lettering import Names, named, pill_width, text_width
from tailsum.plot.read import Whole, alongside, attribute, before_padding, whole
from tailsum.plot.style import INK, MARGIN, PILL, QUIET, SMALL
from tailsum.plot.words import Words

ACCENT = "#1F5A99"  # of roots


@runtime_checkable
class Heads(Protocol):
    """Position c has the head `heads[c]`, a root itself; -1 beyond the last position."""

    @property
    def heads(self) -> Whole: ...
    @property
    def labels(self) -> Whole | None: ...
    @property
    def states(self) -> Whole | None: ...


def dependencies(
    tree: Heads,
    *,
    words: Sequence[str] | None = None,
    names: Names | None = None,
    labels: Names | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Arcs from heads to children above the words, longer ones higher, and the states below the words.

    `labels` names the labels of the arcs, `names` the states. Arcs that meet at a word are drawn side by side, so that the
    arcs of a projective tree never cross.
    """
    arcs, roots, states = _arcs(tree, labels)
    n = len(arcs) + len(roots)
    titles = [""] * n if states is None else named("names", names, states)
    ports = ports_of([*arcs, *roots], n)
    least = [max(PORT * len(ports[place]), pill_width(titles[place])) + 6.0 for place in range(n)]
    for root in roots:
        aside = abs(ports[root.child][root])
        least[root.child] = max(least[root.child], text_width(root.label, SMALL) + 2 * aside + 10.0)
    line = Words.of(words, n).fitted(least, lambda columns: spread(arcs, ports, columns)[1], ax)
    centres, width = spread(arcs, ports, line.columns(least))

    foot = MARGIN + line.height + (0.0 if states is None else PILL + 5.0)
    base = foot + 3.0
    step = 16.0 if any(arc.label for arc in arcs) else 12.0
    rise = {arc: base + 24.0 + step * arc.level for arc in arcs}
    top = max(rise.values(), default=base + 12.0) + step
    canvas = Canvas.on(ax, width, (top + SMALL if roots else top - step / 2) + MARGIN)
    for place, centre in enumerate(centres):
        line.write(canvas, place, centre, foot)
    for place, state in enumerate(states or []):
        canvas.pill(centres[place], MARGIN + PILL / 2, state, titles[place])
    for root in roots:
        x, _ = root.legs(centres, ports)
        canvas.line(Path([(x, top - 3.0), (x, base + TIP)]), ACCENT)
        canvas.arrow(x, base, ACCENT)
        canvas.write(x, top + SMALL / 2, root.label, SMALL, ACCENT)
    for arc in reversed(arcs):
        left, right = arc.legs(centres, ports)
        ends = (left, base + TIP * (arc.child == arc.left)), (right, base + TIP * (arc.child == arc.right))
        canvas.line(_bracket(*ends, rise[arc]), QUIET, halo=True)
        canvas.arrow(left if arc.child == arc.left else right, base, QUIET)
        higher = [other.legs(centres, ports) for other in (*arcs, *roots) if other.level > arc.level]
        middle = _clear_middle(left, right, itertools.chain.from_iterable(higher))
        canvas.write(middle, rise[arc], arc.label, SMALL, INK, backed=True)
    return canvas.ax


def _arcs(tree: Heads, labels: Names | None) -> tuple[list[Arc], list[Arc], list[int] | None]:
    """The arcs, lowest first, the roots, and the states."""
    heads = before_padding("tree.heads", whole("tree.heads", attribute("tree", tree, "heads")))
    n = len(heads)
    if max(heads) >= n:
        raise ValueError(f"tree.heads must be positions, below {n}: got {heads}")
    labelled, states = (_if_any(tree, name, n) for name in ("labels", "states"))
    texts = [""] * n if labelled is None else named("labels", labels, labelled)
    arcs, roots = [], []
    for child, (head, text) in enumerate(zip(heads, texts, strict=True)):
        if head != child:
            arcs.append(Arc(head, child, text))
        else:
            label = "root" if text.lower() in {"", "root"} else f"root: {text}"
            roots.append(Arc(head, child, label, level=n * n))
    return levelled(arcs), roots, states


def _if_any(tree: Heads, name: str, n: int) -> list[int] | None:
    """The labels or the states of n positions."""
    value = attribute("tree", tree, name)
    return None if value is None else alongside(f"tree.{name}", whole(f"tree.{name}", value), n, least=-1)


def _bracket(start: tuple[float, float], end: tuple[float, float], top: float) -> Path:
    """A line up, across and down, round two corners."""
    (left, _), (right, _) = start, end
    bend = min(12.0, (right - left) / 2)
    rise = [(left, top - bend), (left, top), (left + bend, top)]
    fall = [(right - bend, top), (right, top), (right, top - bend)]
    turn = [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([start, *rise, *fall, end], [Path.MOVETO, *turn, *turn, Path.LINETO])


def _clear_middle(left: float, right: float, others: Iterable[float]) -> float:
    """The middle of the widest gap between the two legs that no other leg crosses."""
    edges = [left, *sorted(x for x in others if left < x < right), right]
    return max(((b - a, (a + b) / 2) for a, b in itertools.pairwise(edges)))[1]
