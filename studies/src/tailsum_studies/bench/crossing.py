"""Where a sketch becomes faster than the exact sum, choosing and both passes against both passes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tailsum_studies.bench.plan import EXACT, Plan, Series, series
from tailsum_studies.bench.rows import BOTH, TOGETHER, Results


class Pair(NamedTuple):
    """The seconds of the exact sum and of a sketch at one place; `predicted` if the exact sum was not measured."""

    at: int
    exact: float
    sketch: float
    predicted: bool = False


@dataclass(frozen=True)
class Crossing:
    """Where one of two becomes faster than the other, as far as that was measured."""

    at: float | None  # None: nowhere between the first and the last place
    faster: bool  # whether the sketch is the faster one behind it, or everywhere
    first: int
    last: int
    predicted: bool  # whether it rests on a predicted time of the exact sum

    def said(self, axis: str) -> str:
        """In words, for an axis such as "N"."""
        about = "about " if self.predicted else ""
        if self.at is not None:
            place = f"{axis} = {about}{float(f'{self.at:.2g}'):,.0f}"
            return f"from {place} on" if self.faster else f"up to {place}"
        span = f"{axis} = {self.first:,}" + (f" to {self.last:,}" if self.last > self.first else "")
        return f"at all of {span}" if self.faster else f"nowhere at {span}"


def crossing(pairs: Sequence[Pair]) -> Crossing | None:
    """The last place where the faster one changes, by interpolation of logarithms; None without any pairs.

    >>> crossing([Pair(100, 1.0, 4.0), Pair(1000, 10.0, 10.0), Pair(10000, 100.0, 25.0)]).said("N")
    'from N = 1,000 on'
    """
    if not pairs:
        return None
    ordered = sorted(pairs)
    slower = [math.log(pair.sketch / pair.exact) for pair in ordered]
    ends = ordered[0].at, ordered[-1].at
    for place in range(len(ordered) - 1, 0, -1):
        before, after = slower[place - 1], slower[place]
        if (before < 0) != (after < 0):
            low, high = (math.log(pair.at) for pair in ordered[place - 1 : place + 1])
            at = math.exp(low + (high - low) * before / (before - after))
            guessed = any(pair.predicted for pair in ordered[place - 1 : place + 1])
            return Crossing(at, after < 0, *ends, guessed)
    return Crossing(None, slower[-1] < 0, *ends, any(pair.predicted for pair in ordered))


def pairs_of(results: Results, one: Series) -> list[Pair]:
    """The times of a series of sketches that were measured, beside the exact ones, measured or predicted."""
    found = []
    for sizes in one.sizes:
        sketch = results.get(sizes, TOGETHER)
        exact = results.get(sizes._replace(kept=0), BOTH, measured=False)
        if sketch is not None and exact is not None and math.isfinite(exact.seconds):
            found.append(Pair(one.at(sizes), exact.seconds, sketch.seconds, not exact.is_measured))
    return found


def crossings(results: Results, plan: Plan, axis: str) -> list[tuple[Series, Crossing]]:
    """Those of every series of sketches of a sweep that was measured, small batches first."""
    wanted = [one for one in series(plan, axis) if one.label != EXACT]
    wanted.sort(key=lambda one: one.batch or 0)
    return [(one, found) for one in wanted if (found := crossing(pairs_of(results, one))) is not None]
