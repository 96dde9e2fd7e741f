"""The tables of each experiment, from its rows."""

import math
from collections.abc import Callable, Sequence

from tailsum.apps.paper import published
from tailsum.apps.paper.report.compare import (
    METHODS,
    DirectionLine,
    Line,
    Value,
    capital,
    direction_lines,
    is_ours,
    kept_text,
    level_of,
    lines_of,
    lower,
    measured,
    methods_in,
    shown,
    structure_of,
)
from tailsum.apps.paper.report.summary import DirectionSummary, Summary, grouped, summarise, summarise_directions
from tailsum.apps.paper.report.table import Column, Table, make_table
from tailsum.apps.paper.report.wording import NOTHING, number, printed, times_lower, with_spread
from tailsum.apps.paper.rows import Check, Direction, Estimate

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


def block_of(each: Summary) -> tuple[str, str, int]:
    """What stands in one table: the structure, the quantity and the number of states."""
    return structure_of(each.model), each.quantity, each.states


def table2(rows: Sequence[Estimate]) -> list[Table]:
    """Mean square errors: a table for each structure, quantity and number of states."""
    return [
        make_table(
            key_of("table2", *block),
            f"{capital(block[0])} {block[1]}, N = {block[2]:,}: mean square error (nats²)",
            _columns(group, lambda each: with_spread(each.mse, each.mse_spread), _printed_mse, lambda each: each.mse),
            lines_of(group),
            _notes(group),
        )
        for block, group in grouped(summarise(rows), block_of).items()
    ]


def table3(rows: Sequence[Estimate]) -> list[Table]:
    """Bias and variance, a table for each."""
    tables: list[Table] = []
    for block, group in grouped(summarise(rows), block_of).items():
        title = f"{capital(block[0])} {block[1]}, N = {block[2]:,}"
        bias = _columns(group, lambda each: with_spread(each.bias, each.bias_spread), _printed_part("bias"), None)
        variance = _columns(
            group, lambda each: number(each.variance), _printed_part("variance"), lambda each: each.variance
        )
        lines, note = lines_of(group), [TOPK_NOTE] if _prints_topk(group) else []
        tables += [
            make_table(key_of("table3", *block, "bias"), f"{title}: bias (nats)", bias, lines, note),
            make_table(key_of("table3", *block, "variance"), f"{title}: variance (nats²)", variance, lines, note),
        ]
    return tables


def table4(rows: Sequence[Estimate]) -> list[Table]:
    """Mean square errors of the proposals: a row for each, the levels side by side."""
    tables: list[Table] = []
    for (structure, quantity, states, label), group in proposals(rows).items():
        kept = kept_text(lines_of(group)[0])
        columns: list[Column[str]] = [Column("Proposal", shown, names_lines=True)]
        for model, alike in grouped(group, lambda each: each.model).items():
            columns += _level_columns(model, quantity, {each.method: each for each in alike})
        methods = methods_in(group)
        notes = [STATES_NOTE, *([FORMULA_NOTE] if any("as printed" in method for method in methods) else [])]
        caption = f"{capital(structure)} {quantity}, N = {states:,}, {kept}: mean square error (nats²)"
        tables.append(
            make_table(key_of("table4", structure, quantity, states, label), caption, columns, methods, notes)
        )
    return tables


def proposals(rows: Sequence[Estimate]) -> dict[tuple[str, str, int, str], list[Summary]]:
    """What stands in each table of proposals: quantities that were measured with ours alone have none."""
    groups = grouped(summarise(rows), lambda each: (*block_of(each), each.label))
    return {key: group for key, group in groups.items() if not all(is_ours(each.method) for each in group)}


def suite(name: str, rows: Sequence[Estimate]) -> list[Table]:
    """Root mean square errors and seconds, for models the paper does not have."""
    tables: list[Table] = []
    groups = grouped(summarise(rows), lambda each: (each.quantity, each.states))
    for (quantity, states), group in groups.items():
        methods = methods_in(group)
        columns = [
            Column[Line]("Model", lambda line: line.model, names_lines=True),
            Column[Line]("States kept", kept_text, names_lines=True),
            *(measured(method, lambda each: number(each.rmse)) for method in methods),
            lower(lambda each: each.rmse, RATIO),
            *(measured(m, lambda each: number(each.seconds, 2), f"Seconds: {shown(m)}") for m in methods),
        ]
        caption = f"{capital(quantity)}, N = {states:,}: root mean square error (nats)"
        tables.append(make_table(key_of(name, quantity, states), caption, columns, lines_of(group)))
    return tables


def gradients(rows: Sequence[Direction]) -> list[Table]:
    """How far sketched gradients point away from the exact one, and how far they end from it."""
    tables: list[Table] = []
    groups = grouped(summarise_directions(rows), lambda each: (each.model, each.states, each.quantity))
    for (model, states, quantity), group in groups.items():
        methods = methods_in(group)
        columns = [
            Column[DirectionLine]("States kept", kept_text, names_lines=True),
            Column[DirectionLine]("Parameter", lambda line: line.parameter, names_lines=True),
            *(_direction_column(m, "1 - cosine", lambda each: each.off) for m in methods),
            *(_direction_ratio(method) for method in methods if is_ours(method)),
            *(_direction_column(m, "Relative error", lambda each: each.relative_error) for m in methods),
        ]
        caption = f"Gradient of {quantity}, {model}, N = {states:,}: means over the replicates"
        tables.append(
            make_table(key_of("gradients", model, states, quantity), caption, columns, direction_lines(group))
        )
    return tables


