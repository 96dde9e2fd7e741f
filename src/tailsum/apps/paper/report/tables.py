"""The tables of each experiment: Tables 2, 3 and 4 of the paper, and those of what goes beyond it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from tailsum.apps.paper import published
from tailsum.apps.paper.report.compare import by_method, is_ours, lower, methods_in, shown
from tailsum.apps.report.frames import groups, rows_of
from tailsum.apps.report.table import Table
from tailsum.apps.report.wording import NOTHING, capital, number, with_spread

BLOCK = ["structure", "quantity", "states"]  # what stands in one table

RATIO = "Paper's method here / ours"

TOPK_NOTE = (
    "The paper labels its TopK rows 20% and 50% of the states; the authors' experiments kept 500 and 1,000 whatever N. "
    "The printed figure stands beside both."
)
TREE_NOTE = (
    "Behind the labels 1%, 10% and 20% the authors' experiments kept 20, 200 and 400 states at both N. Nothing couples "
    "the states of a span with those of its children in these trees, so that the exact sum costs little more."
)
CHECKPOINT_NOTE = (
    "The paper's entropies at N = 2,000 come from saved checkpoints that are not public: here the recipe of its other "
    "chains stands in for them."
)
NOTEBOOK_NOTE = "In brackets: the output of the authors' own notebook, where it differs from the printed table."
STATES_NOTE = "The paper says neither how many states Table 4 has nor how many are kept."
FORMULA_NOTE = (
    "\"As printed\": global parts are the norms of the states over their sum, as in the paper's formula. The authors' "
    "experiments take the softmax of the norms instead."
)
Z_NOTE = "z is measured less predicted, over the standard error."
STATEMENT_NOTES = {
    "unbiased": "Unbiased: the mean of the estimate of Z over Z, at K states kept.",
    "partition variance": "Partition variance: that of the estimate of Z over Z, at K2 states drawn.",
    "lower bound": (
        "Lower bound: the mean error of log Z, at K2 states drawn. Predicted to second order: only where the variance is "
        "small should it agree."
    ),
    "log variance": "Log variance: that of log Z, at K2 states drawn. Predicted to first order, with the same limits.",
    "tail variance": "Tail variance: that of the estimate of a sum from one draw, at K1 states kept for certain.",
    "1/K2": "1/K2: the same variance with K2 draws.",
    "same K": "Same K: the variance of a sum with K states kept, however they are chosen.",
    "without replacement": (
        "Without replacement: the mean of the estimate of Z over Z where K2 states are drawn without replacement and "
        "weighted as if with, as in the authors' code."
    ),
}


def key_of(name: str, *parts: str | int) -> str:
    """A name for a table and its pictures, fit for a file."""
    words = "".join(c if c.isalnum() else " " for c in " ".join([name, *map(str, parts)]).lower()).split()
    return "-".join(words)


def table2(found: pd.DataFrame) -> Iterator[Table]:
    """Mean square errors: a table for each structure, quantity and number of states."""
    for block, group in groups(found, *BLOCK):
        filled = group.assign(here=_spread(group, "mse"), printed=_each(group, _printed_mse))
        caption = f"{_title(*block)}: mean square error (nats²)"
        yield _compared(key_of("table2", *block), caption, filled, "mse", _notes(group, *block))


def table3(found: pd.DataFrame) -> Iterator[Table]:
    """Bias and variance, a table for each."""
    for block, group in groups(found, *BLOCK):
        notes = [TOPK_NOTE] if _prints_topk(group) else []
        bias = group.assign(here=_spread(group, "bias"), printed=_each(group, _printed_part("bias")))
        yield _compared(key_of("table3", *block, "bias"), f"{_title(*block)}: bias (nats)", bias, None, notes)
        variance = group.assign(here=_numbers(group.variance), printed=_each(group, _printed_part("variance")))
        caption = f"{_title(*block)}: variance (nats²)"
        yield _compared(key_of("table3", *block, "variance"), caption, variance, "variance", notes)


def table4(found: pd.DataFrame) -> Iterator[Table]:
    """Mean square errors of the proposals: a row for each, the levels side by side."""
    for (*block, label), group in proposals(found):
        methods, columns = methods_in(group), dict[str, list[str]]()
        for (model, level), alike in groups(group, "model", "level"):
            here = dict(zip(alike.method, _spread(alike, "mse"), strict=True))
            columns[f"{capital(level)}: printed"] = [
                _printed(published.proposal_mse(model, block[1], method)) for method in methods
            ]
            columns[f"{capital(level)}: here"] = [here.get(method, NOTHING) for method in methods]
        frame = pd.DataFrame(columns, pd.Index(map(shown, methods), name="Proposal"))
        notes = [STATES_NOTE, *([FORMULA_NOTE] if any("as printed" in method for method in methods) else [])]
        caption = f"{_title(*block)}, {group.kept_text.iloc[0]}: mean square error (nats²)"
        yield Table.filled(key_of("table4", *block, label), caption, frame, notes=notes)


def proposals(found: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    """What stands in each table of proposals: quantities that were measured with ours alone have none."""
    return [each for each in groups(found, *BLOCK, "label") if not all(map(is_ours, each[1].method))]


def suite(name: str, found: pd.DataFrame) -> Iterator[Table]:
    """Root mean square errors and seconds, for models the paper does not have."""
    names = ["model", "kept_text"]
    for (quantity, states), group in groups(found, "quantity", "states"):
        text = group.assign(rmse=_numbers(group.rmse), seconds=_numbers(group.seconds, 2))
        errors, seconds = (by_method(text, names, column) for column in ("rmse", "seconds"))
        columns = {
            **{capital(shown(method)): each for method, each in errors.items()},
            RATIO: lower(group, names, "rmse"),
            **{f"Seconds: {shown(method)}": each for method, each in seconds.items()},
        }
        caption = f"{capital(quantity)}, N = {states:,}: root mean square error (nats)"
        yield _table(key_of(name, quantity, states), caption, columns)


def gradients(found: pd.DataFrame) -> Iterator[Table]:
    """How far sketched gradients point away from the exact one, and how far they end from it."""
    names = ["kept_text", "parameter"]
    for (model, states, quantity), group in groups(found, "model", "states", "quantity"):
        text = group.assign(off=_numbers(group.off), relative_error=_numbers(group.relative_error))
        off, error = (by_method(text, names, column) for column in ("off", "relative_error"))
        whole = group[group.parameter == "all"]  # as one vector
        ratios = {method: lower(whole, names, "off", method) for method in off if is_ours(method)}
        columns = {
            **{f"1 - cosine: {shown(method)}": each for method, each in off.items()},
            **{f"1 - cosine: paper's method here / {shown(method)}": each for method, each in ratios.items()},
            **{f"Relative error: {shown(method)}": each for method, each in error.items()},
        }
        caption = f"Gradient of {quantity}, {model}, N = {states:,}: means over the replicates"
        yield _table(key_of("gradients", model, states, quantity), caption, columns)


def theory(rows: pd.DataFrame) -> Iterator[Table]:
    """What the theory predicts and what was measured."""
    rows = rows.sort_values("statement", key=lambda each: each.map(list(each.unique()).index), kind="stable")
    columns = {
        "Statement": rows.statement,
        "Setting": rows.setting,
        "At": [number(each, 4, trim=True) for each in rows["at"]],
        "Predicted": _numbers(rows.predicted, 5),
        "Measured": _numbers(rows.measured, 5),
        "Standard error": _numbers(rows.standard_error, 2),
        "z": _each(rows, _z_text),
    }
    frame = pd.DataFrame(columns).set_index(["Statement", "Setting"])
    notes = [STATEMENT_NOTES[each] for each in rows.statement.unique() if each in STATEMENT_NOTES]
    yield Table("theory", "Predicted and measured", frame, notes=[Z_NOTE, *notes])


def _compared(key: str, caption: str, group: pd.DataFrame, value: str | None, notes: Sequence[str]) -> Table:
    """The paper's figures, its method here and ours; how they compare in a value, if they do; then other methods."""
    names = ["level", "kept_text"]
    here, printed = (by_method(group, names, column) for column in ("here", "printed"))
    columns = {
        "TopK: printed": printed.get("TopK"),
        "TopK: here": here.get("TopK"),
        "Paper's method: printed": printed.get("paper"),
        "Paper's method: here": here.get("paper"),
        "Ours": here.get("tailsum"),
        RATIO: lower(group, names, value) if value else None,
        **{capital(shown(method)): here[method] for method in here if method not in {"TopK", "paper", "tailsum"}},
    }
    return _table(key, caption, columns, notes)


