"""What torch-struct gets wrong, and the drop-in does not."""

import copy
import math
import pickle

import pytest
import torch
from torch.testing import assert_close

import tailsum.compat.torch_struct as ours
from compat.torch_struct_cases import CASES, LENGTHS, flattened

every = pytest.mark.parametrize("name", CASES)
stateful = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_states])
pytestmark = pytest.mark.usefixtures("one_thread")
LAZY = ("partition", "marginals", "argmax", "max", "entropy", "count")


def tensors(result):
    return (result,) if isinstance(result, torch.Tensor) else result


def everything(model):
    yield from (getattr(model, name) for name in LAZY)
    yield from (model.kmax(2), model.topk(2), model.sample((2,)), model.gumbel_crf(0.5), model.kl(model))
    yield model.log_prob(model.argmax)


@every
def test_rows_of_a_batch_share_no_noise(name):
    case = CASES[name]
    one = [torch.zeros(1, *shape) for shape in case.shapes]
    model = case.model(*one, lengths=[4]).expand((64,))
    for draw in (model.sample, model.gumbel_crf):
        events = flattened(case, draw())
        # Under shared noise all rows of equal scores are equal.
        assert len(events.detach().unique(dim=0)) > 2


@every
def test_forbidden_parts_give_no_nan(name):
    case = CASES[name]
    for forbid in (0.3, 0.9, 1.0):
        potentials = [x.requires_grad_() for x in case.potentials(0, forbid)]
        for result in everything(case.model(*potentials)):
            for x in tensors(result):
                assert not x.isnan().any()
                if x.requires_grad:
                    total = x[x.isfinite()].sum()
                    found = torch.autograd.grad(total, potentials, allow_unused=True, retain_graph=True)
                    assert not any(g.isnan().any() for g in found if g is not None)


@every
def test_an_impossible_input_is_minus_infinity(name):
    case = CASES[name]
    blocked = [torch.full_like(x, -math.inf) for x in case.potentials(0)]
    model = case.model(*blocked)
    parted = torch.tensor(LENGTHS) > 1  # one position of a chain has no parts, and nothing to forbid
    parted |= name not in ("chain", "segments")
    assert (model.partition[parted] == -math.inf).all()
    assert (model.max[parted] == -math.inf).all()
    assert not flattened(case, model.marginals).any()
    assert not flattened(case, model.argmax).any()
    assert not model.count[parted].any()
    assert (model.log_prob(model.argmax)[parted] == -math.inf).all()


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name, dtype):
    case = CASES[name]
    potentials = [x.to(dtype) for x in case.potentials(1)]
    model, wide = case.model(*potentials), case.model(*(x.double() for x in potentials))
    for operation in LAZY:
        for x, y in zip(tensors(getattr(model, operation)), tensors(getattr(wide, operation)), strict=True):
            assert x.dtype == torch.float32
            assert_close(x, y.float(), rtol=1e-5, atol=1e-5)


@every
def test_length_one(name):
    case = CASES[name]
    steps = name in ("chain", "segments")
    shapes = [(0, *s[1:]) if steps else s for s in case.shapes]
    if name in ("dependencies", "one root", "labelled", "crossing", "crossing, any roots", "trees"):
        shapes = [(1, 1, *s[2:]) for s in shapes]
    elif not steps:
        shapes[0] = (1, *shapes[0][1:])
    potentials = [torch.randn(2, *shape) for shape in shapes]
    model = case.model(*potentials, lengths=None)
    for result in everything(model):
        assert not any(x.isnan().any() for x in tensors(result))
    if name in ("grammar", "frames"):  # binary rules have no tree of one word, nor has one frame two labels
        assert (model.partition == -math.inf).all()
        return
    if steps:  # no parts, and every state counts alike
        assert_close(model.partition.exp(), model.count)
    assert (model.entropy >= -1e-6).all()


@every
def test_inputs_are_left_alone(name):
    case = CASES[name]
    potentials, lengths = case.potentials(2, 0.1), torch.tensor(LENGTHS)
    before = [x.clone() for x in potentials]
    for _ in everything(case.model(*potentials, lengths=lengths)):
        pass
    assert not any(x.requires_grad for x in potentials)
    assert all(torch.equal(x, y) for x, y in zip(potentials, before, strict=True))
    assert lengths.tolist() == LENGTHS


def test_no_option_leaks():
    arcs = torch.zeros(1, 4, 4)
    several, one = ours.DependencyCRF(arcs), ours.DependencyCRF(arcs, multiroot=False)
    assert several.count == 55
    assert one.count == 30
    assert several.struct(ours.StdSemiring).sum(arcs.exp()) == pytest.approx(55)
    assert one.struct(ours.StdSemiring).sum(arcs.exp()) == pytest.approx(30)
    assert ours.DepTree().sum(arcs) == pytest.approx(math.log(55))
    several.args["a"] = 1
    assert one.args == ours.DependencyCRF(arcs).args == {}


