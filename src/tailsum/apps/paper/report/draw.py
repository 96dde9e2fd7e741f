"""The figures of the report: each function takes what is shown in its panels."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tailsum.apps.paper.report.compare import methods_in
from tailsum.apps.paper.report.look import (
    MARKS,
    OTHERS,
    WIDTH,
    colour_of,
    columns_for,
    error_axis,
    handles_of,
    kept_axis,
    label_edges,
    legend_below,
    log_axis,
    mark_of,
    name_of,
    panels,
    plain,
)
from tailsum.apps.paper.report.summary import DirectionSummary, Summary, grouped
from tailsum.apps.paper.rows import Check
from tailsum.plot.style import INK, QUIET

GOLDEN = (math.sqrt(5) - 1) / 2
MIB = 2**20
FAR = 1e100  # beyond it nothing is drawn
_PREDICTED: dict[str, Any] = {
    "color": QUIET,
    "linewidth": 1.0,
    "linestyle": "--",
    "zorder": 1.5,
    "label": "predicted",
}


@dataclass(frozen=True)
class Point:
    """A figure that the paper prints."""

    method: str
    kept: int
    value: float


def errors(shown: Mapping[str, Sequence[Summary]], quantity: str) -> Figure:
    """Every replicate's error, a strip for each method and number of states kept, a panel for each model."""
    strips = {title: _ordered(group) for title, group in shown.items()}
    one_label = len({each.label for group in strips.values() for each in group}) == 1
    names = [[name_of(e.method) if one_label else _strip_name(e) for e in group] for group in strips.values()]
    alike = all(each == names[0] for each in names)
    most = max(map(len, names))
    columns = columns_for(len(strips)) if alike else min(len(strips), 2)
    figure, axes = panels(len(strips), 0.75 + 0.235 * most, columns, share=False)
    for place, (ax, (title, group)) in enumerate(zip(axes, strips.items(), strict=True)):
        for height, each in enumerate(group):
            _strip(ax, height, each)
        ax.set_title(plain(title))
        ax.set_ylim(len(group) - 0.4, -0.6)
        first = not alike or place % columns == 0
        ax.set_yticks(range(len(group)), names[place] if first else [""] * len(group))
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        ax.axvline(0, color=INK, linewidth=0.8, zorder=1.5)
    finite = [[abs(error) for error in _finite(each.errors)] for group in strips.values() for each in group]
    error_axis(
        axes, [float(np.median(each)) for each in finite if each], max((max(e) for e in finite if e), default=0.0)
    )
    label_edges(axes, f"error of {quantity} (nats)", "", columns)
    return figure


def _ordered(group: Sequence[Summary]) -> list[Summary]:
    order = {method: place for place, method in enumerate(methods_in(group))}
    return sorted(group, key=lambda each: (order[each.method], each.kept))


def _strip_name(each: Summary) -> str:
    return f"{name_of(each.method)} {plain(each.label)}"


def _strip(ax: Axes, height: int, each: Summary) -> None:
    found = _finite(each.errors)
    spread = [height + 0.56 * ((place * GOLDEN) % 1 - 0.5) for place in range(len(found))]
    one = len(found) == 1
    colour = colour_of(each.method)
    ax.scatter(
        found,
        [float(height)] if one else spread,
        s=22 if one else 9,
        color=colour,
        alpha=1 if one else 0.45,
        linewidths=0,
    )
    if len(found) > 1:
        ax.plot([float(np.mean(found))] * 2, [height - 0.36, height + 0.36], color=INK, linewidth=1.4)


def _finite(values: Sequence[float]) -> list[float]:
    return [value if abs(value) > 1 / FAR else 0.0 for value in values if abs(value) < FAR]


def against_kept(shown: Mapping[str, Sequence[Summary]], printed: Mapping[str, Sequence[Point]], what: str) -> Figure:
    """Mean square errors by states kept, a line for each method; hollow marks are what the paper prints."""
    columns = columns_for(len(shown))
    figure, axes = panels(len(shown), 2.35, columns)
    for ax, (title, group) in zip(axes, shown.items(), strict=True):
        for method in methods_in(group):
            _line(ax, method, [(each.kept, each.mse) for each in group if each.method == method])
        for method, points in grouped(printed.get(title, ()), lambda point: point.method).items():
            _hollow(ax, method, points)
        _name_exact(ax, [each for each in group if each.mse == 0])
        ax.set_title(plain(title))
    values = [each.mse for group in shown.values() for each in group]
    values += [point.value for points in printed.values() for point in points]
    _kept_against_log(axes, [each.kept for group in shown.values() for each in group], values)
    label_edges(axes, "states kept, K", what, columns)
    legend_below(figure, handles_of(axes))
    return figure


