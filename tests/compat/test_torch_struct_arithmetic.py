"""Dynamic programs in a semiring's own arithmetic: sums of weights, sparse maxima, and semirings of your own.

What torch-struct's own tests ask is asked here and in the files beside this one: the table is in docs/torch_struct.md.
"""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import tailsum.compat.torch_struct as ours
from compat.torch_struct_cases import CASES, LENGTHS, flattened, truths
from harness.peers import QUIET

pytestmark = QUIET
FOLDED = [name for name in CASES if name != "frames"]  # whose targets are not in its log-potentials
PROJECTIVE = [name for name in FOLDED if not name.startswith("crossing")]
folded = pytest.mark.parametrize("name", FOLDED)
projective = pytest.mark.parametrize("name", PROJECTIVE)


def struct(name, semiring):
    case = CASES[name]
    return case.model(*case.potentials(0))._struct(semiring)


def together(potentials):
    return potentials[0] if len(potentials) == 1 else tuple(potentials)


def sums_of_products(name, weights):
    """By enumeration, in float64."""
    case = CASES[name]
    flat = torch.cat([x.flatten(1) for x in weights], -1).double()
    events = [t.events for t in truths(case, case.potentials(0))]
    return torch.stack([(row**used).prod(-1).sum() for row, used in zip(flat, events, strict=True)])


@folded
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_sums_of_whole_numbers_are_whole(name, dtype):
    weights = [torch.randint(4, (len(LENGTHS), *shape)).to(dtype) for shape in CASES[name].shapes]
    found = struct(name, ours.StdSemiring).sum(together(weights), LENGTHS)
    assert found.dtype == dtype
    assert torch.equal(found.double(), sums_of_products(name, weights))


def test_a_count_is_a_sum():
    for states, length in itertools.product((2, 3, 4), (3, 4, 5)):
        ones = torch.ones(2, length - 1, states, states)
        assert ours.LinearChain(ours.StdSemiring).sum(ones).tolist() == [states**length] * 2
    zeros, seen = torch.zeros(14, 10, 10).double(), torch.zeros(2, 15).long()
    assert ours.LinearChainCRF(zeros[None]).count == 10**15
    assert ours.TreeCRF(torch.zeros(1, 4, 4, 1)).expand((2, 3)).count.tolist() == [[5] * 3] * 2
    hidden = ours.HMM(zeros[0], torch.zeros(1, 10).double(), zeros[0, 0], seen, [15, 14])
    assert hidden.count.tolist() == [10**15, 10**14]
    barred = zeros[0].clone()
    barred[3], barred[:, 4] = -math.inf, -1e30
    hidden = ours.HMM(barred, torch.zeros(1, 10).double(), zeros[0, 0], seen[:1, :3])
    assert_close(hidden.count, ours.LinearChainCRF(hidden.log_potentials).count)


@folded
def test_weights_of_every_sign_have_gradients(name):
    weights = [0.5 * torch.randint(-1, 3, (len(LENGTHS), *s)).double() for s in CASES[name].shapes]
    weights = [x.requires_grad_() for x in weights]
    program = struct(name, ours.StdSemiring)
    found = program.sum(together(weights), LENGTHS)
    assert_close(found, sums_of_products(name, weights))
    expected = torch.autograd.grad(sums_of_products(name, weights).sum(), weights)
    for x, y in zip(torch.autograd.grad(found.sum(), weights), expected, strict=True):
        assert_close(x, y)
    if name == "grammar":
        with pytest.raises(NotImplementedError, match="marginals of a grammar under a StdSemiring are not here"):
            program.marginals(together(weights), LENGTHS)
    else:
        marginals = program.marginals(weights[0], LENGTHS)
        assert_close(marginals, expected[0])
        (second,) = torch.autograd.grad(marginals.sum(), weights)
        assert second.isfinite().all()
        assert not program.marginals(weights[0].detach(), LENGTHS).requires_grad


@projective
def test_what_is_in_the_padding_has_no_effect(name):
    case = CASES[name]
    if case.shapes[0][0] != max(LENGTHS):
        return
    clean, dirty = ([x.clone() for x in case.potentials(0)] for _ in range(2))
    for x, y in zip(clean, dirty, strict=True):
        if x.shape[1] == max(LENGTHS):
            for b, length in enumerate(LENGTHS):
                y[b, length:] = math.nan
    dirty = [x.requires_grad_() for x in dirty]
    found = struct(name, ours.StdSemiring).sum(together(dirty), LENGTHS)
    assert_close(found, struct(name, ours.StdSemiring).sum(together(clean), LENGTHS))
    for gradient in torch.autograd.grad(found.sum(), dirty):
        assert gradient.isfinite().all()


