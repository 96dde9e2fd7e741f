"""What chains have of their own: relaxed samples, the paper's algorithms, parameters as scores, and shared subsets."""

import math

import pytest
import torch

import tailsum as ts
from harness.agree import frequencies_agree
from harness.chains import ChainCase
from harness.pair_scores import PAIRS
from harness.registry import made


@pytest.mark.parametrize("way", ["whole", "uniform"])
@pytest.mark.parametrize(("pairs", "lead"), [("dense", "shared"), ("factored", "both"), ("scored", "time")])
def test_relaxed_samples_relax_exact_ones(pairs, lead, way, generator):
    case = ChainCase((2,), 3, n=3, lengths=[2, 3], pairs=pairs, lead=lead, forbidden=0.1, seed=7)
    model, count = made(case, way), 20_000
    assert all(truth.possible for truth in case.truths(model))
    frequencies_agree(case, model, model.rsample(sample_shape=(count,), generator=generator).hard, count)


@pytest.mark.parametrize("hard", [False, True])
def test_relaxed_samples(hard, generator):
    case = ChainCase((2,), 4, n=3, lengths=[4, 2], pairs="factored", emission="factored", seed=3)
    chain = case.model()
    sample = chain.rsample(0.5, hard=hard, generator=generator)
    inside = case.inside()
    torch.testing.assert_close(sample.weights.sum(-1), inside.double())
    assert torch.equal(torch.where(inside, sample.weights.argmax(-1), -1), sample.hard)
    assert hard == bool(((sample.weights < 1e-9) | (sample.weights > 1 - 1e-9)).all())
    cold = chain.rsample(1e-6, generator=generator)
    assert ((cold.weights < 1e-6) | (cold.weights > 1 - 1e-6)).all()


def test_relaxed_samples_of_a_sketch_mix_embeddings(generator):
    small = ChainCase((2,), 4, n=6, seed=3).model().sketch(3, generator=generator)
    sample = small.rsample(0.7, generator=generator)
    assert sample.weights.shape == sample.states.shape == (2, 4, 3)
    embeddings = torch.randn(6, 5).double()
    expected = torch.einsum("btk,btkd->btd", sample.weights, embeddings[sample.states])
    torch.testing.assert_close(sample.mix(embeddings), expected)
    torch.testing.assert_close(small.scatter(sample.weights) @ embeddings, expected)
    many = small.rsample(0.7, sample_shape=(2, 3), generator=generator)
    assert many.mix(embeddings).shape == (2, 3, 2, 4, 5)


def test_gumbel_backward_sampling_is_algorithm_4():
    """Written as the paper has it, for one sequence, with the same noise."""
    small = ChainCase((), 4, n=5, seed=5).model().sketch(proposal=ts.Local(), selection=ts.TopAndSample(2, 1))
    nodes, pairs = small.node_scores() + small.log_weight, small.pair_scores().block()
    alpha = [nodes[0]]
    for t in range(1, 4):
        alpha.append(nodes[t] + (alpha[-1][:, None] + pairs[t - 1]).logsumexp(0))
    noise = torch.Generator().manual_seed(11)
    expected, after = [], None
    for t in reversed(range(4)):
        logits = alpha[t] if after is None else alpha[t] + pairs[t][:, after]
        gumbel = -torch.empty(3, 1, dtype=torch.float64).exponential_(generator=noise).log()[:, 0]
        noisy = logits.log_softmax(0) + gumbel
        expected.append((noisy / 0.6).softmax(0))
        after = noisy.argmax()
    sample = small.rsample(0.6, generator=torch.Generator().manual_seed(11))
    torch.testing.assert_close(sample.weights, torch.stack(expected[::-1]))


def test_entropy_of_a_sketch_is_algorithm_3():
    """The recursion of conditional entropies, written as the paper has it, on the states and weights of a sketch."""
    small = ChainCase((), 5, n=8, seed=9).model().sketch(proposal=ts.Local(), selection=ts.TopAndSample(2, 2))
    nodes, pairs, weight = small.node_scores(), small.pair_scores().block(), small.log_weight.exp()
    alpha, entropy = nodes[0].exp(), torch.zeros(4).double()
    for t in range(1, 5):
        joint = alpha[:, None] * pairs[t - 1].exp() * nodes[t].exp()
        following = (weight[t - 1][:, None] * joint).sum(0)
        p = joint / following
        entropy = (weight[t - 1][:, None] * p * (entropy[:, None] - p.log())).sum(0)
        alpha = following
    total = (weight[-1] * alpha).sum()
    p = alpha / total
    torch.testing.assert_close(small.log_partition(), total.log())
    torch.testing.assert_close(small.entropy(), (weight[-1] * p * (entropy - p.log())).sum())


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("lead", ChainCase.LEADS)
def test_a_sketch_of_a_sketch_is_a_restricted_chain(pairs, lead, generator):
    chain = ChainCase((2,), 4, n=6, lengths=[3, 4], pairs=pairs, lead=lead, emission="factored", seed=2).model()
    first = chain.sketch(5, proposal=ts.Local(), generator=generator)
    second = first.sketch(3, proposal=ts.Uniform(), generator=generator)
    assert second.whole is chain
    direct = chain.restrict(ts.Subset(second.states, second.log_weight))
    torch.testing.assert_close(second.log_partition(), direct.log_partition())
    torch.testing.assert_close(second.entropy(), direct.entropy())
    assert (second.states[..., None] == first.states[..., None, :]).any(-1).all()


