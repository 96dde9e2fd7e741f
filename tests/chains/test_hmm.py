"""Hidden Markov models against sums over all hidden paths."""

import itertools

import pytest
import torch

import tailsum as ts


def parameters(n=3, v=4):
    return (
        torch.randn(n).double().log_softmax(-1),
        torch.randn(n, n).double().log_softmax(-1),
        torch.randn(n, v).double().log_softmax(-1),
    )


def likelihood(initial, transition, emission, observed):
    """The sum over all hidden paths, one by one."""
    total = 0.0
    for path in itertools.product(range(len(initial)), repeat=len(observed)):
        log_p = initial[path[0]] + sum(transition[a, b] for a, b in itertools.pairwise(path))
        log_p = log_p + sum(emission[s, o] for s, o in zip(path, observed, strict=True) if o >= 0)
        total = total + log_p.exp()
    return torch.log(torch.as_tensor(total))


@pytest.mark.parametrize("sketched", [False, True])
def test_likelihood_with_missing_observations_and_lengths(sketched):
    model = parameters()
    observed = torch.tensor([[0, 3, -1, 2], [1, -1, 77, 99], [-1, -1, -1, -1]])  # padding may hold anything
    lengths = [4, 2, 3]
    hmm = ts.HMM(*model, observed, lengths)
    hmm = hmm.sketch(3) if sketched else hmm
    expected = [likelihood(*model, row[:n].tolist()) for row, n in zip(observed, lengths, strict=True)]
    torch.testing.assert_close(hmm.log_partition(), torch.stack(expected))
    torch.testing.assert_close(hmm.log_partition()[2], torch.zeros(()).double())  # nothing observed: probability one
    assert hmm.argmax().shape == (3, 4)


def test_is_the_chain_of_its_scores():
    initial, transition, emission = parameters()
    observed = torch.tensor([[0, 3, 1], [2, -1, 1]])
    nodes = torch.where(observed[..., None] >= 0, emission.T[observed.clamp(min=0)], 0.0)
    nodes[:, 0] += initial
    hmm, chain = ts.HMM(initial, transition, emission, observed), ts.LinearChain(nodes, transition)
    torch.testing.assert_close(hmm.node_scores(), chain.node_scores())
    torch.testing.assert_close(hmm.entropy(), chain.entropy())
    states = chain.sample((5,))
    torch.testing.assert_close(hmm.score(states), chain.score(states))
    small, same = hmm.sketch(2, generator=torch.Generator().manual_seed(1)), None
    same = chain.restrict(ts.Subset(small.states, small.log_weight))
    torch.testing.assert_close(small.marginals(), same.marginals())


def test_gradients_reach_the_parameters():
    initial, transition, emission = (x.requires_grad_() for x in parameters())
    observed = torch.tensor([0, -1, 1])

    def run(*unnormalised):
        return ts.HMM(*(x.log_softmax(-1) for x in unnormalised), observed).log_partition()

    assert torch.autograd.gradcheck(run, (initial, transition, emission))


def test_bad_input(unchecked):
    initial, transition, emission = parameters()
    observed = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="initial must hold log-probabilities"):
        ts.HMM(initial.exp(), transition, emission, observed)
    with pytest.raises(ValueError, match="transition must hold log-probabilities"):
        ts.HMM(initial, transition + 1, emission, observed)
    with pytest.raises(ValueError, match=r"observations must lie between 0 and V-1 = 3.*got 0 to 9"):
        ts.HMM(initial, transition, emission, torch.tensor([0, 9]))
    with pytest.raises(ValueError, match=r"observations must be integers: got torch\.float32"):
        ts.HMM(initial, transition, emission, torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"initial must be \[N\] and emission \[N, V\]"):
        ts.HMM(initial[:2], transition, emission, observed)


def test_scores_are_read_when_an_operation_runs():
    initial, transition, emission = (x.requires_grad_() for x in parameters())
    observed = torch.tensor([[0, 3, 1], [2, -1, 9]])
    hmm = ts.HMM(initial, transition, emission, observed, [3, 2])
    first, second = (torch.autograd.grad(hmm.log_partition().sum(), (initial, emission)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with torch.no_grad():
        emission.copy_(emission.flip(0))
    torch.testing.assert_close(
        hmm.log_partition(), ts.HMM(initial, transition, emission, observed, [3, 2]).log_partition()
    )
