"""How numbers and texts are written: few digits, and words where a number says nothing."""

import math

NOTHING = "-"


def number(value: float | None, digits: int = 3, *, trim: bool = False) -> str:
    """A value to a few significant digits, zeros at their end included unless they are trimmed.

    >>> [number(x) for x in (0.14567, 0.5, 12345.6, 1.2345e-7, 0.0, None)]
    ['0.146', '0.500', '12,300', '1.23e-7', '0', '-']
    """
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return {math.inf: "infinite", -math.inf: "minus infinite"}.get(value, "undefined")
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded == 0:
        return "0"
    if not 1e-4 <= abs(rounded) < 1e9:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if abs(rounded) >= 10 ** (digits - 1):
        return f"{rounded:,.0f}"
    return f"{rounded:{'' if trim else '#'}.{digits}g}"


def fixed(value: float | None, digits: int) -> str:
    """A value with so many digits behind the point."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def with_spread(value: float | None, standard_error: float | None) -> str:
    """A mean with its standard error, where it has one.

    >>> with_spread(0.14567, 0.0213), with_spread(0.5, None), with_spread(0.5, 0.0)
    ('0.146 ± 0.021', '0.500', '0.500')
    """
    if not standard_error or not math.isfinite(standard_error):
        return number(value)
    return f"{number(value)} ± {number(standard_error, 2)}"


def percent(share: float) -> str:
    """A share, to two digits or so.

    >>> [percent(x) for x in (1.0, 0.342, 0.0342, 0.00342, 0.00001)]
    ['100%', '34%', '3.4%', '0.34%', '<0.01%']
    """
    value = 100 * share
    if value >= 9.95:
        return f"{value:.0f}%"
    return f"{value:.1f}%" if value >= 0.995 else f"{value:.2f}%" if value >= 0.005 else "<0.01%"


def capital(text: str) -> str:
    """With a capital letter in front."""
    return text[:1].upper() + text[1:]


def markdown(text: str) -> str:
    """Escape what Markdown would interpret: bars, tags, emphasis and links."""
    text = " ".join(text.split())
    for mark in "\\|<>*_`[]":
        text = text.replace(mark, f"\\{mark}")
    return text
