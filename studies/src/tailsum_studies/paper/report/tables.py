"""The sections of the report and their tables: Tables 2, 3 and 4 of the paper, and those of what goes beyond it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from tailsum_studies.paper import published
from tailsum_studies.paper.report import vae
from tailsum_studies.paper.report.compare import by_method, is_ours, lower, methods_in, shown
from tailsum_studies.report.page import words
from tailsum_studies.report.table import Section, Table, groups, rows_of
from tailsum_studies.report.wording import NOTHING, capital, number, with_spread

BLOCK = ["structure", "quantity", "states"]  # what stands in one table
WORDS = words("paper")
RATIO = "Paper's method here / ours"
# Table 3 takes the errors of Table 2 apart. A bias has a sign: it is not compared as the others are.
_SHOWN = {
    "table2": {"mse": "mean square error (nats²)"},
    "table3": {"bias": "bias (nats)", "variance": "variance (nats²)"},
}
_HEADERS: dict[str | int, str] = {
    "level": "Level",
    "model": "Model",
    "kept_text": "States kept",
    "parameter": "Parameter",
}


def sections(found: Mapping[str, pd.DataFrame]) -> list[Section]:
    """A section for each experiment that was run, from its summaries."""
    made: dict[str, Callable[[str, pd.DataFrame], Iterable[Table]]] = {
        "table2": compared,
        "table3": compared,
        "table4": table4,
        "hard": suite,
        "text": suite,
        "gradients": gradients,
        "theory": theory,
        "table5": vae.table5,
        "figure2": vae.figure2,
    }
    return [
        Section(name, WORDS["titles"][name], WORDS["words"][name], list(make(name, found[name])))
        for name, make in made.items()
        if name in found
    ]


def key_of(name: str, *parts: str | int) -> str:
    """A name for a table and its pictures, fit for a file."""
    words = "".join(c if c.isalnum() else " " for c in " ".join([name, *map(str, parts)]).lower()).split()
    return "-".join(words)


def compared(name: str, found: pd.DataFrame) -> Iterator[Table]:
    """Tables 2 and 3: the paper's figures, its method here and ours, how these compare, then other methods.

    There is a table for each structure, quantity, number of states and value.
    """
    names = ["level", "kept_text"]
    for block, group in groups(found, *BLOCK):
        for value, what in _SHOWN[name].items():
            here, printed = (by_method(_texts(group, value), names, column) for column in ("here", "printed"))
            columns = {
                "TopK: printed": printed.get("TopK"),
                "TopK: here": here.get("TopK"),
                "Paper's method: printed": printed.get("paper"),
                "Paper's method: here": here.get("paper"),
                "Ours": here.get("tailsum"),
                RATIO: None if value == "bias" else lower(group, names, value),
                **{capital(shown(each)): here[each] for each in here if each not in {"TopK", "paper", "tailsum"}},
            }
            notes = {
                "topk": any(group.printed_mse[group.method == "TopK"].notna()),
                "tree": value == "mse" and block[0] == "hypertree",
                "checkpoint": value == "mse" and block == ("chain", "entropy", 2000),
                "notebook": value == "mse" and any(group.notebook_mse.notna()),
            }
            key = key_of(name, *block, *([] if value == "mse" else [value]))
            yield _table(key, f"{_title(*block)}: {what}", columns, _notes(notes))


def _texts(group: pd.DataFrame, value: str) -> pd.DataFrame:
    """A value as it was measured here and as the paper prints it; in brackets what its authors' notebook has instead."""
    printed = group[f"printed_{value}"].map(_printed)
    if value == "mse":
        printed += (" [" + group.notebook_mse.map(_printed) + "]").where(group.notebook_mse.notna(), "")
    return group.assign(here=_spread(group, value), printed=printed)


def table4(name: str, found: pd.DataFrame) -> Iterator[Table]:
    """Mean square errors of the proposals: a row for each, the levels side by side."""
    for (*block, label), group in proposals(found):
        methods, columns = methods_in(group), dict[str, list[str]]()
        for (model, level), alike in groups(group, "model", "level"):
            here = dict(zip(alike.method, _spread(alike, "mse"), strict=True))
            printed = (published.proposal_mse(model, block[1], method) for method in methods)
            columns[f"{capital(level)}: printed"] = [_printed(each) for each in printed]
            columns[f"{capital(level)}: here"] = [here.get(method, NOTHING) for method in methods]
        frame = pd.DataFrame(columns, pd.Index(map(shown, methods), name="Proposal"))
        notes = _notes({"states": True, "formula": any("as printed" in method for method in methods)})
        caption = f"{_title(*block)}, {group.kept_text.iloc[0]}: mean square error (nats²)"
        yield Table.filled(key_of(name, *block, label), caption, frame, notes=notes)


