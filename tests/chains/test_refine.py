"""Refined answers against loops, exact answers, derivatives and expectations."""

import math
from random import Random
from typing import NamedTuple

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.nn.functional import pad

import tailsum as ts
from harness.agree import close
from harness.chains import ChainCase
from harness.potentials import potential, rand
from harness.statistics import Broken, z_score
from tailsum.numerics.memory import PeakMemory
from tailsum.numerics.tensors import scaled
from tailsum.numerics.tiles import tile_rows

PROPOSALS = [None, ts.Uniform(), ts.Local(), ts.Lookahead(2, 1, sequential=False), ts.Lookahead(1, 0)]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@st.composite
def some_cases(draw, **how):
    """Random chains; in half of them many sequences at once, with forbidden scores."""
    r = Random(draw(st.integers(0, 2**32)))
    case = ChainCase.random(r)
    if draw(st.booleans()):
        lengths = None if case.given is None else [r.randint(1, 4) for _ in range(20)]
        how |= {"batch": (4, 5), "length": 4, "lengths": lengths, "n": 4, "forbidden": 0.25, "scale": 1.0}
    return case.sibling(**how)


def random_subset(chain, k, seed, empty=0.0):
    """Any k states with any weights, states more than once, and some places empty."""
    g, shape = seeded(seed), (*chain.batch_shape, chain.n_nodes, k)
    log_weight = torch.randn(shape, generator=g, dtype=chain.dtype)
    log_weight[torch.rand(shape, generator=g) < empty] = -math.inf
    return ts.Subset(torch.randint(chain.n_states, shape, generator=g), log_weight)


def random_refined(chain, seed, k=2, landmarks=2, empty=0.0):
    """A random sketch, a random pilot, and what is refined by them."""
    small = chain.restrict(random_subset(chain, k, seed, empty))
    pilot = chain.restrict(random_subset(chain, landmarks, seed + 1, empty))
    return small, pilot, small.refine(pilot)


def flat(chain, value):
    """Values `[*batch, ...]` as `[B, ...]`."""
    return value.reshape(chain.batch_shape.numel(), *value.shape[len(chain.batch_shape) :])


def answers(refined):
    return refined.log_partition(), refined.entropy(), refined.marginals()


# The formula, in loops and without logarithms.


class Written(NamedTuple):
    log_sum: float
    expected: float
    seen: bool  # whether kept states carry mass wherever any state does: a position without has no correction


def both(mass, moment, weight, score):
    """The mass, and the sum of mass times score, after one more score and a weight."""
    factor = weight * math.exp(score)
    return mass * factor, 0.0 if factor == 0 else factor * (moment + mass * score)


def added(pairs):
    pairs = list(pairs)
    return sum(p[0] for p in pairs), sum(p[1] for p in pairs)


def written_out(nodes, pairs, kept, pilot):
    """`nodes [L, N]`, `pairs [L-1, N, N]`, and the (state, weight) that are kept at each position, as lists."""
    length, everyone = len(nodes), range(len(nodes[0]))
    past = [[both(1.0, 0.0, 1.0, nodes[0][j]) for j in everyone]]
    for t in range(1, length):
        sent = [added(both(*past[-1][i], w, pairs[t - 1][i][j]) for i, w in kept[t - 1]) for j in everyone]
        past.append([both(*sent[j], 1.0, nodes[t][j]) for j in everyone])
    future = [[(1.0, 0.0)] * len(everyone)]
    for t in range(length - 2, -1, -1):
        whole = [both(*future[0][j], 1.0, nodes[t + 1][j]) for j in everyone]
        future.insert(0, [added(both(*whole[j], w, pairs[t][i][j]) for j, w in pilot[t + 1]) for i in everyone])
    mass, moment = added(past[-1])
    if mass == 0:
        return Written(-math.inf, 0.0, seen=True)
    log_sum, expected, seen = math.log(mass), moment / mass, True
    for t in range(length - 1):
        joint = [(a * b, c * b + a * d) for (a, c), (b, d) in zip(past[t], future[t], strict=True)]
        (mass, moment), (own, own_moment) = added(joint), added((w * joint[i][0], w * joint[i][1]) for i, w in kept[t])
        seen &= own > 0 or mass == 0
        if own > 0:
            log_sum += math.log(mass) - math.log(own)
            expected += moment / mass - own_moment / own
    return Written(log_sum, expected, seen)