class OwnLog(ours.LogSemiring):
    """A logarithm to base 2, so that what a LogSemiring stands for is not its sum."""

    @classmethod
    def sum(cls, xs, dim=-1):
        highest = xs.amax(dim).clamp(min=-1e30)
        return highest + (xs - highest.unsqueeze(dim)).exp2().sum(dim).log2()


class Fewest(ours.Semiring):
    """The least sum."""

    zero, one = math.inf, 0.0

    @classmethod
    def sum(cls, xs, dim=-1):
        return xs.amin(dim)

    @classmethod
    def mul(cls, a, b):
        return a + b


@projective
def test_semirings_of_your_own(name):
    case = CASES[name]
    potentials = case.potentials(2)
    truth = truths(case, potentials)
    found = struct(name, OwnLog).sum(together(potentials), LENGTHS)
    assert_close(found, torch.stack([(t.scores * math.log(2)).logsumexp(0) / math.log(2) for t in truth]))
    found = struct(name, Fewest).sum(together(potentials), LENGTHS)
    lowest = [t.scores.min() if len(t.scores) else torch.tensor(math.inf).double() for t in truth]
    assert_close(found, torch.stack(lowest))
    if name != "grammar":
        lightest = struct(name, Fewest).marginals(together(potentials), LENGTHS)
        assert_close(flattened(case, lightest * potentials[0]).sum(-1), torch.stack(lowest))
        raw = struct(name, Fewest).marginals(together(potentials), LENGTHS, _raw=True)
        assert_close(raw, lightest[None])


@projective
def test_semirings_of_several_numbers(name):
    """The arithmetic of a KMaxSemiring gives what a structure gives for it."""
    kind = ours.KMaxSemiring(3)
    own = type("Own", (kind,), {"sum": vars(kind.__mro__[1])["sum"]})  # with a sum of its own it is folded
    case = CASES[name]
    potentials = case.potentials(3)
    found = struct(name, own).sum(together(potentials), LENGTHS, _raw=True)
    assert_close(found, case.model(*potentials).kmax(3))
    assert_close(struct(name, kind).logpartition(together(potentials), LENGTHS)[0], found)


@pytest.mark.parametrize("length", [7, 12, 13, 40])
def test_how_many_trees_may_cross(length):
    """Cayley's formula."""
    ones, counts = torch.ones(1, length, length).double(), []
    for roots in (False, True):
        crossing = ours.NonProjectiveDependencyCRF(ones.log(), multiroot=roots)
        counts.append(crossing._struct(ours.StdSemiring).sum(ones).item())
        assert crossing.count.item() == pytest.approx(counts[-1])
    assert counts == pytest.approx([length ** (length - 1), (length + 1) ** (length - 1)], rel=1e-10)


def test_crossing_trees_have_no_recursion():
    arcs = torch.rand(2, 3, 3)
    with pytest.raises(NotImplementedError, match="arcs may cross have no recursion for a Fewest"):
        ours.NonProjectiveDependencyCRF(arcs)._struct(Fewest).sum(arcs)


# Against torch-struct.


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_same_sums_of_weights_and_gradients(torch_struct, steps):
    lengths = torch.tensor([steps + 1, max(2, steps - 1), 2])
    inside = (torch.arange(steps) < lengths[:, None] - 1)[
        ..., None, None
    ]  # there, gradients in the padding are not zero
    results = []
    for module in (ours, torch_struct):
        x = torch.randn(3, steps, 3, 3, generator=torch.Generator().manual_seed(steps)).double().requires_grad_()
        chain = module.LinearChain(module.StdSemiring)
        marginals = chain.marginals(x, lengths) * inside
        (second,) = torch.autograd.grad((marginals**2).sum() + 0.0 * x.sum(), x)  # of one step, marginals are constant
        results.append((chain.sum(x, lengths), marginals, second * inside))
    for mine, theirs in zip(*results, strict=True):
        assert_close(mine, theirs)


def test_same_sparse_marginals_of_one_sum(torch_struct):
    """Of sums of sums they differ: there, a sum is less by the norm of the weights, so its gradient is not the weights."""
    x = torch.randn(4, 6).double()
    found = []
    for module in (ours, torch_struct):
        leaf = x[None].clone().requires_grad_()
        found.append(torch.autograd.grad(module.SparseMaxSemiring.sum(leaf).sum(), leaf)[0])
    assert_close(*found)