def test_subset_shared_by_the_batch(generator):
    chain = ChainCase((3,), 4, n=6, pairs="factored", emission="factored", seed=2).model()
    index = torch.stack([torch.randperm(6, generator=generator)[:3] for _ in range(4)])
    shared = chain.restrict(ts.Subset(index, torch.zeros(4, 3)))
    own = chain.restrict(ts.Subset(index.expand(3, 4, 3), torch.zeros(3, 4, 3)))
    torch.testing.assert_close(shared.log_partition(), own.log_partition())
    torch.testing.assert_close(shared.marginals(), own.marginals())
    assert torch.equal(shared.argmax(), own.argmax())


def test_topk_of_a_sketch_with_repeated_states_gives_distinct_paths():
    chain = ChainCase((), 3, n=4, seed=1).model()
    index = torch.tensor([[0, 1, 1], [2, 2, 3], [1, 0, 0]])
    paths, scores = chain.restrict(ts.Subset(index, torch.zeros(3, 3))).topk(8)
    assert len(paths.unique(dim=0)) == 8
    assert (scores > -math.inf).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    emission, transition = torch.randn(2, 5, 4).to(dtype).requires_grad_(), torch.randn(4, 4).to(dtype)
    chain = ts.LinearChain(emission, transition)
    assert chain.log_partition().dtype == torch.float32
    exact = ts.LinearChain(emission.detach().double(), transition.double()).log_partition()
    torch.testing.assert_close(chain.log_partition().double(), exact, rtol=1e-5, atol=1e-5)
    chain.log_partition().sum().backward()
    assert emission.grad is not None
    assert emission.grad.dtype == dtype


def test_the_generator_decides_everything(generator):
    chain = ts.LinearChain(torch.randn(4, 50), torch.randn(50, 50))

    def draw(seed):
        g = torch.Generator().manual_seed(seed)
        small = chain.sketch(5, generator=g)
        return small.states, small.sample((3,), generator=g), small.rsample(generator=g).weights

    torch.manual_seed(1)
    first = draw(0)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(0), strict=True))
    assert not torch.equal(first[0], draw(1)[0])


def test_autocast_changes_nothing():
    context, states = torch.randn(2, 6, 16), torch.randn(40, 16).requires_grad_()

    def results():
        chain = ts.LinearChain(ts.Factored(context, states), ts.Factored(states, states))
        small = chain.sketch(10, generator=torch.Generator().manual_seed(0))
        return [
            value
            for model in (chain, small)
            for value in (model.log_partition(), model.entropy(), model.marginals(), model.kl(model))
        ]

    plain = results()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = results()
    for a, b in zip(plain, mixed, strict=True):
        assert a.dtype == b.dtype == torch.float32
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(
            *(torch.autograd.grad(x.square().sum(), states, retain_graph=True)[0] for x in (a, b))
        )


def test_inference_mode():
    nodes, pairs = torch.randn(2, 5, 4), torch.randn(4, 4)
    plain = ts.LinearChain(nodes, pairs)
    with torch.inference_mode():
        for chain in (
            plain,
            ts.LinearChain(nodes + 0, pairs + 0),
            ts.LinearChain(nodes, ts.Factored(pairs + 0, pairs)),
        ):
            small = chain.sketch(3)
            for model in (chain, small):
                model.pair_marginals(), model.kl(model), model.cross_entropy(model), model.rsample()
                assert model.marginals().isfinite().all()
                assert model.entropy().isfinite().all()
        torch.testing.assert_close(plain.entropy(), ts.LinearChain(nodes + 0, pairs + 0).entropy())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("lengths", [None, [5, 3]])
