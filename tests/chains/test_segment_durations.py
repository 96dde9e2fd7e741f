"""Segments from emissions and durations, and segments that the end of a sequence cuts, against the table they stand for."""

import itertools
import math

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.misuse import fails, with_value
from harness.segments import SegmentTruth, added_up, cut, segmentations

zeros = torch.zeros
OPERATIONS = ("log_partition", "entropy", "marginals", "label_marginals")


def drawn(length=6, longest=4, n=3, batch=(), seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, n, generator=g).double() for shape in ((*batch, length), (longest,), (n,))]


@pytest.mark.parametrize("censored", [False, True])
@pytest.mark.parametrize("of_batch", [False, True])
def test_durations_equal_their_table(censored, of_batch):
    emission, duration, transition = drawn(batch=(2,))
    duration = duration + torch.randn(2, 1, 1).double() * torch.arange(3) if of_batch else duration
    how = {"lengths": [6, 4], "censored": censored}
    model = ts.SemiMarkov(ts.Durations(emission, duration), transition, **how)
    rows = zip(emission, duration.expand(2, 4, 3), how["lengths"], strict=True)
    tables = [torch.nn.functional.pad(added_up(x[:end], d), (0, 0, 0, 0, 0, 6 - end)) for x, d, end in rows]
    table = torch.stack(tables)
    other = ts.SemiMarkov(table, transition, **how)
    for operation in OPERATIONS:
        close(getattr(model, operation)(), getattr(other, operation)())
    close(model.kl(other), zeros(2).double())
    close(other.kl(model), zeros(2).double())
    for one, two in ((model.argmax(), other.argmax()), (model.topk(3)[0], other.topk(3)[0])):
        assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))
    sample = model.sample((50,))
    close(model.score(sample), other.score(sample))
    small = model.sketch(2, generator=torch.Generator().manual_seed(0))
    close(small.log_partition(), other.restrict(small.kept).log_partition())
    assert small.rsample(0.5).weights.shape == (2, 6, 4, 2)


@pytest.mark.parametrize("value", [-math.inf, -1e30, torch.finfo(torch.float32).min])
def test_a_forbidden_position_forbids_what_covers_it_and_nothing_else(value):
    emission, duration, transition = drawn()
    for position, state in ((0, 0), (2, 1), (5, 2)):
        changed = emission.clone()
        changed[position, state] = value
        model = ts.SemiMarkov(ts.Durations(changed, duration), transition)
        truth = SegmentTruth(
            added_up(with_value(emission, -math.inf, 3 * position + state), duration), transition.expand(5, 3, 3)
        )
        close(model.log_partition(), truth.log_partition)
        close(model.marginals(), truth.marginals)
        close(model.entropy(), truth.entropy)
        assert model.label_marginals()[position, state] == 0
        assert model.sample((200,)).labels()[:, position].ne(state).all()


def test_durations_in_float32_keep_their_digits():
    g = torch.Generator().manual_seed(0)
    emission, duration, transition = (torch.randn(*shape, generator=g) for shape in ((300, 3), (8, 3), (3, 3)))
    for offset in (0.0, -100.0):
        single, double = (
            ts.SemiMarkov(ts.Durations((emission + offset).to(d), duration.to(d)), transition.to(d))
            for d in (torch.float32, torch.float64)
        )
        torch.testing.assert_close(single.log_partition().double(), double.log_partition(), rtol=2e-7, atol=1e-4)
        torch.testing.assert_close(single.label_marginals().double(), double.label_marginals(), rtol=0, atol=2e-5)
        torch.testing.assert_close(single.entropy().double(), double.entropy(), rtol=1e-5, atol=0)


