"""How the report's plots show methods, numbers of states and errors: colours, marks and scales."""

import math
from collections.abc import Sequence

from matplotlib import ticker
from matplotlib.axes import Axes

from tailsum_studies.paper.report.compare import shown
from tailsum_studies.report.axes import WHOLE, plain

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


def name_of(method: str, label: str = "") -> str:
    """The method's name in a legend, and the share of the states it keeps."""
    return plain(f"{shown(method)} {label}".strip())


def kept_axis(axes: Sequence[Axes], kept: Sequence[int]) -> None:
    """Numbers of states kept, on a logarithmic scale: those that were measured, as far as there is room."""
    shown_at: list[int] = []
    for k in sorted(set(kept)):
        if not shown_at or k >= 1.7 * shown_at[-1]:
            shown_at.append(k)
    for ax in axes:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(ticker.FixedLocator(shown_at))
        ax.xaxis.set_major_formatter(WHOLE)
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
