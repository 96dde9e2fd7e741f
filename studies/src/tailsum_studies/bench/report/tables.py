"""The tables of the page, by section."""

from collections.abc import Iterator

import pandas as pd

from tailsum_studies.bench.crossing import crossings
from tailsum_studies.bench.plan import EXACT, SWEEPS, Plan
from tailsum_studies.bench.report.lines import AXES, Line, batches_of, duration, lines_of, name_of
from tailsum_studies.bench.rows import CHAIN, FAILED, OURS, SKIPPED, WRONG, Results, Row
from tailsum_studies.bench.when import when_cells
from tailsum_studies.report.page import words
from tailsum_studies.report.table import Section, Table
from tailsum_studies.report.wording import NOTHING, capital, number

WORDS = words("bench")
MIB = 2**20


def sections(results: Results, plan: Plan) -> list[Section]:
    """Those that have something to show."""
    made = {"when": list(_when(results, plan)), **{axis: list(_sweep(results, plan, axis)) for axis in SWEEPS}}
    made |= {"peers": list(_peers(results)), "left": list(_left_out(results))}
    titles, said = WORDS["titles"], WORDS["words"]
    base = plan.base
    size = {"length": base.length, "states": f"{base.states:,}", "batch": base.batch}
    return [Section(name, titles[name], said[name].format(**size), found) for name, found in made.items() if found]


def _when(results: Results, plan: Plan) -> Iterator[Table]:
    cells = when_cells(results, plan)
    if cells:
        names = [f"B = {batch:,}" for batch in sorted(plan.batches)]
        lines = pd.Index([f"{n:,}" for n in cells], name="N")
        frame = pd.DataFrame(list(cells.values()), lines, names)
        yield Table("when", "What to use, and how many times faster than exact", frame)
    found = [(axis, *pair) for axis in SWEEPS for pair in crossings(results, plan, axis)]
    if found:
        at = [
            (f"Over {axis}" + (f", B = {one.batch:,}" if one.batch else ""), capital(name_of(one.label)))
            for axis, one, _ in found
        ]
        index = pd.MultiIndex.from_tuples(at, names=["Sweep", "Estimator"])
        said = pd.DataFrame({"Faster than exact": [crossed.said(axis) for axis, _, crossed in found]}, index)
        notes = [WORDS["notes"]["about"]] if any(crossed.predicted for *_, crossed in found) else []
        yield Table("crossings", "Crossing points", said, notes=notes)


def _sweep(results: Results, plan: Plan, axis: str) -> Iterator[Table]:
    for batch in batches_of(results, plan, axis):
        lines = lines_of(results, plan, axis, batch)
        places = sorted({at for line in lines for at in line.rows})
        exact = next((line.rows for line in lines if line.series.label == EXACT), {})
        index = pd.Index([f"{at:,}" for at in places], name=capital(AXES[axis]))
        where = f", B = {batch:,}" if batch else ""
        columns = {capital(line.name): [_time(line.rows.get(at)) for at in places] for line in lines}
        caption = f"Forward + backward, choosing included{where}"
        yield Table.filled(f"{axis}-{batch or ''}", caption, pd.DataFrame(columns, index), notes=_notes(lines))
        ratios = {
            capital(line.name): [_compared(exact.get(at), line.rows.get(at)) for at in places]
            for line in lines
            if line.series.label != EXACT
        }
        caption = f"Exact over sketch: time, memory; and the sketch's error of log Z in nats{where}"
        frame = pd.DataFrame(ratios, index)
        frame = frame[(frame != NOTHING).any(axis=1)]
        if len(frame):
            yield Table.filled(f"{axis}-{batch or ''}-ratios", caption, frame)


def _notes(lines: list[Line]) -> list[str]:
    skipped = any(not row.is_measured for line in lines for row in line.rows.values())
    return [WORDS["notes"]["skipped"]] if skipped else []


def _time(row: Row | None) -> str:
    if row is None:
        return NOTHING
    return duration(row.seconds) if row.is_measured else f"({duration(row.seconds)})"


def _compared(exact: Row | None, sketch: Row | None) -> str:
    if sketch is None or not sketch.is_measured:
        return NOTHING
    time, memory = _ratio(exact, sketch)
    return f"{time} x, {memory} x; {number(sketch.error, 2)}"


def _ratio(one: Row | None, other: Row | None) -> tuple[str, str]:
    """Times and bytes of one over the other, both measured."""
    if one is None or other is None or not (one.is_measured and other.is_measured):
        return NOTHING, NOTHING
    memory = one.peak_bytes / other.peak_bytes if one.peak_bytes and other.peak_bytes else None
    return number(one.seconds / other.seconds, 2), number(memory, 2)


def _peers(results: Results) -> Iterator[Table]:
    rows = [row for row in results.rows.values() if row.subject != CHAIN]
    for operation in dict.fromkeys(row.operation for row in rows):
        lines, cells = [], []
        for row in rows:
            ours = results.get(row.sizes, operation, row.subject)
            if row.operation != operation or not row.seconds > 0:
                continue
            time, memory = _ratio(row, ours) if row.library != OURS else (NOTHING, NOTHING)
            bytes_held = f"{number(row.peak_bytes / MIB, 3)} MiB" if row.peak_bytes else NOTHING
            lines.append((f"{row.subject}, {row.sizes}", row.library))
            cells.append([_time(row), time, bytes_held, memory, number(row.error, 2) if row.is_measured else NOTHING])
        if lines:
            names = ["Time", "Time / ours", "Memory", "Memory / ours", "Error"]
            frame = pd.DataFrame(cells, pd.MultiIndex.from_tuples(lines, names=["Problem", "Library"]), names)
            yield Table(f"peers-{operation}", capital(operation), frame, ours=(OURS,), notes=[WORDS["notes"]["peers"]])


def _left_out(results: Results) -> Iterator[Table]:
    """What was skipped, failed, or found to be wrong, and why."""
    rows: dict[tuple[str, str], list[str]] = {}
    for row in results.rows.values():
        if row.status in {SKIPPED, FAILED, WRONG}:
            who = row.subject if row.library == OURS else f"{row.subject}, {row.library}"
            wrong = f"off by {number(row.error, 2)}, more than {number(row.tolerance, 2)}"
            rows[who, str(row.sizes)] = [row.status, wrong if row.status == WRONG else row.note]
    if rows:
        index = pd.MultiIndex.from_tuples(list(rows), names=["What", "Sizes"])
        yield Table("left", "Not measured", pd.DataFrame(list(rows.values()), index, ["Status", "Why"]))
