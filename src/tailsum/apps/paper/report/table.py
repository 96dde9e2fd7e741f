"""A table of text, which Markdown and HTML are written from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tailsum.apps.paper.report.wording import NOTHING

Line = TypeVar("Line")


@dataclass(frozen=True)
class Column(Generic[Line]):
    """A column: what it says of each line."""

    header: str
    cell: Callable[[Line], str]
    names_lines: bool = False
    ours: bool = False


@dataclass(frozen=True)
class Table:
    """Headers and rows of text. The first columns name the rows; some others are ours."""

    key: str  # names it among the tables of a report
    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1  # how many columns name the row
    ours: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def make_table(
    key: str, caption: str, columns: Sequence[Column[Line]], lines: Sequence[Line], notes: Sequence[str] = ()
) -> Table:
    """A table of these columns; those that say nothing are left out."""
    filled = [(column, [column.cell(line) for line in lines]) for column in columns]
    kept = [(c, cells) for c, cells in filled if c.names_lines or any(cell != NOTHING for cell in cells)]
    return Table(
        key,
        caption,
        headers=tuple(column.header for column, _ in kept),
        rows=tuple(zip(*(cells for _, cells in kept), strict=True)),
        names=sum(column.names_lines for column, _ in kept),
        ours=tuple(place for place, (column, _) in enumerate(kept) if column.ours),
        notes=tuple(notes),
    )


def to_markdown(table: Table) -> str:
    """The table with its caption and notes, numbers to the right."""
    rules = [":--" if place < table.names else "--:" for place in range(len(table.headers))]
    lines = [_markdown_line(row) for row in (table.headers, tuple(rules), *table.rows)]
    notes = [f"\n{_markdown_text(note)}" for note in table.notes]
    return "\n".join([f"**{_markdown_text(table.caption)}**", "", *lines, *notes]) + "\n"


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_markdown_text(cell) for cell in cells)} |"


def _markdown_text(text: str) -> str:
    """Without what Markdown would read as its own: bars, tags, emphasis and links."""
    text = " ".join(text.split())
    for mark in "\\|<>*_`[]":
        text = text.replace(mark, f"\\{mark}")
    return text
