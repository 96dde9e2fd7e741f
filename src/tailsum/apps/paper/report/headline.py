"""The report in a few figures: how much smaller our errors are than those of the paper's method."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailsum.apps.paper import published
from tailsum.apps.paper.report.compare import Line, capital, is_ours, lines_of, structure_of, value_of
from tailsum.apps.paper.report.results import Results
from tailsum.apps.paper.report.summary import grouped, summarise, summarise_directions
from tailsum.apps.paper.report.table import Column, Table, make_table
from tailsum.apps.paper.report.wording import ratio, ratio_in_words
from tailsum.apps.paper.rows import Direction

SHARES = ("1%", "10%")


@dataclass(frozen=True)
class Comparison:
    """One model: the error of the paper's method over ours."""

    error: str
    share: str
    ratio: float


def headline(results: Results) -> Table | None:
    """The smallest and the median ratio over all models of a kind; None where nothing can be compared."""
    found = grouped(comparisons(results), lambda each: each.error)
    lines = [
        (error, share, [each.ratio for each in alike])
        for error, group in found.items()
        for share, alike in grouped(group, lambda each: each.share).items()
    ]
    columns: list[Column[tuple[str, str, list[float]]]] = [
        Column("Error", lambda line: line[0], names_lines=True),
        Column("States kept", lambda line: line[1], names_lines=True),
        Column("Models", lambda line: str(len(line[2]))),
        Column("Smallest ratio", lambda line: ratio_in_words(min(line[2])), ours=True),
        Column("Median ratio", lambda line: ratio_in_words(statistics.median(line[2])), ours=True),
    ]
    caption = "Ours against the paper's method, both measured here with as many states kept"
    return make_table("headline", caption, columns, lines) if lines else None


def comparisons(results: Results) -> Iterator[Comparison]:
    """Every pair of an error of the paper's method and ours, both finite."""
    for line in lines_of(summarise(results.table2)):
        if published.printed_as(line.model, "paper", line.label) in SHARES:
            yield from _squares(f"{capital(structure_of(line.model))} {line.quantity}", line)
    for line in lines_of(summarise(results.hard)):
        if line.label in SHARES:
            yield from _squares(f"Harder chains, {line.quantity}", line)
    for line in lines_of(summarise(results.text)):
        yield from _squares(f"Trained models, {line.quantity}", line)
    yield from _directions(results.gradients)


def _squares(name: str, line: Line) -> Iterator[Comparison]:
    paper, ours = (value_of(line, method, lambda each: each.mse) for method in ("paper", "tailsum"))
    found = ratio(paper, ours)
    if found is not None:
        yield Comparison(f"{name} (mean square)", published.printed_as(line.model, "paper", line.label), found)


def _directions(rows: Sequence[Direction]) -> Iterator[Comparison]:
    whole = [each for each in summarise_directions(rows) if each.parameter == "all" and each.label in SHARES]
    for group in grouped(whole, lambda each: (each.model, each.states, each.quantity, each.label)).values():
        off = {each.method: each.off for each in group}
        for method in filter(is_ours, off):
            found = ratio(off.get("paper"), off[method])
            if found is not None:
                name = f"Gradient of {group[0].quantity}{method.removeprefix('tailsum')} (1 - cosine)"
                yield Comparison(name, group[0].label, found)
