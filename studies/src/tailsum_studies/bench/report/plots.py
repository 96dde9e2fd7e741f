"""The plots: small ones, two side by side where there is room, so that a phone shows them whole and legible."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator

from tailsum_studies.bench.crossing import crossings
from tailsum_studies.bench.plan import EXACT, SWEEPS, Plan, Series
from tailsum_studies.bench.report.lines import AXES, Line, batches_of, lines_of, name_of
from tailsum_studies.bench.report.tables import MIB, WORDS
from tailsum_studies.bench.rows import BOTH, CHAIN, CHOOSE, FORWARD, OURS, TOGETHER, Results, Row
from tailsum_studies.report.axes import log_axis, plain
from tailsum_studies.report.picture import Picture
from tailsum_studies.report.style import INK, QUIET

SIZE = (4.4, 3.7)  # inches
LOOKS = {  # Okabe and Ito's palette; marks tell the lines apart without any colour
    EXACT: (INK, "s"),
    "100": ("#0072B2", "o"),
    "1,000": ("#D55E00", "^"),
    "1%": ("#009E73", "D"),
    "10%": ("#CC79A7", "v"),
    "sketch": ("#0072B2", "o"),
}
STEPS = {CHOOSE: ("#E69F00", "o"), FORWARD: ("#56B4E9", "^"), BOTH: ("#0072B2", "D"), TOGETHER: ("#D55E00", "v")}
PEERS = {
    OURS: "#0072B2",
    "torch-struct": "#D55E00",
    "pytorch-crf": "#009E73",
    "hmmlearn": "#CC79A7",
    "supar": "#E69F00",
}
Value = Callable[[Row], float]


def pictures(results: Results, plan: Plan) -> Iterator[Picture]:
    """All plots that have something to show, by section."""
    said = WORDS["pictures"]
    for axis in SWEEPS:
        for batch in batches_of(results, plan, axis):
            lines = lines_of(results, plan, axis, batch)
            marks = [(one, at.at) for one, at in crossings(results, plan, axis) if at.at and one.batch == batch]
            where = f"-b{batch}" if batch else ""
            with_batch = f", B = {batch:,}" if batch else ""
            draw = partial(times, lines, axis, marks)
            yield Picture(f"time-{axis.lower()}{where}", axis, said["time"].format(batch=with_batch), draw)
            draw = partial(memories, lines, axis)
            yield Picture(f"memory-{axis.lower()}{where}", axis, said["memory"].format(batch=with_batch), draw)
    yield from _parts(results, plan)
    kept = [line for line in lines_of(results, plan, "K", None) if line.series.label != EXACT]
    if any(_points(line, _error) for line in kept):
        yield Picture("error-k", "K", said["error"], partial(errors, kept))
    rows = [row for row in results.rows.values() if row.subject != CHAIN and row.library != OURS and row.is_measured]
    for name, value in (("time", _seconds), ("memory", _mebibytes)):
        bars = _bars(results, rows, value)
        if bars:
            yield Picture(f"peers-{name}", "peers", said[f"peers_{name}"], partial(ratios, bars, f"{name}, over ours"))


def _parts(results: Results, plan: Plan) -> Iterator[Picture]:
    """Choosing, the sum and both together, for each number of states kept."""
    batch = plan.base.batch
    by_step = {step: lines_of(results, plan, "N", batch, step) for step in STEPS}
    exact = [line for line in by_step[BOTH] if line.series.label == EXACT]
    for label in plan.kept:
        own = {step: line for step, lines in by_step.items() for line in lines if line.series.label == label}
        if own:
            name = f"parts-{label.replace(',', '').replace('%', 'pct')}"
            caption = WORDS["pictures"]["parts"].format(kept=name_of(label), batch=f"{batch:,}")
            yield Picture(name, "N", caption, partial(parts, own, exact))


def times(lines: Sequence[Line], axis: str, marks: Sequence[tuple[Series, float]]) -> Figure:
    """Seconds, filled where measured and hollow where predicted; dotted lines are crossing points."""
    figure = _figure(lines, axis, _seconds, "seconds")
    for one, at in marks:
        figure.axes[0].axvline(at, color=LOOKS.get(one.label, (QUIET, ""))[0], linestyle=":", linewidth=1.2)
    return figure


def memories(lines: Sequence[Line], axis: str) -> Figure:
    """Peak memory of what was measured."""
    return _figure(lines, axis, _mebibytes, "peak memory (MiB)")


def errors(lines: Sequence[Line]) -> Figure:
    """The error of log Z against K."""
    return _figure(lines, "K", _error, "error of log Z (nats)")


def parts(steps: dict[str, Line], exact: Sequence[Line]) -> Figure:
    """The steps of one sketch beside the exact sum."""
    figure = Figure(figsize=SIZE, layout="constrained")
    shown = [(line, *STEPS[step], step) for step, line in steps.items()]
    shown += [(line, *LOOKS[EXACT], "exact, forward + backward") for line in exact]
    _draw(figure, shown, "N", _seconds, "seconds")
    return figure


def _figure(lines: Sequence[Line], axis: str, value: Value, label: str) -> Figure:
    figure = Figure(figsize=SIZE, layout="constrained")
    shown = [(line, *LOOKS.get(line.series.label, (QUIET, "P")), line.name) for line in lines]
    _draw(figure, shown, axis, value, label)
    return figure


def _draw(figure: Figure, shown: Sequence[tuple[Line, str, str, str]], axis: str, value: Value, label: str) -> None:
    """Lines with their colours, marks and names, on logarithmic scales."""
    ax = figure.subplots()
    for line, colour, mark, name in shown:
        points = _points(line, value)
        if not points:
            continue
        style = "--" if axis == "K" and line.series.label == EXACT else "-"
        hidden = "" if style == "--" else mark
        ax.plot(list(points), list(points.values()), color=colour, linestyle=style, marker=hidden, label=plain(name))
        guessed = [at for at in points if not line.rows[at].is_measured]
        ax.plot(
            guessed,
            [points[at] for at in guessed],
            linestyle="none",
            marker=hidden,
            color=colour,
            markerfacecolor="white",
            zorder=3,
        )
    everything = [_points(line, value) for line, *_ in shown]
    places = sorted({at for points in everything for at in points})
    log_axis(ax, "x", [float(at) for at in places])
    if places and places[-1] < 10 * places[0]:
        ax.xaxis.set_major_locator(FixedLocator(places))
    elif places:
        ax.xaxis.set_major_locator(LogLocator())
    log_axis(ax, "y", [y for points in everything for y in points.values()])
    ax.set_xlabel(AXES[axis])
    ax.set_ylabel(label)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)


def _points(line: Line, value: Value) -> dict[int, float]:
    """Those that have a place on a logarithmic scale."""
    found = {at: value(row) for at, row in line.rows.items()}
    return {at: y for at, y in found.items() if y > 0}


def _seconds(row: Row) -> float:
    return row.seconds


def _mebibytes(row: Row) -> float:
    return row.peak_bytes / MIB if row.is_measured else 0.0


def _error(row: Row) -> float:
    return row.error if row.is_measured else 0.0


def _bars(results: Results, rows: Sequence[Row], value: Value) -> list[tuple[str, str, float]]:
    """Problem and operation, library, and the library's value over ours."""
    found = []
    for row in rows:
        ours = results.get(row.sizes, row.operation, row.subject)
        if ours is not None and value(row) > 0 and value(ours) > 0:
            found.append((f"{row.subject}\n{row.sizes}\n{row.operation}", row.library, value(row) / value(ours)))
    return found


def ratios(bars: Sequence[tuple[str, str, float]], label: str) -> Figure:
    """A dot for each library and problem, on a logarithmic scale; left of the line it is better than ours."""
    places = list(dict.fromkeys(name for name, *_ in bars))
    figure = Figure(figsize=(SIZE[0], 0.9 + 0.5 * len(places)), layout="constrained")
    ax = figure.subplots()
    for library in dict.fromkeys(library for _, library, _ in bars):
        own = [(ratio, places.index(name)) for name, who, ratio in bars if who == library]
        ax.plot(*zip(*own, strict=True), linestyle="none", marker="o", color=PEERS.get(library, QUIET), label=library)
    ax.axvline(1.0, color=INK, linewidth=0.8)
    log_axis(ax, "x", [1.0, *(ratio for *_, ratio in bars)])
    ax.set_yticks(range(len(places)), [plain(name) for name in places], fontsize=7)
    ax.set_ylim(len(places) - 0.4, -0.6)
    ax.set_xlabel(label)
    ax.set_ylabel("problem, sizes, operation")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure
