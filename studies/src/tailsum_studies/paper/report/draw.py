"""The figures: each function takes the summaries, or the checks of the theory, that its panels show, by their titles."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tailsum_studies.paper.report.compare import methods_in
from tailsum_studies.paper.report.look import MARKS, OTHERS, colour_of, error_axis, kept_axis, mark_of, name_of
from tailsum_studies.report.axes import Panels, handles_of, label_edges, legend_below, log_axis, panels, plain
from tailsum_studies.report.picture import WIDTH, page_width
from tailsum_studies.report.style import INK, QUIET
from tailsum_studies.report.table import groups, rows_of

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

Shown = Mapping[str, pd.DataFrame]


def on_log(*values: float) -> bool:
    """Whether all have a place on a logarithmic scale."""
    return all(1 / FAR < value < FAR for value in values)


def swatch(mark: str, colour: str, label: str) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], linestyle="none", marker=mark, color=colour, label=label)


def errors(shown: Shown, quantity: str) -> Figure:
    """Every replicate's error, a strip for each method and number of states kept, a panel for each model."""
    strips = [_by_method(group) for group in shown.values()]
    one_label = len(set(pd.concat(strips).label)) == 1
    names = [[name_of(each.method, "" if one_label else each.label) for each in rows_of(group)] for group in strips]
    alike = all(each == names[0] for each in names)
    columns = 0 if alike else min(len(strips), 2)
    made = panels(shown, 0.75 + 0.235 * max(map(len, names)), columns, share=False)
    for ax, group, named in zip(made.axes, strips, names, strict=True):
        for height, each in enumerate(rows_of(group)):
            _strip(ax, height, _finite(each.errors), colour_of(each.method))
        first = not alike or ax in made.left
        ax.set_ylim(len(group) - 0.4, -0.6)
        ax.set_yticks(range(len(group)), named if first else [""] * len(group))
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        ax.axvline(0, color=INK, linewidth=0.8, zorder=1.5)
        ax.set_xlabel(f"error of {quantity} (nats)")
        if first:
            ax.set_ylabel("method" if one_label else "method, states kept")
    sizes = [np.abs(found) for group in strips for each in group.errors if len(found := _finite(each))]
    error_axis(made.axes, [float(np.median(each)) for each in sizes], max((each.max() for each in sizes), default=0.0))
    return made.figure


def _by_method(group: pd.DataFrame) -> pd.DataFrame:
    order = methods_in(group).index
    return group.sort_values(["method", "kept"], key=lambda c: c.map(order) if c.name == "method" else c)


def _finite(values: tuple[float, ...]) -> np.ndarray:
    found = np.array([value for value in values if abs(value) < FAR])
    return np.where(np.abs(found) > 1 / FAR, found, 0.0)


def _strip(ax: Axes, height: int, found: np.ndarray, colour: str) -> None:
    """A dot for each replicate, spread so that they are seen, and a bar at their mean; one alone is a larger dot."""
    if len(found) == 1:
        ax.scatter(found, [float(height)], s=22, color=colour, alpha=1, linewidths=0)
        return
    spread = [height + 0.56 * ((place * GOLDEN) % 1 - 0.5) for place in range(len(found))]
    ax.scatter(found, spread, s=9, color=colour, alpha=0.45, linewidths=0)
    if len(found):
        ax.plot([found.mean()] * 2, [height - 0.36, height + 0.36], color=INK, linewidth=1.4)


def against_kept(shown: Shown, what: str) -> Figure:
    """Mean square errors by states kept, a line for each method; hollow marks are what the paper prints."""
    made = panels(shown, 2.35)
    for ax, group in zip(made.axes, shown.values(), strict=True):
        for method in methods_in(group):
            _line(ax, method, group[group.method == method], "mse")
        for method, points in groups(group.dropna(subset="printed_mse"), "method"):
            hollow: dict[str, Any] = {
                "markersize": 7.5,
                "markerfacecolor": "none",
                "markeredgecolor": colour_of(method),
            }
            name = f"{'TopK' if method == 'TopK' else 'paper'}, printed"
            ax.plot(points.kept, points.printed_mse, linestyle="none", marker=mark_of(method), label=name, **hollow)
        if exact := [name_of(each.method, each.label) for each in rows_of(group[group.mse == 0])]:
            text = f"exact: {', '.join(dict.fromkeys(exact))}"  # zero has no place on a logarithmic scale
            ax.text(0.02, 0.03, text, transform=ax.transAxes, fontsize=7.5, color=QUIET)
    _kept_against_log(made, shown, ["mse", "printed_mse"], what)
    return made.figure


