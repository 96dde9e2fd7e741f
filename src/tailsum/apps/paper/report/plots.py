"""Which plots the report has: a list of pictures, each drawn when it is saved."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pandas as pd

from tailsum.apps.paper.report import draw, draw_theory
from tailsum.apps.paper.report.tables import BLOCK, key_of, proposals
from tailsum.apps.report.frames import groups
from tailsum.apps.report.picture import Picture
from tailsum.apps.report.wording import capital

Shown = dict[str, pd.DataFrame]


def pictures(found: Mapping[str, pd.DataFrame]) -> list[Picture]:
    """Every plot of the report, in its order."""
    made: dict[str, Callable[[pd.DataFrame], Iterator[Picture]]] = {
        "table2": _table2,
        "table4": _table4,
        "hard": partial(_suite, "hard"),
        "text": partial(_suite, "text"),
        "gradients": _gradients,
        "theory": _theory,
    }
    return [picture for name, make in made.items() if name in found for picture in make(found[name])]


def _panels(group: pd.DataFrame, column: str, title: Callable[[str], str] = str) -> Shown:
    return {title(name): each for name, each in groups(group, column)}


def _table2(found: pd.DataFrame) -> Iterator[Picture]:
    # The printed figures of TopK stand at the number of states that its authors used.
    labelled = (found.method == "TopK") & ~found.label.str.startswith("K=")
    found = found.assign(printed_mse=found.printed_mse.mask(labelled))
    for (structure, quantity, states), group in groups(found, *BLOCK):
        key, what = key_of("table2", structure, quantity, states), f"{structure} {quantity}, N = {states:,}"
        yield from _three(key, what, quantity, _panels(group, "level", capital))


def _table4(found: pd.DataFrame) -> Iterator[Picture]:
    for (structure, quantity, states, label), group in proposals(found):
        key = key_of("table4", structure, quantity, states, label)
        what = f"{structure} {quantity}, N = {states:,}, {label} of the states kept, by proposal"
        yield _errors(key, what, quantity, _panels(group, "level", capital))


def _suite(name: str, found: pd.DataFrame) -> Iterator[Picture]:
    for (quantity, states), group in groups(found, "quantity", "states"):
        key, what = key_of(name, quantity, states), f"{quantity}, N = {states:,}"
        yield from _three(key, what, quantity, _panels(group, "model"))


def _three(key: str, what: str, quantity: str, shown: Shown) -> Iterator[Picture]:
    printed = any(group.printed_mse.notna().any() for group in shown.values())
    hollow = "; hollow marks are what the paper prints" if printed else ""
    mse = f"Mean square error of {what} against the number of states kept{hollow}."
    cost = f"Root mean square error of {what} against the seconds and the memory it takes. Lower left is better."
    yield _errors(key, what, quantity, shown)
    yield Picture(f"{key}-mse", key, mse, partial(draw.against_kept, shown, f"MSE of {quantity} (nats²)"))
    yield Picture(f"{key}-cost", key, cost, partial(draw.cost, shown, quantity))


def _errors(key: str, what: str, quantity: str, shown: Shown) -> Picture:
    caption = f"Errors of {what}: a dot for each replicate, a bar at their mean. The scale is linear around zero."
    return Picture(f"{key}-errors", key, caption, partial(draw.errors, shown, quantity))


def _gradients(found: pd.DataFrame) -> Iterator[Picture]:
    for (model, states), group in groups(found, "model", "states"):
        shown = _panels(group, "quantity", "gradient of {}".format)
        last = key_of("gradients", model, states, group.quantity.iloc[-1])
        caption = (
            f"How far gradients point away from the exact one, {model}, N = {states:,}, against the states kept: "
            "thick lines for all parameters as one vector, thin ones for each parameter alone."
        )
        yield Picture(key_of("gradients", model, states), last, caption, partial(draw.directions, shown))


def _theory(rows: pd.DataFrame) -> Iterator[Picture]:
    caption = "Measured, with bars of two standard errors, against predicted: what agrees lies on the dashed line."
    shown = _panels(rows, "statement")
    yield Picture("theory-agreement", "theory", caption, partial(draw_theory.agreement, shown))
    for statement, group in shown.items():
        if "1/K" in statement.replace(" ", ""):
            name = key_of("theory", statement.replace("1/K", "law in K"))
            caption = f"{capital(statement)}: dots are measured, with bars of two standard errors; dashed lines are predicted."
            settings = _panels(group, "setting")
            yield Picture(name, "theory", caption, partial(draw_theory.law, settings, "K2: number of states drawn"))
