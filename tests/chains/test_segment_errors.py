"""Bad input to segmentations: a ValueError that names the argument, what it was and what was expected.

What is no segmentation of the sentence is an error too.
"""

import math

import pytest
import torch

import tailsum as ts
from harness.misuse import broken_factors, fails, with_value

pytestmark = pytest.mark.usefixtures("unchecked")

zeros, tensor = torch.zeros, torch.tensor

SEGMENT, PAIRS = zeros(2, 4, 3, 5), zeros(5, 5)


def semi_markov(length=4, longest=3, n=5, batch=(2,), lengths=None):
    return ts.SemiMarkov(zeros(*batch, length, longest, n), zeros(n, n), lengths)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[0.0]], PAIRS), r"segment must be \[\*batch, T, D, N\], none of T, D, N zero: got list"),
        ((zeros(3, 5), PAIRS), r"segment must be \[\*batch, T, D, N\].*: got \[3, 5\]"),
        ((ts.Factored(zeros(3, 2), zeros(5, 2)), PAIRS), "segment must be .*: got Factored"),
        ((zeros(0, 3, 5), PAIRS), r"none of T, D, N zero: got \[0, 3, 5\]"),
        ((zeros(4, 0, 5), PAIRS), r"none of T, D, N zero: got \[4, 0, 5\]"),
        ((zeros(4, 3, 0), zeros(0, 0)), r"none of T, D, N zero: got \[4, 3, 0\]"),
        ((SEGMENT.long(), PAIRS), "segment must be floating-point: got torch.int64"),
        ((SEGMENT.bool(), PAIRS), "segment must be floating-point: got torch.bool"),
        ((SEGMENT.to(torch.complex64), PAIRS), "segment must be floating-point: got torch.complex64"),
        ((with_value(SEGMENT, math.nan, 0), PAIRS), r"segment must not hold NaN or \+inf .* at \[0, 0, 0, 0\]"),
        ((with_value(SEGMENT, math.inf, 0), PAIRS), r"segment must not hold NaN or \+inf .* at \[0, 0, 0, 0\]"),
        ((SEGMENT, PAIRS.long()), "transition must be floating-point: got torch.int64"),
        ((SEGMENT, with_value(PAIRS, math.nan)), r"transition must not hold NaN or \+inf .* got one at \[4, 4\]"),
        ((SEGMENT, with_value(PAIRS, math.inf)), r"transition must not hold NaN or \+inf .* got one at \[4, 4\]"),
        ((SEGMENT, None), r"transition must be a potential or a tensor \[N, N\] .*: got NoneType"),
        ((SEGMENT, [[0.0]]), "transition must be a potential or a tensor .*: got list"),
        ((SEGMENT, zeros(5)), r"transition must be a potential or a tensor .*: got \[5\]"),
        ((SEGMENT, zeros(4, 4)), "transition must join 5 states with 5, as segment has: got 4 with 4"),
        ((SEGMENT, ts.Factored(zeros(4, 2), zeros(5, 2))), "transition must join 5 states with 5.*: got 4 with 5"),
        ((SEGMENT, broken_factors(5)), r"transition must have finite factors: got -inf at \[4, 1\]"),
        ((SEGMENT, zeros(4, 5, 5)), "transition must have 1 or 3 steps in dimension -3: got 4"),
        ((SEGMENT, zeros(5, 3, 5, 5)), r"transition has batch shape \[5\], which does not match segment's \[2\]"),
        ((SEGMENT, PAIRS.to("meta")), "transition must be on cpu, where (?!emission).*: got meta"),
        ((SEGMENT, PAIRS, [1, 2, 3]), r"lengths has batch shape \[3\], which does not match .* \[2\]"),
        ((SEGMENT, PAIRS, [0, 2]), "lengths must lie between 1 and 4, the number of positions: got 0"),
        ((SEGMENT, PAIRS, [1, 5]), "lengths must lie between 1 and 4, the number of positions: got 5"),
        ((SEGMENT, PAIRS, tensor([1.0, 2.0])), "lengths must be integers: got torch.float32"),
        ((SEGMENT, PAIRS, tensor([True, True])), "lengths must be integers: got torch.bool"),
    ],
)
def test_semi_markov(arguments, words):
    fails(lambda: ts.SemiMarkov(*arguments), words)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (None, r"scores must be a tensor \[\*lead, D, N, N\] or a potential whose .* end with D: got NoneType"),
        ([[[0.0]]], "scores must be a tensor .*: got list"),
        (PAIRS, r"scores must be a tensor .*: got \[5, 5\]"),
        (ts.Dense(PAIRS), r"scores must be a tensor .*: got Dense\(\[5, 5\]\), which has no leading dimensions"),
        (zeros(2, 5, 5), "transition must have 1 or 3 durations in dimension -3: got 2"),
        (zeros(4, 3, 5, 5), "transition must have 1 or 3 steps in dimension -4: got 4"),
        (zeros(5, 3, 3, 5, 5), r"transition has batch shape \[5\], which does not match segment's \[2\]"),
        (zeros(3, 4, 4), "transition must join 5 states with 5, as segment has: got 4 with 4"),
        (zeros(3, 5, 5).long(), "transition must be floating-point: got torch.int64"),
        (with_value(zeros(3, 5, 5), math.nan), r"transition must not hold NaN or \+inf .* got one at \[2, 4, 4\]"),
        (zeros(3, 5, 5).to("meta"), "transition must be on cpu, where .*: got meta"),
    ],
)
def test_transitions_by_duration(scores, words):
    fails(lambda: ts.SemiMarkov(SEGMENT, ts.ByDuration(scores)), words)


