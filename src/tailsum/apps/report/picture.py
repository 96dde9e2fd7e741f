"""Pictures for pages: how they all look, and how they are saved."""

import warnings
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from tailsum.plot.style import INK, QUIET

WIDTH = 9.0  # inches
DPI = 150
SHARP = 1.5  # pixels of a picture for each of the page
GRID = "#E3E6EA"
LOOK = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.08,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
}


@dataclass(frozen=True)
class Picture:
    """A plot, the section or table of the page that it belongs to, and what is said of it."""

    name: str
    section: str
    caption: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Shot:
    """A picture that was saved, as pages show it."""

    section: str
    caption: str
    base64: str
    width: int
    height: int


def save(picture: Picture, folder: Path) -> Shot:
    """Draw it as a PNG file that depends on nothing but what it shows."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{picture.name}.png"
    with style.context(["default", LOOK]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # words may be in any script
        picture.draw().savefig(path, dpi=DPI, format="png", metadata={"Software": None})
    content = path.read_bytes()
    width, height = (
        round(int.from_bytes(content[at : at + 4], "big") / SHARP) for at in (16, 20)
    )  # from the file's head
    return Shot(picture.section, picture.caption, b64encode(content).decode("ascii"), width, height)
