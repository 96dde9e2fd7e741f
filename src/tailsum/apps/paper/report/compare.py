"""The paper's figures, the paper's method measured here, and ours, side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailsum.apps.paper import published
from tailsum.apps.paper.report.summary import DirectionSummary, Summary, grouped
from tailsum.apps.paper.report.table import Column
from tailsum.apps.paper.report.wording import number, times_lower

METHODS = ("TopK", "paper", "tailsum")
_SHOWN = {"paper": "paper's method", "tailsum": "ours"}

Value = Callable[[Summary], float | None]


@dataclass(frozen=True)
class Line:
    """One model at one number of states kept: what each method gave."""

    model: str
    states: int
    quantity: str
    label: str
    kept: int
    found: dict[str, Summary]


@dataclass(frozen=True)
class DirectionLine:
    """One parameter's gradient at one number of states kept: what each method gave."""

    parameter: str
    label: str
    kept: int
    found: dict[str, DirectionSummary]


def shown(method: str) -> str:
    """A method's name as the report writes it.

    >>> shown("tailsum"), shown("tailsum, refined"), shown("Uniform")
    ('ours', 'ours, refined', 'Uniform')
    """
    name, comma, variant = method.partition(", ")
    return _SHOWN.get(name, name) + comma + variant


def is_ours(method: str) -> bool:
    """Whether it is tailsum's own, or a variant of it."""
    return method.partition(", ")[0] == "tailsum"


def capital(text: str) -> str:
    """With a capital letter in front."""
    return text[:1].upper() + text[1:]


def structure_of(model: str) -> str:
    """The part of a model's name before its level."""
    return published.structure_and_level(model)[0]


def level_of(model: str) -> str:
    """The level, or the whole name where it has none."""
    structure, level = published.structure_and_level(model)
    return level or structure


def lines_of(summaries: Sequence[Summary]) -> list[Line]:
    """The methods on the same model with as many states kept, together: models in order, each by its states kept."""
    groups = grouped(summaries, lambda each: (each.model, each.states, each.quantity, each.label, each.kept))
    return [Line(*key, found={each.method: each for each in group}) for key, group in groups.items()]


def direction_lines(summaries: Sequence[DirectionSummary]) -> list[DirectionLine]:
    """The methods on the same gradient with as many states kept, together."""
    groups = grouped(summaries, lambda each: (each.parameter, each.label, each.kept))
    return [DirectionLine(*key, found={each.method: each for each in group}) for key, group in groups.items()]


def methods_in(summaries: Sequence[Summary] | Sequence[DirectionSummary]) -> list[str]:
    """The methods that have rows: TopK and the paper's first, ours last."""
    there = dict.fromkeys(each.method for each in summaries)
    return sorted(there, key=lambda method: (is_ours(method), method != "TopK", method != "paper"))


def kept_text(line: Line | DirectionLine) -> str:
    """How many states were kept: as a share and a number, and what the paper prints where that differs."""
    if not line.label.startswith("K="):
        return f"{line.label} (K = {line.kept:,})"
    if isinstance(line, Line):
        for method in line.found:
            share = published.printed_as(line.model, method, line.label)
            if share != line.label:
                return f"K = {line.kept:,} (printed as {share})"
    return f"K = {line.kept:,}"


def value_of(line: Line, method: str, value: Value) -> float | None:
    """What this method gave, if it was run."""
    found = line.found.get(method)
    return None if found is None else value(found)


def measured(method: str, value: Callable[[Summary], str], header: str | None = None) -> Column[Line]:
    """A column of what this method gave here."""

    def cell(line: Line) -> str:
        found = line.found.get(method)
        return number(None) if found is None else value(found)

    return Column(header or capital(shown(method)), cell, ours=is_ours(method))


def lower(value: Value, header: str) -> Column[Line]:
    """A column of how much lower ours is than the paper's method."""
    return Column(header, lambda line: times_lower(value_of(line, "paper", value), value_of(line, "tailsum", value)))
