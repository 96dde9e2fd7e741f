"""Tagging schemes: how names of tags such as `B-PER` mark segments, and which tags may follow which.

A tag is `O` (outside every segment) or a prefix and a label joined by `-`. A prefix has a role: a segment *begins*, goes
on *inside*, *ends*, or is a *single* position. Schemes differ in the roles that they have and in the letters for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

OUTSIDE = "O"


@dataclass(frozen=True)
class Scheme:
    """The letters of a scheme's roles: in the order in which tags are listed, and by what may come before and after."""

    roles: str
    opens: str  # with which a segment may start; the others continue one
    closes: str  # after which it may be over
    lasts: str  # after which it may go on


_ENDS_MARKED = Scheme("BIES", "BS", "ES", "BI")
SCHEMES = {
    "IO": Scheme("I", "I", "I", "I"),  # neighbouring segments of one label cannot be told apart
    "BIO": Scheme("BI", "B", "BI", "BI"),
    "IOB2": Scheme("BI", "B", "BI", "BI"),
    "IOBES": _ENDS_MARKED,
    "BIOES": _ENDS_MARKED,
    "BILOU": Scheme("BILU", "BU", "LU", "BI"),
    "BMES": Scheme("BMES", "BS", "ES", "BM"),
}


class Allowed(NamedTuple):
    """Which tags may come first, which may follow which `(from, to)`, and which may come last."""

    start: Bool[Tensor, " N"]
    pairs: Bool[Tensor, "N N"]
    end: Bool[Tensor, " N"]


def scheme_tags(scheme: str, labels: Sequence[str]) -> list[str]:
    """The names of all tags: `O`, then the prefixes of each label in turn.

    >>> scheme_tags("BIO", ["PER", "LOC"])
    ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
    """
    if isinstance(labels, str) or len(set(labels)) != len(labels) or not labels:
        raise ValueError(f"labels must be a list of one or more different names: got {labels!r}")
    return [OUTSIDE, *(f"{role}-{label}" for label in labels for role in _scheme(scheme).roles)]


def allowed_by(scheme: str, tags: Sequence[str]) -> Allowed:
    """What a scheme allows, for tags in any order.

    >>> allowed_by("BIO", ["O", "B-PER", "I-PER"]).pairs.tolist()  # only O before I-PER is forbidden
    [[True, True, False], [True, True, True], [True, True, True]]
    """
    rules = _scheme(scheme)
    split = [_split(tag, scheme, rules) for tag in tags]
    starts = [tag is None or tag[0] in rules.opens for tag in split]
    ends = [tag is None or tag[0] in rules.closes for tag in split]
    pairs = [
        [(ends[i] and starts[j]) or _continues(rules, here, there) for j, there in enumerate(split)]
        for i, here in enumerate(split)
    ]
    return Allowed(torch.tensor(starts), torch.tensor(pairs), torch.tensor(ends))


def _continues(rules: Scheme, here: tuple[str, str] | None, there: tuple[str, str] | None) -> bool:
    """Whether a second tag goes on with the segment of the first."""
    if here is None or there is None:
        return False
    return here[1] == there[1] and here[0] in rules.lasts and there[0] not in rules.opens


def _scheme(name: str) -> Scheme:
    if name not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}: got {name!r}")
    return SCHEMES[name]


def _split(tag: str, scheme: str, rules: Scheme) -> tuple[str, str] | None:
    """Prefix and label of a tag; None outside of segments."""
    if tag == OUTSIDE:
        return None
    role, dash, label = tag.partition("-")
    if not dash or not label or role not in list(rules.roles):
        forms = ", ".join(f"{role}-LABEL" for role in rules.roles)
        raise ValueError(f"tags must be O, {forms} in the scheme {scheme}: got {tag!r}")
    return role, label