def test_sparse_sums():
    x = torch.tensor([[1.0, 0.5, -2.0], [3.0, -math.inf, 2.9], [-math.inf] * 3]).double().requires_grad_()
    total = ours.SparseMaxSemiring.sum(x)
    (weights,) = torch.autograd.grad(total.sum(), x, create_graph=True)
    expected = torch.tensor([[0.75, 0.25, 0.0], [0.55, 0.0, 0.45], [0.0, 0.0, 0.0]]).double()
    assert_close(weights, expected)
    values = (expected * x.detach().clamp(min=-9)).sum(-1) + 0.5 * (1 - expected.square().sum(-1))
    assert_close(total, torch.cat((values[:2], torch.tensor([-math.inf]).double())))
    assert_close(ours.SparseMaxSemiring.sum(x.T[None], 1), total[None])
    (second,) = torch.autograd.grad(weights[0, 0], x)
    assert_close(second[0], torch.tensor([0.5, -0.5, 0.0]).double())
    assert not second[1:].any()


@projective
def test_sparse_sums_of_structures(name):
    case = CASES[name]
    potentials = tuple(2 * x for x in case.potentials(1))
    truth, chain = truths(case, potentials), struct(name, ours.SparseMaxSemiring)
    given = [x.requires_grad_() for x in potentials]
    found = chain.sum(together(given), LENGTHS)
    for value, t in zip(found, truth, strict=True):
        best = t.scores.max() if len(t.scores) else torch.tensor(-math.inf).double()
        assert value == best or best < value < t.log_z
    assert torch.autograd.gradcheck(lambda *x: chain.sum(together(x), LENGTHS)[:2], given, fast_mode=True)
    if name != "grammar":
        assert torch.autograd.gradcheck(lambda x: chain.marginals(x, LENGTHS), given, fast_mode=True)


def test_sparse_marginals_are_sparse():
    scores = 3 * torch.randn(4, 8, 5, 5)
    sparse = ours.LinearChain(ours.SparseMaxSemiring).marginals(scores)
    assert_close(sparse.sum((-1, -2)), torch.ones(4, 8))
    assert (sparse == 0).float().mean() > 0.5
    alone = ours.LinearChain(ours.SparseMaxSemiring).marginals(scores[:, :3])
    padded = ours.LinearChain(ours.SparseMaxSemiring).marginals(scores, [4] * 4)
    assert_close(padded[:, :3], alone)
    assert not padded[:, 3:].any()


def test_where_sums_come_from(torch_struct):
    x = torch.tensor([[1, 2, 5], [3, 4, 6]])
    for kind in (lambda module: module.KMaxSemiring(2), lambda module: module.MaxSemiring):
        mine, theirs = kind(ours).sparse_sum(x), kind(torch_struct).sparse_sum(x)
        for a, b in zip((mine[0], *mine[1]), (theirs[0], *theirs[1]), strict=True):
            assert torch.equal(a, b)
    values, (which, place) = ours.KMaxSemiring(2).sparse_sum(x)
    assert torch.equal(x[which, place], values)
    many = torch.rand(2, 4, 3)
    values, (which, place) = ours.KMaxSemiring(2).sparse_sum(many, 1)
    assert torch.equal(many[which, place, torch.arange(3)], values)


def test_raw_results_have_a_first_dimension(torch_struct):
    potentials = torch.rand(2, 3, 2, 2)
    for name in ("LogSemiring", "MaxSemiring", "SampledSemiring", "MultiSampledSemiring", "StdSemiring"):
        mine = ours.LinearChain(getattr(ours, name)).marginals(potentials, _raw=True)
        theirs = torch_struct.LinearChain(getattr(torch_struct, name)).marginals(potentials.clone(), _raw=True)
        assert mine.shape == theirs.shape == (1, 2, 3, 2, 2)
        if "Sampled" not in name:
            assert_close(mine, theirs.detach())
    assert ours.LinearChain(ours.GumbelCRFSemiring(1.0)).marginals(potentials, _raw=True).shape == (1, 2, 3, 2, 2)
    grammar = torch.randn(2, 4, 3), torch.randn(2, 2, 5, 5), torch.randn(2, 2)
    for x, y in zip(ours.CKY().marginals(grammar, _raw=True), ours.CKY().marginals(grammar), strict=True):
        assert_close(x, y[None])


# What came after release 0.5.


