"""Which plots the report has: a list of pictures, each drawn when it is saved."""

from collections.abc import Sequence

from tailsum.apps.paper import published
from tailsum.apps.paper.report import draw
from tailsum.apps.paper.report.compare import capital, level_of, lines_of
from tailsum.apps.paper.report.results import Results
from tailsum.apps.paper.report.summary import Summary, grouped, summarise, summarise_directions
from tailsum.apps.paper.report.tables import block_of, key_of, proposals
from tailsum.apps.paper.rows import Check, Direction, Estimate
from tailsum.apps.report.picture import Picture

Shown = dict[str, list[Summary]]


def pictures(results: Results) -> list[Picture]:
    """Every plot of the report, in its order."""
    return [
        *_table2(results.table2),
        *_table4(results.table4),
        *_suite("hard", results.hard),
        *_suite("text", results.text),
        *_gradients(results.gradients),
        *_theory(results.theory),
    ]


def _table2(rows: Sequence[Estimate]) -> list[Picture]:
    found: list[Picture] = []
    for block, group in grouped(summarise(rows), block_of).items():
        structure, quantity, states = block
        shown = grouped(group, lambda each: capital(level_of(each.model)))
        what = f"{structure} {quantity}, N = {states:,}"
        found += _three(key_of("table2", *block), what, quantity, shown, _printed(group))
    return found


def _table4(rows: Sequence[Estimate]) -> list[Picture]:
    found: list[Picture] = []
    for (structure, quantity, states, label), group in proposals(rows).items():
        key = key_of("table4", structure, quantity, states, label)
        shown = grouped(group, lambda each: capital(level_of(each.model)))
        what = f"{structure} {quantity}, N = {states:,}, {label} of the states kept, by proposal"
        found.append(_errors(key, what, quantity, shown))
    return found


def _suite(name: str, rows: Sequence[Estimate]) -> list[Picture]:
    found: list[Picture] = []
    groups = grouped(summarise(rows), lambda each: (each.quantity, each.states))
    for (quantity, states), group in groups.items():
        shown = grouped(group, lambda each: each.model)
        found += _three(key_of(name, quantity, states), f"{quantity}, N = {states:,}", quantity, shown, {})
    return found


def _three(key: str, what: str, quantity: str, shown: Shown, printed: dict[str, list[draw.Point]]) -> list[Picture]:
    hollow = "; hollow marks are what the paper prints" if printed else ""
    mse = f"Mean square error of {what} against the number of states kept{hollow}."
    cost = f"Root mean square error of {what} against the seconds and the memory it takes. Lower left is better."
    return [
        _errors(key, what, quantity, shown),
        Picture(f"{key}-mse", key, mse, lambda: draw.against_kept(shown, printed, f"MSE of {quantity} (nats²)")),
        Picture(f"{key}-cost", key, cost, lambda: draw.cost(shown, quantity)),
    ]


def _errors(key: str, what: str, quantity: str, shown: Shown) -> Picture:
    caption = f"Errors of {what}: a dot for each replicate, a bar at their mean. The scale is linear around zero."
    return Picture(f"{key}-errors", key, caption, lambda: draw.errors(shown, quantity))


def _printed(group: Sequence[Summary]) -> dict[str, list[draw.Point]]:
    """What the paper prints, at the number of states that was kept: for TopK the one that its authors used."""
    points: dict[str, list[draw.Point]] = {}
    for line in lines_of(group):
        for method in ("TopK", "paper"):
            value = published.mse(line.model, line.quantity, line.states, method, line.label)
            used = method != "TopK" or line.label.startswith("K=")
            if value is not None and used and method in line.found:
                point = draw.Point(method, line.found[method].kept, value)
                points.setdefault(capital(level_of(line.model)), []).append(point)
    return points


def _gradients(rows: Sequence[Direction]) -> list[Picture]:
    found: list[Picture] = []
    for (model, states), group in grouped(summarise_directions(rows), lambda each: (each.model, each.states)).items():
        shown = grouped(group, lambda each: f"gradient of {each.quantity}")
        last = key_of("gradients", model, states, group[-1].quantity)
        caption = (
            f"How far gradients point away from the exact one, {model}, N = {states:,}, against the states kept: "
            "thick lines for all parameters as one vector, thin ones for each parameter alone."
        )
        name = key_of("gradients", model, states)
        found.append(Picture(name, last, caption, lambda shown=shown: draw.directions(shown)))
    return found


def _theory(rows: Sequence[Check]) -> list[Picture]:
    if not rows:
        return []
    shown = grouped(rows, lambda row: row.statement)
    caption = "Measured, with bars of two standard errors, against predicted: what agrees lies on the dashed line."
    found = [Picture("theory-agreement", "theory", caption, lambda: draw.agreement(shown))]
    for statement, group in shown.items():
        if "1/K" in statement.replace(" ", ""):
            settings = grouped(group, lambda row: row.setting)
            name = key_of("theory", statement.replace("1/K", "law in K"))
            caption = f"{capital(statement)}: dots are measured, with bars of two standard errors; dashed lines are predicted."
            found.append(Picture(name, "theory", caption, lambda s=settings: draw.law(s, "K2: number of states drawn")))
    return found