def kept_pairs(states, log_weight):
    return [list(zip(i, w, strict=True)) for i, w in zip(states.tolist(), log_weight.exp().tolist(), strict=True)]


@settings(max_examples=20)
@given(some_cases(), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32), st.sampled_from([0.0, 0.3]))
def test_the_formula_written_out(case, k, landmarks, seed, empty):
    chain = case.model()
    small, pilot, refined = random_refined(chain, seed, k, landmarks, empty)
    log_partition, entropy, marginals = (flat(chain, x) for x in answers(refined))
    assert not any(x.isnan().any() for x in (log_partition, entropy, marginals))
    parts = [flat(chain, x) for x in (small.states, small.log_weight, pilot.states, pilot.log_weight)]
    nodes, pairs = (x.tolist() for x in case.tables())
    for b, length in enumerate(case.lengths):
        kept, guide = kept_pairs(parts[0][b], parts[1][b]), kept_pairs(parts[2][b], parts[3][b])
        expected = written_out(nodes[b][:length], pairs[b], kept, guide)
        if expected.seen:
            close(log_partition[b].item(), expected.log_sum)
            close(entropy[b].item(), expected.log_sum - expected.expected)


def padded(subset, n):
    """The same with empty places, n in all."""
    more = (0, n - subset.index.shape[-1])
    return pad(subset.index, more), pad(subset.log_weight, more, value=-math.inf)


def spliced(chain, *parts):
    """The chain on some positions of one subset, then some of another: `(subset, start, stop), ...`."""
    pieces = [[x[..., start:stop, :] for x in padded(subset, chain.n_states)] for subset, start, stop in parts]
    lead = (*chain.batch_shape, -1, -1)
    index, log_weight = (torch.cat([x.expand(lead) for x in each], -2) for each in zip(*pieces, strict=True))
    return chain.restrict(ts.Subset(index, log_weight))


def everyone(chain):
    index = torch.arange(chain.n_states).expand(chain.n_nodes, -1)
    return ts.Subset(index, torch.zeros(index.shape, dtype=chain.dtype))


@pytest.mark.parametrize("kind", ["dense", "factored", "scored"])
def test_a_correction_compares_two_chains(kind):
    """Kept states up to a position and the pilot's after it; there, all states in one and the kept ones in the other."""
    chain = ChainCase((2,), 5, n=4, pairs=kind, lead="time", seed=2).model()
    small, pilot, refined = random_refined(chain, 3, 3, 2)
    log_partition, expected = torch.zeros(2).double(), torch.zeros(2).double()
    for t in range(5):
        for sign, here in ((1, everyone(chain)), (-1, small.kept)):
            model = spliced(chain, (small.kept, 0, t), (here, t, t + 1), (pilot.kept, t + 1, 5))
            if sign > 0 or t < 4:
                log_partition += sign * model.log_partition()
                expected += sign * (model.log_partition() - model.entropy())
    close(refined.log_partition(), log_partition)
    close(refined.entropy(), log_partition - expected)


# Where it must be exact.


@settings(max_examples=20)
@given(some_cases(), st.sampled_from(PROPOSALS), st.booleans(), st.integers(0, 2**32))
def test_a_sketch_of_all_states_is_exact(case, proposal, drawn, seed):
    chain = case.model()
    small = chain.sketch(chain.n_states, proposal=proposal)
    refined = small.refine() if drawn else small.refine(chain.restrict(random_subset(chain, 2, seed, 0.2)))
    log_partition, entropy, marginals = answers(refined)
    assert log_partition.shape == entropy.shape == chain.batch_shape
    assert marginals.shape == (*chain.batch_shape, chain.n_nodes, chain.n_states)
    log_partition, entropy, marginals = (flat(chain, x) for x in (log_partition, entropy, marginals))
    for b, truth in enumerate(case.truths()):
        length = case.lengths[b]
        close(log_partition[b], truth.log_partition)
        close(entropy[b], truth.entropy if truth.possible else torch.tensor(-math.inf).double())
        close(
            marginals[b, :length], truth.marginals if truth.possible else torch.zeros(length, chain.n_states).double()
        )
        assert marginals[b, length:].eq(0).all()