def _line(ax: Axes, method: str, points: Sequence[tuple[int, float]]) -> None:
    variant = "--" if ", " in method else "-"
    _plot(ax, method, points, marker=mark_of(method), linestyle=variant, label=name_of(method))


def _plot(ax: Axes, method: str, points: Sequence[tuple[int, float]], **style: Any) -> None:
    """A method's values by states kept, those that have a place on a logarithmic scale."""
    seen = sorted((k, value) for k, value in points if _on_log(value))
    if seen:
        x, y = zip(*seen, strict=True)
        ax.plot(x, y, color=colour_of(method), **style)


def _name_exact(ax: Axes, exact: Sequence[Summary]) -> None:
    """Errors of zero have no place on a logarithmic scale: say so."""
    if exact:
        names = ", ".join(dict.fromkeys(_strip_name(each) for each in exact))
        ax.text(0.02, 0.03, f"exact: {names}", transform=ax.transAxes, fontsize=7.5, color=QUIET)


def _hollow(ax: Axes, method: str, points: Sequence[Point]) -> None:
    ax.plot(
        [point.kept for point in points],
        [point.value for point in points],
        linestyle="none",
        marker=mark_of(method),
        markersize=7.5,
        markerfacecolor="none",
        markeredgecolor=colour_of(method),
        label=f"{'TopK' if method == 'TopK' else 'paper'}, printed",
    )


def _kept_against_log(axes: Sequence[Axes], kept: Sequence[int], values: Sequence[float]) -> None:
    kept_axis(axes, kept)
    for ax in axes:
        log_axis(ax, "y", [value for value in values if _on_log(value)])


def _on_log(value: float) -> bool:
    return 1 / FAR < value < FAR


def cost(shown: Mapping[str, Sequence[Summary]], quantity: str) -> Figure:
    """Root mean square error against seconds and against memory: colours are methods, marks are models."""
    figure, axes = panels(2, 2.9, 2, share=False)
    everything = [each for group in shown.values() for each in group]
    measures: list[tuple[str, Callable[[Summary], float]]] = [
        ("seconds for one sketch and its answers", lambda each: each.seconds),
        ("peak memory (MiB)", lambda each: each.peak_bytes / MIB),
    ]
    for ax, (name, measure) in zip(axes, measures, strict=True):
        for mark, group in zip(_marks(len(shown)), shown.values(), strict=True):
            for method in methods_in(group):
                _path(ax, mark, [(measure(each), each.rmse) for each in group if each.method == method], method)
        log_axis(ax, "x", [measure(each) for each in everything if _on_log(measure(each))])
        log_axis(ax, "y", [each.rmse for each in everything if _on_log(each.rmse)])
        ax.set_xlabel(name)
    axes[0].set_ylabel(f"RMSE of {quantity} (nats)")
    colours = [_swatch("o", colour_of(method), name_of(method)) for method in methods_in(everything)]
    marks = [_swatch(m, QUIET, plain(title)) for m, title in zip(_marks(len(shown)), shown, strict=True)]
    legend_below(figure, colours, marks if len(shown) > 1 else [])
    return figure


def _marks(count: int) -> list[str]:
    return [MARKS[place % len(MARKS)] for place in range(count)]


def _path(ax: Axes, mark: str, points: Sequence[tuple[float, float]], method: str) -> None:
    seen = [(x, y) for x, y in points if _on_log(x) and _on_log(y)]
    if seen:
        x, y = zip(*seen, strict=True)
        ax.plot(x, y, marker=mark, color=colour_of(method), linewidth=0.7, alpha=0.85)


def _swatch(mark: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], linestyle="none", marker=mark, color=colour, label=label)


def directions(shown: Mapping[str, Sequence[DirectionSummary]]) -> Figure:
    """1 - cosine by states kept: thick for all parameters as one vector, thin for each alone."""
    columns = columns_for(len(shown))
    figure, axes = panels(len(shown), 2.6, columns)
    for ax, (title, group) in zip(axes, shown.items(), strict=True):
        for method in methods_in(group):
            alike = [each for each in group if each.method == method]
            for parameter, points in grouped(alike, lambda each: each.parameter).items():
                if parameter == "all":
                    _line(ax, method, [(each.kept, each.off) for each in points])
                else:
                    thin = [(each.kept, each.off) for each in points]
                    _plot(ax, method, thin, linewidth=0.8, alpha=0.55, marker=".", markersize=3)
        ax.set_title(plain(title))
    everything = [each for group in shown.values() for each in group]
    _kept_against_log(axes, [each.kept for each in everything], [each.off for each in everything])
    label_edges(axes, "states kept, K", "1 - cosine", columns)
    legend_below(figure, handles_of(axes))
    return figure


