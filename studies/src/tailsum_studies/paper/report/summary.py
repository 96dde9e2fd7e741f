"""Replicates brought together: one line for each model, quantity, method and number of states kept."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tailsum_studies.paper import published
from tailsum_studies.paper.report.compare import kept_text
from tailsum_studies.paper.rows import EXACT, Row
from tailsum_studies.report.table import rows_of

_MODEL = ["model", "states", "quantity"]
_LINE = [*_MODEL, "label", "kept"]


def summaries(results: Mapping[str, Sequence[Row]]) -> dict[str, pd.DataFrame]:
    """The summaries of each experiment that has rows; those of some are summaries already."""
    frames = {name: pd.DataFrame(list(rows)) for name, rows in results.items() if rows}
    summed = ("theory", "splits", "memory", "relaxed", "table5", "figure2")
    kinds = {"gradients": _directions, **dict.fromkeys(summed, pd.DataFrame)}
    return {name: kinds.get(name, _errors)(frame) for name, frame in frames.items()}


@np.errstate(all="ignore")  # what is infinite or undefined is shown so
def _errors(rows: pd.DataFrame) -> pd.DataFrame:
    """What the replicates of each estimator add up to: errors in nats, the median seconds, the largest memory.

    Beside them stands what the paper prints, undefined where it prints nothing, and what the exact sum takes
    (`exact_seconds`, `exact_bytes`), undefined where that was not measured.

    The variance is about the mean, so that squared bias and variance add up to the MSE. One draw says nothing of it;
    TopK draws nothing.
    """
    exact = rows[rows.method == EXACT].groupby(_MODEL, as_index=False)
    rows = rows[rows.method != EXACT]
    found = (
        rows.assign(error=rows.estimate - rows.exact)
        .groupby([*_LINE, "method"], sort=False, as_index=False)
        .agg(errors=("error", tuple), seconds=("seconds", "median"), peak_bytes=("peak_bytes", "max"))
        .merge(exact.agg(exact_seconds=("seconds", "median"), exact_bytes=("peak_bytes", "max")), "left", _MODEL)
    )
    where = list(rows_of(found[["model", "quantity", "states", "method", "label"]]))
    errors = [np.array(each) for each in found.errors]
    known = (found.errors.map(len) > 1) | (found.method == "TopK")
    variance = [np.var(each) if said else None for each, said in zip(errors, known, strict=True)]
    found = found.assign(
        mse=[np.mean(each**2) for each in errors],
        mse_spread=[_standard_error(each**2) for each in errors],
        bias=[np.mean(each) for each in errors],
        bias_spread=[_standard_error(each) for each in errors],
        variance=pd.Series(variance, dtype=object),  # which keeps None and undefined apart
        variance_spread=np.nan,
    )
    for name in ("printed_mse", "notebook_mse", "printed_bias", "printed_variance"):
        found[name] = pd.Series([published.figure(name, *each) for each in where], dtype=float)
    return _in_order(found.assign(rmse=np.sqrt(found.mse)))


def _standard_error(values: np.ndarray) -> float:
    """Of the mean of these; undefined for one value."""
    return float(np.std(values) / np.sqrt(len(values) - 1))


@np.errstate(all="ignore")
def _directions(rows: pd.DataFrame) -> pd.DataFrame:
    """How far the gradients of each estimator and parameter are off, on average: 1 - cosine and the relative error."""
    groups = rows.assign(off=1 - rows.cosine).groupby([*_LINE, "parameter", "method"], sort=False, as_index=False)
    found = groups[["off", "relative_error"]].agg(lambda values: np.mean(values.to_numpy()))
    return _in_order(found.assign(off=found.off.clip(lower=0)))  # rounding takes it below


def _in_order(found: pd.DataFrame) -> pd.DataFrame:
    """By number of states, then in the order of the rows, then by states kept; with names for the lines of tables."""
    parts = [published.structure_and_level(model) for model in found.model]
    order = {model: place for place, model in enumerate(found.model.unique())}
    kept = zip(found.model, found.label, found.kept, strict=True)
    return found.assign(
        structure=[structure for structure, _ in parts],
        level=[level or structure for structure, level in parts],
        kept_text=[kept_text(*each) for each in kept],
    ).sort_values(["states", "model", "kept", "label"], key=lambda c: c.map(order) if c.name == "model" else c)