def directions(shown: Shown) -> Figure:
    """1 - cosine by states kept: thick for all parameters as one vector, thin for each alone."""
    made = panels(shown, 2.6)
    for ax, group in zip(made.axes, shown.values(), strict=True):
        for method in methods_in(group):
            for parameter, points in groups(group[group.method == method], "parameter"):
                thin = {
                    "linestyle": "-",
                    "linewidth": 0.8,
                    "alpha": 0.55,
                    "marker": ".",
                    "markersize": 3,
                    "label": None,
                }
                _line(ax, method, points, "off", **({} if parameter == "all" else thin))
    _kept_against_log(made, shown, ["off"], "1 - cosine")
    return made.figure


def _line(ax: Axes, method: str, points: pd.DataFrame, value: str, **how: Any) -> None:
    """A method's values by states kept, those that have a place on a logarithmic scale."""
    seen = points[points[value].map(on_log)].sort_values(["kept", value])
    style = {"marker": mark_of(method), "linestyle": "--" if ", " in method else "-", "label": name_of(method)}
    if len(seen):
        ax.plot(seen.kept, seen[value], color=colour_of(method), **{**style, **how})


def _kept_against_log(made: Panels, shown: Shown, values: list[str], what: str) -> None:
    everything = pd.concat(list(shown.values()))
    kept_axis(made.axes, everything.kept.tolist())
    for ax in made.axes:
        log_axis(ax, "y", [value for value in everything[values].to_numpy().ravel() if on_log(value)])
    label_edges(made, "states kept, K", what)
    legend_below(made.figure, handles_of(made.axes))


def cost(shown: Shown, quantity: str) -> Figure:
    """Root mean square error against seconds and against memory: colours are methods, marks are models.

    The exact sum has no error, and so no place on the logarithmic scale: dotted lines and marks at the foot stand for it.
    """
    measures = {"seconds": "seconds for one sketch and its answers", "memory": "peak memory (MiB)"}
    figure, axes, *_ = panels([""] * len(measures), 2.9, share=False)
    groups = {title: _with_exact(group) for title, group in shown.items()}
    marks = {title: MARKS[place % len(MARKS)] for place, title in enumerate(shown)}
    everything = pd.concat(list(groups.values()))
    for ax, (measure, name) in zip(axes, measures.items(), strict=True):
        for title, group in groups.items():
            for method in methods_in(group):
                seen = group[(group.method == method) & group[measure].map(on_log) & group.rmse.map(on_log)]
                how = {"marker": marks[title], "color": colour_of(method), "linewidth": 0.7, "alpha": 0.85}
                ax.plot(seen[measure], seen.rmse, **how)
            _exact(ax, group[f"exact_{measure}"].iloc[0], marks[title])
        log_axis(
            ax, "x", [value for value in everything[[measure, f"exact_{measure}"]].to_numpy().ravel() if on_log(value)]
        )
        log_axis(ax, "y", [value for value in everything.rmse if on_log(value)])
        ax.set_xlabel(name)
        ax.set_ylabel(f"RMSE of {quantity} (nats)")
    colours = [swatch("o", colour_of(method), name_of(method)) for method in methods_in(everything)]
    if everything.exact_seconds.notna().any():
        colours.append(Line2D([], [], color=INK, linestyle=":", marker="o", label="exact (no error)"))
    models = [swatch(mark, QUIET, plain(title)) for title, mark in marks.items()]
    legend_below(figure, colours, models if len(models) > 1 else [])
    return figure


def _with_exact(group: pd.DataFrame) -> pd.DataFrame:
    """With memory in MiB, and with what the exact sum takes: undefined where it was not measured."""
    known = group.reindex(columns=[*group.columns.union(["exact_seconds", "exact_bytes"], sort=False)])
    return known.assign(memory=known.peak_bytes / MIB, exact_memory=known.exact_bytes / MIB)


