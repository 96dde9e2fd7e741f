"""Every operation of every structure against enumeration: whole, sketched with all states, and restricted to some."""

import math
from random import Random

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch.distributions import kl_divergence

import tailsum as ts
from harness.agree import agrees, close, divergences_agree, frequencies_agree, scores_agree
from harness.cases import (
    BOTH,
    FEW,
    STATEFUL,
    STRUCTURES,
    WAYS,
    ZOO,
    DependencyCase,
    another,
    made,
    possible,
    random_case,
    random_subset,
    zoo,
)

SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize("structure", STRUCTURES)
@settings(max_examples=45)
@given(SEEDS)
def test_every_operation_equals_enumeration(structure, seed):
    r = Random(seed)
    case, way = random_case(structure, r), r.choice(WAYS)
    note((case, way))
    model = made(case, way, seed)
    agrees(case, model)


@pytest.mark.parametrize("structure", STRUCTURES)
@settings(max_examples=15)
@given(SEEDS)
def test_divergences_equal_enumeration(structure, seed):
    r = Random(seed)
    case, way = random_case(structure, r), r.choice(WAYS)
    other = another(case, r)
    note((case, way, other))
    divergences_agree(case, made(case, way, seed), other)


@pytest.mark.parametrize("way", ["whole", "uniform"])
@pytest.mark.parametrize("name", FEW)
def test_divergence_from_a_model_shared_by_the_batch(name, way):
    case, other = zoo(name, batch=(2, 3), seed=1), zoo(name, batch=(), seed=2)
    p, q = made(case, way), other.model()
    kl, cross = p.kl(q).flatten(), p.cross_entropy(q).flatten()
    assert torch.equal(kl_divergence(p, q).flatten(), kl)
    (theirs,) = other.truths()
    for b, truth in enumerate(case.truths(p)):
        close(cross[b], truth.cross_entropy(theirs))
        close(kl[b], truth.cross_entropy(theirs) - truth.entropy)


@pytest.mark.parametrize(("name", "way"), [*BOTH, *((name, "lookahead") for name in STATEFUL)])
def test_one_position(name, way):
    """No transitions, no splits, no arcs but the root; and no tree of a grammar."""
    case = zoo(name, length=1, seed=4)
    model = made(case, way)
    log_partition, entropy, marginals, kl = (
        model.log_partition(),
        model.entropy(),
        case.marginals(model),
        model.kl(model),
    )
    top, relaxed = model.topk(2), model.rsample(0.5)
    rows = [case.rows(configuration) for configuration in (model.argmax(), model.sample(), relaxed.hard)]
    assert all(x.isfinite().all() for x in case.weights(model, relaxed))
    for b, truth in enumerate(case.truths(model)):
        close(log_partition[b], truth.log_partition)
        close(marginals[b], truth.marginals)
        close(top.scores[:, b], truth.best(2))
        for found, expected in case.more(model, truth, b):
            close(found, expected)
        for row in rows:
            assert case.read(row[0, b]) in (truth.configurations if truth.possible else [None])
        close(entropy[b], truth.entropy if truth.possible else torch.tensor(-math.inf).double())
        close(kl[b], torch.tensor(0.0 if truth.possible else math.inf).double())


@pytest.mark.parametrize("structure", STRUCTURES)
@settings(max_examples=15)
@given(SEEDS)
def test_scores_of_configurations(structure, seed):
    r = Random(seed)
    case, way = random_case(structure, r), r.choice(WAYS)
    note((case, way))
    model = made(case, way, seed)
    scores_agree(case, model, r)


def catalan(n):
    return math.comb(2 * n, n) // (n + 1)


def segmentations(length, longest, n):
    count = [1]
    for t in range(1, length + 1):
        count.append(n * sum(count[max(t - longest, 0) :]))
    return count[-1]


def dependency_count(length, projective, multiroot):
    if projective:
        return math.comb(3 * length, length) // (2 * length + 1) if multiroot else catalan_of_three(length)
    return (length + 1) ** (length - 1) if multiroot else length ** (length - 1)


def catalan_of_three(length):
    return math.comb(3 * length - 2, length - 1) // length