def theory(rows: Sequence[Check]) -> list[Table]:
    """What the theory predicts and what was measured."""
    columns: list[Column[Check]] = [
        Column("Statement", lambda row: row.statement, names_lines=True),
        Column("Setting", lambda row: row.setting, names_lines=True),
        Column("At", lambda row: number(row.at, 4, trim=True)),
        Column("Predicted", lambda row: number(row.predicted, 5)),
        Column("Measured", lambda row: number(row.measured, 5)),
        Column("Standard error", lambda row: number(row.standard_error, 2)),
        Column("z", _z_text),
    ]
    groups = grouped(rows, lambda row: row.statement)
    notes = [Z_NOTE, *(STATEMENT_NOTES[statement] for statement in groups if statement in STATEMENT_NOTES)]
    lines = [row for group in groups.values() for row in group]
    return [make_table("theory", "Predicted and measured", columns, lines, notes)]


def _columns(
    group: Sequence[Summary],
    text: Callable[[Summary], str],
    printed_cell: Callable[[Line, str], str],
    value: Value | None,
) -> list[Column[Line]]:
    """The paper's figures, its method here and ours; then how they compare, if they do."""
    others = [method for method in methods_in(group) if method not in METHODS]
    return [
        Column("Level", lambda line: level_of(line.model), names_lines=True),
        Column("States kept", kept_text, names_lines=True),
        Column("TopK: printed", lambda line: printed_cell(line, "TopK")),
        measured("TopK", text, "TopK: here"),
        Column("Paper's method: printed", lambda line: printed_cell(line, "paper")),
        measured("paper", text, "Paper's method: here"),
        measured("tailsum", text),
        *([lower(value, RATIO)] if value else []),
        *(measured(method, text) for method in others),
    ]


def _printed_mse(line: Line, method: str) -> str:
    if method not in line.found:
        return NOTHING
    where = line.model, line.quantity, line.states, method, line.label
    notebook = published.notebook_mse(*where)
    return printed(published.mse(*where)) + (f" [{printed(notebook)}]" if notebook is not None else "")


def _printed_part(part: str) -> Callable[[Line, str], str]:
    def cell(line: Line, method: str) -> str:
        found = published.bias_variance(line.model, line.quantity, line.states, method, line.label)
        return NOTHING if found is None or method not in line.found else printed(getattr(found, part))

    return cell


def _level_columns(model: str, quantity: str, found: dict[str, Summary]) -> list[Column[str]]:
    def here(method: str) -> str:
        each = found.get(method)
        return NOTHING if each is None else with_spread(each.mse, each.mse_spread)

    level = capital(level_of(model))
    return [
        Column(f"{level}: printed", lambda method: printed(published.proposal_mse(model, quantity, method))),
        Column(f"{level}: here", here),
    ]


def _prints_topk(group: Sequence[Summary]) -> bool:
    return any(
        published.mse(each.model, each.quantity, each.states, "TopK", each.label) is not None
        for each in group
        if each.method == "TopK"
    )


def _notes(group: Sequence[Summary]) -> list[str]:
    structure, quantity, states = block_of(group[0])
    in_brackets = any(
        published.notebook_mse(each.model, each.quantity, each.states, each.method, each.label) for each in group
    )
    return [
        *([TOPK_NOTE] if _prints_topk(group) else []),
        *([TREE_NOTE] if structure == "hypertree" else []),
        *([CHECKPOINT_NOTE] if (structure, quantity, states) == ("chain", "entropy", 2000) else []),
        *([NOTEBOOK_NOTE] if in_brackets else []),
    ]


def _direction_column(method: str, name: str, value: Callable[[DirectionSummary], float]) -> Column[DirectionLine]:
    def cell(line: DirectionLine) -> str:
        found = line.found.get(method)
        return NOTHING if found is None else number(value(found))

    return Column(f"{name}: {shown(method)}", cell, ours=is_ours(method))


def _direction_ratio(method: str) -> Column[DirectionLine]:
    """How much better this one of ours points, all parameters as one vector."""

    def cell(line: DirectionLine) -> str:
        paper, ours = line.found.get("paper"), line.found.get(method)
        if line.parameter != "all" or paper is None or ours is None:
            return NOTHING
        return times_lower(paper.off, ours.off)

    return Column(f"1 - cosine: paper's method here / {shown(method)}", cell)


def _z_text(row: Check) -> str:
    if row.standard_error == 0:
        return "exact" if row.measured == row.predicted else NOTHING
    z = (row.measured - row.predicted) / row.standard_error
    return f"{z:+.2f}" if math.isfinite(z) else number(z)