def test_parameters_as_scores(lengths, mode):
    """Views of parameters say that they have gradients, also where none are recorded."""
    nodes, pairs = torch.randn(2, 5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    chain = ts.LinearChain(nodes, pairs, lengths)
    small = chain.sketch(3, generator=torch.Generator().manual_seed(0))
    models = chain, small, small.refine()
    expected = [x for model in models for x in (model.marginals(), model.entropy())]
    with mode():
        found = [x for model in models for x in (model.marginals(), model.entropy())]
    for a, b in zip(found, expected, strict=True):
        assert not a.requires_grad
        torch.testing.assert_close(a, b.detach())


@pytest.mark.parametrize("budget", [0, 1 << 30])
@pytest.mark.parametrize("lengths", [None, [5, 3]])
@pytest.mark.parametrize("kind", ["factored", "scored", "single"])
def test_parameters_in_inference_mode(kind, lengths, budget):
    """The usual evaluation: scores are what a network gives for its input, times parameters."""
    net, states = torch.nn.Linear(2, 3), torch.nn.Parameter(torch.randn(4, 3))
    given, other = torch.randn(2, 1 if kind == "single" else 5, 2), torch.randn(4, 4)

    def pairs(i, j, context):
        return (states[i] * states[j] * context).sum(-1)

    def results():
        context = net(given)
        transition = ts.Scored(pairs, 4, 4, context[:, 1:]) if kind == "scored" else ts.Factored(states, states)
        chain = ts.LinearChain(ts.Factored(context, states), transition, None if kind == "single" else lengths)
        whole = ts.LinearChain(torch.zeros(given.shape[1], 4), other, chain.lengths)
        small = chain.sketch(2, generator=torch.Generator().manual_seed(0))
        found = [x for model in (chain, small) for x in (model.marginals(), model.pair_marginals(), model.entropy())]
        return [
            *found,
            chain.kl(whole),
            chain.cross_entropy(whole),
            chain.rsample().chances,
            small.refine().marginals(),
        ]

    with ts.table_budget(budget):
        with torch.no_grad():
            torch.manual_seed(0)
            expected = results()
        with torch.inference_mode():
            torch.manual_seed(0)
            found = results()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("lead", [(3, 1), (1, 1), (3, 4), (4,), ()])
@pytest.mark.parametrize("factored", [False, True])
def test_shared_subset_of_transitions_that_vary(lead, factored, generator):
    transition = ts.Factored(*torch.randn(2, *lead, 6, 2)) if factored else torch.randn(*lead, 6, 6)
    chain = ts.LinearChain(ts.Factored(torch.randn(3, 5, 2), torch.randn(3, 6, 2)), transition)
    index = torch.stack([torch.randperm(6, generator=generator)[:3] for _ in range(5)])
    shared = chain.restrict(ts.Subset(index, torch.zeros(5, 3)))
    own = chain.restrict(ts.Subset(index.expand(3, 5, 3), torch.zeros(3, 5, 3)))
    torch.testing.assert_close(shared.log_partition(), own.log_partition())


@pytest.mark.parametrize("shape", [(), (3,), (2, 1), (1, 3), (2, 3)])
def test_divergence_from_a_model_shared_by_the_batch(shape):
    nodes, other = torch.randn(2, 3, 4, 5).double(), torch.randn(*shape, 4, 5).double()
    pairs, lengths = torch.randn(5, 5).double(), torch.tensor([[4, 2, 1], [3, 4, 4]])
    p, q = ts.LinearChain(nodes, pairs), ts.LinearChain(other, pairs * 0.5)
    expected = p.kl(ts.LinearChain(other.expand(2, 3, 4, 5), pairs * 0.5))
    torch.testing.assert_close(p.kl(q), expected)
    torch.testing.assert_close(p.sketch(5).kl(q), expected)
    ragged = ts.LinearChain(nodes, pairs, lengths), ts.LinearChain(other.expand(2, 3, 4, 5), pairs * 0.5, lengths)
    assert ragged[0].kl(ragged[1]).shape == (2, 3)


def test_an_impossible_path_has_log_probability_minus_infinity():
    nodes = torch.randn(3, 5, 4)
    nodes[1] = -math.inf
    log_prob = ts.LinearChain(nodes, torch.randn(4, 4)).log_prob(torch.zeros(3, 5).long())
    assert log_prob[1] == -math.inf
    assert log_prob[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_integers_of_any_width(dtype, unchecked):
    chain = ts.LinearChain(torch.randn(2, 4, 3), torch.randn(3, 3), torch.tensor([4, 2], dtype=dtype))
    paths = torch.tensor([[0, 1, 2, 0], [2, 1, 0, 0]])
    assert torch.equal(chain.score(paths.to(dtype)), chain.score(paths))
    subset = ts.Subset(torch.tensor([[0, 2]] * 4, dtype=dtype), torch.zeros(4, 2))
    assert chain.restrict(subset).log_partition().isfinite().all()
    log_p = torch.randn(3, 3).log_softmax(-1)
    assert ts.HMM(log_p[0], log_p, log_p, torch.tensor([0, 2, 1], dtype=dtype)).log_partition() < 0


def test_an_empty_place_hides_no_state():
    chain = ts.LinearChain(torch.tensor([[5.0, 0, 0]] * 2), torch.zeros(3, 3))
    index, log_weight = torch.tensor([[0, 0, 1]] * 2), torch.tensor([[-math.inf, 0, 0]] * 2)
    small = chain.restrict(ts.Subset(index, log_weight))
    assert small.argmax().tolist() == [0, 0]
    assert (small.topk(4).scores > -math.inf).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_mixing_embeddings_of_another_type(dtype):
    sample = ts.LinearChain(torch.randn(4, 5), torch.randn(5, 5)).rsample()
    embeddings = torch.randn(5, 3)
    torch.testing.assert_close(sample.mix(embeddings.to(dtype)), sample.mix(embeddings), rtol=1e-2, atol=1e-2)
