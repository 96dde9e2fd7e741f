"""How long a cell will take, from the cells before it: the nearest one's time, scaled by the arithmetic."""

import math

from tailsum_studies.bench.rows import BOTH, CHAIN, CHOOSE, FORWARD, SKIPPED, TOGETHER, Results, Row, Sizes
from tailsum_studies.tables import is_kept

LANDMARKS, NEIGHBOURS, MOST_LISTED = 192, 32, 262_144  # as `Lookahead` has them
OVERHEAD = {"cpu": 5e5, "cuda": 1e8}  # of a step, about a fifth of a millisecond or one, by the kind of device
BYTES = 12  # float32, and two more of the same size
STREAMED = 1 << 28  # entries of the tiles that are in use at once, at most
CHOOSING = 20  # how many more operations a step of choosing has
EXACT_OPERATIONS, SKETCH_OPERATIONS = (FORWARD, BOTH), (CHOOSE, FORWARD, BOTH, TOGETHER)


def operations(sizes: Sizes) -> tuple[str, ...]:
    """What is measured of a cell."""
    return SKETCH_OPERATIONS if sizes.kept else EXACT_OPERATIONS


def work(sizes: Sizes, operation: str, kind: str) -> float:
    """Products of embeddings, and what a step costs whatever its size, as so many of them."""
    n, t, b, k = sizes
    step = OVERHEAD[kind] * t
    if not k:
        return step + t * n**2 * (1 + b / 64)  # scores are made once for all sequences
    choose = CHOOSING * step + b * t * n * (LANDMARKS + NEIGHBOURS + k) + (n**2 if n <= MOST_LISTED else 0)
    add = step + b * t * k**2
    return {CHOOSE: choose, TOGETHER: choose + add}.get(operation, add)


def held(sizes: Sizes, operation: str) -> float:
    """Numbers that are in memory at once, up to a factor. Tables beyond the budget are streamed."""
    n, t, b, k = sizes
    if not k:
        return float(_table(n**2) + b * t * n)
    return float(_table(b * t * k**2) + (b * t * n if operation in {CHOOSE, TOGETHER} else n))


def _table(entries: int) -> int:
    return entries if is_kept(4 * entries) else STREAMED


def predict(results: Results, sizes: Sizes, operation: str, kind: str) -> Row | None:
    """A row with the predicted seconds and bytes, from the nearest cell that was measured; None where there is none."""
    before = [
        row
        for (subject, _, at, what), row in results.rows.items()
        if subject == CHAIN and what == operation and bool(at.kept) == bool(sizes.kept) and row.is_measured
    ]
    if not before:
        return None
    near = min(before, key=lambda row: _distance(row.sizes, sizes))
    seconds = near.fastest * work(sizes, operation, kind) / work(near.sizes, operation, kind)
    scaled = near.peak_bytes * held(sizes, operation) / held(near.sizes, operation)
    peak = min(scaled, BYTES * held(sizes, operation))
    return Row(near.subject, near.library, *sizes, operation, SKIPPED, seconds, peak_bytes=round(peak))


def predict_peer(results: Results, subject: str, library: str, sizes: Sizes, operation: str, power: int) -> Row | None:
    """The same for a library of which all we know is the power of the states that its time grows with."""
    before = [
        row
        for (what, who, _, did), row in results.rows.items()
        if (what, who, did) == (subject, library, operation) and row.is_measured
    ]
    if not before:
        return None
    near = min(before, key=lambda row: _distance(row.sizes, sizes))
    n, t, b = (after / max(was, 1) for after, was in zip(sizes[:3], near.sizes[:3], strict=True))
    return Row(subject, library, *sizes, operation, SKIPPED, near.fastest * n**power * t * b)


def _distance(one: Sizes, other: Sizes) -> float:
    """In factors of sizes. A cell that is larger in all of them is as good as a smaller one."""
    return sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in zip(one, other, strict=True))
