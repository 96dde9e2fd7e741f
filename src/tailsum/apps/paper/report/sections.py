"""What each part of the report is called and what it says."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import pandas as pd

from tailsum.apps.paper.report import tables
from tailsum.apps.report.table import Table


@dataclass(frozen=True)
class Section:
    """A heading, a sentence or two, and the tables below them."""

    name: str
    title: str
    words: str
    tables: list[Table]


_TITLES = {
    "table2": "Table 2: log Z and entropy",
    "table3": "Table 3: bias and variance",
    "table4": "Table 4: proposals",
    "hard": "Harder chains",
    "text": "Trained models",
    "gradients": "Gradients",
    "theory": "Theory",
}
_WORDS = {
    "table2": (
        "Mean square errors over the replicates, with their standard errors: what the paper prints, the paper's method "
        "measured here on its recipe, and ours with as many states kept. TopK draws nothing, so one replicate tells all."
    ),
    "table3": (
        "The same errors taken apart: their mean, with its standard error, and their variance. The "
        "logarithm of an unbiased estimate of Z is too low in expectation, the less so the smaller its variance."
    ),
    "table4": (
        "The proposal says which states are kept and how likely the others are drawn: mean square errors of log Z with "
        "the paper's proposals, and with any others that were run."
    ),
    "hard": (
        "The paper's chains are short and nearly flat. These are longer and peaked: transition scores of standard "
        "deviation s and emission scores of standard deviation e, drawn at random. Seconds are the median of a replicate."
    ),
    "text": "Models that were trained, rather than drawn at random. Seconds are the median of a replicate.",
    "gradients": (
        "A sketched gradient against the exact one: how far it points away from it (1 - cosine), and the size of the "
        "difference over the size of the exact gradient."
    ),
    "theory": "What the theory says of the estimators, held against measurements.",
}


def sections(found: Mapping[str, pd.DataFrame]) -> list[Section]:
    """A section for each experiment that was run, from its summaries."""
    made: dict[str, Callable[[pd.DataFrame], Iterable[Table]]] = {
        "table2": tables.table2,
        "table3": tables.table3,
        "table4": tables.table4,
        "hard": partial(tables.suite, "hard"),
        "text": partial(tables.suite, "text"),
        "gradients": tables.gradients,
        "theory": tables.theory,
    }
    return [
        Section(name, _TITLES[name], _WORDS[name], list(make(found[name])))
        for name, make in made.items()
        if name in found
    ]
