"""Tagging schemes: how names of tags such as `B-PER` mark segments.

A tag is `O` (outside every segment) or a prefix and a label joined by `-`. The prefix says what its position is in a segment:
where it *begins*, its *inside*, its *end*, or its *single* position. Schemes differ in which of these they tell apart, and
in their letters.
"""

from dataclasses import dataclass

OUTSIDE = "O"


@dataclass(frozen=True)
class Scheme:
    """The letter for each place in a segment; places that are not told apart have the same."""

    begin: str
    inside: str
    end: str
    single: str

    @property
    def letters(self) -> list[str]:
        """All of them, in the order in which tags are listed."""
        return list(dict.fromkeys((self.begin, self.inside, self.end, self.single)))

    @property
    def opens(self) -> set[str]:
        """With which a segment may start; the others continue one."""
        return {self.begin, self.single}

    @property
    def closes(self) -> set[str]:
        """After which it may be over."""
        return {self.end, self.single}

    @property
    def lasts(self) -> set[str]:
        """After which it may go on."""
        return {self.begin, self.inside}


_STARTS_MARKED, _ENDS_MARKED = Scheme("B", "I", "I", "B"), Scheme("B", "I", "E", "S")
SCHEMES = {
    "IO": Scheme("I", "I", "I", "I"),  # neighbouring segments of one label cannot be told apart
    "BIO": _STARTS_MARKED,
    "IOB2": _STARTS_MARKED,
    "IOBES": _ENDS_MARKED,
    "BIOES": _ENDS_MARKED,
    "BILOU": Scheme("B", "I", "L", "U"),
    "BMES": Scheme("B", "M", "E", "S"),
}


def scheme_of(name: str) -> Scheme:
    """The scheme of this name."""
    if name not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}: got {name!r}")
    return SCHEMES[name]


def split_tag(tag: str, scheme: str, called: str = "tags") -> tuple[str, str] | None:
    """Prefix and label of a tag; None outside of segments.

    >>> split_tag("B-PER", "BIO"), split_tag("O", "BIO")
    (('B', 'PER'), None)
    """
    if tag == OUTSIDE:
        return None
    letters = scheme_of(scheme).letters
    letter, dash, label = tag.partition("-") if isinstance(tag, str) else ("", "", "")
    if not dash or not label or letter not in letters:
        forms = ", ".join(f"{letter}-LABEL" for letter in letters)
        raise ValueError(f"{called} must be O, {forms} in the scheme {scheme}: got {tag!r}")
    return letter, label
