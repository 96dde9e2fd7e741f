"""The arithmetic of semirings, and what dynamic programs compute under them."""

import math

import pytest
import torch
from torch.testing import assert_close

import tailsum.compat.torch_struct as ours
from harness.peers import QUIET

pytestmark = QUIET
PLAIN = ("StdSemiring", "LogSemiring", "MaxSemiring", "EntropySemiring", "SampledSemiring", "MultiSampledSemiring")
GRAPHS = ("LinearChain", "TreeCRF")


def of_pairs(semiring, first, second):
    """The documentation's example: products summed over the last dimension, and their gradients."""
    a, b = (semiring.convert(x).detach().requires_grad_() for x in (first, second))
    total = semiring.sum(semiring.times(a, b))
    total.sum().backward()
    return semiring.unconvert(total), semiring.unconvert(a.grad), semiring.unconvert(b.grad)


@pytest.mark.parametrize("name", PLAIN[:4])
def test_sums_of_products_as_there(torch_struct, name):
    first, second = torch.rand(5, 10).double(), torch.rand(5, 10).double()
    mine, theirs = (of_pairs(getattr(module, name), first, second) for module in (ours, torch_struct))
    for x, y in zip(mine, theirs, strict=True):
        assert_close(x, y)


def test_k_largest_as_there(torch_struct):
    first, second = torch.rand(5, 4).double(), torch.rand(5, 4).double()
    mine, theirs = (module.KMaxSemiring(3) for module in (ours, torch_struct))
    products = [kind.times(kind.convert(first), kind.convert(second)) for kind in (mine, theirs)]
    assert_close(products[0][0], products[1][0])
    assert_close(mine.sum(products[0]), theirs.sum(products[1]))
    assert (mine.one_(torch.zeros(3, 2))[1:] == -math.inf).all()
    with pytest.raises(ValueError, match="k must be a whole number of at least 1: got 0"):
        ours.KMaxSemiring(0)


def test_divergences_of_distributions():
    p, q = torch.randn(7).double(), torch.randn(7).double()
    p[0], share = -math.inf, None
    expected = -(p.softmax(0) * q.log_softmax(0)).sum()
    found = ours.CrossEntropySemiring.sum(ours.CrossEntropySemiring.convert([p, q]))
    assert_close(ours.CrossEntropySemiring.unconvert(found), expected)
    share = p.softmax(0)
    entropy = -(share * p.log_softmax(0))[1:].sum()
    found = ours.KLDivergenceSemiring.sum(ours.KLDivergenceSemiring.convert([p, q]))
    assert_close(ours.KLDivergenceSemiring.unconvert(found), expected - entropy)
    assert_close(ours.EntropySemiring.sum(ours.EntropySemiring.convert(p))[1], entropy)


@pytest.mark.parametrize("name", ["StdSemiring", "LogSemiring", "MaxSemiring", "EntropySemiring"])
def test_neutral_elements_and_products(name):
    kind = getattr(ours, name)
    a, b = (kind.convert(torch.rand(s).double()) for s in ((2, 3), (3, 4)))
    zero, one = kind.zero_(torch.empty_like(a)), kind.one_(torch.empty_like(a))
    assert_close(kind.plus(a, zero), a)
    assert_close(kind.times(a, one), a)
    assert_close(kind.prod(torch.stack((a, one, a), -1)), kind.mul(a, a))
    assert_close(kind.matmul(a, b)[..., 1, 2], kind.dot(a[..., 1, :], b[..., :, 2]))
    masked = a.clone()
    kind.zero_mask_(masked, torch.eye(2, 3, dtype=torch.bool))
    assert torch.equal(masked[:, 0, 0], zero[:, 0, 0])
    assert torch.equal(masked[:, 0, 1], a[:, 0, 1])


