"""Tables of text, which Markdown and HTML are written from, and what is asked of data frames again and again."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tailsum_studies.report.wording import NOTHING

Row = tuple[tuple[str, ...], tuple[str, ...]]  # its names and its other cells


@dataclass(frozen=True)
class Table:
    """Text under a caption. The index has the names of the rows; columns and rows that are `ours` are marked."""

    key: str  # names it among the tables of a report
    caption: str
    frame: pd.DataFrame
    ours: Collection[str] = ()
    notes: Sequence[str] = ()

    @classmethod
    def filled(
        cls, key: str, caption: str, frame: pd.DataFrame, ours: Collection[str] = (), notes: Sequence[str] = ()
    ) -> "Table":
        """A table without the columns that say nothing."""
        frame = frame.fillna(NOTHING)
        return cls(key, caption, pd.DataFrame(frame.loc[:, (frame != NOTHING).any()]), ours, notes)

    def rows(self) -> list[Row]:
        """The rows, in order."""
        depth = self.frame.index.nlevels
        return [(row[:depth], row[depth:]) for row in self.frame.reset_index().itertuples(index=False, name=None)]

    def bodies(self) -> list[list[Row]]:
        """The rows; where two columns name them, those that share the first name are together."""
        if self.frame.index.nlevels == 1:
            return [self.rows()]
        return [Table(self.key, "", group).rows() for _, group in self.frame.groupby(level=0, sort=False)]


def groups(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Rows that agree in some columns, and what they agree in: a value, or a tuple of them, in the order of the rows."""
    return iter(frame.groupby(columns[0] if len(columns) == 1 else list(columns), sort=False))


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows, with an attribute for each column."""
    return frame.itertuples(index=False)


@dataclass(frozen=True)
class Section:
    """A heading of a page, a sentence or two, and the tables below them."""

    name: str
    title: str
    words: str
    tables: list[Table]
