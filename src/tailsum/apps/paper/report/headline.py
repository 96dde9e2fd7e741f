"""The report in a few figures: how much smaller our errors are than those of the paper's method."""

from collections.abc import Iterator, Mapping

import pandas as pd

from tailsum.apps.paper import published
from tailsum.apps.paper.report.compare import is_ours, pair, ratio, ratio_in_words
from tailsum.apps.report.frames import groups
from tailsum.apps.report.table import Table
from tailsum.apps.report.wording import capital

SHARES = ("1%", "10%")
_LINE = ["model", "states", "quantity", "label", "kept"]
_NAMES = ["Error", "States kept"]
_NONE = pd.DataFrame(columns=_LINE)


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