def test_gradients_of_sampling_are_samples():
    logits = torch.tensor([1.0, 0.0, -1.0]).expand(4000, 3)
    x = ours.SampledSemiring.convert(logits).detach().requires_grad_()
    ours.SampledSemiring.sum(x).sum().backward()
    assert (x.grad.sum(-1) == 1).all()
    assert_close(x.grad[0].mean(0), logits[0].softmax(0), rtol=0, atol=0.04)
    x = ours.MultiSampledSemiring.convert(logits[:400]).detach().requires_grad_()
    ours.MultiSampledSemiring.sum(x).sum().backward()
    samples = torch.stack([ours.MultiSampledSemiring.to_discrete(x.grad[0], j) for j in range(16)])
    assert (samples.sum(-1) == 1).all()
    assert_close(samples.mean((0, 1)), logits[0].softmax(0), rtol=0, atol=0.04)
    with pytest.raises(ValueError, match="j must lie between 0 and 15: got 16"):
        ours.MultiSampledSemiring.to_discrete(x.grad, 16)


def test_dynamic_programs_under_semirings():
    potentials, lengths = torch.randn(2, 3, 2, 2), torch.tensor([4, 3])
    chain = ours.LinearChainCRF(potentials, lengths)
    best, kinds = ours.LinearChain(ours.MaxSemiring), (ours.SampledSemiring, ours.GumbelMaxSemiring(0.5))
    assert torch.equal(best.marginals(potentials, lengths), chain.argmax)
    assert_close(best.score(potentials, chain.argmax), chain.max)
    for kind in (*kinds, ours.GumbelCRFSemiring(0.5)):
        assert (ours.LinearChain(kind).marginals(potentials, lengths).sum((-1, -2, -3)) == lengths - 1).all()
    many = ours.LinearChain(ours.MultiSampledSemiring).marginals(potentials, lengths)
    for j in range(16):
        sample = ours.MultiSampledSemiring.to_discrete(many, j)
        assert (sample.sum((-1, -2, -3)) == lengths - 1).all()
        assert (chain.log_prob(sample) > -math.inf).all()
    quick = ours.CheckpointShardSemiring(ours.CheckpointSemiring(ours.FastLogSemiring, 1), 10)
    assert_close(ours.LinearChain(quick).sum(potentials, lengths), chain.partition)
    assert_close(ours.LinearChain().sum(potentials, lengths, _raw=True), chain.partition[None])
    assert_close(ours.LinearChain(ours.EntropySemiring).sum(potentials, lengths), chain.entropy)
    assert_close(chain._struct().marginals(potentials, lengths), chain.marginals)


def test_grammars_under_semirings():
    potentials = torch.randn(2, 4, 3), torch.randn(2, 2, 5, 5), torch.randn(2, 2)
    grammar = ours.SentCFG(potentials)
    assert_close(ours.CKY(ours.LogSemiring).sum(potentials), grammar.partition)
    assert_close(ours.CKY(ours.StdSemiring).sum(tuple(x.exp() for x in potentials)).log(), grammar.partition)
    tree = ours.CKY(ours.MaxSemiring).marginals(potentials)
    assert_close(ours.CKY().score(potentials, tree), grammar.max)
    labels, extra = ours.CKY.from_parts(tree)
    assert extra == (2, 3)
    assert (labels.sum((1, 2, 3)) == 7).all()
    for x, y in zip(ours.CKY.to_parts(labels, extra), tree[:3], strict=True):
        assert_close(x, y)
    many = ours.CKY(ours.MultiSampledSemiring).marginals(potentials)
    sample = tuple(ours.MultiSampledSemiring.to_discrete(x, 5) for x in (many[0], many[2], many[3]))
    assert (sample[0].sum((1, 2)) == 4).all()
    assert (sample[2].sum((1, 2, 3)) == 3).all()


def test_what_is_not_here_says_so():
    potentials = torch.randn(2, 3, 2, 2)
    with pytest.raises(NotImplementedError, match="EntropySemiring has no marginals here"):
        ours.LinearChain(ours.EntropySemiring).marginals(potentials)
    with pytest.raises(NotImplementedError, match="Semiring has no mul"):
        ours.LinearChain(ours.Semiring).sum(potentials)
    with pytest.raises(NotImplementedError, match="local alignments are not here"):
        ours.AlignmentCRF(torch.randn(1, 2, 3, 3), local=True)
    with pytest.raises(NotImplementedError, match="use CTC"):
        ours.CTC(torch.zeros(1, 2, 3), torch.tensor([[1]]))._struct().sum(torch.zeros(1, 2, 3))
