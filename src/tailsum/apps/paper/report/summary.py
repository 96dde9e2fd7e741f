"""Replicates brought together: one summary for each model, quantity, method and number of states kept."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tailsum.apps.paper.rows import Direction, Estimate

Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Summary:
    """What the replicates of one estimator add up to. Errors are in nats, in the order of the replicates."""

    model: str
    states: int
    quantity: str
    method: str
    label: str
    kept: int
    errors: tuple[float, ...]
    seconds: float  # median
    peak_bytes: int  # largest

    @property
    def mse(self) -> float:
        """Mean square error."""
        return mean([error * error for error in self.errors])

    @property
    def rmse(self) -> float:
        """Its root."""
        return math.sqrt(self.mse)

    @property
    def bias(self) -> float:
        """Mean error."""
        return mean(self.errors)

    @property
    def variance(self) -> float | None:
        """About the mean, so that squared bias and variance add up to the MSE; one draw says nothing of it."""
        if len(self.errors) == 1:
            return 0.0 if self.method == "TopK" else None  # TopK draws nothing
        bias = self.bias
        return mean([(error - bias) * (error - bias) for error in self.errors])

    @property
    def mse_spread(self) -> float | None:
        """Standard error of the MSE."""
        return standard_error([error * error for error in self.errors])

    @property
    def bias_spread(self) -> float | None:
        """Standard error of the bias."""
        return standard_error(self.errors)


@dataclass(frozen=True)
class DirectionSummary:
    """Replicates of one gradient in one parameter."""

    model: str
    states: int
    quantity: str
    parameter: str
    method: str
    label: str
    kept: int
    off: float  # mean of 1 - cosine
    relative_error: float  # mean


def mean(values: Sequence[float]) -> float:
    """The mean, to full precision; infinite or undefined where a value is."""
    try:
        return math.fsum(values) / len(values)
    except (OverflowError, ValueError):  # beyond all floats, or infinities of both signs
        return sum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of these; None for one value."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(mean([(value - centre) * (value - centre) for value in values]) / (len(values) - 1))


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items with the same key together, keys in the order in which they first come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def summarise(rows: Sequence[Estimate]) -> list[Summary]:
    """One summary for each estimator, by number of states, then in the order of the rows, then by states kept."""
    groups = grouped(rows, lambda row: (row.model, row.states, row.quantity, row.method, row.label, row.kept))
    order = {model: place for place, model in enumerate(dict.fromkeys(row.model for row in rows))}
    found = [
        Summary(
            *key,
            errors=tuple(row.error for row in group),
            seconds=statistics.median(row.seconds for row in group),
            peak_bytes=max(row.peak_bytes for row in group),
        )
        for key, group in groups.items()
    ]
    return sorted(found, key=lambda each: (each.states, order[each.model], each.kept, each.label))


def summarise_directions(rows: Sequence[Direction]) -> list[DirectionSummary]:
    """One summary for each estimator and parameter, ordered alike."""
    groups = grouped(
        rows, lambda row: (row.model, row.states, row.quantity, row.parameter, row.method, row.label, row.kept)
    )
    order = {model: place for place, model in enumerate(dict.fromkeys(row.model for row in rows))}
    found = [
        DirectionSummary(
            *key,
            off=max(mean([1 - row.cosine for row in group]), 0.0),  # rounding takes it below
            relative_error=mean([row.relative_error for row in group]),
        )
        for key, group in groups.items()
    ]
    return sorted(found, key=lambda each: (each.states, order[each.model], each.kept, each.label))
