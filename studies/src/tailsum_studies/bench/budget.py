"""The time that a run may take, shared by its groups of cells."""

import time
from collections.abc import Callable, Sequence

from tailsum_studies.bench.plan import SHARES

CELLS = 12  # a cell may take this part of the whole time, at most


class Budget:
    """So many seconds for some groups, one after the other; what one leaves goes to those behind it."""

    def __init__(self, seconds: float, groups: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.groups, self.clock = seconds, list(groups), clock
        self.end = self.until = clock() + seconds

    def begin(self, group: str) -> None:
        """The next group has its share of what is left."""
        behind = self.groups[self.groups.index(group) :]
        left = max(0.0, self.end - self.clock())
        self.until = self.clock() + left * SHARES[group] / sum(SHARES[name] for name in behind)

    @property
    def left(self) -> float:
        """Seconds that the group has left."""
        return max(0.0, self.until - self.clock())

    @property
    def limit(self) -> float:
        """Seconds that one cell may take."""
        return self.seconds / CELLS

    def refusal(self, cost: float) -> str:
        """Why a cell of this predicted cost is not run; empty if it is."""
        if cost > self.limit:
            return f"predicted to take {cost:.0f} s, more than {self.limit:.0f} s"
        if self.left <= 0 or cost > self.left:
            return "no time left"
        return ""
