"""What the page is made from, and the curves within it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tailsum_studies.report.page import words
from tailsum_studies.text import Vocabulary
from tailsum_studies.vae.generate import Generated
from tailsum_studies.vae.occurrences import Occurrences
from tailsum_studies.vae.settings import Settings

PARTS = ["words", "states", "entropy"]
WORDS = words("vae")
Losses = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Findings:
    """Everything that the page shows; `examples` are occurrences of each state, `evaluation` may lack anything."""

    settings: Settings
    vocabulary: Vocabulary
    occurrences: Occurrences
    examples: Sequence[Sequence[int]]
    samples: Sequence[Generated]
    losses: Losses
    evaluation: Mapping[str, Any]


def curve(losses: Losses, part: str) -> pd.Series:
    """The negative log-likelihood of "train" or "dev", in nats per word, by the step of the training."""
    return _finite(losses, part, ["nll"]).nll


def bound(losses: Losses) -> pd.DataFrame:
    """The parts of the training sentences' bound, in nats per word, by the step of the training.

    The rows have them per sentence, in batches of equally long sentences, where they would go up and down with the
    length; what one has to do with the other is known from the whole, which the rows have both ways.
    """
    rows = _finite(losses, "train", [*PARTS, "nll"])
    words = -rows[PARTS].sum(axis=1) / rows.nll
    known = words.between(0, math.inf, inclusive="neither")
    return rows.loc[known, PARTS].div(words[known], axis=0)


def _finite(losses: Losses, part: str, columns: Sequence[str]) -> pd.DataFrame:
    """Columns of the rows of a part, by step; without those where a number is missing, was cut off or is not finite."""
    rows = pd.DataFrame([row for row in losses if row["part"] == part], columns=["step", *columns])
    numbers = rows.apply(pd.to_numeric, errors="coerce").astype(float).replace([math.inf, -math.inf], math.nan)
    return numbers.dropna().astype({"step": int}).set_index("step")


def at(found: Any, *keys: str) -> float | None:
    """A number of the evaluation, under these keys one within the other; None if it is missing or not finite.

    >>> at({"dev": {"per_word": 3.5}}, "dev", "per_word"), at({"dev": None}, "dev", "per_word")
    (3.5, None)
    """
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    is_number = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
    return float(found) if is_number else None
