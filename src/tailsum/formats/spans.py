"""Labelled spans, tags of positions, and segmentations.

A span has a first and a last position, both included. In the scheme "BIO" its first position has the tag `B-label`, the
others `I-label`. In "IOBES" its last position has `E-label` instead, and a span of one position `S-label`. Positions
outside of all spans have the tag `O`. `tailsum.formats.schemes` lists all schemes.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from tailsum.chains.segments import Segments
from tailsum.formats.names import name_of, number_of
from tailsum.formats.schemes import OUTSIDE, scheme_of, split_tag
from tailsum.numerics.check import at_least


class Span(NamedTuple):
    """A labelled span from the position `first` to the position `last`, both included."""

    first: int
    last: int
    label: str


def spans_to_tags(spans: Iterable[tuple[int, int, str]], length: int, scheme: str = "BIO") -> list[str]:
    """The tag of each position, from spans `(first, last, label)` that do not overlap.

    >>> spans_to_tags([(0, 1, "PER"), (3, 3, "LOC")], 4)
    ['B-PER', 'I-PER', 'O', 'B-LOC']
    >>> spans_to_tags([(0, 1, "PER"), (3, 3, "LOC")], 4, scheme="IOBES")
    ['B-PER', 'E-PER', 'O', 'S-LOC']
    """
    marks, tags = scheme_of(scheme), [OUTSIDE] * length
    for first, last, label in _checked(spans, length):
        inner = [marks.inside] * (last - first - 1)
        letters = [marks.single] if first == last else [marks.begin, *inner, marks.end]
        tags[first : last + 1] = [f"{letter}-{label}" for letter in letters]
    return tags


def tags_to_spans(tags: Sequence[str], scheme: str = "BIO", strict: bool = True) -> list[Span]:
    """The spans that tags mark, in order.

    Unless `strict`, what is not well-formed is read as far as possible: an `I-` or `E-` that continues nothing begins a
    span, and a span ends where it is not continued. In the scheme "IO" neighbours of one label are one span.

    >>> tags_to_spans(["B-PER", "I-PER", "O", "B-LOC"])
    [Span(first=0, last=1, label='PER'), Span(first=3, last=3, label='LOC')]
    """
    marks = scheme_of(scheme)
    goes_on = set(marks.letters) - marks.opens or {marks.inside}  # letters that continue a span
    spans: list[Span] = []
    begun: tuple[int, str] | None = None  # the first position and the label of the span that may go on
    for place, tag in enumerate([*tags, OUTSIDE]):
        letter, label = split_tag(tag, scheme, f"tags[{place}]") or (OUTSIDE, "")
        continues = begun is not None and letter in goes_on and label == begun[1]
        if begun is not None and not continues:
            if strict and marks.begin not in marks.closes and marks.inside not in marks.closes:
                raise ValueError(f"tags[{begun[0]}] begins a span that must end with {marks.end}-{begun[1]}: got none")
            spans.append(Span(begun[0], place - 1, begun[1]))
            begun = None
        if letter in goes_on - marks.opens and not continues and strict:
            raise ValueError(f"tags[{place}] must continue a span of {label}: got {tag!r} after {_before(tags, place)}")
        if begun is None and letter != OUTSIDE:
            begun = place, label
        if begun is not None and letter not in marks.lasts:
            spans.append(Span(begun[0], place, label))
            begun = None
    return spans


def spans_to_segments(
    spans: Iterable[tuple[int, int, str]], length: int, names: Sequence[str], outside: str = "O"
) -> Segments:
    """A segmentation with a segment for each span, and one of a single position, labelled `outside`, for each other position.

    >>> spans_to_segments([(0, 1, "PER")], 3, ["O", "PER"])
    Segments(starts=tensor([ 0,  2, -1]), durations=tensor([2, 1, 0]), states=tensor([ 1,  0, -1]))
    """
    covered = _checked(spans, length)
    inside = {place for first, last, _ in covered for place in range(first, last + 1)}
    rest = [Span(place, place, outside) for place in range(length) if place not in inside]
    found = sorted([*covered, *rest])
    padding = [-1] * (length - len(found))
    states = [number_of(label, names, f"the span from {first} to {last}") for first, last, label in found]
    return Segments(
        torch.tensor([*(first for first, _, _ in found), *padding], dtype=torch.long),
        torch.tensor([*(last - first + 1 for first, last, _ in found), *[0] * len(padding)], dtype=torch.long),
        torch.tensor([*states, *padding], dtype=torch.long),
    )


def segments_to_spans(segments: Segments, names: Sequence[str], outside: str = "O") -> list[Span]:
    """The spans of a segmentation of one sentence, but for those that are labelled `outside`.

    >>> segments_to_spans(spans_to_segments([(0, 1, "PER")], 3, ["O", "PER"]), ["O", "PER"])
    [Span(first=0, last=1, label='PER')]
    """
    if segments.starts.dim() != 1:
        raise ValueError(f"segments must be of one sentence, as .at(0) gives: got {list(segments.starts.shape)}")
    rows = zip(*(x.tolist() for x in segments), strict=True)
    found = [
        Span(start, start + duration - 1, name_of(state, names, f"the segment at {start}"))
        for start, duration, state in rows
        if start >= 0
    ]
    return [span for span in found if span.label != outside]


def _before(tags: Sequence[str], place: int) -> str:
    return repr(tags[place - 1]) if place else "nothing"


def _checked(spans: Iterable[tuple[int, int, str]], length: int) -> list[Span]:
    """The spans in order; a ValueError if one is not within the sentence, or if two overlap."""
    at_least(0, length=length)
    found = sorted(Span(*span) for span in spans)
    end = -1
    for span in found:
        if not 0 <= span.first <= span.last < length:
            raise ValueError(f"spans must lie between 0 and {length - 1}, first <= last: got {tuple(span)}")
        if span.first <= end:
            raise ValueError(f"spans must not overlap: got {tuple(span)} after one that ends at {end}")
        end = span.last
    return found