@pytest.mark.parametrize("batched", [True, False])
def test_hidden_semi_markov_models(batched):
    size, longest, batch, steps = 3, 3, 2, 4
    draw = torch.Generator().manual_seed(0)
    shapes = [(batch, size) if batched else (size,), (size, size), (size, longest), (batch, steps, longest, size)]
    init, pairs, durations, emission = (torch.randn(s, generator=draw).double() for s in shapes)
    expected = []
    for b in range(batch):
        scores = []
        for cuts in itertools.product(range(1, longest), repeat=steps):
            for n in range(1, steps + 1):
                if sum(cuts[:n]) == steps and set(cuts[n:]) <= {1}:  # each segmentation once
                    starts = [0, *itertools.accumulate(cuts[: n - 1])]
                    for states in itertools.product(range(size), repeat=n + 1):
                        score = (init[b] if batched else init)[states[0]]
                        for start, k, (z, after) in zip(starts, cuts[:n], itertools.pairwise(states), strict=True):
                            score = score + pairs[z, after] + durations[after, k] + emission[b, start, k, after]
                        scores.append(score)
        expected.append(torch.stack(scores))
    potentials = ours.SemiMarkov.hsmm(init, pairs, durations, emission)
    model = ours.SemiMarkovCRF(potentials)
    assert_close(model.partition, torch.stack([x.logsumexp(0) for x in expected]))
    assert_close(model.max, torch.stack([x.max() for x in expected]))
    raw, (given,) = ours.SemiMarkov(ours.MaxSemiring).logpartition(potentials)
    assert_close(raw, model.max[None])
    assert given is potentials
    for b, length in enumerate((3, 5)):  # a batch of lengths, and each alone
        both = ours.SemiMarkov().logpartition(potentials, lengths=torch.tensor([3, 5]))[0][0]
        assert_close(both[b : b + 1], ours.SemiMarkov().sum(potentials[b : b + 1, : length - 1]))


def test_bad_hidden_semi_markov_models(unchecked):
    zeros = torch.zeros
    for message, given in {
        r"transition_z_to_z must be \[3, 3\]": (zeros(3), zeros(3, 2), zeros(3, 4), zeros(2, 5, 4, 3)),
        r"transition_z_to_l must be \[3, 4\].*got \[4, 3\]": (zeros(3), zeros(3, 3), zeros(4, 3), zeros(2, 5, 4, 3)),
        r"init_z_1 must be \[3\] or \[2, 3\]: got \[2\]": (zeros(2), zeros(3, 3), zeros(3, 4), zeros(2, 5, 4, 3)),
    }.items():
        with pytest.raises(ValueError, match=message):
            ours.SemiMarkov.hsmm(*given)


def test_validate_args():
    pairs, arcs = torch.zeros(2, 3, 2, 2), torch.zeros(2, 3, 3)
    grammar = torch.zeros(2, 3, 2), torch.zeros(2, 2, 4, 4), torch.zeros(2, 2)
    for validate in (None, False, True):
        made = [
            ours.LinearChainCRF(pairs, None, {}, validate),
            ours.SemiMarkovCRF(pairs[:, :, None].expand(-1, -1, 2, -1, -1), validate_args=validate),
            ours.DependencyCRF(arcs, validate_args=validate),
            ours.NonProjectiveDependencyCRF(arcs, validate_args=validate),
            ours.TreeCRF(arcs[..., None], validate_args=validate),
            ours.SentCFG(grammar, None, validate),
            ours.AlignmentCRF(arcs[..., None].expand(-1, -1, -1, 3), validate_args=validate),
            ours.HMM(pairs[0, 0], pairs[0, 0], pairs[0, 0, 0], torch.zeros(2, 3).long(), None, validate),
            ours.CTC(arcs, torch.ones(2, 1).long(), validate_args=validate),
        ]
        assert all((model.partition > 0).all() for model in made)
        with pytest.raises(ValueError, match="must not hold NaN"):
            ours.DependencyCRF(arcs * math.nan, validate_args=validate)


@pytest.mark.parametrize("name", ["chain", "segments", "dependencies", "labelled", "trees", "grammar"])
def test_short_forms_of_the_best(name):
    """To parts and back, with ragged lengths."""
    case = CASES[name]
    for seed in range(5):
        model = case.model(*case.potentials(seed), lengths=[4, 2, 2])
        best = model.argmax
        short, extra = model.from_event(best)
        back = model.to_event(short, extra)
        assert torch.equal(flattened(case, back).double(), flattened(case, best))
        again = model.from_event(back) if name != "grammar" else (short, extra)
        assert torch.equal(again[0], short)
