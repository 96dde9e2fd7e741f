"""Spans, tags and segmentations, there and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tailsum as ts
from harness.misuse import fails
from tailsum.formats import Span, segments_to_spans, spans_to_segments, spans_to_tags, stack, tags_to_spans
from tailsum.formats.schemes import SCHEMES

NAMES = ["O", "PER", "LOC", "B-ORG"]  # a label may hold the mark of a prefix


@st.composite
def sentences(draw):
    """The length of a sentence, and spans that do not overlap, some next to one another."""
    spans, at = [], 0
    for skip, size in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=4)):
        spans.append(Span(at + skip, at + skip + size - 1, draw(st.sampled_from(NAMES[1:]))))
        at += skip + size
    return at + draw(st.integers(0, 2)), spans


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "IO"])
@given(sentence=sentences(), seed=st.randoms())
def test_tags_and_back(scheme, sentence, seed):
    length, spans = sentence
    tags = spans_to_tags(seed.sample(spans, len(spans)), length, scheme)
    assert len(tags) == length
    assert tags_to_spans(tags, scheme) == tags_to_spans(tags, scheme, strict=False) == spans


def test_neighbours_without_begins_are_one_span():
    tags = spans_to_tags([(0, 1, "PER"), (2, 2, "PER"), (3, 3, "LOC")], 5, "IO")
    assert tags == ["I-PER", "I-PER", "I-PER", "I-LOC", "O"]
    assert tags_to_spans(tags, "IO") == [(0, 2, "PER"), (3, 3, "LOC")]


@pytest.mark.usefixtures("unchecked")
def test_tags_that_are_no_names():
    fails(lambda: tags_to_spans([0, 1]), r"tags\[0\] must be O, B-LABEL, I-LABEL in the scheme BIO: got 0")


@given(sentence=sentences())
def test_segments_and_back(sentence):
    length, spans = sentence
    segments = spans_to_segments(spans, length, NAMES)
    assert segments_to_spans(segments, NAMES) == spans
    labels = [NAMES[i] for i in segments.labels().tolist()]
    assert labels == [next((x.label for x in spans if x.first <= t <= x.last), "O") for t in range(length)]


def test_segments_are_those_of_a_model():
    """A batch of sentences of different lengths, scored by a model; and its best segmentation back as spans."""
    spans = [[(0, 2, "PER")], [(1, 1, "LOC")]]
    batch, lengths = stack([spans_to_segments(s, n, NAMES) for s, n in zip(spans, (4, 2), strict=True)])
    model = ts.SemiMarkov(torch.zeros(2, 4, 3, 4), torch.zeros(4, 4), lengths)
    assert torch.equal(model.score(batch), torch.zeros(2))
    peaked = ts.SemiMarkov(model.parts(batch), torch.zeros(4, 4), lengths)
    assert [segments_to_spans(peaked.argmax().at(b), NAMES) for b in range(2)] == spans


TAGS = [
    (["B-PER", "X-PER"], {}, r"tags\[1\] must be O, B-LABEL, I-LABEL in the scheme BIO: got 'X-PER'"),
    (["S-PER"], {}, r"tags\[0\] must be O, B-LABEL, I-LABEL in the scheme BIO: got 'S-PER'"),
    (["B-"], {}, r"tags\[0\] must be O, .*: got 'B-'"),
    (["PER"], {}, r"tags\[0\] must be O, .*: got 'PER'"),
    (["O", "I-PER"], {}, r"tags\[1\] must continue a span of PER: got 'I-PER' after 'O'"),
    (["I-PER"], {}, r"tags\[0\] must continue a span of PER: got 'I-PER' after nothing"),
    (["B-LOC", "I-PER"], {}, r"tags\[1\] must continue a span of PER: got 'I-PER' after 'B-LOC'"),
    (["B-PER", "I-PER", "O"], {"scheme": "IOBES"}, r"tags\[0\] begins a span that must end with E-PER: got none"),
    (["B-PER"], {"scheme": "IOBES"}, r"tags\[0\] begins a span that must end with E-PER"),
    (["S-PER", "E-PER"], {"scheme": "IOBES"}, r"tags\[1\] must continue a span of PER: got 'E-PER' after 'S-PER'"),
    (["O"], {"scheme": "BIOUL"}, "scheme must be one of IO, BIO, .*: got 'BIOUL'"),
    (["B-PER", "I-PER"], {"scheme": "BILOU"}, r"tags\[0\] begins a span that must end with L-PER: got none"),
    (["B-X", "S-X"], {"scheme": "BMES"}, r"tags\[0\] begins a span that must end with E-X: got none"),
    (["BI-PER"], {}, r"tags\[0\] must be O, B-LABEL, I-LABEL in the scheme BIO: got 'BI-PER'"),
]


@pytest.mark.parametrize(("tags", "how", "words"), TAGS)
def test_tags_that_are_not_well_formed(tags, how, words):
    fails(lambda: tags_to_spans(tags, **how), words)


def test_tags_read_as_far_as_possible():
    tags = ["I-PER", "I-PER", "I-LOC", "O", "I-LOC"]
    assert tags_to_spans(tags, strict=False) == [(0, 1, "PER"), (2, 2, "LOC"), (4, 4, "LOC")]
    tags = ["B-PER", "B-PER", "E-PER", "E-LOC", "I-PER"]
    assert tags_to_spans(tags, "IOBES", strict=False) == [(0, 0, "PER"), (1, 2, "PER"), (3, 3, "LOC"), (4, 4, "PER")]


def test_spans_that_are_none():
    for spans, words in (
        ([(0, 3, "PER")], r"spans must lie between 0 and 2, first <= last: got \(0, 3, 'PER'\)"),
        ([(2, 1, "PER")], "spans must lie between 0 and 2, first <= last"),
        ([(-1, 1, "PER")], "spans must lie between 0 and 2"),
        ([(1, 2, "PER"), (0, 1, "LOC")], r"spans must not overlap: got \(1, 2, 'PER'\) after one that ends at 1"),
    ):
        fails(lambda spans=spans: spans_to_tags(spans, 3), words)
        fails(lambda spans=spans: spans_to_segments(spans, 3, NAMES), words)
    fails(lambda: spans_to_tags([], -1), "length must be a whole number of at least 0: got -1")
    fails(
        lambda: spans_to_segments([(0, 1, "MISC")], 3, NAMES),
        "names must have 'MISC', the label of the span from 0 to 1",
    )
    fails(lambda: spans_to_segments([], 3, ["PER"]), "names must have 'O', the label of the span from 0 to 0")
    segments = spans_to_segments([(0, 1, "PER")], 3, NAMES)
    fails(lambda: segments_to_spans(segments, ["O"]), "names must have one for label 1 of the segment at 0: got 1")
    batch, _ = stack([segments, segments])
    fails(lambda: segments_to_spans(batch, NAMES), r"segments must be of one sentence, .*: got \[2, 3\]")


@pytest.mark.usefixtures("unchecked")
def test_batches_that_are_none():
    one, other = torch.tensor([1, 2]), ts.Dependencies(torch.tensor([0, 0]))
    fails(lambda: stack([]), "configurations must be at least one: got none")
    fails(lambda: stack([one, other]), "configurations must be of one kind, Tensor: got Dependencies at 1")
    fails(lambda: stack([one[None]]), "configurations must be of one sentence each: got a batch at 0")
    labelled = other._replace(labels=torch.tensor([0, 1]))
    fails(lambda: stack([other, labelled]), "configurations must all have labels, or none of them: got both")
