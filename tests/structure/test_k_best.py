"""The k best configurations by the base class, for every structure without a faster way: all but chains."""

import math

import pytest
import torch

import tailsum as ts
from harness.agree import close, padded
from harness.registry import FEW, SMALL, STATEFUL, possible, small
from tailsum.numerics.memory import PeakMemory


def by_the_base(names):
    return [name for name in names if name.split("-")[0] not in {"chain", "hmm"}]


MASKS = {
    "-1e30": -1e30,
    "lowest float": torch.finfo(torch.float32).min,
    "lowest double": torch.finfo(torch.float64).min,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", by_the_base(SMALL))
def test_masks_are_as_good_as_minus_infinity(name, mask):
    case, model = possible(name, forbidden=0.25)
    masked = case.build(*(x.masked_fill(x == -math.inf, MASKS[mask]) for x in case.marked()))
    result, expected = masked.topk(6), model.topk(6)
    assert torch.equal(case.rows(result.configurations), case.rows(expected.configurations))
    close(result.scores, expected.scores)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", [name for name in FEW if small(name).can_block])
def test_what_only_masks_allow_is_impossible_in_every_operation(name, mask):
    case = small(name, seed=5)
    case.block(0)
    model = case.build(*(x.masked_fill(x == -math.inf, MASKS[mask]) for x in case.marked()))
    plain, sample = case.model(), model.sample((2,))
    close(model.log_partition(), plain.log_partition())
    close(model.entropy(), plain.entropy())
    assert model.log_partition().flatten()[0] == -math.inf
    for result in (model.argmax(), sample):
        assert all(case.read(row, 0) is None for row in case.rows(result)[:, 0])
        close(model.score(result) > -math.inf, (plain.log_partition() > -math.inf).expand_as(model.score(result)))
    assert padded(model.topk(1).scores, 1).flatten()[0] == -math.inf


@pytest.mark.parametrize("name", SMALL)
def test_scores_of_any_size_cost_no_digits(name):
    """Small differences together with penalties of a billion, which are no masks."""
    case = small(name, seed=3)
    # Products of three such numbers would leave no digits: not in the factors of gated scores.
    penalties = [0.0 if "gated" in name and i >= case.coupling else 1e9 for i in range(len(case.leaves))]
    case.leaves = [
        torch.where(torch.rand(x.shape, generator=case.generator) < 0.2, x - penalty, x * 1e-4)
        for x, penalty in zip(case.leaves, penalties, strict=True)
    ]
    model = case.model()
    best = model.topk(6)
    for b, truth in enumerate(case.truths(model)):
        order = truth.scores.sort(descending=True).values[: len(best.scores)]
        possible = best.scores[:, b] > -math.inf
        close(best.scores[possible, b], order[: int(possible.sum())])


@pytest.mark.parametrize("name", by_the_base(FEW))
def test_as_many_as_exist(name):
    """The batch element with the most configurations sets the number; the others are filled up with -1."""
    case = small(name, ragged=True, seed=5, forbidden=0.6)
    model = case.model()
    truths = case.truths(model)
    counts = [int((truth.scores > -math.inf).sum()) for truth in truths]
    k = min(40, max(counts) + 2)
    best = model.topk(k)
    assert len(best.scores) == min(k, max(counts))
    rows = case.rows(best.configurations)
    for b, (truth, count) in enumerate(zip(truths, counts, strict=True)):
        close(best.scores[:, b], truth.best(len(best.scores)))
        assert all(case.read(row, b) is None for row in rows[count:, b])
        assert len({case.read(row, b) for row in rows[:count, b]}) == min(count, k)


@pytest.mark.parametrize("name", by_the_base(name for name in FEW if small(name).can_block))
def test_none_where_nothing_is_possible(name):
    case = small(name, seed=5)
    for b in range(case.size):
        case.block(b)
    best = case.model().topk(3)
    assert best.scores.shape == (0, *case.batch)
    assert case.rows(best.configurations).numel() == 0


@pytest.mark.parametrize("way", ["whole", "restricted"])
@pytest.mark.parametrize("name", by_the_base(FEW))
def test_scores_of_the_best_are_differentiable(name, way):
    """The gradient is that of the score; the search itself records nothing."""
    if way == "restricted" and name not in STATEFUL:
        pytest.skip("nothing to restrict")
    case, plain = possible(name, way, ragged=False)
    leaves, kept = [x.clone().requires_grad_() for x in case.leaves], plain.kept
    model = case.model(*leaves) if kept is None else case.model(*leaves).restrict(kept)
    best = model.topk(2)
    assert (best.scores[:-1] >= best.scores[1:]).all()
    finite = best.scores > -math.inf
    result = torch.autograd.grad(best.scores[finite].sum(), leaves, materialize_grads=True)
    fresh = case.model(*leaves)  # a model's graph is freed by a backward pass
    expected = torch.autograd.grad(fresh.score(best.configurations)[finite].sum(), leaves, materialize_grads=True)
    assert any(x.ne(0).any() for x in result)
    for one, other in zip(result, expected, strict=True):
        close(one, other)


@pytest.mark.parametrize("name", by_the_base(FEW))
def test_searches_one_after_the_other_find_the_same(name, monkeypatch):
    case, model = possible(name, forbidden=0.1)
    expected = model.topk(6)
    monkeypatch.setattr("tailsum.structure.k_best._TOGETHER", 1)
    result = model.topk(6)
    assert torch.equal(case.rows(result.configurations), case.rows(expected.configurations))
    close(result.scores, expected.scores)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: ts.SemiMarkov(torch.randn(t, 4, 5), torch.randn(5, 5)),
        lambda t: ts.SpanTree(torch.randn(t, t, 2)),
        lambda t: ts.DependencyTree(torch.randn(t, t), projective=False),
    ],
    ids=["segments", "spans", "arcs"],
)
def test_memory_grows_as_that_of_one_search(make, monkeypatch):
    """The number of searches grows with the length too."""
    monkeypatch.setattr("tailsum.structure.k_best._TOGETHER", 1)
    ratios = list[float]()
    for length in (6, 18):
        model = make(length)
        with PeakMemory() as one:
            model.argmax()
        with PeakMemory() as many:
            model.topk(4)
        ratios.append(many.peak / one.peak)
    assert ratios[1] < 1.3 * ratios[0]
