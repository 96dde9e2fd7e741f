"""Number types, autocast, inference mode, generators and empty batches: the same for every structure."""

import pytest
import torch

import tailsum as ts
from harness.agree import close, sums
from harness.registry import BOTH, FEW, STATEFUL, made, possible, random_subset, small

FEW_WITH_STATES = [name for name in FEW if name in STATEFUL]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def tensors(configuration):
    """The tensors that make up a configuration."""
    fields = (configuration,) if isinstance(configuration, torch.Tensor) else configuration
    return [x for x in fields if x is not None]


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_single_precision_agrees(name, way):
    case, model = possible(name, way, forbidden=0.1)
    other = case.sibling(seed=50, forbidden=0.0)
    single, theirs = (x.model(*(leaf.float() for leaf in x.leaves)) for x in (case, other))
    single = single if model.kept is None else single.restrict(model.kept)
    for result, expected in zip(sums(case, single, theirs), sums(case, model, other.model()), strict=True):
        assert (result.dtype, expected.dtype) == (torch.float32, torch.float64)
        close(result.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name, dtype):
    case = small(name, ragged=True, seed=8)
    leaves = [x.to(dtype).requires_grad_() for x in case.leaves]
    model, exact = case.model(*leaves), case.model(*(x.detach().double() for x in leaves))
    rough = not all(case.seen)  # a function of the leaves is evaluated in half precision
    for half, double in zip(sums(case, model), sums(case, exact), strict=True):
        assert half.dtype == torch.float32
        close(half.double(), double, **({"rtol": 0.1, "atol": 0.1} if rough else {"rtol": 1e-4, "atol": 1e-5}))
    total = model.log_partition().sum() + model.entropy().sum()
    for gradient in torch.autograd.grad(total, leaves, materialize_grads=True):
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()


# Where the model has more than one tensor, the one at `which` among them.
TENSORS = [
    (name, which) for name in FEW for which, seen in enumerate(small(name).seen) if seen and len(small(name).seen) > 1
]


@pytest.mark.parametrize(("name", "which"), TENSORS)
def test_scores_of_different_types(name, which):
    """One tensor in float32 and the others in float64: computed in float64."""
    case = small(name, seed=3)
    given = [x.float() if i == which else x for i, x in enumerate(case.leaves)]
    result, expected = case.model(*given), case.model(*(x.double() for x in given))
    assert result.log_partition().dtype == torch.float64
    close(result.entropy(), expected.entropy())
    close(result.score(result.argmax()), expected.score(expected.argmax()))


def soft(model, seed):
    return model.rsample(0.7, generator=seeded(seed))[0]


@pytest.mark.parametrize("name", FEW)
def test_autocast_changes_nothing(name):
    case = small(name, ragged=True, seed=8)

    def results():
        leaves = [x.float().requires_grad_() for x in case.leaves]
        model = case.model(*leaves)
        models = [model]
        if case.has_states:
            models.append(model.restrict(random_subset(case, model, seed=3)))
            models.append(model.sketch(1, generator=seeded(0)))
        return [*(value for x in models for value in sums(case, x)), *(soft(x, 1) for x in models)], leaves

    plain, leaves = results()
    with torch.autocast("cpu", torch.bfloat16):
        mixed, others = results()
    for a, b in zip(plain, mixed, strict=True):
        assert a.dtype == b.dtype == torch.float32
        close(a, b, rtol=1e-5, atol=1e-6)
    a, b = (
        torch.autograd.grad(
            sum(x[x.isfinite()].square().sum() for x in result if x.requires_grad), given, materialize_grads=True
        )
        for result, given in ((plain, leaves), (mixed, others))
    )
    for x, y in zip(a, b, strict=True):
        close(x, y, rtol=1e-4, atol=1e-4)


