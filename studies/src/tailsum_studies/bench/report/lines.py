"""What the plots and tables of a sweep show: the rows of each series, under the name that legends give it."""

from typing import NamedTuple

from tailsum_studies.bench.plan import EXACT, Plan, Series, series
from tailsum_studies.bench.rows import BOTH, TOGETHER, Results, Row
from tailsum_studies.report.wording import number

AXES = {"N": "states, N", "T": "length, T", "B": "batch, B", "K": "states kept, K"}
UNITS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "µs", 1e6))


class Line(NamedTuple):
    """A series and those of its rows that have a time, measured or predicted."""

    series: Series
    rows: dict[int, Row]  # by the place on the axis

    @property
    def name(self) -> str:
        """As legends and tables have it."""
        return name_of(self.series.label)


def name_of(label: str) -> str:
    """A series' name by its label.

    >>> name_of("exact"), name_of("100"), name_of("1%"), name_of("sketch")
    ('exact', 'sketch, K = 100', 'sketch, K = 1% of N', 'sketch')
    """
    if label in {EXACT, "sketch"}:
        return label
    return f"sketch, K = {label}" + (" of N" if label.endswith("%") else "")


def lines_of(results: Results, plan: Plan, axis: str, batch: int | None, operation: str | None = None) -> list[Line]:
    """The lines of a sweep, of one batch if it has several: an operation, or all that gives the gradient."""
    found = []
    for one in series(plan, axis):
        wanted = operation or (BOTH if one.label == EXACT else TOGETHER)
        rows = {one.at(sizes): results.get(sizes, wanted, measured=False) for sizes in one.sizes}
        if axis == "K" and one.label == EXACT:  # the same for every K
            rows = {kept: row for kept in plan.keep if kept <= plan.base.states // 2 for row in rows.values()}
        seen = {at: row for at, row in rows.items() if row is not None and row.seconds > 0}
        if one.batch == batch and seen:
            found.append(Line(one, seen))
    return found


def batches_of(results: Results, plan: Plan, axis: str) -> list[int | None]:
    """The batch sizes for which a sweep has lines, in ascending order; None where it does not vary them."""
    every = {one.batch for one in series(plan, axis)}
    return [batch for batch in sorted(every, key=lambda b: b or 0) if lines_of(results, plan, axis, batch)]


def duration(seconds: float) -> str:
    """A time with its unit.

    >>> duration(12345.6), duration(0.0123), duration(0.0000456)
    ('12,300 s', '12.3 ms', '45.6 µs')
    """
    unit, factor = next((unit, factor) for least, unit, factor in UNITS if seconds >= least)
    return f"{number(seconds * factor)} {unit}"
