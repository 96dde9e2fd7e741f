"""What was measured, table by table."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from tailsum.apps.paper.rows import Check, Direction, Estimate


@dataclass(frozen=True)
class Results:
    """The rows of each experiment: none where it was not run."""

    table2: list[Estimate] = field(default_factory=list)
    table3: list[Estimate] = field(default_factory=list)
    table4: list[Estimate] = field(default_factory=list)
    hard: list[Estimate] = field(default_factory=list)
    text: list[Estimate] = field(default_factory=list)
    gradients: list[Direction] = field(default_factory=list)
    theory: list[Check] = field(default_factory=list)

    def run(self) -> Iterator[str]:
        """The names of the experiments that have rows, in the order of the report."""
        for each in fields(self):
            if getattr(self, each.name):
                yield each.name