def _table(key: str, caption: str, columns: Mapping[str, pd.Series | None], notes: Sequence[str] = ()) -> Table:
    """A table of these columns; those of our methods are marked."""
    headers: dict[str | int, str] = {
        "level": "Level",
        "model": "Model",
        "kept_text": "States kept",
        "parameter": "Parameter",
    }
    lines = next(each.index for each in columns.values() if each is not None)
    frame = pd.DataFrame(columns, lines).rename_axis(index=headers)
    ours = [name for name in columns if name.rpartition(": ")[2].lower().startswith("ours")]
    return Table.filled(key, caption, frame, ours, notes)


def _title(structure: str, quantity: str, states: int) -> str:
    return f"{capital(structure)} {quantity}, N = {states:,}"


def _each(found: pd.DataFrame, text: Callable[[Any], str]) -> list[str]:
    return [text(row) for row in rows_of(found)]


def _numbers(values: Iterable[float | None], digits: int = 3) -> list[str]:
    return [number(value, digits) for value in values]


def _spread(found: pd.DataFrame, value: str) -> list[str]:
    return [with_spread(*each) for each in zip(found[value], found[f"{value}_spread"], strict=True)]


def _printed(value: float | None) -> str:
    """A figure of the paper with all its digits."""
    return NOTHING if value is None or math.isnan(value) else f"{value:g}"


def _printed_mse(row: Any) -> str:
    notebook = published.notebook_mse(row.model, row.quantity, row.states, row.method, row.label)
    return _printed(row.printed_mse) + (f" [{_printed(notebook)}]" if notebook is not None else "")


def _printed_part(part: str) -> Callable[[Any], str]:
    def text(row: Any) -> str:
        found = published.bias_variance(row.model, row.quantity, row.states, row.method, row.label)
        return _printed(getattr(found, part, None))

    return text


def _prints_topk(group: pd.DataFrame) -> bool:
    return bool(group.printed_mse[group.method == "TopK"].notna().any())


def _notes(group: pd.DataFrame, structure: str, quantity: str, states: int) -> list[str]:
    notes = {
        TOPK_NOTE: _prints_topk(group),
        TREE_NOTE: structure == "hypertree",
        CHECKPOINT_NOTE: (structure, quantity, states) == ("chain", "entropy", 2000),
        NOTEBOOK_NOTE: any("[" in text for text in _each(group, _printed_mse)),
    }
    return [note for note, holds in notes.items() if holds]


def _z_text(row: Any) -> str:
    if row.standard_error == 0:
        return "exact" if row.measured == row.predicted else NOTHING
    z = (row.measured - row.predicted) / row.standard_error
    return f"{z:+.2f}" if math.isfinite(z) else number(z)
