"""Hidden Markov models against sums over all hidden paths."""

import itertools
import math

import numpy as np
import pytest
import torch

import tailsum as ts
from tailsum.numerics.memory import PeakMemory


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


OWN = [own for size in (1, 2, 3) for own in itertools.combinations(("initial", "transition", "emission"), size)]


@pytest.mark.parametrize("own", OWN, ids="-".join)
@pytest.mark.parametrize("sketched", [False, True])
def test_parameters_of_each_sequence(own, sketched):
    """As one model for each sequence: values, and gradients in the parameters."""
    names, shapes, lengths = ("initial", "transition", "emission"), ((3,), (3, 3), (3, 4)), [4, 2, 1]
    leaves = [torch.randn(*((3,) if n in own else ()), *s).double() for n, s in zip(names, shapes, strict=True)]
    leaves = [x.requires_grad_() for x in leaves]
    observed = torch.tensor([[0, 3, -1, 2], [1, -1, 77, 99], [2, 0, 0, 0]])

    def values(parameters, observed, lengths):
        hmm = ts.HMM(*(x.log_softmax(-1) for x in parameters), observed, lengths)
        hmm = hmm.sketch(3) if sketched else hmm
        return torch.stack((hmm.log_partition(), hmm.entropy(), hmm.scatter(hmm.marginals())[..., 0, 0]), -1)

    def alone(b):
        return [x[b] if name in own else x for name, x in zip(names, leaves, strict=True)]

    together = values(leaves, observed, lengths)
    apart = torch.stack([values(alone(b), observed[b], [lengths[b]])[0] for b in range(3)])
    torch.testing.assert_close(together, apart)
    weight = torch.randn(3, 3).double()
    found, expected = (torch.autograd.grad((x * weight).sum(), leaves) for x in (together, apart))
    torch.testing.assert_close(found, expected)


def test_parameters_may_have_more_batch_dimensions_than_observations():
    initial, transition, emission = parameters()
    several = torch.stack([emission, emission.flip(0)])
    hmm = ts.HMM(initial, transition, several, torch.tensor([0, -1, 2]))
    each = [ts.HMM(initial, transition, x, torch.tensor([0, -1, 2])).entropy() for x in several]
    torch.testing.assert_close(hmm.entropy(), torch.stack(each))
    torch.testing.assert_close(hmm[1].entropy(), each[1])
    grid = ts.HMM(initial, transition.expand(5, 1, 3, 3), several, torch.tensor([0, -1, 2]), [3, 2])
    assert grid.batch_shape == (5, 2)
    torch.testing.assert_close(grid.entropy()[:, 0], each[0].expand(5))


def test_a_transition_of_each_step_is_a_potential():
    initial, _, emission = parameters()
    steps, observed = torch.randn(2, 3, 3, 3).double().log_softmax(-1), torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
    hmm, nodes = ts.HMM(initial, ts.Dense(steps), emission, observed), emission.T[observed]
    nodes[:, 0] += initial
    torch.testing.assert_close(hmm.log_partition(), ts.LinearChain(nodes, steps).log_partition())


def test_parameters_must_have_the_batch_of_the_observations(unchecked):
    given, observed = dict(zip(("initial", "transition", "emission"), parameters(), strict=True)), torch.zeros(4, 2)
    for name, x in given.items():
        wrong = {**given, name: x.expand(3, *x.shape)}
        with pytest.raises(ValueError, match=rf"{name} has batch shape \[3\], which does not match .*\[4\]"):
            ts.HMM(**wrong, observations=observed.long())


@pytest.mark.parametrize("kind", [list, np.array])
@pytest.mark.parametrize("observed", [[0, -1, 1], [[0, -1, 1], [2, 2, 0]]])
def test_observations_in_lists_and_arrays(kind, observed):
    given = parameters()
    found = ts.HMM(*given, kind(observed)).log_partition()
    assert torch.equal(found, ts.HMM(*given, torch.tensor(observed)).log_partition())


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
    with pytest.raises(ValueError, match=r"initial must be \[\*batch, N\] and emission \[\*batch, N, V\]"):
        ts.HMM(initial[:2], transition, emission, observed)


def normalised(kind, n, excess=0.0, lead=()):
    """A transition whose rows sum to one, but for the last, which sums to `exp(excess)`, as any kind of potential."""
    table = torch.randn(*lead, n, n).log_softmax(-1)
    table[..., -1, :] += excess
    if kind == "tensor":
        return table
    if kind == "dense":
        return ts.Dense(table)
    if kind == "factored":
        return ts.Factored(table, torch.eye(n))
    return ts.Scored(lambda i, j: table[i, j], n, n, dtype=torch.float32)


@pytest.mark.parametrize("kind", ["tensor", "dense", "factored", "scored"])
def test_transitions_must_be_normalised(kind, unchecked):
    initial, _, emission = (x.float() for x in parameters())
    observed = torch.tensor([0, 1])
    ts.HMM(initial, normalised(kind, 3), emission, observed)
    for excess in (-0.009, 0.001):
        with pytest.raises(ValueError, match=r"transition must hold log-probabilities .* got a sum of (0\.99|1\.00)"):
            ts.HMM(initial, normalised(kind, 3, excess), emission, observed)


def test_initial_and_emission_must_be_normalised(unchecked):
    initial, transition, emission = (x.float() for x in parameters())
    observed = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="initial must hold log-probabilities"):
        ts.HMM(initial - 0.009, transition, emission, observed)
    with pytest.raises(ValueError, match="emission must hold log-probabilities"):
        ts.HMM(initial, transition, emission - 0.009, observed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_counts_as_normalised(dtype):
    wide = torch.randn(50, 50).log_softmax(-1)
    model = [x.to(dtype) for x in (wide[0], wide, wide)]
    assert ts.HMM(*model, torch.tensor([0, 1])).log_partition() < 0


def test_transitions_of_the_padding_need_not_be_normalised():
    initial, _, emission = (x.float() for x in parameters())
    transition = normalised("tensor", 3, lead=(2, 3))
    transition[1, 1:] = torch.nan
    hmm = ts.HMM(initial, ts.Dense(transition), emission, torch.zeros(2, 4).long(), [4, 2])
    assert hmm.log_partition().isfinite().all()


def test_rows_of_a_large_transition_are_checked_in_tiles(monkeypatch):
    """All rows up to so many scores, and some of each table beyond that; the table is never built."""
    n = 400
    uniform = ts.Factored(torch.full((n, 1), -math.log(n)), torch.ones(n, 1))
    model = torch.randn(n).log_softmax(-1), uniform, torch.randn(n, 5).log_softmax(-1)
    monkeypatch.setattr("tailsum.numerics.tiles._TILE", {"cpu": 16 * n})
    with PeakMemory() as memory:
        ts.HMM(*model, torch.tensor([0, 1]))
    assert memory.largest < 4 * n * n // 10
    monkeypatch.setattr("tailsum.chains.hmm.ENTRIES", 10 * n)
    seen = []
    monkeypatch.setattr("tailsum.chains.hmm._check_sums", lambda *arguments: seen.append(arguments[1].shape))
    ts.HMM(*model, torch.tensor([0, 1]))
    assert sum(shape[0] for shape in seen if shape[-1] == n and len(shape) == 2) == 10


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
