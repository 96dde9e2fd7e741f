"""Table 5 and Figure 2 in the report: likelihoods and costs, differences seed by seed, and how often states occur."""

import math
from collections.abc import Iterator

import pandas as pd

from tailsum_studies.paper.vae.design import PAIRS, PRINTED
from tailsum_studies.report.page import words
from tailsum_studies.report.table import Table, groups
from tailsum_studies.report.wording import NOTHING, fixed, number, percent

WORDS = words("paper")
_MIB = 2**20


def table5(name: str, rows: pd.DataFrame) -> Iterator[Table]:
    """For each encoder and number of states: every row's likelihood and cost, and the differences of rows."""
    for (scale, encoder, states), group in groups(rows, "scale", "encoder", "states"):
        what = (
            f"N = {states:,}, {scale} scale ({group.steps.iloc[0]:,} steps of {group.batch.iloc[0]}), encoder {encoder}"
        )
        key = f"{name}-{scale}-{encoder}-{states}".lower()
        lines = {row: _line(row, states, found) for row, found in groups(group, "row")}
        frame = pd.DataFrame(lines).T.rename_axis("Row")
        yield Table.filled(
            key, f"{what}: negative log-likelihood, nats a sentence", frame, notes=[WORDS["notes"]["seeds"]]
        )
        if found := list(differences(group)):
            frame = pd.DataFrame(found, columns=["First less second", "Dev", "Test", "Seeds"]).set_index(
                "First less second"
            )
            yield Table(f"{key}-differences", f"{what}: paired differences", frame, notes=[WORDS["notes"]["paired"]])


def _line(row: str, states: int, found: pd.DataFrame) -> dict[str, str]:
    """One row of Table 5, over its seeds."""
    printed = PRINTED.get((row, states))
    kept, drawn = int(found.kept.iloc[0]), int(found.drawn.iloc[0])
    return {
        "Kept + drawn": f"{kept - drawn:,} + {drawn:,}" if drawn else f"{kept:,}",
        "Dropout": f"{found.dropout.iloc[0]:g}",
        "Paper: dev / test": NOTHING if printed is None else f"{printed[0]} / {printed[1]}",
        "Dev": mean_and_deviation(found.dev),
        "Test": mean_and_deviation(found.test),
        "KL": fixed(found.kl.mean(), 1),
        "I(state; word)": fixed(found.told.mean(), 2),
        "States in use": percent(found.used.mean() / states),
        "Seconds a step": number(found.seconds.mean(), 2),
        "MiB a step": f"{found.peak_bytes.mean() / _MIB:,.0f}",
    }


def mean_and_deviation(values: pd.Series) -> str:
    """A mean and the standard deviation over seeds.

    >>> mean_and_deviation(pd.Series([1.0, 2.0, 3.0])), mean_and_deviation(pd.Series([1.0]))
    ('2.00 ± 1.00', '1.00')
    """
    return fixed(values.mean(), 2) + (f" ± {values.std():.2f}" if len(values) > 1 else "")


def differences(group: pd.DataFrame) -> Iterator[tuple[str, str, str, str]]:
    """Means, over the seeds that two rows have in common, of their differences, with standard errors."""
    by_row = {row: found.set_index("seed") for row, found in groups(group, "row")}
    for first, second in PAIRS:
        if first in by_row and second in by_row:
            change = (by_row[first][["dev", "test"]] - by_row[second][["dev", "test"]]).dropna()
            if len(change):
                dev, test = (_mean_and_error(change[part]) for part in ("dev", "test"))
                yield f"{first} - {second}", dev, test, str(len(change))


def _mean_and_error(values: pd.Series) -> str:
    error = values.std() / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{values.mean():+.3f}" + (f" ± {error:.3f}" if math.isfinite(error) else "")


def figure2(name: str, rows: pd.DataFrame) -> Iterator[Table]:
    """How many states are in use, and how many make up half of all words, by split and seed."""
    for (scale, states), group in groups(rows, "scale", "states"):
        lines = {
            row: {f"Seed {seed}": _in_use(each.share) for seed, each in groups(found, "seed")}
            for row, found in groups(group, "row")
        }
        frame = pd.DataFrame(lines).T.rename_axis("Best + drawn")
        caption = f"N = {states:,}, {scale} scale: states in use (states that have half of all words)"
        yield Table.filled(figure_key(name, scale, states), caption, frame)


def _in_use(share: pd.Series) -> str:
    half = int((share.sort_values(ascending=False).cumsum() < 0.5).sum()) + 1
    return f"{int((share > 0).sum()):,} ({half:,})"


def figure_key(name: str, scale: str, states: int) -> str:
    """The name of a table of Figure 2 and of its picture."""
    return f"{name}-{scale}-{states}"
