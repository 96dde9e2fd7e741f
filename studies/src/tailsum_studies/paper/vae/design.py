"""What is trained for Table 5 and Figure 2: rows, seeds and scales, without torch, which is slow to load.

A row is a way to sum over the states. All rows of a scale have the same text, the same start, as many steps and the same
settings, but for what a row is about; and, at full scale, the dropout that did best on the dev part with the first seed.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from tailsum_studies.vae.settings import Method, Settings

Scale = Literal["small", "medium", "full"]
OURS, SKETCHED, EXPECTED = "ours, exact", "ours, sketched", "Full + expected log p(state)"
PROBES = 4
PROBED, PROBED_SKETCH = f"ours, exact, {PROBES} probes", f"ours, sketched, {PROBES} probes"
# What the paper prints: NLL of the dev and the test part.
PRINTED = {
    ("Full", 100): (39.64, 39.71),
    ("TopK", 100): (39.71, 39.76),
    ("RDP", 100): (39.59, 39.59),
    ("TopK", 2000): (39.81, 39.84),
    ("RDP", 2000): (39.47, 39.48),
}
# Differences that are shown, seed by seed: the first less the second.
PAIRS = (
    (SKETCHED, OURS),
    (OURS, "TopK"),
    (SKETCHED, "TopK"),
    (OURS, "RDP"),
    (SKETCHED, "RDP"),
    ("RDP", "TopK"),
    ("TopK", "Full"),
    (EXPECTED, "Full"),
    (OURS, EXPECTED),
    (OURS, "Full"),
    (PROBED_SKETCH, PROBED),
    (PROBED, OURS),
    (PROBED, "TopK"),
    (PROBED_SKETCH, "TopK"),
    (PROBED, "RDP"),
    (PROBED_SKETCH, "RDP"),
)


class Way(NamedTuple):
    """One way to sum over N states: an estimator, and of N how many states it keeps and draws."""

    name: str
    estimator: Method
    kept: int | None = None
    drawn: int | None = None
    probes: int = 1

    @property
    def top(self) -> int:
        """How many of the kept states are the best ones."""
        return (self.kept or 0) - (self.drawn or 0)


@dataclass(frozen=True)
class Size:
    """How long and how large the training of a scale is, and how much text its results are measured on."""

    common: dict[str, Any]
    samples: int
    sentences: int  # of the dev and of the test part, at most
    occurrences: int  # sentences that states are counted in, at most
    dropout: dict[str, float] = field(default_factory=dict)  # of a row, where it is not that of all


# What one core of a CPU does with 2,000 states in some minutes a run. States start at random: with the whole weight on the
# KL divergence, TopK did worse from classes of words (one trial, 100 steps).
SMALL = {
    "steps": 150,
    "check_every": 50,
    "check_sentences": 200,
    "batch": 16,
    "rate": 8e-3,
    "longest": 24,
    "dropout": 0.2,
    "kl_weight": 1.0,
    "certainty": 0.0,
}
SIZES: dict[Scale, Size] = {
    "small": Size(SMALL, samples=20, sentences=500, occurrences=2000),
    # As many captions as two thirds of the training part: the states begin to say something of the words.
    "medium": Size(
        {**SMALL, "steps": 1000, "check_every": 250, "rate": 5e-3}, samples=20, sentences=500, occurrences=2000
    ),
    # 20 passes over 25,000 captions, with a look at the dev part after each: for a GPU.
    "full": Size(
        {
            "steps": 1960,
            "check_every": 98,
            "batch": 256,
            "rate": 5e-3,
            "longest": 24,
            "dropout": 0.5,
            "kl_weight": 1.0,
            "state_size": 128,
        },
        samples=50,
        sentences=2500,
        occurrences=100_000,
        dropout={OURS: 0.4, SKETCHED: 0.4, PROBED: 0.4, PROBED_SKETCH: 0.4},
    ),
}


def table5_ways(states: int) -> list[Way]:
    """The rows of Table 5, those of the paper first: TopK keeps the best tenth, RDP as many, and draws as many."""
    tenth = max(2, states // 10)
    return [
        Way("Full", "full"),
        Way("TopK", "topk", tenth),
        Way("RDP", "rdp", 2 * tenth, tenth),
        Way(EXPECTED, "tailsum"),
        Way(OURS, "tailsum"),
        Way(SKETCHED, "tailsum", tenth),
        Way(PROBED, "tailsum", probes=PROBES),
        Way(PROBED_SKETCH, "tailsum", tenth, probes=PROBES),
    ]


def figure2_ways(states: int) -> list[Way]:
    """TopK, and RDP with as many states kept in all, of which a tenth, a half and nine tenths are drawn."""
    tenth = max(10, states // 10)
    drawn = [tenth // 10, tenth // 2, tenth - tenth // 10]
    return [Way("TopK", "topk", tenth), *(Way(f"RDP, {tenth - k} + {k}", "rdp", tenth, k) for k in drawn)]


@dataclass(frozen=True)
class Plan:
    """Where and how to train: everything that the rows have in common."""

    scale: Scale
    size: Size
    data: str | None = None
    encoder: str = "lstm"

    def settings(self, way: Way, states: int, seed: int) -> Settings:
        """The settings of one training run."""
        found = Settings(
            **{"data": self.data, "states": states, "seed": seed, "encoder": self.encoder, **self.size.common},
            estimator=way.estimator,
            kept=way.kept,
            drawn=way.drawn,
            probes=way.probes,
        )
        if way.estimator == "tailsum" and way.kept:  # no more landmarks than states that are kept
            found = replace(found, landmarks=max(1, min(128, found.kept or states)))
        return replace(found, dropout=self.size.dropout.get(way.name, found.dropout))

    def ways(self, wanted: list[Way], states: int) -> list[Way]:
        """Without those whose settings a later one has, as where all have the same dropout."""
        found = {self.settings(way, states, 0): way for way in wanted}
        return [way for way in wanted if found[self.settings(way, states, 0)] is way]