@settings(max_examples=20)
@given(some_cases(), st.integers(1, 3), st.integers(0, 2**32))
def test_a_pilot_of_all_states_makes_every_sketch_exact(case, k, seed):
    """Whatever is kept with whatever weights, as long as some path is."""
    chain = case.model()
    small = chain.restrict(random_subset(chain, k, seed, 0.1))
    possible = small.log_partition() > -math.inf
    assume(possible.any())
    refined = small.refine(chain.sketch(chain.n_states))
    for found, exact in zip(answers(refined), (chain.log_partition(), chain.entropy(), chain.marginals()), strict=True):
        close(found[possible], exact[possible])


@pytest.mark.parametrize("selection", [ts.Optimal(4), ts.TopAndSample(0, 5), ts.TopAndSample(3, 2)])
def test_what_guided_the_choice_sees_nothing_wrong_with_its_mass(selection):
    """Selected in proportion to the messages of the landmarks, the kept states have all the mass that those see."""
    chain = ts.LinearChain(rand(3, 6, 40).detach(), rand(5, 40, 40).detach(), [6, 1, 4])
    small = chain.sketch(proposal=ts.Lookahead(7, neighbours=0), selection=selection)
    refined = small.refine()
    close(refined.log_partition(), small.log_partition())
    assert (refined.entropy() - small.entropy()).abs()[0] > 1e-3
    assert (small.refine(chain.sketch(7)).log_partition() - small.log_partition()).abs()[0] > 1e-3


# Derivatives.


@settings(max_examples=20)
@given(some_cases(emission="dense"), st.integers(1, 3), st.integers(0, 2**32))
def test_marginals_are_the_gradient_and_sum_to_one(case, k, seed):
    whole, lengths = case.model(), torch.tensor(case.lengths).reshape(case.batch)
    nodes = whole.node_scores().clone().requires_grad_()
    chain = ts.LinearChain(nodes, whole.pair_scores(), lengths)
    refined = random_refined(chain, seed, k)[2]
    log_partition, marginals = refined.log_partition(), refined.marginals()
    possible = log_partition > -math.inf
    assert marginals.requires_grad
    close(marginals, grad(log_partition[possible].sum(), nodes)[0])
    inside = (torch.arange(chain.n_nodes) < lengths[..., None]) & possible[..., None]
    close(marginals.sum(-1), inside.double())
    assert marginals[~inside].eq(0).all()


@settings(max_examples=20)
@given(some_cases(), st.integers(1, 3), st.integers(0, 2**32))
def test_the_expected_score_is_the_slope_as_all_scores_grow(case, k, seed):
    whole = case.model()
    kept, guide = random_subset(whole, k, seed), random_subset(whole, 2, seed + 1)
    tilt = torch.ones((), dtype=torch.float64, requires_grad=True)
    chain = ts.LinearChain(scaled(whole.node_scores(), tilt), whole.pair_scores().scaled(tilt), whole.lengths)
    refined = chain.restrict(kept).refine(chain.restrict(guide))
    log_partition = refined.log_partition()
    possible = log_partition > -math.inf
    assume(possible.any())
    (slope,) = grad(log_partition[possible].sum(), tilt)
    close(slope, (log_partition - refined.entropy())[possible].sum().detach(), rtol=1e-9, atol=1e-8)


SUBSETS = {
    "kept": ts.Subset(torch.tensor([[0, 2], [1, 1], [2, 0]]), torch.tensor([[0.0, 0.7], [0.3, -0.4], [0.1, 0.2]])),
    "pilot": ts.Subset(torch.tensor([[1], [0], [1]]), torch.tensor([[0.5], [1.0], [0.2]])),
}


def refined_by_subsets(chain):
    small, pilot = (chain.restrict(SUBSETS[name]) for name in ("kept", "pilot"))
    return small.refine(pilot)


def derivatives_agree(run, inputs):
    """With finite differences, in random directions: the first of all answers, the second of two of them."""
    assert all(gradcheck(run(name), inputs, fast_mode=True) for name in ("log_partition", "entropy", "marginals"))
    assert all(gradgradcheck(run(name), inputs, fast_mode=True) for name in ("log_partition", "entropy"))


@pytest.mark.parametrize(("kind", "lead"), [("dense", ()), ("dense", (2, 2)), ("factored", (2, 2)), ("scored", (2,))])
def test_derivatives(kind, lead, unchecked):
    leaves, make = potential(kind, lead)

    def run(name):
        return lambda nodes, *x: getattr(refined_by_subsets(ts.LinearChain(nodes, make(*x), [3, 2])), name)()

    derivatives_agree(run, (rand(2, 3, 3), *leaves))


