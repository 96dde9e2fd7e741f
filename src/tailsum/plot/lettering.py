"""Texts as they are drawn, and their widths."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from tailsum.plot.style import NAME

Names: TypeAlias = Sequence[str] | Callable[[int], str]

LONGEST = 32  # characters of a word or a name


def visible(text: str) -> str:
    """The text on one line, not too long, with every character visible."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def named(argument: str, names: Names | None, numbers: Sequence[int]) -> list[str]:
    """The name of each number; nothing for -1."""
    if isinstance(names, Sequence):
        if (largest := max(numbers)) >= len(names):
            raise ValueError(f"{argument} must have a name for {largest}, which occurs: got {len(names)} names")
        names = names.__getitem__
    name = names or str
    return ["" if number < 0 else visible(name(number)) for number in numbers]


def text_width(text: str, size: float) -> float:
    """The width of a text, plus a margin: on a screen, letters are set on whole pixels."""
    return 1.06 * text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]


def pill_width(title: str) -> float:
    """The width of a state's name with its background."""
    return max(22.0, text_width(title, NAME) + 12.0) if title else 0.0
