"""Code as users of torch-struct write it, with only the import changed: what its documentation shows, and small trainings."""

import pytest
import torch
from torch import nn

from harness.peers import QUIET
from tailsum.compat import torch_struct
from tailsum.compat.torch_struct import (
    CKY,
    AlignmentCRF,
    DependencyCRF,
    DepTree,
    LinearChainCRF,
    MaxSemiring,
    SentCFG,
)

pytestmark = QUIET


def trained(loss, parameters, steps=25, rate=0.1):
    """The first and the last loss."""
    optimizer = torch.optim.Adam(parameters, lr=rate)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses[0], losses[-1]


def test_the_first_page():
    scores = torch.zeros(2, 10, 10) + 1e-5
    scores[:, :5, :5] = torch.rand(5)
    scores[:, 5:, 5:] = torch.rand(5)
    dist = DependencyCRF(scores.log())
    assert dist.log_potentials[0].shape == dist.marginals[0].shape == dist.argmax[0].shape == (10, 10)
    torch.testing.assert_close(dist.log_prob(dist.argmax), dist.max - dist.partition)
    assert dist.sample((1,)).detach()[0, 0].sum() == 10
    padded = DependencyCRF(scores, lengths=torch.tensor([10, 7]))
    assert not padded.marginals[1][7:].any()
    pairs = torch.zeros(2, 10, 10, 10) + 1e-5
    pairs[:, :, :, :] = scores.unsqueeze(-1).exp()
    pairs[:, :, :, :] += torch.eye(10, 10).view(1, 1, 10, 10)
    pairs[:, 0, :, 0] = 1
    pairs[:, -1, 9, :] = 1
    chain = LinearChainCRF(pairs.log())
    torch.testing.assert_close(chain.marginals.detach()[0].sum((-1, -2)), torch.ones(10))


def test_the_page_of_models():
    batch, length, classes = 3, 7, 2
    chain = torch_struct.LinearChainCRF(torch.rand(batch, length, classes, classes))
    event = chain.to_event(torch.tensor([[0, 1, 0, 1, 1, 1, 0, 1]]), 2)
    assert event[0].shape == chain.argmax[0].shape
    markov = torch_struct.HMM(
        torch.rand(2, 2).log_softmax(0), torch.rand(4, 2).log_softmax(0), torch.rand(2).log_softmax(0),
        torch.randint(0, 4, (batch, length)),
    )  # fmt: skip
    assert markov.marginals.shape == (batch, length - 1, 2, 2)
    segments = torch_struct.SemiMarkovCRF(torch.rand(batch, length, 4, classes, classes))
    event = segments.to_event(torch.tensor([[0, 1, 0, 1, -1, 1, 0, -1]])[:, :8], (2, 4))
    assert event.shape == (1, 7, 4, 2, 2)
    alignment = torch_struct.AlignmentCRF(torch.rand(batch, length, length, 3))
    assert alignment.argmax.shape == alignment.marginals.shape == (batch, length, length, 3)
    tree = torch_struct.DependencyCRF(torch.rand(batch, length, length), lengths=torch.tensor([7, 5, 4]))
    heads = torch.tensor([[2, 0, 2, 3, 4, 5, 6]])
    assert torch.equal(tree.from_event(tree.to_event(heads, None))[0], heads)
    crossing = torch_struct.NonProjectiveDependencyCRF(torch.rand(batch, length, length))
    torch.testing.assert_close(crossing.marginals.sum(1), torch.ones(batch, length))
    spans = torch_struct.TreeCRF(torch.rand(batch, length, length, 3))
    assert spans.argmax.sum((1, 2, 3)).tolist() == [2 * length - 1] * batch
    grammar = torch_struct.SentCFG((torch.rand(batch, length, 3), torch.rand(batch, 5, 8, 8), torch.rand(batch, 5)))
    terms, rules, root, inner = grammar.argmax
    assert (terms.shape, rules.shape, root.shape) == ((batch, length, 3), (batch, 5, 8, 8), (batch, 5))
    assert inner.sum((1, 2, 3)).tolist() == [length - 1] * batch


def test_a_tagger():
    """Emissions and a transition, written as pairs; loss, decoding and errors as in the notebook on tagging."""
    size, tags = 6, 4
    features, lengths = torch.randn(5, 8, size), torch.tensor([8, 7, 5, 3, 2])
    gold = torch.randint(tags, (5, 8))
    linear, transition = nn.Linear(size, tags), nn.Linear(tags, tags)

    def potentials():
        final = linear(features)
        pairs = final.view(5, 8, tags, 1)[:, 1:] + transition.weight.view(1, 1, tags, tags)
        pairs[:, 0] += final.view(5, 8, 1, tags)[:, 0]
        return pairs

    def loss():
        dist = LinearChainCRF(potentials(), lengths=lengths)
        labels = LinearChainCRF.struct.to_parts(gold, tags, lengths=lengths).type_as(dist.log_potentials)
        return -dist.log_prob(labels).sum()

    first, last = trained(loss, [*linear.parameters(), *transition.parameters()])
    assert last < 0.7 * first
    best = LinearChainCRF(potentials(), lengths=lengths).argmax
    labels = LinearChainCRF.struct.to_parts(gold, tags, lengths=lengths).type_as(best)
    assert (best.sum(-1) - labels.sum(-1)).abs().sum() / 2.0 < (lengths - 1).sum()


