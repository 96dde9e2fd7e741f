"""Labelled spans, tags of positions, and segmentations.

In the scheme "BIO" the first position of a span has the tag `B-label`, the others `I-label`. In "IOBES" its last position
has `E-label` instead, and a span of one position `S-label`. Positions outside all spans have the tag `O`.
`tailsum.formats.schemes` lists all schemes.
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

    With `strict`, invalid tags are an error. Otherwise an `I-` or `E-` that continues nothing begins a span, and a span ends
    where it is not continued. In the scheme "IO", adjacent positions with one label are one span.

    >>> tags_to_spans(["B-PER", "I-PER", "O", "B-LOC"])
    [Span(first=0, last=1, label='PER'), Span(first=3, last=3, label='LOC')]
    """
    marks = scheme_of(scheme)
    goes_on = set(marks.letters) - marks.opens or {marks.inside}  # letters that continue a span
    spans: list[Span] = []
    begun: tuple[int, str] | None = None  # the first position and the label of the open span
    for place, tag in enumerate([*tags, OUTSIDE]):
        letter, label = split_tag(tag, scheme, f"tags[{place}]") or (OUTSIDE, "")
        continues = begun is not None and letter in goes_on and label == begun[1]
        if begun is not None and not continues:
            if strict and marks.begin not in marks.closes and marks.inside not in marks.closes:
                raise ValueError(f"tags[{begun[0]}] begins a span that must end with {marks.end}-{begun[1]}: got none")
            spans.append(Span(begun[0], place - 1, begun[1]))
            begun = None
        if letter in goes_on - marks.opens and not continues and strict:
            before = repr(tags[place - 1]) if place else "nothing"
            raise ValueError(f"tags[{place}] must continue a span of {label}: got {tag!r} after {before}")
        if begun is None and letter != OUTSIDE:
            begun = place, label
        if begun is not None and letter not in marks.lasts:
            spans.append(Span(begun[0], place, label))
            begun = None
    return spans


def spans_to_segments(
    spans: Iterable[tuple[int, int, str]], length: int, names: Sequence[str], outside: str = "O"
) -> Segments:
    """A segmentation with a segment for each span, and for each other position a segment labelled `outside`.

    >>> spans_to_segments([(0, 1, "PER")], 3, ["O", "PER"])
    Segments(starts=tensor([ 0,  2, -1]), durations=tensor([2, 1, 0]), states=tensor([ 1,  0, -1]))
    """
    covered = _checked(spans, length)
    inside = {place for first, last, _ in covered for place in range(first, last + 1)}
    rest = [Span(place, place, outside) for place in range(length) if place not in inside]
    rows = [
        (first, last - first + 1, number_of(label, names, f"the span from {first} to {last}"))
        for first, last, label in sorted([*covered, *rest])
    ]
    rows += [(-1, 0, -1)] * (length - len(rows))
    return Segments(*torch.tensor(rows, dtype=torch.long).reshape(-1, 3).unbind(1))


def segments_to_spans(segments: Segments, names: Sequence[str], outside: str = "O") -> list[Span]:
    """The spans of a segmentation of one sentence, without those labelled `outside`.

    >>> segments_to_spans(spans_to_segments([(0, 1, "PER")], 3, ["O", "PER"]), ["O", "PER"])
    [Span(first=0, last=1, label='PER')]
    """
    if segments.starts.dim() != 1:
        raise ValueError(f"segments must be of one sentence, as .at(0) gives: got {list(segments.starts.shape)}")
    rows = zip(*(x.tolist() for x in segments), strict=True)
    spans = [
        Span(start, start + duration - 1, name_of(state, names, f"the segment at {start}"))
        for start, duration, state in rows
        if start >= 0
    ]
    return [span for span in spans if span.label != outside]


def _checked(spans: Iterable[tuple[int, int, str]], length: int) -> list[Span]:
    """The spans in order; a ValueError if one is outside the sentence, or if two overlap."""
    at_least(0, length=length)
    ordered = sorted(Span(*span) for span in spans)
    end = -1
    for span in ordered:
        if not 0 <= span.first <= span.last < length:
            raise ValueError(f"spans must lie between 0 and {length - 1}, first <= last: got {tuple(span)}")
        if span.first <= end:
            raise ValueError(f"spans must not overlap: got {tuple(span)} after one that ends at {end}")
        end = span.last
    return ordered
