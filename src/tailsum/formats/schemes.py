"""Tagging schemes: how names of tags such as `B-PER` mark segments.

A tag is `O` (outside every segment) or a prefix and a label joined by `-`. The prefix is the role of a position in a segment:
its *begin*, *inside*, *end*, or *single* position. Schemes differ in the roles that they distinguish, and in their letters.
"""

from dataclasses import dataclass

OUTSIDE = "O"


@dataclass(frozen=True)
class Scheme:
    """The letter for each role in a segment; roles that are not distinguished have the same letter."""

    begin: str
    inside: str
    end: str
    single: str

    @property
    def letters(self) -> list[str]:
        """All letters, in the order in which tags are listed."""
        return list(dict.fromkeys((self.begin, self.inside, self.end, self.single)))

    @property
    def opens(self) -> set[str]:
        """The letters that may start a segment; the others continue one."""
        return {self.begin, self.single}

    @property
    def closes(self) -> set[str]:
        """The letters that may end a segment."""
        return {self.end, self.single}

    @property
    def lasts(self) -> set[str]:
        """The letters after which a segment may continue."""
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
    """The scheme with this name."""
    if name not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}: got {name!r}")
    return SCHEMES[name]


def split_tag(tag: str, scheme: str, argument: str = "tags") -> tuple[str, str] | None:
    """The prefix and label of a tag; None outside of segments.

    >>> split_tag("B-PER", "BIO"), split_tag("O", "BIO")
    (('B', 'PER'), None)
    """
    if tag == OUTSIDE:
        return None
    letters = scheme_of(scheme).letters
    letter, dash, label = tag.partition("-") if isinstance(tag, str) else ("", "", "")
    if not dash or not label or letter not in letters:
        forms = ", ".join(f"{letter}-LABEL" for letter in letters)
        raise ValueError(f"{argument} must be O, {forms} in the scheme {scheme}: got {tag!r}")
    return letter, label