def proposals(found: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    """The rows of each table of proposals, and what they have in common; quantities that were measured with ours alone have no table."""
    return [each for each in groups(found, *BLOCK, "label") if not all(map(is_ours, each[1].method))]


def suite(name: str, found: pd.DataFrame) -> Iterator[Table]:
    """Root mean square errors and seconds, for models the paper does not have."""
    names = ["model", "kept_text"]
    for (quantity, states), group in groups(found, "quantity", "states"):
        columns = {
            **_by_method("", group, names, "rmse"),
            RATIO: lower(group, names, "rmse"),
            **_by_method("Seconds: ", group, names, "seconds", 2),
            "Seconds: exact": _exact_seconds(group, names),
        }
        caption = f"{capital(quantity)}, N = {states:,}: root mean square error (nats)"
        yield _table(key_of(name, quantity, states), caption, columns)


def _exact_seconds(group: pd.DataFrame, names: list[str]) -> pd.Series:
    """What the exact sum takes, on each line; a dash where it was not measured."""
    once = group.drop_duplicates(names).set_index(names).exact_seconds
    return once.map(lambda seconds: NOTHING if math.isnan(seconds) else number(seconds, 2))


def gradients(name: str, found: pd.DataFrame) -> Iterator[Table]:
    """How far sketched gradients point away from the exact one, and how far they end from it."""
    names = ["kept_text", "parameter"]
    for (model, states, quantity), group in groups(found, "model", "states", "quantity"):
        whole = group[group.parameter == "all"]  # as one vector
        ratios = {method: lower(whole, names, "off", method) for method in methods_in(group) if is_ours(method)}
        columns = {
            **_by_method("1 - cosine: ", group, names, "off"),
            **{f"1 - cosine: paper's method here / {shown(method)}": each for method, each in ratios.items()},
            **_by_method("Relative error: ", group, names, "relative_error"),
        }
        caption = f"Gradient of {quantity}, {model}, N = {states:,}: means over the replicates"
        yield _table(key_of(name, model, states, quantity), caption, columns)


def theory(name: str, rows: pd.DataFrame) -> Iterator[Table]:
    """What the theory predicts and what was measured."""
    rows = rows.sort_values("statement", key=lambda each: each.map(list(each.unique()).index), kind="stable")
    columns = {
        "Statement": rows.statement,
        "Setting": rows.setting,
        "At": [number(each, 4, trim=True) for each in rows["at"]],
        "Predicted": _numbers(rows.predicted, 5),
        "Measured": _numbers(rows.measured, 5),
        "Standard error": _numbers(rows.standard_error, 2),
        "z": [_z_text(row) for row in rows_of(rows)],
    }
    frame = pd.DataFrame(columns).set_index(["Statement", "Setting"])
    said = [WORDS["statements"][each] for each in rows.statement.unique() if each in WORDS["statements"]]
    yield Table(name, "Predicted and measured", frame, notes=[WORDS["notes"]["z"], *said])


def _table(key: str, caption: str, columns: Mapping[str, pd.Series | None], notes: Sequence[str] = ()) -> Table:
    """A table of these columns; those of our methods are marked."""
    lines = next(each.index for each in columns.values() if each is not None)
    frame = pd.DataFrame(columns, lines).rename_axis(index=_HEADERS)
    ours = [name for name in columns if name.rpartition(": ")[2].lower().startswith("ours")]
    return Table.filled(key, caption, frame, ours, notes)


def _by_method(what: str, found: pd.DataFrame, names: list[str], column: str, digits: int = 3) -> dict[str, pd.Series]:
    """A column of numbers for each method, as text, under what they are and whose."""
    text = found.assign(**{column: _numbers(found[column], digits)})
    return {capital(what + shown(method)): each for method, each in by_method(text, names, column).items()}


def _title(structure: str, quantity: str, states: int) -> str:
    return f"{capital(structure)} {quantity}, N = {states:,}"


def _notes(holds: Mapping[str, bool]) -> list[str]:
    return [WORDS["notes"][name] for name, said in holds.items() if said]


def _numbers(values: Iterable[float | None], digits: int = 3) -> list[str]:
    return [number(value, digits) for value in values]


def _spread(found: pd.DataFrame, value: str) -> list[str]:
    return [with_spread(*each) for each in zip(found[value], found[f"{value}_spread"], strict=True)]


def _printed(value: float | None) -> str:
    """A figure of the paper with all its digits."""
    return NOTHING if value is None or math.isnan(value) else f"{value:g}"


def _z_text(row: Any) -> str:
    if row.standard_error == 0:
        return "exact" if row.measured == row.predicted else NOTHING
    z = (row.measured - row.predicted) / row.standard_error
    return f"{z:+.2f}" if math.isfinite(z) else number(z)
