"""The words below a picture, in columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from tailsum.plot.canvas import Canvas, size_of
from tailsum.plot.lettering import text_width, visible
from tailsum.plot.style import INK, MARGIN, QUIET, SMALL, WORD


@dataclass(frozen=True)
class Words:
    """The words of a sentence, or the numbers of its positions; turned by a right angle where they are too long."""

    texts: list[str]
    numbered: bool
    turned: bool = False

    @classmethod
    def of(cls, words: Sequence[str] | None, n: int) -> "Words":
        if words is None:
            return cls([str(place) for place in range(n)], numbered=True)
        if len(words) != n:
            raise ValueError(f"words must be as many as there are positions, {n}: got {len(words)}")
        return cls([visible(word) for word in words], numbered=False)

    @property
    def size(self) -> float:
        return SMALL if self.numbered else WORD

    @property
    def colour(self) -> str:
        return QUIET if self.numbered else INK

    @property
    def height(self) -> float:
        return max(text_width(text, self.size) for text in self.texts) if self.turned else self.size + 3.0

    def columns(self, least: Sequence[float]) -> list[float]:
        """The width of each column, at least as given."""
        if self.turned:
            return [max(self.size + 4.0, width) for width in least]
        return [max(text_width(text, self.size) + 9.0, width) for text, width in zip(self.texts, least, strict=True)]

    def fitted(self, least: Sequence[float], total: Callable[[list[float]], float], ax: Axes | None) -> "Words":
        """These words, turned if they are much too wide otherwise; `total` is the width that columns take up."""
        turned = replace(self, turned=True)
        wide, narrow = total(self.columns(least)), total(turned.columns(least))
        return turned if wide > (1080.0 if ax is None else 1.4 * size_of(ax)[0]) and narrow < 0.8 * wide else self

    def write(self, canvas: Canvas, place: int, x: float, top: float) -> None:
        """Write one word, below `top`."""
        if self.turned:
            canvas.write_down(x, top, self.texts[place], self.size, self.colour)
        else:
            canvas.write(x, top - self.size / 2, self.texts[place], self.size, self.colour)


def middles(columns: Sequence[float], gaps: Sequence[float] | None = None) -> tuple[list[float], float]:
    """The middles of columns side by side, with a gap after each, and the total width."""
    centres, x = [], MARGIN
    for width, gap in zip(columns, gaps or [0.0] * len(columns), strict=True):
        centres.append(x + width / 2)
        x += width + gap
    return centres, x + MARGIN
