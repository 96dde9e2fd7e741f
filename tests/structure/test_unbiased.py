"""Sketches of every structure are right in expectation, for any selection and proposal; a wrong weight is noticed.

Replicates are a batch of identical sentences. Estimates are divided by the truth, so that they scatter around one.
"""

import math

import pytest
import torch

import tailsum as ts
from harness.registry import EMBEDDED, LARGE, ONE_EACH, large, sparse
from harness.statistics import Broken, off, z_score

LIMIT = 4.0  # standard errors: correct sketches stay below
NOTICED = 4.5  # standard errors: wrong ones are above
SELECTIONS = {"optimal": ts.Optimal(2), "top and sample": ts.TopAndSample(1, 2)}
PROPOSALS = {
    "uniform": lambda _: ts.Uniform(),
    "local": lambda _: ts.Local(),
    "lookahead": lambda landmarks: ts.Lookahead(landmarks, neighbours=1),
    "lookahead, static": lambda landmarks: ts.Lookahead(landmarks, sequential=False, neighbours=0),
}
FEW = {
    "1": ts.Lookahead(1, neighbours=0),
    "1, static": ts.Lookahead(1, sequential=False, neighbours=1),
    "2, no rounds": ts.Lookahead(2, rounds=0, neighbours=0),
}
FORBIDDING = [name for name in LARGE if "factored" not in name]  # factors must be finite


def proposed(case, proposal):
    if proposal == "default":
        return None
    return FEW[proposal] if proposal in FEW else PROPOSALS[proposal](case.landmarks)


def replicates(case, proposal="lookahead"):
    """A batch of the same model; larger where a sketch costs little."""
    return case.many(case.replicates * (1 if "lookahead" in proposal else 2))


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", LARGE)
def test_partition(name, selection, proposal, generator):
    case = large(name)
    sketch = replicates(case, proposal).sketch(
        proposal=proposed(case, proposal), selection=SELECTIONS[selection], generator=generator
    )
    assert off(sketch, case.model()) < LIMIT


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", LARGE)
def test_a_wrong_weight_is_noticed(name, selection, generator):
    """A weight that is wrong by 2%."""
    case = large(name)
    sketch = replicates(case).sketch(
        proposal=proposed(case, "lookahead"), selection=Broken(SELECTIONS[selection]), generator=generator
    )
    assert off(sketch, case.model()) > NOTICED


@pytest.mark.parametrize("few", FEW)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORBIDDING)
def test_partition_where_much_is_forbidden(name, seed, few, generator):
    """40% of the scores between nodes are forbidden, and there is one landmark: states that it does not reach still count."""
    case = sparse(name, 0.4, seed)
    sketch = case.many(6_000).sketch(2, proposal=FEW[few], generator=generator)
    assert off(sketch, case.model()) < LIMIT


