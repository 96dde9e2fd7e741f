"""What a benchmark measures: rows of plain values in one CSV file, written after every cell. Torch alone is needed."""

import csv
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from tailsum_studies.files import whole

CHAIN = "chain"  # the subject of the sweeps over N, T, B and K
OURS = "tailsum"
MEASURED, SKIPPED, FAILED, WRONG = "measured", "skipped", "failed", "wrong"
FORWARD, BOTH, CHOOSE, TOGETHER, BEST = "forward", "forward + backward", "choose", "together", "argmax"


class Sizes(NamedTuple):
    """States N, length T, batch B, and states kept K; K = 0 is the exact sum."""

    states: int
    length: int
    batch: int
    kept: int = 0

    def __str__(self) -> str:
        kept = f" K={self.kept:,}" if self.kept else ""
        return f"N={self.states:,} T={self.length:,} B={self.batch:,}{kept}"


@dataclass(frozen=True)
class Row:
    """One operation of one library at one size. Where it was skipped, the seconds are what was predicted."""

    subject: str  # CHAIN, or a comparison with other libraries, such as "span tree"
    library: str  # OURS or a peer
    states: int
    length: int
    batch: int
    kept: int
    operation: str
    status: str
    seconds: float = math.nan  # the median
    fastest: float = math.nan
    peak_bytes: int = 0  # beyond what the inputs hold; 0 where it is not known
    repeats: int = 0
    error: float = math.nan  # in nats, against the reference
    tolerance: float = math.nan
    reference: str = ""  # what the result was checked against
    note: str = ""  # why it was skipped or failed

    @property
    def sizes(self) -> Sizes:
        """N, T, B and K."""
        return Sizes(self.states, self.length, self.batch, self.kept)

    @property
    def key(self) -> tuple[str, str, Sizes, str]:
        """What tells it from all other rows."""
        return self.subject, self.library, self.sizes, self.operation

    @property
    def is_measured(self) -> bool:
        """Whether its time counts: its result passed the check."""
        return self.status == MEASURED


class Results:
    """The rows of a run, by their keys, and the file that has them."""

    def __init__(self, path: Path, rows: Iterable[Row] = ()) -> None:
        self.path = path
        self.rows = {row.key: row for row in rows}

    def add(self, rows: Iterable[Row]) -> None:
        """Keep new rows, and write the file, whole or not at all."""
        self.rows |= {row.key: row for row in rows}
        names = [field.name for field in fields(Row)]
        with whole(self.path) as file:
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(row) for row in self.rows.values())

    def get(
        self, sizes: Sizes, operation: str, subject: str = CHAIN, library: str = OURS, *, measured: bool = True
    ) -> Row | None:
        """The row of these sizes, if there is one and its time counts (`measured`) or whatever its status is."""
        row = self.rows.get((subject, library, sizes, operation))
        return row if row is not None and (row.is_measured or not measured) else None

    def finished(self, subject: str, library: str, sizes: Sizes) -> bool:
        """Whether a cell was measured before, or found to be wrong. What was skipped or failed is tried again."""
        found = [row for (s, lib, at, _), row in self.rows.items() if (s, lib, at) == (subject, library, sizes)]
        return bool(found) and all(row.status in {MEASURED, WRONG} for row in found)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, or a ValueError that says what is wrong with it."""
    kinds: dict[str, Any] = {field.name: field.type for field in fields(Row)}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            return [Row(**{name: kinds[name](value) for name, value in line.items()}) for line in reader]
    except FileNotFoundError:
        raise ValueError(f"{path.parent} has no results: {path.name} is missing") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a file of `tailsum bench` ({error}): delete it, or name another folder"
        ) from None
