"""How numbers are written: few digits, and words where a number says nothing."""

import math

NOTHING = "-"


def number(value: float | None, digits: int = 3, *, trim: bool = False) -> str:
    """A value to a few significant digits, zeros at their end included unless they are trimmed.

    >>> [number(x) for x in (0.14567, 0.5, 12345.6, 1.2345e-7, 0.0, None)]
    ['0.146', '0.500', '12,300', '1.23e-7', '0', '-']
    """
    if value is None:
        return NOTHING
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded == 0:
        return "0"
    power = math.floor(math.log10(abs(rounded)))
    if not -4 <= power < 9:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    decimals = max(0, digits - 1 - power)
    text = f"{rounded:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if trim and decimals else text


def printed(value: float | None) -> str:
    """A figure of the paper with all its digits."""
    return NOTHING if value is None else f"{value:g}"


def with_spread(value: float | None, standard_error: float | None) -> str:
    """A mean with its standard error, where it has one.

    >>> with_spread(0.14567, 0.0213), with_spread(0.5, None), with_spread(0.5, 0.0)
    ('0.146 ± 0.021', '0.500', '0.500')
    """
    if not standard_error or not math.isfinite(standard_error):
        return number(value)
    return f"{number(value)} ± {number(standard_error, 2)}"


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
    lower = paper > ours
    times = number(paper / ours if lower else ours / paper, 2, trim=True)
    return (
        "equal" if times == "1" else f"{times} x {'lower' if lower else 'higher'}".replace("infinite x", "infinitely")
    )


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