def agreement(shown: Mapping[str, Sequence[Check]]) -> Figure:
    """Measured and predicted, with bars of two standard errors: a panel for each statement."""
    columns = columns_for(len(shown))
    figure, axes = panels(len(shown), 2.8, columns, share=False)
    for ax, (title, group) in zip(axes, shown.items(), strict=True):
        rows = [row for row in group if abs(row.predicted) < FAR and abs(row.measured) < FAR]
        if len({row.predicted for row in rows}) == 1:
            _around_one(ax, rows)
        else:
            _along_diagonal(ax, rows)
        ax.set_title(plain(title))
        if ax.get_yscale() == "linear":
            ax.locator_params(nbins=5)
            ax.ticklabel_format(useOffset=False)
    for ax in axes[::columns]:
        ax.set_ylabel("measured")
    legend_below(figure, handles_of(axes)[:1])
    return figure


def _around_one(ax: Axes, rows: Sequence[Check]) -> None:
    """The checks in turn, around the one value that all of them should have."""
    _with_bars(ax, [place + 1.0 for place in range(len(rows))], rows, OTHERS[0])
    ax.axhline(rows[0].predicted, **_PREDICTED)
    ax.set_xlim(0.3, len(rows) + 0.7)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("row of the statement in the table")


def _along_diagonal(ax: Axes, rows: Sequence[Check]) -> None:
    """On logarithmic scales where the values span much; what is predicted to be zero has no place there, and is counted."""
    positive = [row for row in rows if _on_log(row.predicted) and _on_log(row.measured)]
    sizes = [value for row in positive for value in (row.predicted, row.measured)]
    signed = any(row.predicted < 0 or (row.predicted > 0 and row.measured <= 0) for row in rows)
    on_log = bool(sizes) and not signed and max(sizes) > 30 * min(sizes)
    drawn = positive if on_log else rows
    _with_bars(ax, [row.predicted for row in drawn], drawn, OTHERS[0])
    ax.set_xlabel("predicted")
    values = [value for row in drawn for value in (row.predicted, row.measured)]
    if values:
        ends = min(values), max(values)
        ax.plot(ends, ends, **_PREDICTED)
    if on_log:
        log_axis(ax, "x", values)
        log_axis(ax, "y", [*values, *(end for row in drawn for end in _reach(row) if _on_log(end))])
        if len(drawn) < len(rows):
            ax.text(0.97, 0.05, f"and {len(rows) - len(drawn)} at 0", transform=ax.transAxes, ha="right", color=QUIET)


def law(shown: Mapping[str, Sequence[Check]], what: str) -> Figure:
    """Measured against where it was measured, on logarithmic scales, with the predicted line of each setting."""
    figure = Figure(figsize=(WIDTH * 0.72, 3.6), layout="constrained")
    ax = figure.subplots()
    names: list[Line2D] = []
    drawn: list[Check] = []
    for place, (setting, group) in enumerate(shown.items()):
        seen = [row for row in group if all(map(_on_log, (row.at, row.predicted, row.measured)))]
        rows = sorted(seen, key=lambda row: row.at)
        colour = OTHERS[place % len(OTHERS)]
        at = [row.at for row in rows]
        ax.plot(at, [row.predicted for row in rows], color=colour, linewidth=1.0, linestyle="--")
        _with_bars(ax, at, rows, colour)
        names.append(_swatch("o", colour, plain(setting)))
        drawn += rows
    log_axis(ax, "x", [row.at for row in drawn])
    log_axis(ax, "y", [value for row in drawn for value in (row.predicted, *_reach(row)) if _on_log(value)])
    ax.set_xlabel(plain(what))
    ax.set_ylabel("measured")
    legend_below(figure, [*names, Line2D([], [], **_PREDICTED)])
    return figure


def _reach(row: Check) -> tuple[float, float, float]:
    """The measured value and the ends of its bar."""
    return row.measured - 2 * row.standard_error, row.measured, row.measured + 2 * row.standard_error


def _with_bars(ax: Axes, x: Sequence[float], rows: Sequence[Check], colour: str) -> None:
    bars = [2 * row.standard_error if row.standard_error < FAR else 0.0 for row in rows]
    measured = [row.measured for row in rows]
    ax.errorbar(x, measured, yerr=bars, fmt="o", color=colour, capsize=2.5, elinewidth=1.0)
