"""Potentials that multiply without a table, against a table of the same scores: what enumeration of small models does not reach."""

import math

import pytest
import torch

import tailsum as ts

N, T = 160, 6  # more states than sums take by a table
ZEROS = torch.zeros


def leaf(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def index():
    """Four arcs from each state but the last ten, in no order."""
    key = torch.randperm((N - 10) * N, generator=torch.Generator().manual_seed(0))[: 4 * N]
    return torch.stack((key // N, key % N))


FORMS = {
    "banded": (lambda lead: [leaf(*lead, 5, N)], ts.Banded),
    "sparse": (lambda lead: [leaf(*lead, 4 * N)], lambda x: ts.Sparse(index(), x, N)),
    "low rank": (lambda lead: [leaf(*lead, N, 3), leaf(*lead, 3, N, seed=1)], ts.LowRank),
    "kronecker": (lambda lead: [leaf(*lead, 10, 10), leaf(*lead, 16, 16, seed=1)], ts.Kronecker),
    "bands": (
        lambda lead: [leaf(*lead, 3, 10), leaf(*lead, 3, 16, seed=1)],
        lambda x, y: ts.Kronecker(ts.Banded(x), ts.Banded(y)),
    ),
    "monarch": (lambda lead: [leaf(*lead, 16, 10, 10), leaf(*lead, 10, 16, 16, seed=1)], ts.Monarch),
    "monarch of three": (
        lambda lead: [leaf(*lead, N // k, k, k, seed=k) for k in (2, 4, 20)],
        ts.Monarch,
    ),
}


def both(form, lead=(), change=lambda x: x, offset=0.0, batch=(2,)):
    """A chain, the same with a table, and their leaves."""
    leaves, potential = FORMS[form]
    leaves = [x.requires_grad_() for x in (leaf(*batch, T, N, seed=9), *(change(x) + offset for x in leaves(lead)))]
    pairs = potential(*leaves[1:])
    return ts.LinearChain(leaves[0], pairs), ts.LinearChain(leaves[0], pairs.block()), leaves


def agree(found, expected, **how):
    torch.testing.assert_close(found, expected, **(how or {"rtol": 1e-8, "atol": 1e-8}))


def slopes(value, leaves):
    return torch.autograd.grad(value.sum(), leaves, retain_graph=True, materialize_grads=True)


LEADS = [(), (T - 1,), (2, 1), (2, T - 1)]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("form", FORMS)
def test_sums_and_gradients(form, lead):
    chain, table, leaves = both(form, lead)
    for operation in ("log_partition", "entropy", "max"):
        ours, theirs = getattr(chain, operation)(), getattr(table, operation)()
        agree(ours, theirs)
        for a, b in zip(slopes(ours, leaves), slopes(theirs, leaves), strict=True):
            agree(a, b)
    agree(chain.marginals(), table.marginals())
    agree(chain.topk(3).scores, table.topk(3).scores)


@pytest.mark.parametrize("form", FORMS)
def test_large_offsets(form):
    """What a band does not use had a weight of its own, which overflowed."""
    chain, table, leaves = both(form, offset=1e6)
    for a, b in zip(slopes(chain.log_partition(), leaves), slopes(table.log_partition(), leaves), strict=True):
        agree(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_cold_scores(form):
    chain, table, leaves = both(form, change=lambda x: x * 1000)
    agree(chain.log_partition(), table.log_partition())
    for a, b in zip(slopes(chain.log_partition(), leaves), slopes(table.log_partition(), leaves), strict=True):
        agree(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_divergences_between_kinds(form, budget):
    """A pair that one of them leaves out is impossible, whatever the other is."""
    with ts.table_budget(budget):
        chain, table, _ = both(form)
        for other in FORMS:
            theirs, their_table, _ = both(other, (T - 1,))
            agree(chain.kl(theirs), table.kl(their_table))
            agree(theirs.cross_entropy(chain), their_table.cross_entropy(table))


@pytest.mark.parametrize("form", FORMS)
def test_within_no_budget(form):
    chain, table, leaves = both(form, (T - 1,))
    with ts.table_budget(0):
        ours, entropy = chain.log_partition(), chain.entropy()
        found = slopes(ours, leaves)
    agree(ours, table.log_partition())
    agree(entropy, table.entropy())
    for a, b in zip(found, slopes(ours, leaves), strict=True):
        agree(a, b)


@pytest.mark.parametrize("form", FORMS)
def test_empty_batch(form):
    chain, _, leaves = both(form, (0, T - 1), batch=(0,))
    assert chain.log_partition().shape == (0,)
    for a, x in zip(slopes(chain.entropy() + chain.log_partition(), leaves), leaves, strict=True):
        assert a.shape == x.shape
    pairs = FORMS[form][1](*leaves[1:])
    assert slopes(pairs.block(), leaves[1:])[0].shape == leaves[1].shape


@pytest.mark.parametrize("form", FORMS)
def test_sketches(form):
    chain, _, _ = both(form)
    chain = chain.detach()
    g = torch.Generator().manual_seed(0)
    agree(chain.sketch(N, generator=g).log_partition(), chain.log_partition())
    found = torch.stack([chain.sketch(60, generator=g).log_partition() for _ in range(60)])
    ratio = (found - chain.log_partition()).exp()
    deviation = (ratio.mean(0) - 1) / (ratio.std(0) / 60**0.5).clamp(min=1e-6)
    assert deviation.abs().max() < 4.5
    refined = chain.sketch(60, generator=g).refine()
    assert (refined.entropy() - chain.entropy()).abs().max() < 0.5
    assert refined.marginals().shape == (2, T, N)


@pytest.mark.parametrize("form", FORMS)
def test_long_chains_in_float32(form):
    leaves, potential = FORMS[form]
    leaves, emission = leaves(()), leaf(1, 2000, N)
    single = ts.LinearChain(emission.float(), potential(*(x.float() for x in leaves))).log_partition()
    wide = ts.LinearChain(emission, potential(*leaves)).log_partition()
    agree(single.double(), wide, rtol=3e-7, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_default_type(form):
    leaves, potential = FORMS[form]
    chain = ts.LinearChain(leaf(T, N).float(), potential(*(x.float() for x in leaves(()))))
    expected = chain.log_partition(), chain.entropy()
    torch.set_default_dtype(torch.float64)
    try:
        found = chain.log_partition(), chain.entropy()
        chain.sketch(20).log_partition()
        chain.sample()
    finally:
        torch.set_default_dtype(torch.float32)
    agree(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives(form):
    """Of a function that is not linear in the log-partition."""
    chain, table, leaves = both(form, (T - 1,))
    found = []
    for model in (chain, table):
        first = torch.autograd.grad(model.log_partition().sin().sum(), leaves, create_graph=True)
        found.append(slopes(sum(x.square().sum() for x in first), leaves))
    for a, b in zip(*found, strict=True):
        agree(a, b)


def test_states_without_arcs():
    """Paths end in a state that no arc leaves; with no arcs at all there are none."""
    emission = leaf(3, 5).requires_grad_()
    one = ts.LinearChain(emission, ts.Sparse(torch.tensor([[0, 1], [1, 2]]), ZEROS(2, dtype=torch.float64), 5))
    agree(one.log_partition(), emission.diagonal().sum())  # only 0, 1, 2
    assert one.argmax().tolist() == one.sample().tolist() == [0, 1, 2]
    none = ts.LinearChain(emission, ts.Sparse(torch.zeros(2, 0).long(), ZEROS(0, dtype=torch.float64), 5))
    assert none.log_partition() == none.entropy() == -math.inf
    assert none.argmax().tolist() == [-1] * 3
    assert none.sketch(2).log_partition() == -math.inf
    assert slopes(none.log_partition(), [emission])[0].eq(0).all()
    alone = ts.LinearChain(emission[:1], ts.Sparse(torch.zeros(2, 0).long(), ZEROS(0, dtype=torch.float64), 5))
    agree(alone.log_partition(), emission[0].logsumexp(-1))


def test_arcs_in_inference_mode():
    with torch.inference_mode():
        pairs = ts.Sparse(torch.tensor([[2, 0, 1], [0, 1, 2]]), ZEROS(3), 3)
        onward = pairs.transposed()
    scores = ZEROS(3, requires_grad=True)
    for each in (pairs, onward):
        each.table_below = 0
        model = ts.LinearChain(ZEROS(4, 3), each.with_tensors([scores[None]]))
        (model.log_partition() + model.entropy()).backward()
    agree(scores.grad, ZEROS(3) + 2.0, rtol=1e-5, atol=1e-5)  # six moves by three arcs


def arcs(*pairs):
    return torch.tensor(pairs).T


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ts.Banded([1.0]), "scores must be a tensor: got list"),
        (lambda: ts.Banded(ZEROS(3, 4).long()), "scores must be floating-point"),
        (lambda: ts.Banded(ZEROS(4, 5)), r"odd number of offsets and a state: got \[4, 5\]"),
        (lambda: ts.Banded(ZEROS(3, 0)), r"odd number of offsets and a state: got \[3, 0\]"),
        (lambda: ts.Sparse(ZEROS(2, 1), ZEROS(1), 2), "index must be integers: got torch.float32"),
        (lambda: ts.Sparse(arcs((0, 1)), ZEROS(2), 2), r"index must be \[2, E\] .*: got \[2, 1\] and \[2\]"),
        (lambda: ts.Sparse(arcs((0, 2)), ZEROS(1), 2), "index must lie between 0 and n_to-1 = 1: got 2 to 2"),
        (lambda: ts.Sparse(arcs((-1, 0)), ZEROS(1), 2), "index must lie between 0 and n_from-1 = 1: got -1 to -1"),
        (lambda: ts.Sparse(arcs((0, 1), (0, 1)), ZEROS(2), 2), r"each arc once: got \[0, 1\] twice"),
        (lambda: ts.Sparse(arcs((0, 0)), ZEROS(1), "a"), "n_from must be a whole number of at least 1: got a"),
        (lambda: ts.LowRank(ZEROS(3, 2), ZEROS(3, 2)), r"same R above zero: got \[3, 2\] and \[3, 2\]"),
        (lambda: ts.LowRank(ZEROS(3, 0), ZEROS(0, 3)), r"same R above zero: got \[3, 0\]"),
        (lambda: ts.LowRank(ZEROS(2, 3, 2), ZEROS(4, 2, 3)), r"left and right .* broadcast: got \[2\] and \[4\]"),
        (lambda: ts.Kronecker(None, ZEROS(3, 3)), "first must be a tensor .*: got NoneType"),
        (lambda: ts.Kronecker(ZEROS(3, 3), ZEROS(3)), r"second must be a tensor \[\*lead, n, n\] .*: got \[3\]"),
        (lambda: ts.Kronecker(ZEROS(3, 3).long(), ZEROS(3, 3)), "first must be floating-point"),
        (lambda: ts.Kronecker(ZEROS(2, 3, 3), ZEROS(4, 3, 3)), r"first and second .*: got \[2\] and \[4\]"),
        (lambda: ts.Monarch(ZEROS(3, 2, 2)), "blocks must be two tensors or more: got 1"),
        (lambda: ts.Monarch(ZEROS(3, 2, 2), None), "block 1 must be a tensor: got NoneType"),
        (lambda: ts.Monarch(ZEROS(2, 2), ZEROS(2, 2)), r"block 0 must be \[\*lead, N/n, n, n\].*: got \[2, 2\]"),
        (lambda: ts.Monarch(ZEROS(3, 2, 2), ZEROS(3, 3, 3)), r"block 1 must be \[\*lead, 2, 3, 3\]"),
        (lambda: ts.Monarch(ZEROS(5, 3, 2, 2), ZEROS(4, 2, 3, 3)), r"blocks must .*: got \[5\] and \[4\]"),
        (lambda: ts.LinearChain(ZEROS(4, 3), ts.Banded(ZEROS(3, 3) * math.nan)), "transition must not hold NaN"),
        (lambda: ts.LinearChain(ZEROS(4, 3), ts.Banded(ZEROS(3, 4))), "transition must join 3 states with 3"),
    ],
)
def test_what_does_not_fit(make, words):
    with pytest.raises(ValueError, match=words):
        make()