def test_a_cut_segment_counts_all_durations_that_reach_beyond_the_end():
    """One position and one state: durations 1, 2 and 3 all reach to its end."""
    scores = torch.tensor([0.3, -1.0, 0.5]).double()
    table = ts.SemiMarkov(scores[None, :, None], zeros(1, 1).double(), censored=True)
    sums = ts.SemiMarkov(
        ts.Durations(torch.full((1, 1), 2.0).double(), scores[:, None]), zeros(1, 1).double(), censored=True
    )
    close(table.log_partition(), scores.logsumexp(0))
    close(sums.log_partition(), scores.logsumexp(0) + 2.0)
    assert table.argmax().durations.tolist() == [1]
    close(table.score(table.argmax()), scores.logsumexp(0))


def test_scores_beyond_the_end_count_where_segments_are_cut():
    """And must be numbers there; those of starts in the padding need not."""
    segment, transition = torch.randn(2, 4, 3, 2).double(), torch.randn(2, 2).double()
    segment[1, 2:] = math.nan
    model = ts.SemiMarkov(segment, transition, [4, 2], censored=True)
    for b, length in enumerate((4, 2)):
        truth = SegmentTruth(cut(segment[b, :length]), transition.expand(length - 1, 2, 2))
        close(model.log_partition()[b], truth.log_partition)
    bad = with_value(segment, math.nan, (3 * 3 + 2) * 2)
    fails(
        lambda: ts.SemiMarkov(bad, transition, [4, 2], censored=True), r"segment must not hold NaN .* at \[0, 3, 2, 0\]"
    )
    ts.SemiMarkov(bad, transition, [4, 2])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ts.Durations([0.0], zeros(3, 5)), r"emission must be \[\*batch, T, N\], none of T, N zero: got list"),
        (
            lambda: ts.Durations(zeros(4, 5), zeros(5)),
            r"duration must be \[\*batch, D, N\], none of D, N zero: got \[5\]",
        ),
        (lambda: ts.Durations(zeros(4, 5), zeros(0, 5)), r"none of D, N zero: got \[0, 5\]"),
        (lambda: ts.Durations(zeros(4, 5), zeros(3, 4)), "duration must have 5 states, as emission has: got 4"),
        (lambda: model_of(zeros(4, 5), zeros(3, 5).long()), "segment.duration must be floating-point: got torch.int64"),
        (lambda: model_of(zeros(4, 5).bool(), zeros(3, 5)), "segment.emission must be floating-point: got torch.bool"),
        (lambda: model_of(with_value(zeros(4, 5), math.nan, 1), zeros(3, 5)), r"segment.emission .* at \[0, 1\]"),
        (lambda: model_of(zeros(4, 5), with_value(zeros(3, 5), math.inf, 10)), r"segment.duration .* at \[2, 0\]"),
        (lambda: model_of(zeros(4, 5), zeros(3, 5).to("meta")), "segment.duration must be on cpu.*: got meta"),
        (lambda: model_of(zeros(2, 4, 5), zeros(3, 3, 5)), r"segment.duration has batch shape \[3\], .* \[2\]"),
    ],
)
def test_errors(make, words):
    fails(make, words)


def model_of(emission, duration):
    return ts.SemiMarkov(ts.Durations(emission, duration), zeros(5, 5))


def test_the_duration_of_the_segment_behind_a_boundary_counts_from_the_end():
    """The recipe of the guide: scores by the duration of the segment that is entered."""
    length, longest, n = 5, 3, 2
    g = torch.Generator().manual_seed(0)
    segment = torch.randn(length, longest, n, generator=g).double()
    entered = torch.randn(length - 1, longest, n, n, generator=g).double()
    start, more = torch.arange(length)[:, None], torch.arange(longest)
    backward = segment[(length - 1 - start - more).clamp(min=0), more]
    model = ts.SemiMarkov(backward, ts.ByDuration(entered.flip(0).mT))
    scores = [
        sum(segment[t, d - 1, i] for (t, d), i in zip(cut, states, strict=True))
        + sum(entered[t - 1, d - 1, i, j] for (t, d), (i, j) in zip(cut[1:], itertools.pairwise(states), strict=True))
        for cut in segmentations(0, length, longest)
        for states in itertools.product(range(n), repeat=len(cut))
    ]
    close(model.log_partition(), torch.stack(scores).logsumexp(0))
