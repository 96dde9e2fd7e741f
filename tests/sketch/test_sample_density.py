"""`sample_log_prob` of a sketch is the density of what it draws; `log_prob` stays that of the whole model."""

import math

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.registry import SMALL, STATEFUL, possible, small


def everything(case, truth, b):
    """All configurations of sentence b, written `[C, *batch]` with the same for every sentence of the batch."""
    assert case.size == 1
    return case.written([[case.row(c)] for c in truth.configurations])


@pytest.mark.parametrize("name", STATEFUL)
def test_density_of_a_sketch_is_that_of_its_samples(name):
    """With states kept twice and weights of zero: the probabilities sum to one, and are those of enumeration."""
    case, model = possible(name, "restricted", ragged=False, batch=(1,))
    (truth,) = case.truths(model)
    configurations = everything(case, truth, 0)
    density = model.sample_log_prob(configurations)[:, 0].exp()
    close(density, truth.probability)
    close(density.sum(), torch.ones(()).double())
    close(model.log_prob(configurations)[:, 0], truth.unweighted - truth.log_partition)


@pytest.mark.parametrize("name", SMALL)
def test_a_whole_model_has_one_density(name):
    model = small(name, ragged=True, seed=3).model()
    sample = model.sample((4,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.sample_log_prob(sample), model.log_prob(sample))


@pytest.mark.parametrize("name", ["chain-dense", "segments-dense", "pcfg-dense", "dependencies-states"])
def test_ragged_batches(name):
    case, model = possible(name, "restricted", ragged=True)
    sample = model.sample((50,), generator=torch.Generator().manual_seed(0))
    found, rows = model.sample_log_prob(sample), case.rows(sample)
    for b, truth in enumerate(case.truths(model)):
        chosen = [truth.index_of(case.read(row, b)) for row in rows[:, b]]
        close(found[:, b].exp(), truth.probability[chosen])


@pytest.mark.parametrize("name", ["chain-dense", "pcfg-dense", "dependencies-states"])
def test_samples_fit_the_density(name):
    """A chi-square test over the configurations drawn; and the mean importance weight is the unweighted sum."""
    case, model = possible(name, "restricted", ragged=False, batch=(1,))
    (truth,) = case.truths(model)
    configurations, count = everything(case, truth, 0), 4000
    density = model.sample_log_prob(configurations)[:, 0].exp()
    sample = model.sample((count,), generator=torch.Generator().manual_seed(1))
    seen = torch.zeros_like(density)
    for row in case.rows(sample)[:, 0]:
        seen[truth.index_of(case.read(row, 0))] += 1
    assert seen[density == 0].eq(0).all()
    common = density * count >= 5
    groups = [torch.cat((x[common], x[~common].sum()[None])) for x in (seen, density * count)]
    seen, expected = (x[groups[1] > 0] for x in groups)
    degrees = max(1, len(seen) - 1)
    assert ((seen - expected).square() / expected).sum() < degrees + 5 * math.sqrt(2 * degrees)
    weights = (model.score(sample) - model.sample_log_prob(sample)).exp()[:, 0]
    total = truth.unweighted[truth.present].exp().sum()
    assert (weights.mean() - total).abs() < 5 * weights.std() / math.sqrt(count) + 1e-9 * total


def test_copies_add_up_and_what_was_not_kept_is_never_drawn():
    chain = ts.LinearChain(torch.zeros(1, 3).double(), torch.zeros(3, 3).double())
    small = chain.restrict(ts.Subset(torch.tensor([[0, 1, 1]]), torch.zeros(1, 3).double()))
    close(small.sample_log_prob(torch.tensor([[0], [1], [2]])).exp(), torch.tensor([1.0, 2.0, 0.0]).double() / 3)
