"""What the page is made from, and the curves within it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tailsum.apps.text import Vocabulary
from tailsum.apps.vae.explore import Occurrences
from tailsum.apps.vae.generate import Generated
from tailsum.apps.vae.settings import Settings

PARTS: Sequence[str] = ("words", "states", "entropy")


@dataclass(frozen=True)
class Findings:
    """Everything that the page shows; `examples` are occurrences of each state, `evaluation` may lack anything."""

    settings: Settings
    vocabulary: Vocabulary
    occurrences: Occurrences
    examples: Sequence[Sequence[int]]
    samples: Sequence[Generated]
    losses: Sequence[Mapping[str, str]]
    evaluation: Mapping[str, Any]


class Curve(NamedTuple):
    """Values at some steps of the training."""

    steps: list[int]
    values: list[float]


def curve(losses: Sequence[Mapping[str, str]], part: str) -> Curve:
    """The negative log-likelihood of "train" or "dev", in nats per word."""
    rows = [(int(row["step"]), _number(row["nll"])) for row in losses if row["part"] == part]
    return _curve(rows)


def bound(losses: Sequence[Mapping[str, str]]) -> dict[str, Curve]:
    """The parts of the training sentences' bound, in nats per word.

    The rows have them per sentence, in batches of equally long sentences, where they would go up and down with the
    length; what one has to do with the other is known from the whole, which the rows have both ways.
    """
    found: dict[str, list[tuple[int, float | None]]] = {part: [] for part in PARTS}
    for row in losses:
        values = [_number(row[part]) for part in PARTS]
        nll = _number(row["nll"])
        if row["part"] == "train" and nll is not None and None not in values:
            parts = [value for value in values if value is not None]
            words = -sum(parts) / nll if nll else 0.0
            for part, value in zip(PARTS, parts, strict=True):
                found[part].append((int(row["step"]), value / words if words > 0 else None))
    return {part: _curve(rows) for part, rows in found.items()}


def _curve(rows: Sequence[tuple[int, float | None]]) -> Curve:
    kept = [(step, value) for step, value in rows if value is not None]
    return Curve([step for step, _ in kept], [value for _, value in kept])


def _number(text: str) -> float | None:
    """A finite number, or None: a row may have none, or may have been cut off."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def at(found: Any, *keys: str) -> float | None:
    """A number of the evaluation, under these keys one within the other; None if it is missing or not finite.

    >>> at({"dev": {"per_word": 3.5}}, "dev", "per_word"), at({"dev": None}, "dev", "per_word")
    (3.5, None)
    """
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    is_number = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
    return float(found) if is_number else None
