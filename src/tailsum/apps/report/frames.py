"""What is asked of data frames again and again."""

from collections.abc import Iterator
from typing import Any

import pandas as pd


def groups(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Rows that agree in some columns, and what they agree in: a value, or a tuple of them, in the order of the rows."""
    return iter(frame.groupby(columns[0] if len(columns) == 1 else list(columns), sort=False))


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows, with an attribute for each column."""
    return frame.itertuples(index=False)