@pytest.mark.parametrize("kind", ["dense", "factored"])
def test_derivatives_in_every_direction(kind, unchecked):
    leaves, make = potential(kind, ())

    def run(name):
        return lambda nodes, *x: getattr(refined_by_subsets(ts.LinearChain(nodes, make(*x))), name)()

    assert all(gradcheck(run(name), (rand(3, 3), *leaves)) for name in ("log_partition", "entropy"))


def test_derivatives_with_forbidden_entries(unchecked):
    nodes, pairs = torch.zeros(2, 3, 3).double(), torch.zeros(3, 3).double()
    nodes[0, 1, 2] = nodes[1, 0, 0] = pairs[0, 1] = pairs[2, 2] = -math.inf
    inputs = rand(2, 3, 3), rand(3, 3)

    def run(name):
        return lambda x, y: getattr(refined_by_subsets(ts.LinearChain(x + nodes, y + pairs)), name)()

    assert refined_by_subsets(ts.LinearChain(nodes, pairs)).log_partition().isfinite().all()
    derivatives_agree(run, inputs)


@pytest.mark.parametrize("lengths", [None, [4, 3, 4, 1]], ids=["full", "ragged"])
def test_impossible_sequences_have_finite_gradients(lengths):
    nodes, pairs = torch.randn(4, 4, 3).double(), torch.randn(3, 3).double()
    nodes[1, 2] = -math.inf  # no state at all
    nodes[2, 1:, 1:] = -math.inf
    pairs[0, 0] = -math.inf  # the only one left may not follow itself
    nodes[3, 0] = -math.inf
    nodes.requires_grad_()
    pairs.requires_grad_()
    chain = ts.LinearChain(nodes, pairs, lengths)
    for small in (chain.sketch(3), chain.sketch(2), chain.sketch(2, proposal=ts.Uniform())):
        refined = small.refine()
        assert refined.log_partition()[1:].eq(-math.inf).all()
        assert refined.entropy()[1:].eq(-math.inf).all()
        for value in answers(refined):
            gradients = grad(value[value > -math.inf].sum(), (nodes, pairs), retain_graph=True)
            assert all(g.isfinite().all() for g in gradients)
            assert gradients[0][1:].eq(0).all()
        assert refined.marginals()[1:].eq(0).all()


def test_marginals_keep_gradients_of_parameters_that_only_a_function_knows():
    states = rand(6, 2)
    chain = ts.LinearChain(torch.randn(4, 6).double(), ts.Scored(lambda i, j: (states[i] * states[j]).sum(-1), 6, 6))
    small = chain.sketch(6)
    weight = torch.randn(4, 6).double()
    exact, refined = (
        grad((weight * x.marginals()).sum(), states, allow_unused=True)[0] for x in (chain, small.refine())
    )
    close(refined, exact)


# Invariances.


@pytest.mark.parametrize("forbidden", [0.0, 0.3, 0.6])
def test_a_common_offset_of_a_position_is_only_an_offset(forbidden):
    """Also where the pilot does not reach any of the kept states."""
    lengths = torch.randint(1, 5, (100,)).tolist()
    whole = ChainCase((100,), 4, n=5, lengths=lengths, forbidden=forbidden).model()
    offset = torch.tensor([[3.0], [-5.0], [7.0], [11.0]]).double()
    moved = ts.LinearChain(whole.node_scores() + offset, whole.pair_scores(), whole.lengths)
    before, after = (random_refined(x, 2)[2] for x in (whole, moved))
    inside = torch.arange(4) < whole.lengths[:, None]
    close(after.log_partition(), before.log_partition() + (inside * offset[:, 0]).sum(-1))
    close(after.entropy(), before.entropy())
    close(after.marginals(), before.marginals())


def test_a_position_whose_kept_states_the_pilot_does_not_reach_has_no_correction():
    """The pilot sees state 0 alone go on, the sketch kept state 1 alone: nothing is known of the choice."""
    pairs = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]]).double()
    chain = ts.LinearChain(torch.tensor([[5.0, 3.0], [2.0, 4.0]]).double(), pairs)
    small, pilot = (chain.restrict(ts.Subset(torch.full((2, 1), s), torch.zeros(2, 1))) for s in (1, 0))
    refined = small.refine(pilot)
    close(refined.log_partition(), torch.tensor(7.0).double())
    close(refined.entropy(), torch.tensor(0.0).double())


