"""Which tables of pair scores the library keeps, and which it streams: forecasts of memory depend on it."""

LARGEST = 4 << 30  # bytes, the default of `tailsum.table_budget`


def is_kept(size: int) -> bool:
    """Whether a table of so many bytes is built whole."""
    return size <= LARGEST
