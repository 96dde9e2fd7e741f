"""The layout of the arcs of a dependency tree."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tailsum.plot.lettering import text_width
from tailsum.plot.style import SMALL
from tailsum.plot.words import middles

PORT = 7.0  # the distance between two arcs at one word


@dataclass(frozen=True)
class Arc:
    """An arc from a head to a child; a root is its own head. Arcs of a higher level are drawn higher."""

    head: int
    child: int
    label: str
    level: int = 0

    @property
    def left(self) -> int:
        return min(self.head, self.child)

    @property
    def right(self) -> int:
        return max(self.head, self.child)

    def overlaps(self, other: "Arc") -> bool:
        return self.left < other.right and other.left < self.right

    def legs(self, centres: Sequence[float], ports: Sequence[Mapping["Arc", float]]) -> tuple[float, float]:
        """The x of the arc's left and right end."""
        return centres[self.left] + ports[self.left][self], centres[self.right] + ports[self.right][self]


def levelled(arcs: Iterable[Arc]) -> list[Arc]:
    """The arcs with levels, shorter ones first and lower; overlapping arcs of one length get different levels."""
    done: list[Arc] = []
    by_length = sorted(arcs, key=lambda arc: (arc.right - arc.left, arc.left))
    for _, equals in itertools.groupby(by_length, key=lambda arc: arc.right - arc.left):
        floor = 1 + max((arc.level for arc in done), default=-1)
        for arc in equals:
            taken = {other.level for other in done if other.overlaps(arc)}
            done.append(replace(arc, level=next(level for level in itertools.count(floor) if level not in taken)))
    return done


def ports_of(arcs: Sequence[Arc], n: int) -> list[dict[Arc, float]]:
    """Where each arc meets a word, relative to its middle: outer arcs in the middle, so that arcs do not cross."""
    ports: list[dict[Arc, float]] = []
    for place in range(n):
        to_left = sorted((arc for arc in arcs if arc.left < arc.right == place), key=lambda arc: arc.level)
        to_right = sorted((arc for arc in arcs if place == arc.left < arc.right), key=lambda arc: -arc.level)
        here = [*to_left, *(arc for arc in arcs if arc.left == arc.right == place), *to_right]
        ports.append({arc: PORT * (i - (len(here) - 1) / 2) for i, arc in enumerate(here)})
    return ports


def spread(
    arcs: Iterable[Arc], ports: Sequence[Mapping[Arc, float]], columns: Sequence[float]
) -> tuple[list[float], float]:
    """The middles of the columns, so far apart that every label fits between the legs of its arc, and the total width.

    Shorter arcs come first: the room that they need serves the longer ones too.
    """
    gaps = [0.0] * len(columns)
    for arc in arcs:
        left, right = arc.legs(middles(columns, gaps)[0], ports)
        missing = (text_width(arc.label, SMALL) + 18.0 if arc.label else 14.0) - (right - left)
        for place in range(arc.left, arc.right):
            gaps[place] += max(0.0, missing / (arc.right - arc.left))
    return middles(columns, gaps)
