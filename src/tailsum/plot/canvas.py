"""Axes in points, with functions that draw texts, boxes and lines on them."""

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path
from matplotlib.patheffects import Normal, Stroke

from tailsum.plot.lettering import pill_width
from tailsum.plot.style import INK, LINE, NAME, PILL, state_colour

RISE = 0.36  # from the baseline to the middle of a capital, at font size 1
TIP = 5.0  # the length of an arrow's head


def new_figure(width: float, height: float) -> Figure:
    """A figure that is not registered with Pyplot."""
    figure = Figure(figsize=(width / 72, height / 72))
    figure.set_layout_engine("none")
    return figure


def size_of(ax: Axes) -> tuple[float, float]:
    """The width and the height of axes, in points."""
    box = ax.get_window_extent()
    return float(box.width * 72 / ax.figure.dpi), float(box.height * 72 / ax.figure.dpi)


@dataclass(frozen=True)
class Canvas:
    """Axes in points; lines and letters shrink where there is too little room."""

    ax: Axes
    scale: float

    @classmethod
    def on(cls, ax: Axes | None, width: float, height: float) -> "Canvas":
        """A picture of this size in the middle of the axes, or on a new figure."""
        if ax is None:
            ax = new_figure(width, height).add_axes((0, 0, 1, 1))
        wide, high = size_of(ax)
        scale = min(1.0, wide / width, high / height)
        ax.set_xlim((width - wide / scale) / 2, (width + wide / scale) / 2)
        ax.set_ylim((height - high / scale) / 2, (height + high / scale) / 2)
        ax.set_axis_off()
        return cls(ax, scale)

    def write(self, x: float, y: float, text: str, size: float, colour: str, *, backed: bool = False) -> None:
        """Text centred on a point, by the height of capitals."""
        back = {"facecolor": "white", "edgecolor": "none", "boxstyle": "square,pad=0.18"} if backed else None
        self._text(x, y - RISE * size, text, size, color=colour, ha="center", bbox=back)

    def write_down(self, x: float, top: float, text: str, size: float, colour: str) -> None:
        """Text turned by a right angle, with its end at the top."""
        turn = {"rotation": 90, "rotation_mode": "anchor"}
        self._text(x + RISE * size, top, text, size, color=colour, ha="right", **turn)

    def _text(self, x: float, y: float, text: str, size: float, **options: Any) -> None:
        if text:
            plain = {"va": "baseline", "zorder": 4, "parse_math": False, "usetex": False}
            self.ax.text(x, y, text, fontsize=size * self.scale, **plain, **options)

    def pill(self, x: float, y: float, state: int, title: str, *, filled: bool = True) -> None:
        """The name of a state on its colour, or outlined in it; nothing for a state without a name."""
        if title:
            self.box(x, y, pill_width(title), PILL, state_colour(state), filled=filled)
            self.write(x, y, title, NAME, INK)

    def box(self, x: float, y: float, width: float, height: float, colour: str, *, filled: bool = True) -> None:
        """A rectangle around a point, with round corners."""
        line = 0.0 if filled else 1.6
        style = f"round,pad=0,rounding_size={min(4.0, height / 2) - line / 2}"
        corner, size = (x - (width - line) / 2, y - (height - line) / 2), (width - line, height - line)
        face, edge = (colour, "none") if filled else ("white", colour)
        self.ax.add_patch(
            FancyBboxPatch(
                corner, *size, boxstyle=style, facecolor=face, edgecolor=edge, linewidth=line * self.scale, zorder=3
            )
        )

    def line(self, path: Path, colour: str = LINE, *, halo: bool = False) -> None:
        """A line; where lines cross, a halo shows which is above the others."""
        patch = PathPatch(path, fill=False, edgecolor=colour, linewidth=1.2 * self.scale, zorder=2, capstyle="butt")
        if halo:
            patch.set_path_effects([Stroke(linewidth=4.0 * self.scale, foreground="white"), Normal()])
        self.ax.add_patch(patch)

    def arrow(self, x: float, y: float, colour: str) -> None:
        """The head of an arrow that points down at (x, y)."""
        corners = [(x, y), (x - 2.9, y + TIP + 1.0), (x + 2.9, y + TIP + 1.0)]
        self.ax.add_patch(Polygon(corners, facecolor=colour, edgecolor="none", zorder=2.5))