def counted(length):
    """Models whose configurations all score zero, and how many there are."""
    zeros = lambda *shape: torch.zeros(*shape).double()  # noqa: E731
    for longest, n in ((1, 1), (2, 1), (length, 1), (3, 3)):
        model = ts.SemiMarkov(zeros(length, longest, n), zeros(n, n))
        yield model, segmentations(length, longest, n)
    for n in (1, 3):
        yield ts.SpanTree(zeros(length, length, n)), catalan(length - 1) * n ** (2 * length - 1)
    for n, p in ((1, 1), (2, 3), (3, 2)):
        expected = 0 if length == 1 else catalan(length - 1) * n ** (length - 1) * p**length
        low_rank = ts.LowRankRule(zeros(n, 2), zeros(n + p, 2), zeros(n + p, 2))
        yield ts.PCFG(zeros(n), zeros(n, n + p, n + p), zeros(length, p)), expected
        yield ts.PCFG(zeros(n), low_rank, zeros(length, p)), expected * 2 ** (length - 1)
    for projective, multiroot in ((True, True), (True, False), (False, True), (False, False)):
        trees, how = dependency_count(length, projective, multiroot), {"projective": projective, "multiroot": multiroot}
        yield ts.DependencyTree(zeros(length, length), **how), trees
        yield ts.DependencyTree(zeros(length, length, 3), labelled=True, **how), trees * 3**length
        if projective:
            states = {"node": zeros(length, 2), "transition": zeros(2, 2)}
            yield ts.DependencyTree(zeros(length, length), **states, **how), trees * 2**length


@pytest.mark.parametrize("length", range(1, 9))
def test_counts(length):
    for model, count in counted(length):
        expected = torch.tensor(math.log(count) if count else -math.inf, dtype=torch.float64)
        close(model.log_partition(), expected)
        small = model if getattr(model, "_pairs", 0) is None else model.sketch(model.n_states, proposal=ts.Uniform())
        close(small.log_partition(), expected)


