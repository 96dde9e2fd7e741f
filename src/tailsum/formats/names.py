"""Conversion between the names of labels and their numbers."""

from collections.abc import Sequence


def number_of(name: str, names: Sequence[str], where: str) -> int:
    """The place of a name in the list; if it is missing, a ValueError that says `where` the name is used."""
    try:
        return list(names).index(name)
    except ValueError:
        raise ValueError(f"names must have {name!r}, the label of {where}: got {len(names)} others") from None


def name_of(number: int, names: Sequence[str], where: str) -> str:
    """The name with a number; if there is none, a ValueError that says `where` the number is used."""
    if not 0 <= number < len(names):
        raise ValueError(f"names must have one for label {number} of {where}: got {len(names)}")
    return names[number]
