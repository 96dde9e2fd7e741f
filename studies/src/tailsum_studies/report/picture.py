"""Pictures for pages: how they all look, and how they are saved."""

import contextlib
import io
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure
from PIL import Image

from tailsum_studies.report.style import INK, QUIET

WIDTH = 9.0  # inches
PHONE = 4.4  # inches: as wide as letters of this size allow on a small screen
DPI = 150
SHARP = 1.5  # pixels of a picture for each of the page
COLOURS = 64  # in a picture: more are not told apart, and take three times the bytes
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
_width: ContextVar[float] = ContextVar("width", default=WIDTH)


def page_width() -> float:
    """The width, in inches, of the page that is drawn for: WIDTH, or PHONE for small screens."""
    return _width.get()


def is_narrow() -> bool:
    """Whether a picture is drawn for small screens: panels stand one below the other, and legends have few columns."""
    return page_width() < WIDTH


@contextlib.contextmanager
def drawn_for(width: float) -> Iterator[None]:
    """Within it, pictures are drawn for pages of this width."""
    token = _width.set(width)
    try:
        yield
    finally:
        _width.reset(token)


@dataclass(frozen=True)
class Picture:
    """A plot, the section or table of the page that it belongs to, and what is said of it.

    `draw` is called twice: for a wide page and, where its figure is wider than a small screen, for that (`is_narrow`).
    """

    name: str
    section: str
    caption: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Source:
    """A picture's file as a page shows it: where it is, or all of it, and its size on the page."""

    url: str
    width: int
    height: int


@dataclass(frozen=True)
class Shot:
    """A picture that was saved, as pages show it: `narrow` is for small screens, where there is one."""

    section: str
    caption: str
    wide: Source
    narrow: Source | None

    @property
    def is_wide(self) -> bool:
        """Whether small screens have nothing but a picture that is too wide for them."""
        return self.narrow is None and self.wide.width > PHONE * DPI / SHARP


def save(picture: Picture, folder: Path, *, embed: bool = True) -> Shot:
    """Draw it as PNG files that depend on nothing but what they show: the page has them within, or links to them.

    A page that has its pictures within can be sent as one file; a long report is half the size without.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with style.context(["default", LOOK]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # words may be in any script
        figure = picture.draw()
        wide, narrow = _source(figure, folder / f"{picture.name}.png", embed), None
        if figure.get_figwidth() > PHONE:
            with drawn_for(PHONE):
                figure = picture.draw()
            if figure.get_figwidth() <= PHONE:
                narrow = _source(figure, folder / f"{picture.name}-narrow.png", embed)
    return Shot(picture.section, picture.caption, wide, narrow)


def _source(figure: Figure, path: Path, embed: bool) -> Source:
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI, format="png", pil_kwargs={"compress_level": 1})
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    width, height = (round(size / SHARP) for size in few.size)
    within = f"data:image/png;base64,{b64encode(path.read_bytes()).decode('ascii')}" if embed else ""
    return Source(within or f"{path.parent.name}/{path.name}", width, height)