def test_subsets_of_one_sequence_serve_a_batch():
    """Kept states, and the landmarks that guided them, broadcast against the batch."""
    nodes, pairs = rand(3, 5, 30).detach(), rand(30, 30).detach()
    kept = ts.LinearChain(nodes[0], pairs).sketch(5, proposal=ts.Lookahead(4)).kept
    together = answers(ts.LinearChain(nodes, pairs).restrict(kept).refine())
    alone = zip(*(answers(ts.LinearChain(x, pairs).restrict(kept).refine()) for x in nodes), strict=True)
    for found, expected in zip(together, alone, strict=True):
        close(found, torch.stack(expected))


def test_subsets_of_a_chain_in_double_precision_serve_one_in_single():
    nodes, pairs = rand(5, 30).detach(), rand(30, 30).detach()
    small = ts.LinearChain(nodes, pairs).sketch(5, proposal=ts.Lookahead(4))
    single = ts.LinearChain(nodes.float(), pairs.float()).restrict(small.kept).refine()
    for found, expected in zip(answers(single), answers(small.refine()), strict=True):
        assert found.dtype == torch.float32
        close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["dense", "factored"])
def test_tiles_change_nothing(kind, monkeypatch):
    leaves = (rand(50, 50),) if kind == "dense" else (rand(50, 3), rand(50, 3))
    nodes = rand(2, 4, 50)
    make = ts.Dense if kind == "dense" else ts.Factored
    refined = random_refined(ts.LinearChain(nodes, make(*leaves)), 1, 8, 8)[2]

    def run():
        values = answers(refined)
        return values + tuple(g for x in values for g in grad(x.square().sum(), (nodes, *leaves)))

    whole = run()
    monkeypatch.setattr("tailsum.numerics.tiles._TILE", {"cpu": 64})
    assert tile_rows(16, torch.device("cpu")) == 16
    for a, b in zip(whole, run(), strict=True):
        close(a, b)


def test_training_takes_little_memory():
    """The backward pass holds a few small tiles, not one of all states and landmarks, several times."""
    size, landmarks = 2000, 512
    left, right = rand(size, 8), rand(size, 8)
    chain = ts.LinearChain(torch.zeros(8, size, dtype=torch.float64), ts.Factored(left, right))
    small = chain.sketch(20, proposal=ts.Lookahead(landmarks, neighbours=0))
    with PeakMemory() as memory:
        grad(small.refine().entropy(), (left, right))
    assert memory.peak < 3 * landmarks * size * 8


# Precision and modes.


@pytest.mark.parametrize("kind", ["dense", "factored", "scored"])
def test_single_precision(kind):
    double = ChainCase((3,), 6, n=4, lengths=[6, 2, 4], pairs=kind, seed=5).model()
    nodes, pairs = double.node_scores().float(), double.pair_scores().block().float()
    kept, guide = random_subset(double, 3, 1), random_subset(double, 2, 2)
    single = ts.LinearChain(nodes, pairs, double.lengths)
    found, expected = (answers(x.restrict(kept).refine(x.restrict(guide))) for x in (single, double))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        close(a.double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("offset", "pair_offset"), [(0, 0), (1000, 0), (0, -1000)])
def test_offsets_cost_no_digits(offset, pair_offset, unchecked):
    """As in the exact answers: an entropy is a difference, and large sums of scores must not enter it."""
    nodes, pairs = torch.randn(40, 12) + offset, torch.randn(12, 12) + pair_offset
    single, double = ts.LinearChain(nodes, pairs), ts.LinearChain(nodes.double(), pairs.double())
    refined = single.sketch(12).refine()
    close(refined.log_partition().double(), double.log_partition(), rtol=1e-6, atol=1e-3)
    close(refined.entropy().double(), double.entropy(), rtol=2e-5, atol=2e-3)
    close(refined.marginals().double(), double.marginals(), rtol=0, atol=2e-4)


@pytest.mark.parametrize("scale", [50.0, 2000.0, 1e5])
def test_large_scores(scale):
    for seed in range(3):
        case = ChainCase((2,), 4, n=4, lengths=[4, 3], lead="time", forbidden=0.1, seed=seed, scale=scale)
        refined = answers(case.model().sketch(4).refine())
        for b, truth in enumerate(case.truths()):
            if truth.possible:
                close(refined[0][b], truth.log_partition)
                close(refined[1][b], truth.entropy, rtol=0, atol=1e-12 * scale)
                close(refined[2][b, : case.lengths[b]], truth.marginals, rtol=0, atol=1e-12 * scale)


