"""How methods are named, and how an error of ours is held against that of the paper's method."""

import math

import pandas as pd

from tailsum.apps.paper import published
from tailsum.apps.report.frames import groups
from tailsum.apps.report.wording import NOTHING, number

_SHOWN = {"paper": "paper's method", "tailsum": "ours"}


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


def methods_in(found: pd.DataFrame) -> list[str]:
    """The methods that have summaries: TopK and the paper's first, ours last."""
    return sorted(found.method.unique(), key=lambda method: (is_ours(method), method != "TopK", method != "paper"))


def kept_text(model: str, label: str, kept: int) -> str:
    """How many states were kept: as a share and a number, and what the paper prints where that differs.

    >>> kept_text("chain, dense", "1%", 20), kept_text("chain, dense", "K=500", 500)
    ('1% (K = 20)', 'K = 500 (printed as 20%)')
    """
    if not label.startswith("K="):
        return f"{label} (K = {kept:,})"
    shares = [published.printed_as(model, method, label) for method in ("TopK", "paper")]
    share = next((share for share in shares if share != label), None)
    return f"K = {kept:,}" + (f" (printed as {share})" if share else "")


def by_method(found: pd.DataFrame, names: list[str], column: str) -> dict[str, pd.Series]:
    """One column of the summaries, for each method; `names` are the columns that name a line of a table."""
    lines = pd.MultiIndex.from_frame(found[names]).unique()
    values = found.set_index(names)
    return {method: values.loc[values.method == method, column].reindex(lines) for method in methods_in(found)}


def pair(line: pd.DataFrame, column: str, ours: str = "tailsum") -> tuple[float | None, float | None]:
    """What the summaries of one line say of the paper's method and of ours; None for one that was not run."""
    values = dict(zip(line.method, line[column], strict=True))
    return values.get("paper"), values.get(ours)


def lower(found: pd.DataFrame, names: list[str], column: str, ours: str = "tailsum") -> pd.Series:
    """How much lower ours is than the paper's method, in words, on each line."""
    said = {name: times_lower(*pair(line, column, ours)) for name, line in groups(found, *names)}
    return pd.Series(said, dtype=object)


def times_lower(paper: float | None, ours: float | None) -> str:
    """How an error of ours compares with that of the paper's method.

    >>> times_lower(0.4, 1e-4), times_lower(0.1, 0.4), times_lower(0.3, 0.0)
    ('4,000 x lower', '4 x higher', 'exact')
    """
    if paper is None or ours is None:
        return NOTHING
    if math.isnan(paper) or math.isnan(ours) or paper == ours == math.inf:
        return "undefined"
    if ours == 0:
        return "exact" if paper else "both exact"
    if paper == 0:
        return "higher: theirs is exact"
    way, times = ("lower", paper / ours) if paper > ours else ("higher", ours / paper)
    said = number(times, 2, trim=True)
    return "equal" if said == "1" else f"infinitely {way}" if math.isinf(times) else f"{said} x {way}"


def ratio(paper: float | None, ours: float | None) -> float | None:
    """An error of the paper's method over ours: None where one is missing or not finite, infinite where ours is exact.

    >>> ratio(0.4, 0.1), ratio(0.4, 0.0), ratio(0.0, 0.0), ratio(float("nan"), 0.1)
    (4.0, inf, 1.0, None)
    """
    if paper is None or ours is None or not math.isfinite(paper) or not math.isfinite(ours):
        return None
    if paper == ours:
        return 1.0
    return paper / ours if ours else math.inf


def ratio_in_words(value: float) -> str:
    """A ratio of `ratio`.

    >>> [ratio_in_words(r) for r in (4000.0, 0.5, float("inf"))]
    ['4,000 x lower', '2 x higher', 'exact']
    """
    return "exact" if math.isinf(value) else times_lower(value, 1.0)
