"""Axes that are measured in points (1/72 inch), and boxes and words on them."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import text_to_path

RISE = 0.36  # from the baseline to the middle of a capital, at font size 1


def canvas(width: float, height: float) -> Axes:
    """Axes that fill a figure of this size, without ticks or lines."""
    figure = Figure(figsize=(width / 72, height / 72))
    figure.set_layout_engine("none")
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.set_axis_off()
    return ax


def write(ax: Axes, x: float, y: float, text: str, size: float, colour: str) -> None:
    """Text around a point: capitals reach as far above it as below."""
    ax.text(
        x, y - RISE * size, text, fontsize=size, color=colour, ha="center", va="baseline", zorder=4,
        parse_math=False, usetex=False,
    )  # fmt: skip


def box(ax: Axes, x: float, y: float, width: float, height: float, colour: str) -> None:
    """A rectangle around a point, its corners round."""
    style = f"round,pad=0,rounding_size={min(4.0, height / 2)}"
    corner = (x - width / 2, y - height / 2)
    ax.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, facecolor=colour, edgecolor="none", zorder=3))


def text_width(text: str, size: float) -> float:
    """The width of a text, and a little more: on a screen, letters are set on whole pixels."""
    return 1.06 * text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]


def visible(text: str) -> str:
    r"""On one line, every character visible.

    >>> print(visible("a\tb"))
    a\tb
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