def _exact(ax: Axes, at: float, mark: str) -> None:
    if on_log(at):
        ax.axvline(at, color=INK, linewidth=0.9, linestyle=":", zorder=1.5)
        foot = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 3}
        ax.plot([at], [0.0], color=INK, marker=mark, **foot)


# The theory.


def agreement(shown: Shown) -> Figure:
    """Measured and predicted, with bars of two standard errors: a panel for each statement."""
    figure, axes, *_ = panels(shown, 2.8, share=False)
    for ax, group in zip(axes, shown.values(), strict=True):
        rows = group[(group[["predicted", "measured"]].abs() < FAR).all(axis=1)]
        if len(set(rows.predicted)) == 1:
            _around_one(ax, rows)
        else:
            _along_diagonal(ax, rows)
        if ax.get_yscale() == "linear":
            ax.locator_params(nbins=5)
            ax.ticklabel_format(useOffset=False)
        ax.set_ylabel("measured")
    legend_below(figure, handles_of(axes)[:1])
    return figure


def _around_one(ax: Axes, rows: pd.DataFrame) -> None:
    """The checks in turn, around the one value that all of them should have."""
    _with_bars(ax, range(1, len(rows) + 1), rows, OTHERS[0])
    ax.axhline(rows.predicted.iloc[0], **_PREDICTED)
    ax.set_xlim(0.3, len(rows) + 0.7)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("row of the statement in the table")


def _along_diagonal(ax: Axes, rows: pd.DataFrame) -> None:
    """On logarithmic scales where the values span much; what is predicted to be zero has no place there, and is counted."""
    positive = rows[rows.predicted.map(on_log) & rows.measured.map(on_log)]
    sizes = positive[["predicted", "measured"]].to_numpy()
    signed = ((rows.predicted < 0) | ((rows.predicted > 0) & (rows.measured <= 0))).any()
    logarithmic = sizes.size and not signed and sizes.max() > 30 * sizes.min()
    drawn = positive if logarithmic else rows
    _with_bars(ax, drawn.predicted, drawn, OTHERS[0])
    ax.set_xlabel("predicted")
    values = drawn[["predicted", "measured"]].to_numpy().ravel().tolist()
    if values:
        ends = min(values), max(values)
        ax.plot(ends, ends, **_PREDICTED)
    if logarithmic:
        log_axis(ax, "x", values)
        log_axis(ax, "y", [*values, *_reach(drawn)])
        if len(drawn) < len(rows):
            ax.text(0.97, 0.05, f"and {len(rows) - len(drawn)} at 0", transform=ax.transAxes, ha="right", color=QUIET)


def law(shown: Shown, what: str) -> Figure:
    """Measured against where it was measured, on logarithmic scales, with the predicted line of each setting."""
    figure = Figure(figsize=(min(WIDTH * 0.72, page_width()), 3.6), layout="constrained")
    ax = figure.subplots()
    names: list[Line2D] = []
    for place, (setting, group) in enumerate(shown.items()):
        rows = _drawable(group).sort_values("at")
        colour = OTHERS[place % len(OTHERS)]
        ax.plot(rows["at"], rows.predicted, color=colour, linewidth=1.0, linestyle="--")
        _with_bars(ax, rows["at"], rows, colour)
        names.append(swatch("o", colour, plain(setting)))
    drawn = _drawable(pd.concat(list(shown.values())))
    log_axis(ax, "x", drawn["at"].tolist())
    log_axis(ax, "y", [*drawn.predicted, *_reach(drawn)])
    ax.set_xlabel(plain(what))
    ax.set_ylabel("measured")
    legend_below(figure, [*names, Line2D([], [], **_PREDICTED)])
    return figure


def _drawable(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[[on_log(row.at, row.predicted, row.measured) for row in rows_of(rows)]]


def _reach(rows: pd.DataFrame) -> list[float]:
    """The measured values and the ends of their bars, as far as they have a place on a logarithmic scale."""
    return [value for times in (-2, 0, 2) for value in rows.measured + times * rows.standard_error if on_log(value)]


def _with_bars(ax: Axes, x: Any, rows: pd.DataFrame, colour: str) -> None:
    bars = 2 * rows.standard_error.where(rows.standard_error < FAR, 0.0)
    ax.errorbar(x, rows.measured, yerr=bars, fmt="o", color=colour, capsize=2.5, elinewidth=1.0)