def use_all(case, model, best):
    """The best configurations are the same; operations whose results are random must run, and give numbers."""
    assert torch.equal(case.rows(model.argmax()), best)
    scores, weights = model.topk(2)[1], soft(model, 0)
    assert not any(x.requires_grad for x in (scores, weights))
    assert not any(x.isnan().any() for x in (scores, weights, model.cross_entropy(model)))
    assert case.rows(model.sample((2,))).shape[:2] == (2, 2)


@pytest.mark.parametrize("name", FEW)
def test_inference_mode(name):
    case = small(name, ragged=True, seed=8)
    plain = case.model()
    expected, best = sums(case, plain), case.rows(plain.argmax())
    parameters = [x.clone().requires_grad_() for x in case.leaves]  # of a network, which gives the other scores
    with torch.inference_mode():
        mixed = (case.model(*(x + 0 if i % 2 == odd else x for i, x in enumerate(parameters))) for odd in (False, True))
        for model in (plain, case.model(*(x + 0 for x in case.leaves)), *mixed):
            for result, value in zip(sums(case, model), expected, strict=True):
                assert not result.requires_grad
                close(result, value)
            use_all(case, model, best)


# The mixed factor graph has many tensors, and takes long.
BESIDE = [*((name, "whole") for name in FEW if name != "factors-mixed"), ("chain-gated", "restricted")]


@pytest.mark.parametrize(("name", "way"), BESIDE)
def test_gradients_beside_inference_tensors(name, way):
    """One tensor has gradients; the others, and the configurations, were made in inference mode."""
    case = small(name, seed=8)
    subset = random_subset(case, case.model(), seed=3) if way == "restricted" else None
    with torch.inference_mode():
        fixed, configurations = [x + 0 for x in case.leaves], case.model().sample()

    def gradient(given, leaf):
        model = case.model(*given)
        model = model if subset is None else model.restrict(subset)
        result = [
            model.log_partition(),
            model.entropy(),
            model.marginals(),
            soft(model, 1),
            model.log_prob(configurations),
        ]
        total = sum(x[x.isfinite()].square().sum() for x in result if x.requires_grad)
        return torch.autograd.grad(total, leaf, materialize_grads=True)[0]

    for i, x in enumerate(case.leaves):
        leaf = x.clone().requires_grad_()
        result, expected = (gradient([*xs[:i], leaf, *xs[i + 1 :]], leaf) for xs in (fixed, case.leaves))
        close(result, expected)


@pytest.mark.parametrize("name", FEW_WITH_STATES)
@pytest.mark.parametrize("way", ["lookahead", "restricted"])
def test_sketches_in_inference_mode(name, way):
    case = small(name, ragged=True, seed=8)
    plain = made(case, way)
    expected, best = sums(case, plain), case.rows(plain.argmax())
    with torch.inference_mode():
        model = made(case, way)
        for result, value in zip(sums(case, model), expected, strict=True):
            close(result, value)
        use_all(case, model, best)


@pytest.mark.parametrize("name", FEW)
def test_without_recording(name):
    """A model of parameters, restricted if it has states, under `no_grad`."""
    case = small(name, ragged=True, seed=8)
    model = made(case, "restricted")
    expected, best = sums(case, model), case.rows(model.argmax())
    with torch.no_grad():
        fresh = case.model(*(x.clone().requires_grad_() for x in case.leaves))
        fresh = fresh if model.kept is None else fresh.restrict(model.kept)
        for result, value in zip(sums(case, fresh), expected, strict=True):
            assert not result.requires_grad
            close(result, value)
        use_all(case, fresh, best)


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)], ids=["inference", "autocast"]
)
@pytest.mark.parametrize("name", FEW_WITH_STATES)
def test_the_same_states_are_kept_in_any_mode(name, mode):
    """The choices of Lookahead do not depend on the mode, though sweeps may use gradients and products."""
    case = small(name, seed=8)
    if case.has_lengths:
        case = case.sibling(length=4, lengths=[4, 3])
    model = case.model(*(x.float() for x in case.leaves))
    expected = model.sketch(1, generator=seeded(0))
    with mode():
        result = model.sketch(1, generator=seeded(0))
    assert torch.equal(result.states, expected.states)
    close(result.log_weight, expected.log_weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FEW)
