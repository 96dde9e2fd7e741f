"""The figures of the theory: each function takes the checks that its panels show, by their titles."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tailsum.apps.paper.report.draw import FAR, on_log, swatch
from tailsum.apps.paper.report.look import OTHERS
from tailsum.apps.report.axes import handles_of, legend_below, log_axis, panels, plain
from tailsum.apps.report.frames import rows_of
from tailsum.apps.report.picture import WIDTH
from tailsum.plot.style import QUIET

_PREDICTED: dict[str, Any] = {
    "color": QUIET,
    "linewidth": 1.0,
    "linestyle": "--",
    "zorder": 1.5,
    "label": "predicted",
}


def agreement(shown: Mapping[str, pd.DataFrame]) -> Figure:
    """Measured and predicted, with bars of two standard errors: a panel for each statement."""
    figure, axes, left, _ = panels(shown, 2.8, share=False)
    for ax, group in zip(axes, shown.values(), strict=True):
        rows = group[(group[["predicted", "measured"]].abs() < FAR).all(axis=1)]
        if len(set(rows.predicted)) == 1:
            _around_one(ax, rows)
        else:
            _along_diagonal(ax, rows)
        if ax.get_yscale() == "linear":
            ax.locator_params(nbins=5)
            ax.ticklabel_format(useOffset=False)
    for ax in left:
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


def law(shown: Mapping[str, pd.DataFrame], what: str) -> Figure:
    """Measured against where it was measured, on logarithmic scales, with the predicted line of each setting."""
    figure = Figure(figsize=(WIDTH * 0.72, 3.6), layout="constrained")
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