def leaf_chain():
    nodes, left, right = rand(2, 5, 9), rand(9, 2), rand(9, 2)
    return (nodes, left, right), ts.LinearChain(nodes, ts.Factored(left, right), [5, 3])


def test_without_gradients():
    _, chain = leaf_chain()
    small = chain.sketch(3, generator=seeded(0))
    expected = answers(small.refine())
    assert all(x.requires_grad for x in expected)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = answers(small.refine())
        assert not any(x.requires_grad for x in found)
        for a, b in zip(found, expected, strict=True):
            close(a, b.detach())


@pytest.mark.parametrize("proposal", [None, ts.Local()], ids=["landmarks", "drawn"])
@pytest.mark.parametrize("made", ["scores", "sketch"])
def test_what_was_made_in_inference_mode(made, proposal):
    nodes, pairs = torch.randn(4, 6), torch.randn(6, 6)
    chain = ts.LinearChain(nodes, pairs)
    with torch.inference_mode():
        if made == "scores":
            chain = ts.LinearChain(nodes + 0, pairs + 0)
        small = chain.sketch(3, proposal=proposal)
        refined = small.refine()
        found = answers(refined)
        assert small.marginals().shape == (4, 3)  # as a sketch does
    close(found[2].sum(-1), torch.ones(4), rtol=0, atol=1e-5)
    close(refined.marginals(), found[2], rtol=0, atol=1e-6)  # and outside it


def test_autocast_changes_nothing():
    leaves, chain = leaf_chain()
    refined = random_refined(chain, 1, 4)[2]

    def run():
        values = answers(refined)
        return values + tuple(g for x in values for g in grad(x.square().sum(), leaves, retain_graph=True))

    expected = run()
    with torch.autocast("cpu", torch.bfloat16):
        found = run()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


# Pilots.


def test_hidden_markov_models():
    initial, transition, emission = (torch.randn(*s).double().log_softmax(-1) for s in ((7,), (7, 7), (7, 4)))
    transition[2, 3:] = -math.inf
    transition = transition.log_softmax(-1)
    observed = torch.tensor([[0, 3, -1, 2], [1, -1, 77, 99]])
    hmm = ts.HMM(initial, transition, emission, observed, [4, 2])
    for found, exact in zip(
        answers(hmm.sketch(7).refine()), (hmm.log_partition(), hmm.entropy(), hmm.marginals()), strict=True
    ):
        close(found, exact)
    chain = ts.LinearChain(hmm.node_scores(), transition, [4, 2])
    small, pilot, refined = random_refined(hmm, 4, 3)
    same = chain.restrict(small.kept).refine(chain.restrict(pilot.kept))
    for found, expected in zip(answers(refined), answers(same), strict=True):
        close(found, expected)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,)])
def test_a_single_position_is_exact(batch):
    chain = ts.LinearChain(torch.randn(*batch, 1, 6).double(), torch.randn(6, 6).double())
    for small in (chain.sketch(2), chain.sketch(2, proposal=ts.Uniform())):
        for refined in (small.refine(), small.refine(chain.sketch(1))):
            close(refined.log_partition(), chain.log_partition())
            close(refined.entropy(), chain.entropy())
            close(refined.marginals(), chain.marginals())


def flat_chain(replicates, seed=0, n=60, length=6, scale=0.3):
    """States that all matter: what a sketch finds hardest."""
    g = seeded(seed)
    nodes, pairs = (torch.randn(*shape, n, generator=g, dtype=torch.float64) * scale for shape in ((length,), (n,)))
    return ts.LinearChain(nodes.expand(replicates, length, n), pairs)


@pytest.mark.parametrize(
    ("selection", "proposal"),
    [
        (ts.TopK(6), None),
        (ts.TopAndSample(5, 3), ts.Local()),
        (ts.Optimal(6), lambda model: model.node_scores() * 0.5),
        (ts.Optimal(6), ts.Lookahead(8, sequential=False)),
        (ts.Optimal(6), ts.Lookahead(8)),
    ],
    ids=["top k", "top and sample", "user's", "static", "sequential"],
)
def test_every_selection_and_proposal_can_be_refined(selection, proposal):
    chain = flat_chain(100, n=30)
    small = chain.sketch(selection=selection, proposal=proposal, generator=seeded(1))
    refined, exact = small.refine(generator=seeded(2)), chain.entropy()
    assert (refined.entropy() - exact).square().mean() < (small.entropy() - exact).square().mean() / 5
    close(refined.marginals().sum(-1), torch.ones(100, 6).double())


