"""How methods are named, how an error of ours is held against that of the paper's method, and the report in a few figures."""

import math
from collections.abc import Iterator, Mapping

import pandas as pd

from tailsum_studies.paper import published
from tailsum_studies.report.table import Table, groups
from tailsum_studies.report.wording import NOTHING, capital, number

SHARES = ("1%", "10%")
_LINE = ["model", "states", "quantity", "label", "kept"]
_NAMES = ["Error", "States kept"]
_NONE = pd.DataFrame(columns=_LINE)
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


def headline(found: Mapping[str, pd.DataFrame]) -> Table | None:
    """The smallest and the median ratio over all models of a kind; None where nothing can be compared."""
    ratios = pd.DataFrame(comparisons(found), columns=[*_NAMES, "ratio"]).dropna()
    if ratios.empty:
        return None
    alike = ratios.groupby(_NAMES, sort=False).ratio
    frame = pd.DataFrame(
        {
            "Models": alike.count().map(str),
            "Smallest ratio": alike.min().map(ratio_in_words),
            "Median ratio": alike.median().map(ratio_in_words),
        }
    )
    caption = "Ours against the paper's method, both measured here with as many states kept"
    return Table("headline", caption, frame, ours=("Smallest ratio", "Median ratio"))


def comparisons(found: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, str, float | None]]:
    """Each model: what is compared, the share of the states kept, and the error of the paper's method over ours."""
    for name, kind in (("table2", ""), ("hard", "Harder chains,"), ("text", "Trained models,")):
        for _, line in groups(found.get(name, _NONE), *_LINE):
            first = line.iloc[0]
            share = published.printed_as(first.model, "paper", first.label)
            if share in SHARES or name == "text":
                what = f"{kind or capital(first.structure)} {first.quantity} (mean square)"
                yield what, share, ratio(*pair(line, "mse"))
    for _, line in groups(found.get("gradients", _NONE), *_LINE):
        whole = line[(line.parameter == "all") & line.label.isin(SHARES)]
        for method in filter(is_ours, whole.method):
            what = f"Gradient of {whole.quantity.iloc[0]}{method.removeprefix('tailsum')} (1 - cosine)"
            yield what, whole.label.iloc[0], ratio(*pair(whole, "off", method))
