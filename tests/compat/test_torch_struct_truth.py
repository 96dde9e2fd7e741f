"""Every operation of every class of the drop-in for torch-struct against enumeration, with ragged lengths."""

import math

import pytest
import torch
from torch.testing import assert_close

from compat.torch_struct_cases import CASES, LENGTHS, flattened, truths

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
every = pytest.mark.parametrize("name", CASES)
forbidding = pytest.mark.parametrize("forbid", [0.0, 0.3])
pytestmark = pytest.mark.usefixtures("one_thread")


def rows(values):
    return torch.stack(list(values))


@every
@forbidding
def test_sums(name, forbid):
    case = CASES[name]
    for seed in range(2):
        potentials = case.potentials(seed, forbid)
        model, truth = case.model(*potentials), truths(case, potentials)
        possible = torch.tensor([t.log_z > -math.inf for t in truth])
        assert_close(model.partition, rows(t.log_z for t in truth), **CLOSE)
        assert_close(flattened(case, model.marginals), rows(t.chances @ t.events for t in truth), **CLOSE)
        entropy = rows(t.mean(t.log_z - t.scores) for t in truth)
        assert_close(model.entropy, entropy.masked_fill(~possible, -math.inf), **CLOSE)
        count = [(t.scores > -math.inf).sum().double() for t in truth]
        assert_close(model.count, rows(count), rtol=0, atol=0)


@every
@forbidding
def test_best(name, forbid):
    case, k = CASES[name], 3
    for seed in range(2):
        potentials = case.potentials(seed, forbid)
        model, truth = case.model(*potentials), truths(case, potentials)
        expected = torch.full((k, len(LENGTHS)), -math.inf).double()
        for b, t in enumerate(truth):
            best = t.scores.sort(descending=True).values[:k]
            expected[: len(best), b] = best
        assert_close(model.kmax(k), expected, **CLOSE)
        assert_close(model.max, expected[0], **CLOSE)
        best = flattened(case, model.argmax)
        assert torch.equal(flattened(case, model.mode), best)
        found = flattened(case, model.topk(k))
        for b, t in enumerate(truth):
            for rank in range(k):
                same = (t.events == found[rank, b]).all(-1)
                if expected[rank, b] > -math.inf:
                    assert_close(t.scores[same][0], expected[rank, b], **CLOSE)
                else:
                    assert not found[rank, b].any()
            assert torch.equal(best[b], found[0, b]) or t.scores.max() == expected[1, b]


@every
def test_log_prob(name):
    case = CASES[name]
    potentials = case.potentials(0, 0.2)
    model, truth = case.model(*potentials), truths(case, potentials)
    for b, t in enumerate(truth):
        if not len(t.events):
            continue
        events = t.events[:, None].expand(-1, len(LENGTHS), -1)
        sizes = [math.prod(shape) for shape in case.shapes]
        split = [x.unflatten(-1, shape) for x, shape in zip(events.split(sizes, -1), case.shapes, strict=True)]
        found = model.log_prob(split[0] if len(split) == 1 else tuple(split))
        assert found.shape == (len(t.events), len(LENGTHS))
        expected = t.scores - t.log_z if t.log_z > -math.inf else torch.full_like(t.scores, -math.inf)
        assert_close(found[:, b], expected, **CLOSE)


@every
@forbidding
def test_divergences(name, forbid):
    case = CASES[name]
    first, second = case.potentials(1), case.potentials(2, forbid)
    ours, other = case.model(*first), case.model(*second)
    for b, (p, q) in enumerate(zip(truths(case, first), truths(case, second), strict=True)):
        if p.log_z == -math.inf:
            continue
        cross = p.mean(q.log_z - q.scores) if q.log_z > -math.inf else torch.tensor(math.inf).double()
        assert_close(ours.cross_entropy(other)[b], cross, **CLOSE)
        assert_close(ours.kl(other)[b], cross - p.mean(p.log_z - p.scores), **CLOSE)


@every
def test_samples(name):
    case = CASES[name]
    potentials = case.potentials(3, 0.15)
    model, truth = case.model(*potentials), truths(case, potentials)
    count = 2000
    drawn = flattened(case, model.sample((count,)))
    assert not drawn.requires_grad
    for b, t in enumerate(truth):
        if t.log_z == -math.inf:
            assert not drawn[:, b].any()
            continue
        chance = t.chances @ t.events
        spread = (t.chances @ t.events.square() - chance.square()).clamp(min=0) / count
        assert ((drawn[:, b].mean(0) - chance).abs() <= 5 * spread.sqrt() + 1e-9).all()
        assert all((t.events == event).all(-1).any() for event in drawn[:50, b])
    assert flattened(case, model.sample((2, 3))).shape[:3] == (2, 3, len(LENGTHS))
    assert flattened(case, model.sample()).shape == drawn.shape[1:]


@every
def test_gumbel_crf(name):
    case = CASES[name]
    potentials = [x.requires_grad_() for x in case.potentials(4)]
    model, truth = case.model(*potentials), truths(case, tuple(x.detach() for x in potentials))
    drawn = flattened(case, model.expand((300, len(LENGTHS))).gumbel_crf(0.5))
    weight = torch.linspace(-1, 1, drawn.shape[-1]).double()
    gradients = torch.autograd.grad((drawn * weight).sum(), potentials)
    assert all(g.isfinite().all() for g in gradients)
    assert any(g.any() for g in gradients)
    for b, t in enumerate(truth):
        if t.log_z == -math.inf:
            continue
        chance = t.chances @ t.events
        spread = (t.chances @ t.events.square() - chance.square()).clamp(min=0) / len(drawn)
        assert ((drawn[:, b].mean(0) - chance).abs() <= 5 * spread.sqrt() + 1e-9).all()
        assert (t.events == drawn[0, b].detach()).all(-1).any()


@every
def test_gradients(name):
    case = CASES[name]
    potentials = [x.requires_grad_() for x in case.potentials(5)]

    def parts(*x):
        model = case.model(*x)
        finite = model.partition > -math.inf
        return model.partition[finite], model.entropy[finite], flattened(case, model.marginals), model.max[finite]

    assert torch.autograd.gradcheck(parts, potentials, fast_mode=True)
