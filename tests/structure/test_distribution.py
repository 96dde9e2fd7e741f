"""Structures where a `torch.distributions.Distribution` is expected."""

import itertools

import pytest
import torch
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, kl_divergence

import tailsum as ts
from harness.agree import close
from harness.registry import FEW, possible
from harness.ways import ONE_WAY
from tailsum.structure.k_best import stacked


@pytest.mark.parametrize(("name", "way"), ONE_WAY)
def test_answers_of_a_distribution(name, way):
    _, model = possible(name, way, forbidden=0.1)
    assert isinstance(model, Distribution)
    assert model.event_shape == model.node_shape
    assert model.arg_constraints == {}
    assert not model.has_rsample
    assert not model.has_enumerate_support
    assert model.support.is_discrete
    assert model.support.event_dim == len(model.event_shape)
    assert torch.equal(model.support.check(model.sample((3,))), torch.ones(3, 2).bool())
    assert model.score(model.mode).tolist() == model.score(model.argmax()).tolist()
    close(model.perplexity(), model.entropy().exp())
    for attribute in ("mean", "variance", "stddev"):
        with pytest.raises(NotImplementedError, match=r"states are names, not numbers. marginals\(\) has"):
            getattr(model, attribute)
    with pytest.raises(NotImplementedError, match=r"topk\(k\) has the best"):
        model.enumerate_support()


@pytest.mark.parametrize(("name", "way"), ONE_WAY)
def test_expanded(name, way):
    _, model = possible(name, way)
    wider = model.expand((3, 2))
    assert wider.batch_shape == wider.whole.batch_shape == (3, 2)
    for operation in ("log_partition", "entropy", "marginals"):
        result = getattr(model, operation)()
        close(getattr(wider, operation)(), result.expand(3, *result.shape))
    sample = wider.sample((2,))
    assert torch.equal(wider.score(sample), model.score(sample))
    assert wider.log_prob(sample).shape == (2, 3, 2)
    with pytest.raises(ValueError, match=r"batch_shape must be one that \[2\] broadcasts to: got \[2, 3\]"):
        model.expand((2, 3))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [3, (-1, 2), (2, 1), ()])
def test_batches_that_a_model_does_not_expand_to(shape):
    chain = ts.LinearChain(torch.zeros(2, 5, 3), torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"batch_shape must be one that \[2\] broadcasts to: got "):
        chain.expand(shape)


def test_samples_of_an_expanded_batch_are_independent():
    chain = ts.LinearChain(torch.zeros(20, 9), torch.zeros(9, 9)).expand((5,))
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(chain.sample(), 2))


@pytest.mark.parametrize("name", FEW)
def test_the_support_leaves_out_what_is_not_valid(name):
    _, model = possible(name, ragged=False)
    good = model.sample((3,))
    bad = stacked([good], lambda x: x[0].index_fill(0, torch.tensor(1), model.whole.n_states + 100))
    assert model.support.check(bad).tolist() == [[True, True], [False, False], [True, True]]


def test_the_support_leaves_out_what_is_forbidden():
    chain = ts.LinearChain(torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]), torch.zeros(2, 2))
    assert chain.support.check(torch.tensor([[0, 1], [1, 0], [0, 5], [0, 0]])).tolist() == [True, False, False, True]
    assert chain.support.check(torch.tensor([0, 5])).item() is False


def test_within_other_distributions():
    chain = ts.LinearChain(torch.randn(3, 5, 4).double(), torch.randn(4, 4).double())
    states = chain.sample()
    close(Independent(chain, 1).log_prob(states), chain.log_prob(states).sum())
    mixture = MixtureSameFamily(Categorical(logits=torch.zeros(3).double()), chain)
    close(mixture.log_prob(states[0]), chain.log_prob(states[0]).logsumexp(0) - torch.tensor(3.0).double().log())
    assert mixture.sample((7,)).shape == (7, 5)
    other = ts.LinearChain(torch.randn(3, 5, 4).double(), torch.randn(4, 4).double())
    close(kl_divergence(chain, other), chain.kl(other))
