"""What an experiment measures: rows of plain values, read from and written to CSV files."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from tailsum.apps.files import whole


@dataclass(frozen=True)
class Estimate:
    """One replicate of an estimator: how far it is from the exact value, in nats, and what it cost."""

    model: str  # such as "chain, dense", "hypertree, long-tail", "s=3 e=1", "trained CRF"
    states: int  # N
    quantity: str  # "log Z" or "entropy"
    method: str  # "TopK", "paper", "tailsum", or a proposal's name
    label: str  # the share of the states as the paper labels it: "1%", "20%", or "K=500" where it used another
    kept: int  # K
    replicate: int
    estimate: float
    exact: float
    seconds: float
    peak_bytes: int  # of one sketch and its answers, beyond what the model itself holds

    @property
    def error(self) -> float:
        """Estimate less exact value, in nats."""
        return self.estimate - self.exact


@dataclass(frozen=True)
class Direction:
    """One replicate of a sketched gradient, against the exact one, in one parameter ("all" of them: as one vector)."""

    model: str
    states: int
    method: str
    label: str
    kept: int
    replicate: int
    quantity: str  # what is differentiated: "log Z" or "entropy"
    parameter: str
    cosine: float
    relative_error: float  # size of the difference over the size of the exact gradient


@dataclass(frozen=True)
class Check:
    """A statement of the theory, predicted and measured."""

    statement: str  # such as "unbiased", "lower bound", "tail variance", "1/K2"
    setting: str
    at: float  # where on the statement's axis, such as K2
    predicted: float
    measured: float
    standard_error: float


Row = TypeVar("Row", Estimate, Direction, Check)


def write_rows(path: Path, rows: Iterable[Row], kind: type[Row]) -> None:
    """Write a CSV file, whole or not at all."""
    with whole(path) as file:
        writer = csv.DictWriter(file, [f.name for f in fields(kind)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a CSV file, or a ValueError that says what is wrong with it."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        names: Sequence[str] = reader.fieldnames or ()
        wanted: dict[str, Any] = {f.name: f.type for f in fields(kind)}
        if list(names) != list(wanted):
            raise ValueError(f"{path} must have the columns {', '.join(wanted)}: got {', '.join(names) or 'none'}")
        try:
            return [kind(**{name: wanted[name](value) for name, value in line.items()}) for line in reader]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
