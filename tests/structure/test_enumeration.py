"""Every operation of every structure against enumeration: whole, sketched with all states, and restricted to some."""

import math
from random import Random

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.distributions import kl_divergence

import tailsum as ts
from harness.agree import MINUS_INFINITY, agrees, close, divergences_agree, padded, scores_agree
from harness.registry import (
    BOTH,
    CASES,
    FEW,
    SEQUENCES,
    SMALL,
    STATEFUL,
    STRUCTURES,
    WAYS,
    made,
    random_subset,
    small,
)


def random_cases(check):
    """Parameters: the numbers of all random cases of each structure, fifteen at a time; most of them are slow tests."""
    blocks = [
        pytest.param(
            kind.name,
            range(start, min(start + 15, kind.examples[check])),
            id=f"{kind.name}-{start}",
            marks=pytest.mark.slow if start >= max(15, kind.examples[check] // 10) else (),
        )
        for kind in CASES
        for start in range(0, kind.examples[check], 15)
    ]
    return pytest.mark.parametrize(("structure", "seeds"), blocks)


def on_each(structure, seeds, check):
    """`check(case, model, random)` for random cases and models of them, whole or not; an error names the case."""
    for seed in seeds:
        r = Random(seed)
        case, way = STRUCTURES[structure].random(r), r.choice(WAYS)
        try:
            check(case, made(case, way, seed), r)
        except Exception as error:
            error.add_note(f"seed {seed}: {way}, {case}")
            raise


@random_cases("operations")
def test_every_operation_equals_enumeration(structure, seeds):
    on_each(structure, seeds, lambda case, model, _: agrees(case, model))


@random_cases("divergences")
def test_divergences_equal_enumeration(structure, seeds):
    on_each(structure, seeds, lambda case, model, r: divergences_agree(case, model, case.another(r)))


@random_cases("scores")
def test_scores_of_configurations(structure, seeds):
    on_each(structure, seeds, scores_agree)


@pytest.mark.parametrize("way", ["whole", "uniform"])
@pytest.mark.parametrize("name", FEW)
def test_divergence_from_a_model_shared_by_the_batch(name, way):
    case, other = small(name, batch=(2, 3), seed=1), small(name, batch=(), seed=2)
    p, q = made(case, way), other.model()
    kl, cross = p.kl(q).flatten(), p.cross_entropy(q).flatten()
    assert torch.equal(kl_divergence(p, q).flatten(), kl)
    (theirs,) = other.truths()
    for b, truth in enumerate(case.truths(p)):
        close(cross[b], truth.cross_entropy(theirs))
        close(kl[b], truth.cross_entropy(theirs) - truth.entropy)


ONE_POSITION = [(name, way) for name, way in BOTH if name in SEQUENCES]
ONE_POSITION += [(name, "lookahead") for name in STATEFUL if name in SEQUENCES]


@pytest.mark.parametrize(("name", "way"), ONE_POSITION)
def test_one_position(name, way):
    """No transitions, no splits, no arcs but the root; and no tree of a grammar."""
    case = small(name, length=1, seed=4)
    model = made(case, way)
    log_partition, entropy, kl = model.log_partition(), model.entropy(), model.kl(model)
    marginals, truths = case.marginals(model), case.truths(model)
    scores, relaxed = padded(model.topk(2)[1], 2), model.rsample(0.5)
    rows = [case.rows(configuration) for configuration in (model.argmax(), model.sample(), relaxed.hard)]
    assert all(x.isfinite().all() for x in case.weights(model, relaxed))
    for b, truth in enumerate(truths):
        close(log_partition[b], truth.log_partition)
        close(marginals[b], truth.marginals)
        close(F.pad(scores[:, b], (0, 2 - len(scores)), value=-math.inf), truth.best(2))
        for row in rows:
            assert case.read(row[0, b], b) in (truth.configurations if truth.possible else [None])
        close(entropy[b], truth.entropy if truth.possible else MINUS_INFINITY)
        close(kl[b], torch.zeros(()).double() if truth.possible else -MINUS_INFINITY)
    for result, expected in case.more(model, truths):
        close(result, expected)


@pytest.mark.parametrize("name", STATEFUL)
def test_restricting_twice_is_restricting_once(name):
    case = small(name, ragged=True, seed=2)
    model = case.model()
    first = model.restrict(random_subset(case, model, seed=1, k=3))
    second = first.restrict(random_subset(case, first, seed=2, k=2, shared=True))
    assert second.whole is model
    assert second.n_states == 2
    for b, truth in enumerate(case.truths(second)):
        close(second.log_partition()[b], truth.log_partition)
        close(second.entropy()[b], truth.entropy if truth.possible else MINUS_INFINITY)
        close(case.marginals(second)[b][case.within(case.lengths[b])], truth.marginals)
    uniform = first.sketch(3, proposal=ts.Uniform())
    close(uniform.log_partition(), first.log_partition())


@pytest.mark.parametrize("way", ["some states", "static lookahead", "lookahead"])
@pytest.mark.parametrize("name", STATEFUL)
def test_sketches_sum_over_the_states_they_keep(name, way):
    case = small(name, seed=2)
    model = made(case, way)
    n = model.whole.n_states
    assert model.n_states == (max(1, n - 1) if way == "some states" else n)
    for b, truth in enumerate(case.truths(model)):
        close(model.log_partition()[b], truth.log_partition)
        close(case.marginals(model)[b], truth.marginals)


@pytest.mark.parametrize("name", STATEFUL)
def test_marginals_can_be_spread_over_all_states(name):
    """`scatter` takes the result of `marginals` (or `state_marginals`), as documented."""
    case = small(name, seed=1)
    model = case.model()
    sketch = model.sketch(model.n_states, proposal=ts.Uniform())
    close(sketch.scatter(case.state_marginals(sketch)), case.state_marginals(model))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("scale", "offset"), [(1.0, -1e4), (50.0, 1e4)])
def test_large_scores_and_offsets(name, scale, offset):
    case = small(name, ragged=True, seed=11, scale=scale, forbidden=0.1)
    other = small(name, ragged=True, seed=12, scale=scale)
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


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("offset", [1000.0, -1000.0])
def test_offsets_cost_no_digits_in_float32(name, offset):
    case, other = small(name, ragged=True, seed=11), small(name, ragged=True, seed=12)
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