@pytest.mark.parametrize("few", ["1", "2, no rounds"])
@pytest.mark.parametrize("mask", [-1e9, pytest.param(-1e4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORBIDDING)
def test_partition_under_finite_masks(name, mask, few, generator):
    """A landmark sends its messages through masks too, but these are no paths: other states, not yet reached, have them."""
    case = sparse(name, 0.4, 1)
    case.mask = mask
    sketch = case.many(4_000).sketch(2, proposal=FEW[few], generator=generator)
    assert off(sketch, case.model()) < LIMIT


@pytest.mark.parametrize("proposal", ["uniform", "local"])
@pytest.mark.parametrize("name", ONE_EACH)
def test_partition_where_much_is_forbidden_without_looking(name, proposal, generator):
    case = sparse(name, 0.3, 1)
    sketch = case.many(20_000).sketch(3, proposal=proposed(case, proposal), generator=generator)
    assert off(sketch, case.model()) < LIMIT


@pytest.mark.parametrize("proposal", ["uniform", "lookahead", "lookahead, static"])
@pytest.mark.parametrize("name", [name for name in ONE_EACH if large(name).has_lengths])
def test_partition_of_sentences_of_different_lengths(name, proposal, generator):
    length, shortest = large(name).length, large(name).shortest
    case = sparse(name, 0.2, batch=(3,), lengths=[shortest, length - 1, length], shared=True)
    sketch = case.many(5_000).sketch(2, proposal=proposed(case, proposal), generator=generator)
    assert off(sketch, case.model()) < LIMIT


@pytest.mark.parametrize(
    "proposal", [ts.Global(), ts.LocalGlobal(), ts.Lookahead(16, neighbours=0)], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("name", EMBEDDED)
def test_partition_with_embeddings(name, proposal, generator):
    case = large(name)
    assert off(case.many(10_000).sketch(2, proposal=proposal, generator=generator), case.model()) < LIMIT


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_sketch_of_a_sketch(name, generator):
    case = large(name)
    for first in ("uniform", "lookahead"):
        sketch = replicates(case).sketch(4, proposal=proposed(case, first), generator=generator)
        for second in ("local", "lookahead"):
            again = sketch.sketch(2, proposal=proposed(case, second), generator=generator)
            assert again.n_states == 2
            assert again.whole is sketch.whole
            assert off(again, case.model()) < LIMIT


@pytest.mark.parametrize("proposal", ["local", "lookahead"])
@pytest.mark.parametrize("name", [*ONE_EACH, "pairs-factored", "pairs-scored"])
def test_expected_sums_are_unbiased(name, proposal, generator):
    """Z times marginals: the gradient of Z in the scores."""
    case = large(name)
    whole, sketch = case.model(), replicates(case).sketch(3, proposal=proposed(case, proposal), generator=generator)
    ratio = (sketch.log_partition() - whole.log_partition()).exp()
    for result, truth in zip(case.expected_sums(sketch), case.expected_sums(whole), strict=True):
        assert z_score(ratio[:, None] * result.flatten(1), truth.flatten()) < 4.5


@pytest.mark.parametrize("name", LARGE)
def test_log_partition_is_a_lower_bound_in_expectation(name, generator):
    """The corollary of the paper's Theorem 1 (Jensen's inequality)."""
    case = large(name)
    sketch = replicates(case).sketch(2, proposal=ts.Uniform(), generator=generator)
    error = sketch.log_partition() - case.model().log_partition()
    assert error.mean() < -4.5 * error.std() / math.sqrt(len(error))


# No randomness, and what there is of it.


@pytest.mark.parametrize("proposal", [*PROPOSALS, *FEW, "default"])
@pytest.mark.parametrize("name", LARGE)
def test_keeping_all_states_is_exact(name, proposal):
    case = large(name)
    model = case.many(3)
    for more in (0, 3):
        sketch = model.sketch(model.n_states + more, proposal=proposed(case, proposal))
        torch.testing.assert_close(sketch.log_partition(), model.log_partition(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", LARGE)
def test_keeping_all_states_of_one_sentence_is_exact(name):
    model = large(name).model()
    sketch = model.sketch(model.n_states)
    torch.testing.assert_close(sketch.log_partition(), model.log_partition(), rtol=0, atol=1e-9)
    torch.testing.assert_close(sketch.entropy(), model.entropy(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("name", LARGE)
def test_top_k_is_too_low(name, proposal):
    case = large(name)
    model = case.many(2)
    exact, fewest = model.log_partition(), case.fewest_states(model)
    for k in range(1, model.n_states):
        result = model.sketch(selection=ts.TopK(k), proposal=proposed(case, proposal)).log_partition()
        assert (result <= exact + 1e-12).all()
        assert k >= fewest or (result < exact).all()


@pytest.mark.parametrize("proposal", [*PROPOSALS, "1"])
@pytest.mark.parametrize("name", LARGE)
def test_a_sketch_follows_its_generator(name, proposal):
    case = large(name)
    model = case.many(20)

    def sketch(seed):
        return model.sketch(2, proposal=proposed(case, proposal), generator=torch.Generator().manual_seed(seed))

    torch.manual_seed(1)
    one = sketch(0)
    torch.manual_seed(2)
    same, other = sketch(0), sketch(1)
    assert torch.equal(one.states, same.states)
    assert torch.equal(one.log_weight, same.log_weight)
    assert not torch.equal(one.states, other.states)


@pytest.mark.parametrize("name", LARGE)
def test_a_sketch_without_a_generator_follows_the_global_seed(name):
    model, result = large(name).many(20), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        result.append(model.sketch(2).states)
    assert torch.equal(result[0], result[1])
    assert not torch.equal(result[0], result[2])