@pytest.mark.parametrize("labels", [None, 3])
def test_a_dependency_parser(labels):
    """By the dynamic program and semirings, as in the notebook on dependencies; with labelled arcs, by the distribution."""
    size, lengths = 5, torch.tensor([6, 4])
    words = torch.randn(2, 6, size)
    heads = torch.tensor([[2, 0, 2, 3, 2, 5], [2, 0, 2, 3, 0, 0]])
    bilinear = torch.randn(labels or 1, size, size, requires_grad=True)

    def potentials():
        arcs = torch.einsum("bhx,lxy,bcy->bhcl", words, bilinear, words)
        return arcs if labels else arcs[..., 0]

    def loss():
        scores = potentials()
        if labels:
            gold = DepTree.to_parts(heads, (heads % labels, labels), lengths=lengths)
            return -DependencyCRF(scores, lengths=lengths).log_prob(gold.type_as(scores)).sum()
        total = DepTree().sum(scores, lengths=lengths)
        gold = DepTree.to_parts(heads, lengths=lengths).type_as(scores)
        return (total - DepTree().score(scores, gold)).sum()

    first, last = trained(loss, [bilinear], 60)
    assert last < 0.5 * first
    found = DepTree(MaxSemiring).marginals(potentials(), lengths=lengths)
    assert found.sum((1, 2) if labels is None else (1, 2, 3)).tolist() == [6, 4]


def test_an_unsupervised_grammar():
    size, leaves, words = 3, 4, torch.randint(9, (2, 6))
    lengths = torch.tensor([6, 4])
    terms = torch.randn(leaves, 9, requires_grad=True)
    rules = torch.randn(size, (size + leaves) ** 2, requires_grad=True)
    roots = torch.randn(size, requires_grad=True)

    def params():
        seen = terms.log_softmax(-1).mT[words]
        table = rules.log_softmax(-1).view(1, size, size + leaves, size + leaves).expand(2, -1, -1, -1)
        return seen, table, roots.log_softmax(-1).expand(2, -1)

    first, last = trained(lambda: -SentCFG(params(), lengths=lengths).partition.mean(), [terms, rules, roots])
    assert last < first - 1
    tree = CKY(MaxSemiring).marginals(params(), lengths=lengths, _autograd=True)
    spans, _ = CKY.from_parts(tree)
    assert spans.sum((1, 2, 3)).tolist() == [11, 7]
    drawn = (
        SentCFG(params(), lengths=lengths)._struct(torch_struct.SampledSemiring).marginals(params(), lengths=lengths)
    )
    assert drawn[0].sum((1, 2)).tolist() == [6, 4]


def test_frames_aligned_with_letters():
    """The notebook on CTC: letters and blanks against frames, as an alignment whose rows are letters."""
    letters, frames = torch.tensor([0, 5, 1, 5, 2]), [0, 0, 0, 5, 1, 1, 2, 2]
    logits = torch.rand(2, len(frames), 6)
    logits[:, torch.arange(len(frames)), frames] += 3
    match = torch.gather(logits, 2, letters.expand(2, len(frames), 5))
    potentials = torch.zeros(2, len(frames), 5, 3)
    potentials[:, :, ::2, 2] = -1e5  # a letter is not skipped, a blank may be
    potentials[..., 1] = potentials[..., 0] = match
    dist = AlignmentCRF(potentials.transpose(1, 2))
    best = dist.argmax[0]
    assert best.shape == (5, len(frames), 3)
    rows = best[..., :2].sum(-1).argmax(0)
    assert letters[rows].tolist() == frames
    assert dist.marginals.isfinite().all()


def test_the_ctc_loss():
    logits, targets = torch.randn(3, 9, 5).log_softmax(-1), torch.tensor([[1, 2, 3], [4, 4, 0], [2, 0, 0]])
    lengths, counts = torch.tensor([9, 6, 4]), torch.tensor([3, 2, 1])
    dist = torch_struct.CTC(logits, targets, lengths, counts)
    expected = nn.functional.ctc_loss(logits.transpose(0, 1), targets, lengths, counts, reduction="none")
    torch.testing.assert_close(-dist.partition, expected)
    frames, size = dist.from_event(dist.argmax)
    assert torch.equal(dist.to_event(frames.clamp(min=0), size), dist.argmax.long())
