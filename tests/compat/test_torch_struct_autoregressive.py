"""Autoregressive models: beams against enumeration, samples against probabilities."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import tailsum.compat.torch_struct as ours
from harness.peers import QUIET

pytestmark = QUIET
BATCH, LENGTH, CLASSES, HIDDEN = 3, 4, 2, 5


class Network(ours.AutoregressiveModel):
    """A recurrent network whose states have the batch first."""

    def __init__(self, dense=False):
        super().__init__()
        self.rnn = torch.nn.RNN(HIDDEN, HIDDEN, batch_first=True)
        self.out = torch.nn.Linear(HIDDEN, CLASSES)
        self.into = torch.nn.Linear(CLASSES, HIDDEN) if dense else torch.nn.Embedding(CLASSES, HIDDEN)
        self.dense = dense

    def forward(self, inputs, state=None):
        if self.dense and inputs.dim() == 2:
            inputs = torch.nn.functional.one_hot(inputs, CLASSES).float()
        found, last = self.rnn(self.into(inputs), state[0].transpose(0, 1).contiguous())
        return self.out(found) * 3, (last.transpose(0, 1),)


def model(normalize=True, dense=False, module=ours):
    torch.manual_seed(0)
    state = (torch.randn(BATCH, 1, HIDDEN),)
    return module.Autoregressive(Network(dense), state, CLASSES, LENGTH, normalize=normalize)


def all_scores(auto):
    every = torch.tensor(list(itertools.product(range(CLASSES), repeat=LENGTH)))
    every = every[:, None].expand(-1, BATCH, -1)
    return every, auto.log_prob(every, sparse=True)


@pytest.mark.parametrize("normalize", [False, True])
def test_wide_beams_find_the_best(normalize):
    auto = model(normalize)
    assert auto.batch_shape == (BATCH,)
    assert auto.event_shape == (LENGTH, CLASSES)
    every, scores = all_scores(auto)
    if normalize:
        assert_close(scores.exp().sum(0), torch.ones(BATCH))
    count = len(every)
    found, best = auto.beam_topk(count), scores.sort(0, descending=True)
    assert_close(auto._beam_max(count), best.values)
    expected = every[best.indices, torch.arange(BATCH)]
    assert torch.equal(found.argmax(-1), expected)
    assert_close(auto.log_prob(found), best.values)
    assert not auto.beam_topk(count + 3)[count:].any()


def test_greedy_search_and_its_gradient(torch_struct):
    auto, theirs = model(), model(module=torch_struct)
    path, score, logits = auto.greedy_max()
    assert_close(auto.log_prob(path[None])[0], score)
    assert_close(logits.exp().sum(-1), torch.ones(BATCH, LENGTH))
    for x, y in zip((path, score, logits), theirs.greedy_max(), strict=True):
        assert_close(x, y)
    for k in (2, 3):
        assert_close(auto.beam_topk(k), theirs.beam_topk(k))
    soft = model(dense=True)
    path, score, logits = soft.greedy_tempmax(2.0)
    assert path.shape == logits.shape == (BATCH, LENGTH, CLASSES)
    score.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in soft.model.parameters())
    # Towards an infinite alpha the network sees the best class itself.
    for x, y in zip(soft.greedy_tempmax(1e4), soft.greedy_max(), strict=True):
        assert_close(x, y)


def test_samples():
    auto, count = model(), 4000
    every, scores = all_scores(auto)
    drawn = auto.sample((count,))
    assert drawn.shape == (count, BATCH, LENGTH, CLASSES)
    assert auto.sample().shape == (BATCH, LENGTH, CLASSES)
    place = (drawn.argmax(-1) * 2 ** torch.arange(LENGTH - 1, -1, -1)).sum(-1)
    share = torch.stack([(place == i).float().mean(0) for i in range(len(every))])
    spread = (scores.exp() * (1 - scores.exp()) / count).sqrt()
    assert ((share - scores.exp()).abs() <= 5 * spread + 1e-9).all()


def test_samples_without_replacement():
    """The first is a sample; the second one among those that are left."""
    auto, count = model(), 2000
    _, scores = all_scores(auto)
    chance = scores[:, 0].exp()
    auto.init = (auto.init[0][:1].expand(count, 1, HIDDEN),)
    auto._batch_shape = torch.Size((count,))
    drawn = auto.sample_without_replacement((3,)).argmax(-1)
    place = (drawn * 2 ** torch.arange(LENGTH - 1, -1, -1)).sum(-1)
    assert (place[0] != place[1]).all()
    assert (place[1] != place[2]).all()
    pairs = chance * (chance[:, None] / (1 - chance[:, None])) * (1 - torch.eye(len(chance)))  # [first, second]
    for rank, expected in ((0, chance), (1, pairs.sum(0))):
        share = torch.bincount(place[rank], minlength=len(chance)) / count
        assert ((share - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt() + 1e-9).all()
    everything = model().sample_without_replacement((20,))
    assert (everything.flatten(2).sum(-1) > 0).sum(0).tolist() == [2**LENGTH] * BATCH


def test_errors():
    auto = model()
    with pytest.raises(ValueError, match=r"sample_shape must be \(K,\): got \(\)"):
        auto.sample_without_replacement()
    with pytest.raises(ValueError, match="start_class must lie between 0 and 1: got 2"):
        ours.Autoregressive(auto.model, auto.init, CLASSES, LENGTH, start_class=2)
    with pytest.raises(ValueError, match=r"the model must return logits \[3, 1, 7\]: got \[3, 1, 2\]"):
        ours.Autoregressive(auto.model, auto.init, 7, LENGTH).greedy_max()
    with pytest.raises(NotImplementedError, match="write the forward"):
        ours.AutoregressiveModel()(torch.zeros(1, 1))
