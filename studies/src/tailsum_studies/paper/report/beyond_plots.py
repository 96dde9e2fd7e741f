"""Plots of what the paper claims and has no table of: splits of K, memory of training, gradients by samples."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tailsum_studies.paper.report.beyond import MIB, gains, way_text, with_structure
from tailsum_studies.paper.report.draw import Shown, on_log, swatch
from tailsum_studies.paper.report.look import OTHERS, colour_of, kept_axis, name_of
from tailsum_studies.paper.report.tables import WORDS, key_of
from tailsum_studies.paper.splits import exponent_of, is_tail
from tailsum_studies.report.axes import handles_of, label_edges, legend_below, log_axis, panels, plain
from tailsum_studies.report.picture import WIDTH, Picture, page_width
from tailsum_studies.report.style import INK, QUIET
from tailsum_studies.report.table import groups, rows_of
from tailsum_studies.report.wording import capital

SAID = WORDS["pictures"]
_DASHES = ("--", "-", ":")  # for the shares of states kept, smallest first
_GAINS = {"half": "half top", "all but one": "all but one top", "same draws": "half top beside the same draws"}
_WAYS = {"autograd": INK, "exact": "#009E73", "exact, streamed": "#CC79A7"}
_FAMILIES = {"score function": OTHERS[0], "relaxed": "#D55E00", "straight-through": "#0072B2"}


def more_pictures(found: Mapping[str, pd.DataFrame]) -> list[Picture]:
    """Every plot of these experiments, in its order."""
    made: dict[str, Callable[[str, pd.DataFrame], Iterator[Picture]]] = {
        "splits": _split_pictures,
        "memory": _memory_pictures,
        "relaxed": _relaxed_pictures,
    }
    return [picture for name, make in made.items() if name in found for picture in make(name, found[name])]


def _dash(labels: list[str]) -> dict[str, str]:
    return dict(zip(sorted(labels, key=lambda each: float(each.rstrip("%"))), _DASHES, strict=False))


# Splits.


def _split_pictures(name: str, found: pd.DataFrame) -> Iterator[Picture]:
    papers = with_structure(found[~found.model.map(is_tail)])
    for (structure, quantity, states), group in groups(papers, "structure", "quantity", "states"):
        key, section = (key_of(name, structure, quantity, states, *more) for more in ((), (group.label.iloc[-1],)))
        shown = {capital(level): each for level, each in groups(group, "level")}
        caption = SAID["splits"].format(what=f"{structure} {quantity}, N = {states:,}")
        yield Picture(key, section, caption, partial(draw_splits, shown, quantity))
    tails = found[found.model.map(is_tail)]
    if len(tails):
        states, last = int(tails.states.iloc[0]), tails.iloc[-1]
        shown = {capital(quantity): each for quantity, each in groups(tails, "quantity")}
        section = key_of(name, "gains", last.quantity, states, last.label)
        yield Picture(
            key_of(name, "tails", states), section, SAID["tails"].format(states=states), partial(draw_tails, shown)
        )


def draw_splits(shown: Shown, quantity: str) -> Figure:
    """Root mean square error, and thin the size of the bias, by the number of draws; ours as level lines."""
    made = panels(shown, 2.6)
    everything = pd.concat(list(shown.values())).assign(rmse=lambda each: np.sqrt(each.mse))
    whole = everything.groupby("label").kept.max()
    dash = _dash(list(whole.index))
    for ax, group in zip(made.axes, shown.values(), strict=True):
        for (label, method), each in groups(group, "label", "method"):
            how: dict[str, Any] = {"color": colour_of(method), "linestyle": dash[label]}
            named = f"{name_of(method)}, K = {whole[label]:,}"
            if (each.sampled == 0).all():
                level = float(np.sqrt(each.mse.iloc[0]))
                if on_log(level):
                    width = 1.0 if "," in method else 1.8  # a variant is drawn thinner
                    ax.axhline(level, label=named, linewidth=width, **how)
                continue
            points = each[each.kept == whole[label]].sort_values("sampled")
            ax.plot(points.sampled, np.sqrt(points.mse), marker="^", markersize=4, label=named, **how)
            ax.plot(points.sampled, points.bias.abs(), linewidth=0.8, alpha=0.6, **how)
    kept_axis(made.axes, [each for each in everything.sampled if each])
    sizes = [*everything.rmse, *everything.bias[everything.sampled > 0].abs()]
    for ax in made.axes:
        log_axis(ax, "y", [value for value in sizes if on_log(value)])
    label_edges(made, "states drawn, K2 (of K)", f"error of {quantity} (nats)")
    _legend_in_rows(made.figure, handles_of(made.axes), 3)
    return made.figure


def draw_tails(shown: Shown) -> Figure:
    """How many times smaller the mean square error is with top states, by the exponent of the tail."""
    made = panels(shown, 2.9, 2)
    values, labels = [1.0], sorted({label for group in shown.values() for label in group.label})
    dash = _dash(labels)
    for ax, group in zip(made.axes, shown.values(), strict=True):
        for label, alike in groups(group, "label"):
            found = {exponent_of(model): gains(each) for model, each in groups(alike, "model")}
            for place, (kind, what) in enumerate(_GAINS.items()):
                line = {x: each[kind] for x, each in sorted(found.items()) if on_log(each.get(kind, 0.0))}
                values += line.values()
                how: dict[str, Any] = {"color": OTHERS[place], "linestyle": dash[label], "marker": "o", "markersize": 4}
                ax.plot(list(line), list(line.values()), label=f"{what}, {label}", **how)
        ax.axhline(1.0, color=QUIET, linewidth=0.8)
    for ax in made.axes:
        log_axis(ax, "y", values)
    label_edges(made, "exponent of the tail (0: flat)", "times smaller with top states")
    _legend_in_rows(made.figure, handles_of(made.axes), 3)
    return made.figure


def _legend_in_rows(figure: Figure, handles: list[Any], columns: int) -> None:
    legend_below(figure, *(handles[at : at + columns] for at in range(0, len(handles), columns)))


# Memory.


def _memory_pictures(name: str, found: pd.DataFrame) -> Iterator[Picture]:
    last = found.model.iloc[-1]
    shown = {capital(model): each for model, each in groups(found, "model")}
    for column, what in (("peak_bytes", "memory at the peak (MiB)"), ("seconds", "seconds")):
        caption, section = SAID[f"memory_{column}"], key_of(name, last, column)
        yield Picture(key_of(name, column), section, caption, partial(draw_costs, shown, column, what))


def draw_costs(shown: Shown, column: str, what: str) -> Figure:
    """Memory or seconds of a step by the number of states, a panel for each source of scores."""
    made = panels(shown, 2.5)
    everything = pd.concat(list(shown.values()))
    scale = MIB if column == "peak_bytes" else 1
    dash = _dash([label for label in everything.label.unique() if label != "all"])
    for ax, group in zip(made.axes, shown.values(), strict=True):
        for (method, label), each in groups(group, "method", "label"):
            points = each.sort_values("states")
            thin = 1.0 if ", refined" in method else 1.6
            how = {
                "color": _WAYS.get(method) or colour_of(method),
                "linestyle": dash.get(label, "-"),
                "linewidth": thin,
            }
            named = plain(way_text(each.iloc[0]))
            ax.plot(points.states, points[column] / scale, marker="o", markersize=3, label=named, **how)
        if column == "peak_bytes":
            sizes = group.groupby("states").parameter_bytes.max() / scale
            ax.plot(sizes.index, sizes, color=QUIET, linestyle=":", label="parameters and gradients")
    kept_axis(made.axes, everything.states.tolist())
    for ax in made.axes:
        log_axis(ax, "y", [value for value in everything[column] / scale if on_log(value)])
    label_edges(made, "states, N", what)
    _legend_in_rows(made.figure, handles_of(made.axes), 4)
    return made.figure


# Gradients by samples.


def _relaxed_pictures(name: str, found: pd.DataFrame) -> Iterator[Picture]:
    for (model, states), group in groups(found[found.parameter == "all"], "model", "states"):
        key = key_of(name, model, states)
        yield Picture(key, key, SAID["relaxed"].format(model=model, states=states), partial(draw_relaxed, group))


def draw_relaxed(group: pd.DataFrame) -> Figure:
    """Bias against deviation. Where the bias is within two standard errors of zero, an arrow comes from two above it."""
    figure = Figure(figsize=(min(page_width(), 0.8 * WIDTH), 4.4), layout="constrained")
    ax = figure.subplots()
    labels = list(group.label.unique())
    marks = dict(zip(labels, ("o", "^", "s"), strict=False))
    tops = [row.bias + 2 * row.bias_error for row in rows_of(group)]
    for row, top in zip(rows_of(group), tops, strict=True):
        family, _, variant = row.method.partition(", ")
        how: dict[str, Any] = {"color": _FAMILIES.get(family, QUIET), "marker": marks[row.label]}
        if row.bias > 2 * row.bias_error:
            ax.errorbar(row.deviation, row.bias, yerr=2 * row.bias_error, capsize=2, elinewidth=0.9, **how)
        else:
            ax.errorbar(row.deviation, top, yerr=0.3 * top, uplims=True, elinewidth=0.9, fillstyle="none", **how)
        if row.label == labels[0]:  # those of the others are near
            where = (row.deviation, row.bias if row.bias > 2 * row.bias_error else top)
            ax.annotate(plain(variant), where, (5, 3), textcoords="offset points", fontsize=6.5, color=INK)
    log_axis(ax, "x", [x for x in group.deviation if on_log(x)])
    log_axis(
        ax, "y", [x for x in [*tops, *group.bias[group.bias > 2 * group.bias_error], 0.5 * min(tops)] if on_log(x)]
    )
    ax.set_xlabel("deviation of one gradient, over its size")
    ax.set_ylabel("bias, over the gradient's size")
    families = [swatch("o", colour, family) for family, colour in _FAMILIES.items()]
    legend_below(figure, families, [swatch(mark, QUIET, plain(label)) for label, mark in marks.items()])
    return figure