def test_inputs_are_never_changed(name):
    case = small(name, ragged=True, seed=8)
    before = [x.clone() for x in case.leaves]
    for way in ("whole", "lookahead"):
        model = made(case, way)
        sums(case, model), model.topk(2), model.sample(), model.rsample()
    assert all(torch.equal(x, y) for x, y in zip(case.leaves, before, strict=True))


@pytest.mark.parametrize("name", FEW)
def test_the_generator_decides_everything(name):
    case = small(name, seed=8)
    model = case.model()

    def draw(seed):
        g = seeded(seed)
        result = [*tensors(model.sample((20,), generator=g)), model.rsample(generator=g)[0]]
        if case.has_states:
            sketch = model.sketch(1, generator=g)
            result += [sketch.states, sketch.log_weight]
        return result

    torch.manual_seed(1)
    first = draw(0)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(0), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, draw(1), strict=True))


@pytest.mark.parametrize("name", FEW)
def test_empty_batches(name):
    case = small(name, batch=(0,))
    model = case.model()
    models = [model, model.sketch(2, proposal=ts.Uniform()), model.sketch(2)] if case.has_states else [model]
    for x in models:
        assert x.log_partition().shape == x.entropy().shape == x.kl(x).shape == (0,)
        assert x.marginals().shape[0] == 0
        for configuration, lead in ((x.argmax(), (0,)), (x.sample((2,)), (2, 0)), (x.topk(2)[0], (2, 0))):
            assert all(field.shape[: len(lead)] == lead for field in tensors(configuration))


@pytest.mark.parametrize("name", FEW)
def test_without_gradients_nothing_is_recorded(name):
    case = small(name)
    assert not any(x.requires_grad for x in sums(case, case.model()))


@pytest.fixture
def default_dtype():
    """A function that sets torch's default type until the end of the test."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


DEFAULTS = [torch.float64, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", DEFAULTS)
@pytest.mark.parametrize("name", FEW)
def test_the_default_type_changes_nothing(name, dtype, default_dtype):
    """Scores in float32, whatever type torch gives to tensors that are made without one."""
    case = small(name, ragged=True, seed=8)
    subset = random_subset(case, case.model(), seed=3) if case.has_states else None

    def results():
        leaves = [x.float().requires_grad_() for x in case.leaves]
        model = case.model(*leaves)
        best, drawn = model.argmax(), model.sample((2,), generator=seeded(2))
        result = [
            *sums(case, model),
            soft(model, 1),
            model.expectation(model),
            model.score(best),
            model.log_prob(drawn),
        ]
        chosen = [*tensors(best), *tensors(drawn)]
        if subset is not None:
            for how in ({}, {"proposal": ts.Lookahead(2, 1, sequential=False, neighbours=1)}, {"proposal": ts.Local()}):
                sketch = model.sketch(2, generator=seeded(0), **how)
                chosen.append(sketch.states)
                result += [sketch.log_weight, sketch.log_partition()]
            restricted = model.restrict(subset)
            result += [restricted.entropy(), restricted.marginals(), model.scatter(case.state_marginals(model))]
        total = sum(x[x.isfinite()].square().sum() for x in result if x.requires_grad)
        return [*result, *torch.autograd.grad(total, leaves, materialize_grads=True)], chosen

    values, states = results()
    default_dtype(dtype)
    others, other_states = results()
    for a, b in zip(values, others, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(states, other_states, strict=True))


def test_what_has_no_scores_has_the_type_of_the_rest(default_dtype):
    default_dtype(torch.float64)
    graph = ts.PairwiseGraph(torch.zeros(3, 2, dtype=torch.float32), [], [])
    assert graph.log_partition().dtype == torch.float32
