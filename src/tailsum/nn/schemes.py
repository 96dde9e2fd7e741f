"""The tags of a tagging scheme, and which tags may follow which."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from tailsum.formats.schemes import OUTSIDE, Scheme, scheme_of, split_tag


class Allowed(NamedTuple):
    """Which tags may come first, which pairs `(from, to)` may follow each other, and which tags may come last."""

    start: Bool[Tensor, " N"]
    pairs: Bool[Tensor, "N N"]
    end: Bool[Tensor, " N"]


def scheme_tags(scheme: str, labels: Sequence[str]) -> list[str]:
    """The names of all tags: `O`, then the prefixes of each label.

    >>> scheme_tags("BIO", ["PER", "LOC"])
    ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
    """
    if isinstance(labels, str) or len(set(labels)) != len(labels) or not labels:
        raise ValueError(f"labels must be a list of one or more different names: got {labels!r}")
    return [OUTSIDE, *(f"{letter}-{label}" for label in labels for letter in scheme_of(scheme).letters)]


def allowed_by(scheme: str, tags: Sequence[str]) -> Allowed:
    """The transitions that a scheme allows, for tags in any order.

    >>> allowed_by("BIO", ["O", "B-PER", "I-PER"]).pairs.tolist()  # only O before I-PER is forbidden
    [[True, True, False], [True, True, True], [True, True, True]]
    """
    rules = scheme_of(scheme)
    split = [split_tag(tag, scheme) for tag in tags]
    starts = [tag is None or tag[0] in rules.opens for tag in split]
    ends = [tag is None or tag[0] in rules.closes for tag in split]
    pairs = [
        [(ends[i] and starts[j]) or _continues(rules, here, there) for j, there in enumerate(split)]
        for i, here in enumerate(split)
    ]
    return Allowed(torch.tensor(starts), torch.tensor(pairs), torch.tensor(ends))


def _continues(rules: Scheme, here: tuple[str, str] | None, there: tuple[str, str] | None) -> bool:
    """Whether the second tag continues the segment of the first."""
    if here is None or there is None:
        return False
    return here[1] == there[1] and here[0] in rules.lasts and there[0] not in rules.opens
