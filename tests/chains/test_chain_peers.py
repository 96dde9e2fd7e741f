"""The same input in other libraries."""

import warnings

import numpy as np
import pytest
import torch

import tailsum as ts

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture
def scores():
    return torch.randn(3, 6, 5), torch.randn(5, 5), torch.tensor([6, 4, 2])


@pytest.mark.filterwarnings("ignore")
def test_torch_struct(scores):
    torch_struct = pytest.importorskip("torch_struct")
    nodes, pairs, lengths = scores
    potentials = nodes[:, 1:, :, None] + pairs.T  # [batch, T-1, to, from]
    potentials[:, 0] += nodes[:, 0, None, :]
    theirs = torch_struct.LinearChainCRF(potentials, lengths=lengths)
    ours = ts.LinearChain(nodes, pairs, lengths)
    torch.testing.assert_close(ours.log_partition(), theirs.partition, **CLOSE)
    torch.testing.assert_close(ours.entropy(), theirs.entropy, **CLOSE)
    torch.testing.assert_close(ours.pair_marginals(), theirs.marginals.mT, **CLOSE)
    best = theirs.argmax.mT  # one-hot (from, to) at each step
    picked = torch.nn.functional.one_hot(ours.argmax().clamp(min=0), 5)
    expected = picked[:, :-1, :, None] * picked[:, 1:, None, :]
    inside = (torch.arange(1, 6) < lengths[:, None])[..., None, None]
    torch.testing.assert_close(best, (expected * inside).to(best.dtype))
    other = torch_struct.LinearChainCRF(potentials * 0.5, lengths=lengths)
    divergence = ours.kl(ts.LinearChain(nodes * 0.5, pairs * 0.5, lengths))
    torch.testing.assert_close(divergence, theirs.kl(other), **CLOSE)


def test_pytorch_crf(scores):
    torchcrf = pytest.importorskip("torchcrf")
    nodes, pairs, lengths = scores
    crf = torchcrf.CRF(5, batch_first=True)
    torch.nn.init.zeros_(crf.start_transitions)
    torch.nn.init.zeros_(crf.end_transitions)
    crf.transitions.data = pairs.clone()
    mask = torch.arange(6) < lengths[:, None]
    tags = torch.randint(5, (3, 6))
    ours = ts.LinearChain(nodes, pairs, lengths)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = crf(nodes, tags, mask=mask, reduction="none")
        best = crf.decode(nodes, mask=mask)
    torch.testing.assert_close(ours.log_prob(tags), expected.detach(), **CLOSE)
    for path, theirs, length in zip(ours.argmax().tolist(), best, lengths.tolist(), strict=True):
        assert path[:length] == theirs


def test_hmmlearn():
    hmm = pytest.importorskip("hmmlearn.hmm")
    rng = np.random.default_rng(0)
    initial, transition, emission = (rng.dirichlet(np.ones(s[-1]), s[:-1]) for s in ((4,), (4, 4), (4, 6)))
    model = hmm.CategoricalHMM(n_components=4)
    model.startprob_, model.transmat_, model.emissionprob_ = initial, transition, emission
    observed = rng.integers(0, 6, (12, 1))
    ours = ts.HMM(*(torch.tensor(x).log() for x in (initial, transition, emission)), torch.tensor(observed[:, 0]))
    log_likelihood, posterior = model.score_samples(observed)
    best_score, best = model.decode(observed)
    torch.testing.assert_close(ours.log_partition().item(), log_likelihood, **CLOSE)
    torch.testing.assert_close(ours.marginals(), torch.tensor(posterior), **CLOSE)
    assert ours.argmax().tolist() == best.tolist()
    torch.testing.assert_close(ours.score(ours.argmax()).item(), best_score, **CLOSE)