def test_other_structures_have_no_durations():
    by_duration = ts.ByDuration(zeros(3, 5, 5))
    words = r"transition must be a potential or a tensor \[N, N\] .*: got ByDuration"
    fails(lambda: ts.LinearChain(zeros(4, 5), by_duration), words)


def segments(starts, durations, states):
    return ts.Segments(tensor(starts), tensor(durations), tensor(states))


FOLLOW = "segments must follow one another from position 0 to the end of their sequence, each of 1 to D = 3 positions"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (segments([0, 3, -1, -1], [2, 1, 0, 0], [1, 4, -1, -1]), FOLLOW),  # a gap
        (segments([0, 1, -1, -1], [2, 2, 0, 0], [1, 4, -1, -1]), FOLLOW),  # an overlap
        (segments([0, 2, -1, -1], [2, 1, 0, 0], [1, 4, -1, -1]), FOLLOW),  # ends early
        (segments([0, 2, -1, -1], [2, 3, 0, 0], [1, 4, -1, -1]), FOLLOW),  # ends late
        (segments([1, -1, -1, -1], [3, 0, 0, 0], [1, -1, -1, -1]), FOLLOW),  # starts late
        (segments([0, -1, -1, -1], [4, 0, 0, 0], [1, -1, -1, -1]), FOLLOW),  # lasts too long
        (segments([2, 0, -1, -1], [2, 2, 0, 0], [1, 1, -1, -1]), FOLLOW),  # out of order
        (segments([-1, 0, 2, -1], [0, 2, 2, 0], [-1, 1, 1, -1]), FOLLOW),  # padding first
        (segments([0, 2, -1, -1], [2, -2, 0, 0], [1, 1, -1, -1]), FOLLOW),
        (segments([0, -2, -1, -1], [3, 1, 0, 0], [1, 1, -1, -1]), FOLLOW),
        (segments([0, 2, -1, -1], [2, 2, 0, 0], [1, -1, -1, -1]), FOLLOW),  # a segment without a state
        (segments([-1] * 4, [2, 2, 0, 0], [-1] * 4), FOLLOW),
        (segments([0, 2, -1, -1], [2, 2, 0, 0], [1, 5, -1, -1]), "segments.states must lie between 0 and N-1 = 4"),
        (segments([0, 2, -1, -1], [2, 2, 0, 0], [1, -2, -1, -1]), "segments.states must lie between 0 and N-1 = 4"),
        (
            segments([0.0, 2, -1, -1], [2, 2, 0, 0], [1, 1, -1, -1]),
            "segments.starts must be integers: got torch.float32",
        ),
        (segments([0, 2, -1], [2, 2, 0], [1, 1, -1]), r"segments must have .* with T = 4: got \[3\], \[3\] and \[3\]"),
        (segments([0, 2, -1, -1], [2, 2, 0], [1, 1, -1, -1]), r"segments must have .*: got \[4\], \[3\] and \[4\]"),
        (zeros(4).long(), "segments must"),
        (ts.SpanTree(zeros(2, 4, 4, 5)).sample(), "segments must"),
    ],
)
def test_scores_of_segments(given, words):
    model = semi_markov(batch=())
    fails(lambda: model.score(given), words)
    fails(lambda: model.log_prob(given), words)
    fails(lambda: model.sketch(2).score(given), words)


def test_scores_of_segments_of_the_wrong_sentence():
    whole = segments([0, 2, -1, -1], [2, 2, 0, 0], [1, 4, -1, -1])
    each = ts.Segments(*(x.expand(2, 4) for x in whole))
    fails(lambda: semi_markov(lengths=[4, 2]).score(each), FOLLOW)
    more = ts.Segments(*(x.expand(3, 4) for x in whole))
    fails(lambda: semi_markov().score(more), r"segments has batch shape \[3\], which does not match the model's \[2\]")
    assert semi_markov().score(ts.Segments(*(x.expand(3, 2, 4) for x in whole))).eq(0).all()
    none = segments([-1] * 4, [0] * 4, [-1] * 4)
    assert semi_markov(batch=()).score(none) == -math.inf
    assert semi_markov(batch=()).log_prob(none) == -math.inf


def test_embeddings_that_vary_are_none():
    """Of a factored transition for each step there is not one embedding for a state."""
    by_step = ts.Factored(zeros(3, 5, 2), zeros(5, 2))
    fails(
        lambda: ts.SemiMarkov(SEGMENT, by_step).sketch(2, proposal=ts.Global()),
        "the global proposal needs state embeddings: a Factored transition shared by all positions",
    )


def test_marginals_of_segments_are_spread_by_their_starts():
    """Where D = T, starts and durations look the same."""
    small = ts.SemiMarkov(torch.randn(3, 3, 6), zeros(6, 6)).sketch(2, proposal=ts.Uniform())
    spread, own = small.scatter(small.marginals()), small.marginals()
    assert spread.shape == (3, 3, 6)
    for start in range(3):
        torch.testing.assert_close(spread[start][:, small.states[start]], own[start])


def test_divergence_between_segments_of_other_durations():
    one, other = semi_markov(longest=2), semi_markov(longest=3)
    same = "other must have the same positions and states as (.*): got (?!\\1).*"  # and shows in what they differ
    fails(lambda: one.kl(other), same)
    fails(lambda: other.kl(one), same)


@pytest.mark.parametrize("pairs", [torch.randn(3, 3), torch.randn(4, 3, 3)], ids=["shared", "own"])
def test_an_empty_batch(pairs):
    model = ts.SemiMarkov(torch.randn(0, 5, 2, 3), pairs)
    assert model.log_partition().shape == model.entropy().shape == (0,)
    assert model.marginals().shape == (0, 5, 2, 3)
    assert model.argmax().labels().shape == (0, 5)
