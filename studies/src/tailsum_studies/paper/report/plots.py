"""Which plots the report has: a list of pictures, each drawn when it is saved."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pandas as pd

from tailsum_studies.paper.report import draw
from tailsum_studies.paper.report.tables import BLOCK, WORDS, key_of, proposals
from tailsum_studies.paper.report.vae_plots import figure2 as vae_figure2
from tailsum_studies.report.picture import Picture
from tailsum_studies.report.table import groups
from tailsum_studies.report.wording import capital

SAID = WORDS["pictures"]


def pictures(found: Mapping[str, pd.DataFrame]) -> list[Picture]:
    """Every plot of the report, in its order."""
    made: dict[str, Callable[[str, pd.DataFrame], Iterator[Picture]]] = {
        "table2": _table2,
        "table4": _table4,
        "hard": _suite,
        "text": _suite,
        "gradients": _gradients,
        "theory": _theory,
        "figure2": vae_figure2,
    }
    return [picture for name, make in made.items() if name in found for picture in make(name, found[name])]


def _panels(group: pd.DataFrame, column: str, title: Callable[[str], str] = str) -> draw.Shown:
    return {title(name): each for name, each in groups(group, column)}


def _table2(name: str, found: pd.DataFrame) -> Iterator[Picture]:
    # The printed figures of TopK stand at the number of states that its authors used.
    labelled = (found.method == "TopK") & ~found.label.str.startswith("K=")
    found = found.assign(printed_mse=found.printed_mse.mask(labelled))
    for (structure, quantity, states), group in groups(found, *BLOCK):
        key, what = key_of(name, structure, quantity, states), f"{structure} {quantity}, N = {states:,}"
        yield from _three(key, what, quantity, _panels(group, "level", capital))


def _table4(name: str, found: pd.DataFrame) -> Iterator[Picture]:
    for (structure, quantity, states, label), group in proposals(found):
        key = key_of(name, structure, quantity, states, label)
        what = f"{structure} {quantity}, N = {states:,}, {label} of the states kept, by proposal"
        yield _errors(key, what, quantity, _panels(group, "level", capital))


def _suite(name: str, found: pd.DataFrame) -> Iterator[Picture]:
    for (quantity, states), group in groups(found, "quantity", "states"):
        key, what = key_of(name, quantity, states), f"{quantity}, N = {states:,}"
        yield from _three(key, what, quantity, _panels(group, "model"))


def _three(key: str, what: str, quantity: str, shown: draw.Shown) -> Iterator[Picture]:
    printed = any(group.printed_mse.notna().any() for group in shown.values())
    mse = SAID["mse"].format(what=what, hollow=SAID["hollow"] if printed else "")
    timed = any(group.exact_seconds.notna().any() for group in shown.values())
    cost = SAID["cost"].format(what=what, exact=SAID["exact"] if timed else "")
    yield _errors(key, what, quantity, shown)
    yield Picture(f"{key}-mse", key, mse, partial(draw.against_kept, shown, f"MSE of {quantity} (nats²)"))
    yield Picture(f"{key}-cost", key, cost, partial(draw.cost, shown, quantity))


def _errors(key: str, what: str, quantity: str, shown: draw.Shown) -> Picture:
    return Picture(f"{key}-errors", key, SAID["errors"].format(what=what), partial(draw.errors, shown, quantity))


def _gradients(name: str, found: pd.DataFrame) -> Iterator[Picture]:
    for (model, states), group in groups(found, "model", "states"):
        shown = _panels(group, "quantity", "gradient of {}".format)
        last = key_of(name, model, states, group.quantity.iloc[-1])
        caption = SAID["gradients"].format(model=model, states=states)
        yield Picture(key_of(name, model, states), last, caption, partial(draw.directions, shown))


def _theory(name: str, rows: pd.DataFrame) -> Iterator[Picture]:
    shown = _panels(rows, "statement")
    yield Picture("theory-agreement", name, SAID["agreement"], partial(draw.agreement, shown))
    for statement, group in shown.items():
        if "1/K" in statement.replace(" ", ""):
            file = key_of(name, statement.replace("1/K", "law in K"))
            caption = SAID["law"].format(statement=capital(statement))
            settings = _panels(group, "setting")
            yield Picture(file, name, caption, partial(draw.law, settings, "K2: number of states drawn"))
