"""Where the nodes of a small graph stand, by springs: joined ones near one another, and no two on the same place."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

ROUNDS = 400
BENDS = (0.14, 0.26, 0.4, 0.55, -0.2, -0.33, -0.47)  # of arrows, as a share of their length: the first is preferred
GAP = (30.0, 26.0)  # between boxes, for arrows to be seen


def arrange(
    links: Sequence[tuple[int, int, float]],
    boxes: Float[np.ndarray, "n 2"],
    late: Float[np.ndarray, " n"],
    room: tuple[float, float],
) -> Float[np.ndarray, "n 2"]:
    """The middles of boxes within a room: each starts where `late`, from 0 to 1, says from left to right.

    `links` pull two boxes together by their weights. The same input gives the same places.
    """
    count, size = len(boxes), np.array(room)
    rank = np.argsort(np.argsort(late, kind="stable"), kind="stable")
    start = np.stack([(rank + 0.5) / count, (0.5 + rank * (np.sqrt(5) - 1) / 2) % 1], 1) * size
    pull = np.zeros((count, count))
    for first, second, weight in links:
        if first != second:
            pull[first, second] += weight
            pull[second, first] += weight
    return _apart(_spring(start, pull, size), boxes, size)


def _spring(start: Float[np.ndarray, "n 2"], pull: Float[np.ndarray, "n n"], size: np.ndarray) -> np.ndarray:
    """Fruchterman and Reingold's forces, and a weak one back to where a node should stand from left to right."""
    ideal = np.sqrt(size.prod() / len(start))
    scale = size / np.sqrt(size.prod())  # a wide room is filled in its width
    home, places = start[:, 0] / scale[0], start / scale
    for done in range(ROUNDS):
        apart = places[:, None] - places
        distance = np.maximum(np.linalg.norm(apart, axis=-1), 1e-3 * ideal)
        force = (ideal**2 / distance**2 - pull * distance / ideal)[..., None] * apart
        total = force.sum(1)
        total[:, 0] += 0.6 * (home - places[:, 0])
        total += 0.08 * (size / scale / 2 - places)
        length = np.maximum(np.linalg.norm(total, axis=-1, keepdims=True), 1e-9)
        places += total / length * np.minimum(length, 0.25 * ideal * (1 - done / ROUNDS))
    return places * scale


def _apart(places: np.ndarray, boxes: Float[np.ndarray, "n 2"], size: np.ndarray) -> Float[np.ndarray, "n 2"]:
    """Fill the room, then push boxes that overlap apart, the short way."""
    half = boxes / 2
    low, high = (places - half).min(0), (places + half).max(0)
    places = half + (places - half - low) * (size - boxes) / np.maximum(high - low - boxes, 1e-9)
    for _ in range(ROUNDS):
        gap = places[:, None] - places
        over = half[:, None] + half + np.array(GAP) - np.abs(gap)
        clash = (over > 0).all(-1) & ~np.eye(len(places), dtype=bool)
        if not clash.any():
            break
        axis = np.argmin(over, -1)
        for i, j in np.argwhere(np.triu(clash)):
            way = axis[i, j]
            push = (0.5 * over[i, j, way] + 0.1) * (1 if gap[i, j, way] >= 0 else -1)
            places[i, way] += push / 2
            places[j, way] -= push / 2
        places = np.clip(places, half, size - half)
    return places


def bend(first: int, second: int, places: Float[np.ndarray, "n 2"], boxes: Float[np.ndarray, "n 2"]) -> float:
    """How far an arrow from one box to another is bent, so that it runs behind as few of the others as possible."""
    others = np.delete(np.arange(len(places)), [first, second])
    start, end = places[first], places[second]
    aside = np.array([end[1] - start[1], start[0] - end[0]])
    t = np.linspace(0, 1, 60)[:, None]

    def hits(rad: float) -> int:
        middle = (start + end) / 2 + rad * aside  # of a quadratic Bezier curve
        curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end
        return int((np.abs(curve[:, None] - places[others]) < boxes[others] / 2 + 2).all(-1).any(0).sum())

    return min(BENDS, key=hits)


def choose(
    pairs: Sequence[tuple[int, int, int]], nodes: int, arrows: int
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """At most `nodes` nodes to draw, and the most frequent pairs among them, at most `arrows`.

    >>> choose([(5, 7, 9), (7, 5, 8), (7, 1, 7), (5, 5, 6)], nodes=2, arrows=9)
    ([5, 7], [(5, 7, 9), (7, 5, 8), (5, 5, 6)])
    """
    found: dict[int, None] = {}
    kept: list[tuple[int, int, int]] = []
    for first, second, count in pairs:
        if len(kept) == arrows:
            break
        if len(found.keys() | {first, second}) <= nodes:
            found |= {first: None, second: None}
            kept.append((first, second, count))
    return list(found), kept
