"""Panels, axes and legends that the pictures of all pages share."""

import math
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from matplotlib import ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tailsum_studies.report.picture import is_narrow, page_width

FEW_DECADES = 2.2
WIDE_LABELS = 1.3  # decades beyond which 1, 2, 5 side by side run into one another
WHOLE = ticker.StrMethodFormatter("{x:,.0f}")


def plain(text: str) -> str:
    """Text of which nothing is read as a formula."""
    return text.replace("$", r"\$")


class Panels(NamedTuple):
    """A figure and its panels, row by row; some of them are at its edges."""

    figure: Figure
    axes: list[Axes]
    left: list[Axes]
    bottom: list[Axes]


def panels(titles: Collection[str], height: float, columns: int = 0, *, share: bool = True) -> Panels:
    """A figure as wide as the page with a panel for each title, and room for a legend below; one column if it is narrow."""
    count = len(titles)
    columns = 1 if is_narrow() else columns or (2 if count == 4 else min(count, 3))
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(page_width(), rows * height + 0.45), layout="constrained")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    for ax, title in zip(axes, titles, strict=False):
        ax.set_title(plain(title))
    made = Panels(figure, axes[:count], left=axes[:count:columns], bottom=axes[max(0, count - columns) : count])
    for ax in made.bottom:
        ax.tick_params(labelbottom=True)
    return made


def label_edges(made: Panels, x: str, y: str) -> None:
    """Names of the axes, at the edge where panels share them, and at every panel where each has its own."""
    for ax in made.axes:
        if ax in made.bottom or not _shares(ax, "x"):
            ax.set_xlabel(x)
        if ax in made.left or not _shares(ax, "y"):
            ax.set_ylabel(y)


def _shares(ax: Axes, which: Literal["x", "y"]) -> bool:
    found = ax.get_shared_x_axes() if which == "x" else ax.get_shared_y_axes()
    return len(found.get_siblings(ax)) > 1


def legend_below(figure: Figure, *rows: Sequence[Artist]) -> None:
    """One legend for all panels: these handles, each row of them on a line of its own if the page is wide enough."""
    filled = [list(row) for row in rows if row]
    if is_narrow():
        filled = [row[start : start + 2] for row in filled for start in range(0, len(row), 2)]
    columns = max(map(len, filled), default=0)
    blank = Line2D([], [], linestyle="none", label=" ")
    by_column = [row[place] if place < len(row) else blank for place in range(columns) for row in filled]
    if by_column:
        figure.legend(handles=by_column, loc="outside lower center", ncols=columns)


def handles_of(axes: Sequence[Axes]) -> list[Artist]:
    """What the panels show, each label once."""
    found: dict[str, Artist] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values())


def log_axis(ax: Axes, which: Literal["x", "y"], values: Sequence[float]) -> None:
    """A logarithmic scale for these positive values: more than powers of ten only where they span few of them."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    if not values:
        axis.set_ticks([])
        return
    low, high = math.log10(min(values)), math.log10(max(values))
    decades = high - low
    room = max(0.06 * decades, 0.1)
    ax.set(**{f"{which}lim": (10 ** (low - room), 10 ** (high + room)), f"{which}scale": "log"})
    axis.set_minor_locator(ticker.NullLocator())
    step = max(1, math.ceil(decades / 6))
    few = ticker.LogLocator(subs=(1.0, 3.0) if which == "x" and decades > WIDE_LABELS else (1.0, 2.0, 5.0))
    axis.set_major_locator(few if decades < FEW_DECADES else ticker.LogLocator(base=10.0**step))
    if decades < FEW_DECADES or (min(values) > 1e-3 and max(values) < 1e5):
        axis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
