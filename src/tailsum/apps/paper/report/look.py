"""How the report's plots look: colours, marks, panels and axes."""

import math
from collections.abc import Sequence
from typing import Literal

from matplotlib import ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tailsum.apps.paper.report.compare import shown
from tailsum.apps.report.picture import WIDTH

FEW_DECADES = 2.2

# Okabe and Ito's palette: distinct for colour-blind eyes. The marks tell methods apart without any colour.
_COLOURS = {
    "TopK": "#7F7F7F",
    "paper": "#D55E00",
    "tailsum": "#0072B2",
    "tailsum, K landmarks": "#56B4E9",
    "Uniform": "#56B4E9",
    "Local": "#CC79A7",
    "Global": "#009E73",
    "Local+Global": "#E69F00",
    "Lookahead": "#332288",
}
_MARKS = {"TopK": "s", "paper": "^", "tailsum": "o"}
OTHERS = ("#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#332288")
MARKS = ("o", "^", "s", "D", "v", "P", "X", "*")


def colour_of(method: str) -> str:
    """The method's colour: the same in every plot, whatever else is there. Variants share that of the method they vary."""
    names = (method.removesuffix(", refined"), method.partition(", ")[0])
    return next((_COLOURS[name] for name in names if name in _COLOURS), OTHERS[sum(method.encode()) % len(OTHERS)])


def mark_of(method: str) -> str:
    """The method's mark."""
    return _MARKS.get(method, "D")


def plain(text: str) -> str:
    """Text of which nothing is read as a formula."""
    return text.replace("$", r"\$")


def name_of(method: str) -> str:
    """The method's name in a legend."""
    return plain(shown(method))


def columns_for(count: int) -> int:
    """How many panels stand side by side."""
    return 2 if count == 4 else min(count, 3)


def panels(count: int, height: float, columns: int, *, share: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure as wide as the page with so many panels, and room for a legend below."""
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH, rows * height + 0.45), layout="constrained")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    for ax in axes[max(0, count - columns) : count]:  # the last panel of each column
        ax.tick_params(labelbottom=True)
    return figure, axes[:count]


def label_edges(axes: Sequence[Axes], x: str, y: str, columns: int) -> None:
    """Axis labels on the outer panels alone."""
    for place, ax in enumerate(axes):
        if place + columns >= len(axes):
            ax.set_xlabel(x)
        if place % columns == 0:
            ax.set_ylabel(y)


def legend_below(figure: Figure, *rows: Sequence[Artist]) -> None:
    """One legend for all panels: these handles, each row of them on a line of its own."""
    filled = [list(row) for row in rows if row]
    if not filled:
        return
    columns = max(len(row) for row in filled)
    padded = [
        [*row, *(Line2D([], [], linestyle="none", label=" ") for _ in range(columns - len(row)))] for row in filled
    ]
    by_column = [row[place] for place in range(columns) for row in padded]
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
    ax.set(**{f"{which}lim": (10 ** (low - room), 10 ** (high + room))})
    ax.set(**{f"{which}scale": "log"})
    axis.set_minor_locator(ticker.NullLocator())
    step = max(1, math.ceil(decades / 6))
    axis.set_major_locator(
        ticker.LogLocator(subs=(1.0, 2.0, 5.0)) if decades < FEW_DECADES else ticker.LogLocator(base=10.0**step)
    )
    if decades < FEW_DECADES or (min(values) > 1e-3 and max(values) < 1e5):
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))


def kept_axis(axes: Sequence[Axes], kept: Sequence[int]) -> None:
    """Numbers of states kept, on a logarithmic scale: those that were measured, as far as there is room."""
    shown_at: list[int] = []
    for k in sorted(set(kept)):
        if not shown_at or k >= 1.7 * shown_at[-1]:
            shown_at.append(k)
    for ax in axes:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(ticker.FixedLocator(shown_at))
        ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.xaxis.set_minor_locator(ticker.NullLocator())


def error_axis(axes: Sequence[Axes], sizes: Sequence[float], largest: float) -> None:
    """Errors of either sign on a symmetric logarithmic scale that tells the smallest of these typical sizes from zero."""
    found = [size for size in sizes if size > 0]
    top = math.ceil(math.log10(largest)) if largest > 0 else 0
    low = math.ceil(math.log10(min(found))) if found else top - 1
    low = min(max(low, top - 12), top - 1)
    half = top - low + 1  # decades, and as much as one for the linear part
    powers = [10.0**p for p in range(top, low - 1, -math.ceil(half / 2.5)) if p - low + 1 >= 0.3 * half]
    for ax in axes:
        ax.set_xscale("symlog", linthresh=10.0**low, linscale=0.9)
        ax.set_xlim(-(10.0**top) * 1.6, 10.0**top * 1.6)
        ax.xaxis.set_major_locator(ticker.FixedLocator(sorted([*powers, 0.0, *(-p for p in powers)])))
        ax.xaxis.set_major_formatter(ticker.FuncFormatter(_power_text))
        ax.xaxis.set_minor_locator(ticker.NullLocator())


def _power_text(value: float, _: int) -> str:
    if value == 0:
        return "0"
    power = round(math.log10(abs(value)))
    if -1 <= power <= 2:
        return f"{value:g}".replace("-", "−")  # noqa: RUF001  (a minus sign, as in the powers)
    return f"${'-' if value < 0 else ''}10^{{{power}}}$"