@every
def test_padding_has_no_effect(name):
    case = CASES[name]
    potentials = [x.clone() for x in case.potentials(3)]
    model = case.model(*potentials)
    usable = model._usable().expand_as(potentials[0])
    potentials[0][~usable] = math.nan
    spoiled = case.model(*potentials)
    for operation in LAZY:
        for x, y in zip(tensors(getattr(model, operation)), tensors(getattr(spoiled, operation)), strict=True):
            assert torch.equal(x, y)
    event = model.argmax if isinstance(model.argmax, torch.Tensor) else model.argmax[0]
    event = torch.where(usable, event, 1.0)
    event = event if isinstance(model.argmax, torch.Tensor) else (event, *model.argmax[1:])
    assert torch.equal(spoiled.log_prob(event), model.log_prob(model.argmax))


def test_events_have_the_lengths_of_their_distribution():
    chain = ours.LinearChainCRF(torch.randn(2, 3, 2, 2), torch.tensor([4, 2]))
    path = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 1]])
    event = chain.to_event(path, 2)
    assert event.sum((1, 2, 3)).tolist() == [3, 1]
    assert torch.equal(chain.from_event(event)[0], torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0]]))


@stateful
def test_a_sketch_of_all_states_is_exact(name):
    case = CASES[name]
    potentials = [x.requires_grad_() for x in case.potentials(4, 0.1)]
    model = case.model(*potentials)
    small = model.sketch(2)
    assert type(small) is type(model)
    assert "2 states kept" in repr(small)
    for operation in LAZY:
        for x, y in zip(tensors(getattr(model, operation)), tensors(getattr(small, operation)), strict=True):
            assert_close(x, y)
    assert_close(model.kmax(2), small.kmax(2))
    assert_close(model.log_prob(model.argmax), small.log_prob(model.argmax))
    assert flattened(case, small.gumbel_crf()).shape == flattened(case, model.gumbel_crf()).shape
    gradient = torch.autograd.grad(small.partition[small.partition > -math.inf].sum(), potentials)
    for x, y in zip(gradient, tensors(model.marginals), strict=False):
        assert_close(x, y)


@stateful
def test_a_sketch_is_unbiased_and_has_the_same_face(name):
    case = CASES[name]
    potentials = [x[:1] for x in case.potentials(5)]
    count = 2000
    model = case.model(*potentials, lengths=[4])
    generator = torch.Generator().manual_seed(0)
    small = model.expand((count,)).sketch(1, proposal=lambda m: torch.zeros(m.states.shape), generator=generator)
    ratio = (small.partition - model.partition).exp()
    assert (ratio.mean() - 1).abs() < 5 * ratio.std() / math.sqrt(count)
    share = flattened(case, small.marginals) * ratio[:, None]
    wrong = (share.mean(0) - flattened(case, model.marginals)[0]).abs()
    assert (wrong <= 5 * share.std(0) / math.sqrt(count) + 1e-9).all()
    event = flattened(case, small.sample())
    assert event.shape == share.shape
    kept = flattened(case, small.marginals) > 0
    assert not event[~kept].any()


def test_what_has_no_states_has_no_sketch():
    for name in ("dependencies", "alignment", "frames"):
        case = CASES[name]
        with pytest.raises(ValueError, match="no latent states"):
            case.model(*case.potentials(0)).sketch(1)


@every
def test_copies_and_other_modes(name):
    case = CASES[name]
    potentials = [x.requires_grad_() for x in case.potentials(6)]
    model = case.model(*potentials)
    expected = model.partition
    for other in (copy.deepcopy(case.model(*(x.detach() for x in potentials))), copy.copy(model)):
        assert torch.equal(other.partition, expected)
    assert torch.equal(pickle.loads(pickle.dumps(case.model(*(x.detach() for x in potentials)))).partition, expected)
    with torch.no_grad():
        assert torch.equal(case.model(*potentials).partition, expected)
    with torch.inference_mode():
        inside = case.model(*potentials)
        assert_close(inside.partition, expected)
        assert_close(flattened(case, inside.marginals), flattened(case, model.marginals))
    # Two losses of one object, each with a backward pass of its own.
    finite = expected > -math.inf
    expected[finite].sum().backward()
    model.entropy[finite].sum().backward()
    empty = case.model(*(x[:0].detach() for x in potentials), lengths=None)
    assert empty.partition.shape == (0,)


@every
def test_what_fills_up_the_best_has_no_probability(name):
    """Where there are fewer than k events, `topk` has zeros: no event, but where a sequence has no parts at all."""
    case = CASES[name]
    model = case.model(*case.potentials(1, forbid=0.5))
    scores, parted = model.kmax(20), torch.tensor(LENGTHS) > 1
    assert (scores[:, parted] == -math.inf).any()
    expected = torch.where(scores == -math.inf, scores, scores - model.partition)
    assert_close(model.log_prob(model.topk(20))[:, parted], expected[:, parted])