def test_a_drawn_pilot_follows_the_generator(monkeypatch):
    monkeypatch.setattr("tailsum.chains.chain_sweep.ChainSweep.landmarks", 4)
    chain = flat_chain(2)
    small = chain.sketch(5, proposal=ts.Uniform(), generator=seeded(1))
    first, again, other = (small.refine(generator=seeded(s)).log_partition() for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert (first != other).all()
    assert torch.equal(small.refine(chain.sketch(4, generator=seeded(1))).log_partition(), first)


def test_landmarks_serve_as_pilot_and_nothing_is_drawn():
    small = flat_chain(2).sketch(5, proposal=ts.Lookahead(4), generator=seeded(1))
    assert small.kept.pilot.index.shape == (2, 5, 4)
    g = seeded(3)
    state = g.get_state()
    first, again = small.refine(generator=g), small.refine()
    assert torch.equal(g.get_state(), state)
    assert torch.equal(first.entropy(), again.entropy())


def test_a_sketch_of_a_sketch():
    """Numbers of states, and weights, are those of the whole chain; the landmarks of the second sketch are not."""
    chain = flat_chain(300, n=30)
    first = chain.sketch(20, proposal=ts.Uniform(), generator=seeded(1))
    second = first.sketch(8, proposal=ts.Lookahead(6), generator=seeded(2))
    assert second.kept.pilot is None
    refined, pilot, exact = second.refine(generator=seeded(3)), chain.sketch(6, generator=seeded(4)), chain.entropy()
    assert (refined.entropy() - exact).square().mean() < (second.entropy() - exact).square().mean() / 5
    same = chain.restrict(ts.Subset(second.states, second.log_weight))
    for found, expected in zip(answers(second.refine(pilot)), answers(same.refine(pilot)), strict=True):
        close(found, expected)


def test_bad_pilots(unchecked):
    chain, other = flat_chain(2), flat_chain(2, seed=1)
    small = chain.sketch(5)
    with pytest.raises(ValueError, match="refine needs a sketch: this chain is whole"):
        chain.refine()
    with pytest.raises(ValueError, match="refine needs a sketch: this chain is whole"):
        chain.refine(small)
    with pytest.raises(ValueError, match=r"pilot must be another sketch of the same chain: got LinearChain\(.*N=60\)"):
        small.refine(chain)
    with pytest.raises(ValueError, match="pilot must be another sketch of the same chain"):
        small.refine(other.sketch(5))
    assert chain.sketch(3).refine(small.sketch(2)).log_partition().shape == (2,)


@pytest.mark.parametrize("what", ["itself", "a subset", "a number"])
def test_what_is_no_pilot(what, unchecked):
    small = flat_chain(2).sketch(5)
    with pytest.raises(ValueError, match="pilot must be another sketch of the same chain"):
        small.refine({"itself": small, "a subset": small.kept, "a number": 5}[what])


@pytest.mark.parametrize("how", ["out of range", "too short", "too long"])
def test_landmarks_that_do_not_fit_the_chain(how, unchecked):
    chain = flat_chain(2)
    small = chain.sketch(5, proposal=ts.Lookahead(4))
    index, log_weight = small.kept.pilot.index, small.kept.pilot.log_weight
    pilot = {
        "out of range": ts.Subset(index + 60, log_weight),
        "too short": ts.Subset(index[..., 1:, :], log_weight[..., 1:, :]),
        "too long": ts.Subset(small.states, small.log_weight),
    }[how]
    with pytest.raises(ValueError, match="pilot"):
        chain.restrict(ts.Subset(small.states, small.log_weight, pilot)).refine().entropy()


# Statistics.

REPLICATES = 10_000


def drawn_by_landmarks(selection, generator):
    """Many sketches that the same landmarks guided, and these."""
    one, many = flat_chain(1, n=8, length=4, scale=0.8), flat_chain(REPLICATES, n=8, length=4, scale=0.8)
    first, sweep = one.sweep(), many.sweep()
    first.look(4, generator)
    sweep.future, sweep.pilot = first.future, first.pilot
    landmarks = ts.Subset(*(pad(x, (0, 0, 1, 0)) for x in (first.pilot.index, first.pilot.log_weight)))
    return many.restrict(sweep.sequence(selection, generator)), landmarks


def drawn_alone(selection, generator):
    """Many sketches that nothing but the node scores guided, and one pilot for all."""
    one, many = flat_chain(1, n=8, length=4, scale=0.8), flat_chain(REPLICATES, n=8, length=4, scale=0.8)
    pilot = one.sketch(4, generator=generator)
    return many.sketch(proposal=ts.Local(), selection=selection, generator=generator), pilot.kept


@pytest.mark.parametrize("drawn", [drawn_by_landmarks, drawn_alone])
@pytest.mark.parametrize("selection", [ts.Optimal(4), ts.TopAndSample(2, 2)], ids=["optimal", "top and sample"])
def test_corrections_have_mean_zero_whatever_the_pilot_says(selection, drawn):
    """Kept states have, on average, the mass that all have; weights 2% too large are noticed."""
    (small, guide), (wrong, same) = (drawn(x, seeded(5)) for x in (selection, Broken(selection)))
    assert torch.equal(guide.index, same.index)

    def mass(chain, kept, t):
        return spliced(chain, (kept, 0, t + 1), (guide, t + 1, 4)).log_partition().exp()

    one = flat_chain(1, n=8, length=4, scale=0.8)
    for t in range(1, 3):
        truth = mass(one, everyone(one), t)
        assert z_score(mass(small.whole, small.kept, t), truth) < 4.5
        assert z_score(mass(wrong.whole, wrong.kept, t), truth) > 4.5


@pytest.mark.parametrize("own", [True, False], ids=["landmarks", "another sketch"])
def test_entropy_is_far_closer_on_a_flat_chain(own):
    chain = flat_chain(400)
    small = chain.sketch(8, proposal=ts.Lookahead(8), generator=seeded(1))
    refined, exact = small.refine(None if own else chain.sketch(8, generator=seeded(2))), chain.entropy()
    plain, error = small.entropy() - exact, refined.entropy() - exact
    assert error.square().mean() < plain.square().mean() / 5
    assert error.mean().abs() < 4.5 * error.std() / math.sqrt(400) + 0.01


def test_log_partition_is_far_closer_where_no_landmarks_guided_the_choice():
    chain = flat_chain(400)
    small = chain.sketch(8, proposal=ts.Uniform(), generator=seeded(1))
    refined = small.refine(chain.sketch(8, generator=seeded(2)))
    plain, error = (x.log_partition() - chain.log_partition() for x in (small, refined))
    assert error.square().mean() < plain.square().mean() / 5
    assert error.mean().abs() < 4.5 * error.std() / math.sqrt(400) + 0.01


def test_marginals_are_closer_and_cover_all_states():
    chain = flat_chain(100)
    small, exact = chain.sketch(8, proposal=ts.Lookahead(8), generator=seeded(1)), chain.marginals()
    plain, refined = small.scatter(small.marginals()), small.refine().marginals()
    assert (plain == 0).double().mean() > 0.8
    assert (refined == 0).sum() == 0
    assert (refined - exact).square().mean() < (plain - exact).square().mean() / 10
    z = (refined - exact).mean(0) / (refined - exact).std(0) * 10
    assert z.abs().max() < 5


@pytest.mark.parametrize("name", ["log_partition", "entropy"])
def test_gradients_reach_states_that_are_not_kept(name):
    g = seeded(7)
    shapes = ((6, 60), (60, 3), (60, 3))
    leaves = [(torch.randn(*s, generator=g, dtype=torch.float64) * 0.4).requires_grad_() for s in shapes]
    chain = ts.LinearChain(leaves[0], ts.Factored(*leaves[1:]))
    small = chain.sketch(8, proposal=ts.Lookahead(16), generator=g)
    exact, plain, refined = (grad(getattr(x, name)(), leaves) for x in (chain, small, small.refine()))
    near, far = (
        [torch.cosine_similarity(x.flatten(), y.flatten(), 0).item() for x, y in zip(found, exact, strict=True)]
        for found in (refined, plain)
    )
    assert near[0] > max(0.85, far[0] + 0.3)
    assert all(a > b for a, b in zip(near, far, strict=True))
    unused = torch.ones(6, 60).bool().scatter(-1, small.states, torch.zeros_like(small.states).bool())
    assert plain[0][unused].eq(0).all()
    assert refined[0][unused].ne(0).all()