@pytest.mark.parametrize("length", [3, 4])
@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("projective", [False, True])
def test_what_is_no_tree_scores_minus_infinity(projective, multiroot, length):
    case = DependencyCase((2,), 4, lengths=[length, 4], projective=projective, multiroot=multiroot, seed=3)
    heads = torch.cartesian_prod(*[torch.arange(length)] * length)
    given = torch.nn.functional.pad(heads, (0, 4 - length), value=-1)
    score = case.model().score(ts.Dependencies(given[:, None].expand(-1, 2, -1)))[:, 0]
    truth = case.whole_truths[0]
    trees = {tree: score for (tree, _, _), score in zip(truth.configurations, truth.scores.tolist(), strict=True)}
    expected = [trees.get(tuple(row), -math.inf) for row in heads.tolist()]
    close(score, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_samples_follow_the_distribution(name, way, generator):
    case, model = possible(name, way, forbidden=0.1)
    count = 20_000
    sample = model.sample((200, count // 200), generator=generator)
    assert next(iter(sample)).shape[:3] == (200, count // 200, 2)
    frequencies_agree(case, model, sample, count)


@pytest.mark.parametrize("name", FEW)
def test_many_samples_are_drawn_in_parts(name, monkeypatch):
    for module in ("trees.tree_structure", "chains.semi_markov", "dependencies.dependency_tree"):
        monkeypatch.setattr(f"tailsum.{module}.tile_rows", lambda *_: 16)
    case, model = possible(name)
    rows = case.rows(model.sample((3, 40), generator=torch.Generator().manual_seed(0)))
    assert rows.shape[:2] == (120, 2)
    assert len(rows.flatten(1)[:32].unique(dim=0)) > len(rows.flatten(1)[:16].unique(dim=0))  # not copies of the first
    for b, truth in enumerate(case.truths()):
        assert all(case.read(row) in truth.configurations for row in rows[:, b])


@pytest.mark.parametrize("name", STATEFUL)
def test_restricting_twice_is_restricting_once(name):
    case = zoo(name, lengths=[3, 2], seed=2)
    model = case.model()
    first = model.restrict(random_subset(case, model, seed=1, k=3))
    second = first.restrict(random_subset(case, first, seed=2, k=2, shared=True))
    assert second.whole is model
    for b, truth in enumerate(case.truths(second)):
        close(second.log_partition()[b], truth.log_partition)
        close(second.entropy()[b], truth.entropy)
        close(case.marginals(second)[b][case.within(case.lengths[b])], truth.marginals)
    uniform = first.sketch(3, proposal=ts.Uniform())
    close(uniform.log_partition(), first.log_partition())


def relaxed(name, way, *, hard=False, temperature=1.0):
    case, model = possible(name, way, forbidden=0.1)
    sample = model.rsample(temperature, hard=hard, generator=torch.Generator().manual_seed(1), sample_shape=(2, 2))
    return case, model, sample


@pytest.mark.parametrize(("name", "way"), BOTH)
@pytest.mark.parametrize("how", ["cold", "hard"])
def test_cold_and_hard_relaxed_samples_are_configurations(name, way, how):
    case, model, sample = relaxed(name, way, hard=how == "hard", temperature=1e-6 if how == "cold" else 1.0)
    rows = case.rows(sample.hard)
    weights = [x.reshape(4, 2, *x.shape[3:]) for x in case.weights(model, sample)]
    for b, truth in enumerate(case.truths(model)):
        for s in range(4):
            c = truth.index_of(case.read(rows[s, b]))
            assert truth.present[c]
            for weight, used in zip(weights, case.used(truth), strict=True):
                here = tuple(slice(size) for size in used[c].shape)
                close(weight[s, b][here], used[c], rtol=0, atol=1e-6)
                close(weight[s, b].sum(), used[c].sum(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_relaxed_samples_are_mixtures_of_configurations(name, way):
    case, model, sample = relaxed(name, way, temperature=0.7)
    for x in case.weights(model, sample):
        assert x.shape[:3] == (2, 2, 2)
    weights = [x.reshape(4, 2, *x.shape[3:]) for x in case.weights(model, sample)]
    for b, truth in enumerate(case.truths(model)):
        allowed = truth.scores > -math.inf
        for s in range(4):
            corners = [torch.ones(int(allowed.sum()), 1).double()]
            wanted = [torch.ones(1).double()]
            for weight, used in zip(weights, case.used(truth), strict=True):
                here = tuple(slice(size) for size in used.shape[1:])
                assert (weight >= 0).all()
                close(weight[s, b].sum(), weight[s, b][here].sum())  # none in the padding
                corners.append(used[allowed].flatten(1))
                wanted.append(weight[s, b][here].flatten())
            matrix, point = torch.cat(corners, 1).T, torch.cat(wanted)
            close(matrix @ (torch.linalg.pinv(matrix) @ point), point)


@pytest.mark.parametrize("name", STATEFUL)
def test_relaxed_samples_mix_embeddings(name):
    case, model, sample = relaxed(name, "restricted")
    embeddings = torch.randn(model.whole.n_states, 5).double()
    expected = case.weights(model, sample)[-1] @ embeddings
    close(sample.mix(embeddings), expected)


@pytest.mark.parametrize("name", STATEFUL)
def test_marginals_can_be_spread_over_all_states(name):
    """`scatter` takes what `marginals` (or `state_marginals`) gives, as its description says."""
    case = zoo(name, seed=1)
    model = case.model()
    small = model.sketch(model.n_states, proposal=ts.Uniform())
    which = "state_marginals" if isinstance(case, DependencyCase) else "marginals"
    close(small.scatter(getattr(small, which)()), getattr(model, which)())


def values(model, other=None):
    found = [model.log_partition(), model.entropy(), model.marginals(), model.kl(other or model)]
    if isinstance(model, ts.PCFG):
        found.append(model.rule_marginals())
    if isinstance(model, ts.DependencyTree) and model._pairs is not None:
        found.append(model.state_marginals())
    return found


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_single_precision_agrees(name, way):
    case, other = zoo(name, lengths=[3, 2], seed=8, forbidden=0.1), zoo(name, lengths=[3, 2], seed=9)
    models = {
        dtype: [x.model(*(leaf.to(dtype) for leaf in x.leaves)) for x in (case, other)]
        for dtype in (torch.float32, torch.float64)
    }
    found = {}
    for dtype, (model, theirs) in models.items():
        subset = random_subset(case, model, seed=3)
        found[dtype] = values(model.restrict(subset) if way != "whole" and case.has_states else model, theirs)
    for single, double in zip(*found.values(), strict=True):
        assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
        close(single.double(), double, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name, dtype):
    case = zoo(name, lengths=[3, 2], seed=8)
    leaves = [x.to(dtype).requires_grad_() for x in case.leaves]
    model, exact = case.model(*leaves), case.model(*(x.detach().double() for x in leaves))
    for half, double in zip(values(model), values(exact), strict=True):
        assert half.dtype == torch.float32
        if "scored" not in name:  # the function itself is evaluated in half precision
            close(half.double(), double, rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad(model.log_partition().sum() + model.entropy().sum(), leaves)
    for gradient in gradients:
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", FEW)
def test_scores_of_different_types(name):
    """One tensor in float32 and the others in float64: computed in float64."""
    case = zoo(name, seed=3)
    for which in range(len(case.leaves)):
        given = [x.float() if i == which else x for i, x in enumerate(case.leaves)]
        found, expected = case.model(*given), case.model(*(x.double() for x in given))
        if len(given) > 1 and not ("scored" in name and which > 0):
            assert found.log_partition().dtype == torch.float64
            close(found.entropy(), expected.entropy())
            close(found.score(found.argmax()), expected.score(expected.argmax()))


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize(("scale", "offset"), [(1.0, -1e4), (50.0, 1e4)])
def test_large_scores_and_offsets(name, scale, offset):
    case = zoo(name, lengths=[3, 2], seed=11, scale=scale, forbidden=0.1)
    other = zoo(name, lengths=[3, 2], seed=12, scale=scale)
    for x in (case, other):
        x.shift(offset)
    for way in ("whole", "restricted"):
        model = made(case, way)
        log_partition, entropy, marginals = model.log_partition(), model.entropy(), case.marginals(model)
        kl = model.kl(other.model())
        for b, (truth, theirs) in enumerate(zip(case.truths(model), other.truths(model), strict=True)):
            close(log_partition[b], truth.log_partition)
            close(marginals[b][case.within(case.lengths[b])], truth.marginals)
            if truth.possible:
                close(entropy[b], truth.entropy, rtol=1e-9, atol=1e-9 * max(1.0, scale))
                expected = truth.cross_entropy(theirs) - truth.entropy
                close(kl[b], expected, rtol=1e-9, atol=1e-9 * max(1.0, scale))


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("offset", [1000.0, -1000.0])
def test_offsets_cost_no_digits_in_float32(name, offset):
    case, other = zoo(name, lengths=[3, 2], seed=11), zoo(name, lengths=[3, 2], seed=12)
    for x in (case, other):
        x.shift(offset)
        x.leaves = [leaf.float() for leaf in x.leaves]
    single, other_single = case.model(), other.model()
    for x in (case, other):
        x.leaves = [leaf.double() for leaf in x.leaves]
    double, other_double = case.model(), other.model()
    close(single.entropy().double(), double.entropy(), rtol=2e-5, atol=1e-3)
    close(single.kl(other_single).double(), double.kl(other_double), rtol=2e-5, atol=1e-3)
    close(single.marginals().double(), double.marginals(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", FEW)
def test_autocast_changes_nothing(name):
    case = zoo(name, lengths=[3, 2], seed=8)

    def results():
        leaves = [x.float().requires_grad_() for x in case.leaves]
        model = case.model(*leaves)
        models = [model]
        if case.has_states:
            models.append(model.restrict(random_subset(case, model, seed=3)))
            models.append(model.sketch(1, generator=torch.Generator().manual_seed(0)))
        found = [value for x in models for value in values(x)]
        found += [x.rsample(0.7, generator=torch.Generator().manual_seed(1))[0] for x in models]
        return found, leaves

    plain, leaves = results()
    with torch.autocast("cpu", torch.bfloat16):
        mixed, others = results()
    for a, b in zip(plain, mixed, strict=True):
        assert a.dtype == b.dtype == torch.float32
        close(a, b, rtol=1e-5, atol=1e-6)
    a, b = (
        torch.autograd.grad(sum(x[x > -math.inf].square().sum() for x in found if x.requires_grad), given)
        for found, given in ((plain, leaves), (mixed, others))
    )
    for x, y in zip(a, b, strict=True):
        close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FEW)
def test_inference_mode(name):
    case = zoo(name, lengths=[3, 2], seed=8)
    plain = case.model()
    expected = values(plain)
    parameters = [x.clone().requires_grad_() for x in case.leaves]  # of a network, which gives the other scores
    with torch.inference_mode():
        mixed = (case.model(*(x + 0 if i % 2 == odd else x for i, x in enumerate(parameters))) for odd in (False, True))
        for model in (plain, case.model(*(x + 0 for x in case.leaves)), *mixed):
            for found, value in zip(values(model), expected, strict=True):
                close(found, value)
            model.argmax(), model.topk(2), model.sample((2,)), model.rsample(), model.cross_entropy(model)


@pytest.mark.parametrize("name", [name for name in FEW if name in STATEFUL])
@pytest.mark.parametrize("way", ["lookahead", "restricted"])
def test_sketches_in_inference_mode(name, way):
    case = zoo(name, lengths=[3, 2], seed=8)
    expected = values(made(case, way))
    with torch.inference_mode():
        model = made(case, way)
        for found, value in zip(values(model), expected, strict=True):
            close(found, value)
        model.argmax(), model.topk(2), model.sample((2,)), model.rsample(), model.cross_entropy(model)


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)], ids=["inference", "autocast"]
)
@pytest.mark.parametrize("name", [name for name in FEW if name in STATEFUL])
def test_the_same_states_are_kept_in_any_mode(name, mode):
    """What Lookahead finds does not depend on it; the sweeps may use gradients and products inside."""
    case = zoo(name, length=4, lengths=[4, 3], seed=8)
    model = case.model(*(x.float() for x in case.leaves))
    expected = model.sketch(1, generator=torch.Generator().manual_seed(0))
    with mode():
        found = model.sketch(1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.states, expected.states)
    close(found.log_weight, expected.log_weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FEW)
def test_inputs_are_never_changed(name):
    case = zoo(name, lengths=[3, 2], seed=8)
    before = [x.clone() for x in case.leaves]
    for way in ("whole", "lookahead"):
        model = made(case, way)
        values(model), model.topk(2), model.sample(), model.rsample()
    assert all(torch.equal(x, y) for x, y in zip(case.leaves, before, strict=True))


@pytest.mark.parametrize("name", FEW)
def test_the_generator_decides_everything(name):
    model = zoo(name, seed=8).model()

    def draw(seed):
        g = torch.Generator().manual_seed(seed)
        sample, soft = model.sample((20,), generator=g), model.rsample(generator=g)
        found = [*(x for x in sample if x is not None), soft[0]]
        if name in STATEFUL:
            small = model.sketch(1, generator=g)
            found += [small.states, small.log_weight]
        return found

    torch.manual_seed(1)
    first = draw(0)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(0), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, draw(1), strict=True))


@pytest.mark.parametrize("name", FEW)
def test_empty_batches_and_no_samples(name):
    case = zoo(name, batch=(0,), lengths=None)
    model = case.model()
    models = [model, model.sketch(2, proposal=ts.Uniform()), model.sketch(2)] if name in STATEFUL else [model]
    for x in models:
        assert x.log_partition().shape == x.entropy().shape == x.kl(x).shape == (0,)
        assert x.marginals().shape[0] == 0
        for configuration, lead in ((x.argmax(), (0,)), (x.sample((2,)), (2, 0)), (x.topk(2).configurations, (2, 0))):
            assert all(field is None or field.shape[: len(lead)] == lead for field in configuration)
    some = zoo(name).model()
    assert all(field is None or field.shape[:2] == (0, 2) for field in some.sample((0,)))


@pytest.mark.parametrize("name", FEW)
def test_without_gradients_nothing_is_recorded(name):
    assert not any(x.requires_grad for x in values(zoo(name).model()))


@pytest.mark.parametrize("projective", [False, True])
def test_padding_costs_dependency_trees_no_digits(projective):
    """The same sentence, of 20 words, alone and padded to 30, with an offset, in float32."""
    arc = torch.randn(30, 30) - 1000
    alone, padded = (
        ts.DependencyTree(x, lengths, projective) for x, lengths in ((arc[:20, :20], None), (arc, torch.tensor(20)))
    )
    exact = ts.DependencyTree(arc[:20, :20].double(), projective=projective).entropy()
    error = [(x.entropy().double() - exact).abs().item() for x in (alone, padded)]
    assert error[1] <= 2 * error[0] + 1e-5
