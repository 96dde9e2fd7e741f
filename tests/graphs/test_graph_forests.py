"""Graphs without loops: every operation equals enumeration, whole, sketched with all states, and restricted to some."""

import math
from random import Random

import pytest
import torch
from harness.cases import WAYS, made, random_subset
from harness.graph_cases import EXACT, FORESTS, GRAPHS, FactorCase, GraphTruth, PairCase, another, named, possible
from hypothesis import given, note, settings
from hypothesis import strategies as st

import tailsum as ts
from harness.agree import agrees, close, divergences_agree, frequencies_agree, scores_agree
from harness.derivatives import check
from tailsum.numerics.noise import gumbel

SEEDS = st.integers(0, 2**32)
BOTH = [(name, way) for name in FORESTS for way in ("whole", "restricted")]
FEW = ["tree", "isolated, factored unary", "star, scored", "no edges", "ragged", "mixed"]
FEW_OF_BOTH = [(name, way) for name, way in BOTH if name in FEW]
PASSED = [
    {"schedule": schedule, "gradient": gradient}
    for schedule in ("sweep", "flooding")
    for gradient in ("implicit", "unrolled")
]


@pytest.mark.parametrize("graph", GRAPHS)
@settings(max_examples=20)
@given(SEEDS)
def test_every_operation_equals_enumeration(graph, seed):
    r = Random(seed)
    case, way = GRAPHS[graph](r), r.choice(WAYS)
    note((case, way))
    model = made(case, way, seed)
    assert model.is_forest
    assert model.convergence().converged.all()
    agrees(case, model)
    for found, expected in case.joints(model, case.truths(model)):
        close(found, expected)


@pytest.mark.parametrize("graph", GRAPHS)
@settings(max_examples=20)
@given(SEEDS)
def test_gradients_equal_those_of_enumeration(graph, seed):
    """In all parameters; finite where something is forbidden, and zero where nothing is possible."""
    r = Random(seed)
    case, way = GRAPHS[graph](r), r.choice(["whole", "restricted"])
    note((case, way))
    subset = made(case, way, seed).kept
    leaves = [x.requires_grad_() for x in case.leaves]
    model = case.model(*leaves)
    model = model if subset is None else model.restrict(subset)
    truths = case.truths(model, *leaves)
    live = torch.tensor([truth.possible for truth in truths])
    mix = torch.randn(case.length, case.n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = {
        "log_partition": lambda x: x.log_partition,
        "entropy": lambda x: x.entropy,
        "marginals": lambda x: (x.marginals * mix).sum(),
    }
    found = {
        "log_partition": case.flat(model.log_partition()),
        "entropy": case.flat(model.entropy()),
        "marginals": (case.marginals(model) * mix).sum((-2, -1)),
    }
    for name, value in values.items():
        # Through impossible ones too: they must give zero, not NaN.
        total = torch.where(live, found[name], 0.0).sum() + found[name].nan_to_num(neginf=0.0).sum()
        expected = sum((2 * value(x) for x in truths if x.possible), torch.zeros(()).double())
        gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True, retain_graph=True)
        if not expected.requires_grad:
            assert all(x.eq(0).all() for x in gradients)
            continue
        wanted = torch.autograd.grad(expected, leaves, allow_unused=True, materialize_grads=True, retain_graph=True)
        for a, b in zip(gradients, wanted, strict=True):
            close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("schedule", ["sweep", "flooding"])
@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
@pytest.mark.parametrize("name", ["tree", "ternary"])
def test_marginals_are_the_gradient_of_the_log_partition(name, schedule, gradient):
    case = named(name, seed=3, forbidden=0.1, how={"schedule": schedule, "gradient": gradient})
    unary, *rest = case.leaves
    unary.requires_grad_()
    model = case.model(unary, *rest)
    (slope,) = torch.autograd.grad(model.log_partition().sum(), unary)
    close(slope, model.marginals().detach())


@pytest.mark.parametrize("graph", GRAPHS)
@settings(max_examples=15)
@given(SEEDS)
def test_divergences_equal_enumeration(graph, seed):
    r = Random(seed)
    case, way = GRAPHS[graph](r), r.choice(WAYS)
    other = another(case, r)
    note((case, way, other))
    divergences_agree(case, made(case, way, seed), other)


@pytest.mark.parametrize("graph", GRAPHS)
@settings(max_examples=20)
@given(SEEDS)
def test_scores_of_configurations(graph, seed):
    r = Random(seed)
    case, way = GRAPHS[graph](r), r.choice(WAYS)
    note((case, way))
    scores_agree(case, made(case, way, seed), r)


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_samples_follow_the_distribution(name, way, generator):
    case, model = possible(name, way, forbidden=0.1)
    count = 20_000
    sample = model.sample((200, count // 200), generator=generator)
    assert sample.shape == (200, count // 200, 2, case.length)
    frequencies_agree(case, model, sample, count)


@pytest.mark.parametrize("name", ["tree", "mixed"])
def test_many_samples_are_drawn_in_parts(name, monkeypatch):
    case, model = possible(name)
    monkeypatch.setattr("tailsum.graphs.graph.tile_rows", lambda *_: 16)
    rows = case.rows(model.sample((3, 40), generator=torch.Generator().manual_seed(0)))
    assert len(rows) == 120
    assert len(rows.flatten(1)[:32].unique(dim=0)) > len(rows.flatten(1)[:16].unique(dim=0))  # not copies of the first
    for b, truth in enumerate(case.truths()):
        assert all(truth.scores[truth.index_of(case.read(row))] > -math.inf for row in rows[:, b])


# Relaxed samples.


def noisy_truths(case, model, seed, temperature):
    """The truth under scores with the noise that a sample with this seed gets, divided by the temperature."""
    unary = model.node_scores() + model.log_weight
    noisy = gumbel(unary.expand(3, *unary.shape), torch.Generator().manual_seed(seed)) / temperature
    factors = [
        (variables, case.of_batch(x, *x.shape[x.dim() - len(variables) :]) / temperature)
        for variables, x in case.factor_tables(case.marked()[case.n_unary :])
        if len(variables) > 1  # the others are in the scores of the variables
    ]
    return {
        (s, b): GraphTruth(noisy[s, b], [(variables, x[b]) for variables, x in factors])
        for s in range(3)
        for b in range(2)
    }


@pytest.mark.parametrize("name", FORESTS)
def test_relaxed_samples_are_marginals_of_noisy_scores(name):
    case, model = possible(name, forbidden=0.1)
    sample = model.rsample(0.7, generator=torch.Generator().manual_seed(5), sample_shape=(3,))
    rows = case.rows(sample.hard)
    assert torch.equal(sample.states, model.states)
    for (s, b), truth in noisy_truths(case, model, 5, 0.7).items():
        close(sample.weights[s, b], truth.marginals)
        assert truth.index_of(case.read(rows[s, b])) == truth.scores.argmax()


@pytest.mark.parametrize(("name", "way"), FEW_OF_BOTH)
@pytest.mark.parametrize("how", ["soft", "cold", "hard"])
def test_relaxed_samples_are_distributions_and_cold_or_hard_ones_configurations(name, way, how):
    case, model = possible(name, way, forbidden=0.1)
    temperature = 1e-6 if how == "cold" else 0.7
    g = torch.Generator().manual_seed(1)
    sample = model.rsample(temperature, hard=how == "hard", generator=g, sample_shape=(2, 2))
    weights = model.scatter(sample.weights).reshape(4, 2, case.length, case.n)
    close(weights.sum(-1), torch.ones(4, 2, case.length).double())
    assert ((weights >= 0) & (weights <= 1 + 1e-12)).all()
    rows = case.rows(sample.hard)
    for b, truth in enumerate(case.truths(model)):
        for s in range(4):
            c = truth.index_of(case.read(rows[s, b]))
            assert truth.scores[c] > -math.inf
            if how != "soft":
                close(weights[s, b], truth.parts[c], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["tree", "ternary"])
def test_hard_samples_have_the_relaxed_gradient(name):
    case = named(name, seed=3)
    leaves = [x.requires_grad_() for x in case.leaves]
    mix = torch.randn(2, case.length, case.n).double()
    soft, hard = (
        case.model(*leaves).rsample(0.7, hard=hard, generator=torch.Generator().manual_seed(1)).weights
        for hard in (False, True)
    )
    assert not torch.equal(soft, hard)
    expected = torch.autograd.grad((soft * mix).sum(), leaves)
    assert any(x.abs().max() > 0.01 for x in expected)
    for a, b in zip(torch.autograd.grad((hard * mix).sum(), leaves), expected, strict=True):
        close(a, b)


# Impossible graphs.

IMPOSSIBLE = [
    *(("tree", how) for how in PASSED),
    *((name, PASSED[0]) for name in ("no edges", "star, scored", "two components, factored", "quaternary")),
    ("ternary", PASSED[3]),
]


@pytest.mark.parametrize(("name", "how"), IMPOSSIBLE)
def test_one_impossible_graph_of_two(name, how):
    case = named(name, seed=3, how=how)
    alone = named(name, seed=3, how=how).model()
    case.block(1)
    leaves = [x.requires_grad_() for x in case.leaves]
    model = case.model(*leaves)
    log_partition, entropy, marginals = model.log_partition(), model.entropy(), model.marginals()
    assert log_partition[1] == entropy[1] == -math.inf
    assert marginals[1].eq(0).all()
    for variables, x in case.factor_beliefs(model):
        assert x[1].eq(0).all(), variables
    assert model.argmax()[1].eq(-1).all()
    assert model.sample((3,))[:, 1].eq(-1).all()
    top = model.topk(2)
    assert top.configurations[:, 1].eq(-1).all()
    assert top.scores[:, 1].eq(-math.inf).all()
    relaxed = model.rsample(0.5)
    assert relaxed.hard[1].eq(-1).all()
    assert relaxed.weights[1].eq(0).all()
    assert model.kl(model)[1] == math.inf
    assert not model.cross_entropy(model).isnan().any()
    for mine, other in (
        (log_partition, alone.log_partition()),
        (entropy, alone.entropy()),
        (marginals, alone.marginals()),
    ):
        close(mine[0], other[0])
    for x in (log_partition, entropy, marginals.square(), relaxed.weights.square()):
        gradients = torch.autograd.grad(
            x.sum(), leaves, allow_unused=True, materialize_grads=True, retain_graph=True, create_graph=True
        )
        assert not any(g.isnan().any() for g in gradients)
        assert gradients[0][1].eq(0).all()
        twice = [g.square().sum() for g in gradients if g.requires_grad]
        if twice:
            again = torch.autograd.grad(
                sum(twice), leaves, allow_unused=True, materialize_grads=True, retain_graph=True
            )
            assert not any(g.isnan().any() for g in again)


@pytest.mark.parametrize("schedule", ["sweep", "flooding"])
def test_a_graph_impossible_by_its_pairs_alone(schedule):
    """Every state is allowed, every pair of some edge too, but no configuration: 0 - 1 - 2 must be equal, and are not."""
    equal = torch.eye(3).double().log()
    unary = torch.zeros(3, 3).double()
    unary[0, 0] = unary[2, 1] = unary[2, 2] = -math.inf
    unary[1, 1] = unary[1, 2] = -math.inf
    unary.requires_grad_()
    model = ts.PairwiseGraph(unary, [(1, 0), (1, 2)], equal, schedule=schedule)
    assert model.log_partition() == model.entropy() == -math.inf
    assert model.marginals().eq(0).all()
    assert model.pair_marginals().eq(0).all()
    assert model.argmax().tolist() == model.sample().tolist() == [-1, -1, -1]
    (gradient,) = torch.autograd.grad(model.log_partition() + model.entropy(), unary)
    assert gradient.eq(0).all()


# The same model in another form.


def chain_parts(seed, lead=(4,)):
    g = torch.Generator().manual_seed(seed)
    emission = torch.randn(2, 5, 3, generator=g, dtype=torch.float64)
    transition = torch.randn(*lead, 3, 3, generator=g, dtype=torch.float64)
    transition = transition.masked_fill(torch.rand(transition.shape, generator=g) < 0.1, -math.inf)
    return emission.requires_grad_(), transition.requires_grad_()


def chain_subset(seed):
    g = torch.Generator().manual_seed(seed)
    index = torch.randint(3, (2, 5, 2), generator=g)
    return ts.Subset(index, torch.randn(2, 5, 2, generator=g, dtype=torch.float64))


@pytest.mark.parametrize(
    ("lead", "kept", "how"),
    [
        *((lead, kept, {}) for lead in ((), (4,), (2, 4)) for kept in ("whole", "restricted")),
        ((2, 4), "restricted", {"schedule": "flooding"}),
        ((), "whole", {"gradient": "unrolled"}),
    ],
)
def test_a_chain_as_a_graph_equals_a_linear_chain(lead, kept, how):
    edges = [(0, 1), (1, 2), (2, 3), (3, 4)]
    results = []
    for build in (lambda e, t: ts.PairwiseGraph(e, edges, t, **how), ts.LinearChain):
        emission, transition = chain_parts(6, lead)
        model = build(emission, transition)
        model = model.restrict(chain_subset(2)) if kept == "restricted" else model
        values = [model.log_partition(), model.entropy(), model.marginals(), model.pair_marginals()]
        gradients = [torch.autograd.grad(x.sum(), (emission, transition), retain_graph=True) for x in values[:2]]
        gradients += [
            torch.autograd.grad(x.square().sum(), (emission, transition), retain_graph=True) for x in values[2:]
        ]
        top = model.topk(4)
        results.append([*values, *(x for pair in gradients for x in pair), model.argmax(), *top])
    for found, expected in zip(*results, strict=True):
        assert not expected.isnan().any()
        close(found, expected)


def test_a_chain_written_backwards_and_renumbered_equals_a_linear_chain():
    emission, transition = chain_parts(6, ())
    place = torch.tensor([3, 0, 4, 1, 2])  # position t of the chain is variable place[t]
    unary = torch.empty_like(emission).index_copy(1, place, emission)
    edges = torch.stack((place[1:], place[:-1]), 1).flip(0)
    graph, chain = ts.PairwiseGraph(unary, edges, transition.mT), ts.LinearChain(emission, transition)
    close(graph.log_partition(), chain.log_partition())
    close(graph.entropy(), chain.entropy())
    close(graph.marginals()[:, place], chain.marginals())
    close(graph.pair_marginals().flip(1).mT, chain.pair_marginals())
    assert torch.equal(graph.argmax()[:, place], chain.argmax())


def test_a_tree_of_hidden_and_observed_variables_equals_an_hmm():
    """Observations are variables of their own, of 4 states, each seen in one of them; the hidden ones have 3."""
    g = torch.Generator().manual_seed(0)
    initial, transition, emission = (
        torch.randn(*shape, generator=g, dtype=torch.float64).log_softmax(-1) for shape in ((3,), (3, 3), (3, 4))
    )
    observations = torch.tensor([2, 0, -1, 3])
    hidden = [initial if t == 0 else torch.zeros(3).double() for t in range(4)]
    seen = [
        torch.zeros(4).double() if x < 0 else torch.zeros(4).double().masked_fill(torch.arange(4) != x, -math.inf)
        for x in observations.tolist()
    ]
    edges = [(t, t + 1) for t in range(3)] + [(t, 4 + t) for t in range(4)]
    tables = [transition] * 3 + [emission] * 4
    graph = ts.PairwiseGraph(hidden + seen, edges, tables)
    factors = ts.FactorGraph(
        hidden + seen, [(torch.tensor(edges[:3]), transition), *(((t, 4 + t), emission) for t in range(4))]
    )
    hmm = ts.HMM(initial, transition, emission, observations)
    for model in (graph, factors):
        close(model.log_partition(), hmm.log_partition())
        close(model.marginals()[:4, :3], hmm.marginals())
        close(model.marginals()[6], hmm.marginals()[2] @ emission.exp())  # of the one that was not observed
        assert model.marginals()[:4, 3].eq(0).all()


@pytest.mark.parametrize("how", [{}, {"schedule": "flooding"}], ids=str)
def test_factors_of_two_equal_pairs(how):
    case = named("tree", seed=4, forbidden=0.1)
    unary, pairs = case.marked()
    graph = ts.PairwiseGraph(unary, case.edges, pairs, **how)
    grouped = ts.FactorGraph(unary, [(torch.tensor(case.edges), pairs)], **how)
    single = ts.FactorGraph(unary, [(edge, pairs[:, e]) for e, edge in enumerate(case.edges)], **how)
    for model in (grouped, single):
        for operation in ("log_partition", "entropy", "marginals", "argmax"):
            close(getattr(model, operation)(), getattr(graph, operation)())
        close(torch.cat(model.factor_marginals(), 1), graph.pair_marginals())


def test_factors_over_one_variable_are_unary_scores():
    unary, extra = torch.randn(2, 3, 4).double(), torch.randn(2, 3, 4).double()
    pair = ((0, 2), torch.randn(4, 4).double())
    plain = ts.FactorGraph(unary + extra, [pair])
    for factors in (
        [(torch.tensor([[0], [1], [2]]), extra)],
        [((i,), extra[:, i]) for i in (2, 0, 1)],
        [((1,), extra[:, 1]), (torch.tensor([[2], [0]]), extra[:, [2, 0]])],
    ):
        model = ts.FactorGraph(unary, [*factors, pair])
        close(model.log_partition(), plain.log_partition())
        close(model.marginals(), plain.marginals())
        assert torch.equal(model.argmax(), plain.argmax())


def test_divergence_between_factors_over_different_states_is_refused():
    """By a list a variable has two states, by minus infinity three, one of them forbidden."""
    table = torch.randn(2, 3).double()
    ragged = ts.FactorGraph([torch.zeros(2).double(), torch.zeros(3).double()], [((0, 1), table)])
    unary = torch.tensor([[0.0, 0.0, -math.inf], [0.0, 0.0, 0.0]]).double()
    padded = ts.FactorGraph(unary, [((0, 1), torch.nn.functional.pad(table, (0, 0, 0, 1)))])
    close(ragged.log_partition(), padded.log_partition())
    with pytest.raises(ValueError, match="other must have the same positions and states"):
        ragged.kl(padded)


# Derivatives.

CYCLE = [(0, 1), (2, 1), (0, 2)]
SMALL = {
    "path": (PairCase, {"length": 3, "n": 2, "edges": CYCLE[:2], "lead": "both"}),
    "cycle": (PairCase, {"length": 3, "n": 2, "edges": CYCLE, "lead": "both", "scale": 0.4}),
    "cycle, factored": (
        PairCase,
        {"length": 3, "n": 3, "edges": CYCLE, "pairs": "factored", "scale": 0.4, "own": ((2,), ())},
    ),
    "grid": (PairCase, {"length": 6, "n": 2, "edges": ts.grid_edges(2, 3).tolist(), "lead": "edge", "scale": 0.4}),
    "loop of larger factors": (
        FactorCase,
        {"length": 4, "n": 2, "groups": [([(0, 1, 2)], (2, 2, 2), "both"), ([(3, 0), (2, 3)], (2, 2), "both")], "scale": 0.4},
    ),
}  # fmt: skip
DERIVED = [
    *((name, how) for name in ("path", "cycle") for how in PASSED),
    *((name, PASSED[0]) for name in ("two components, factored", "cycle, factored", "loop of larger factors")),
    *((name, how) for name in ("ternary", "grid") for how in PASSED[1:3]),
]


def small(name, **how):
    if name not in SMALL:
        return named(name, seed=2, **how)
    kind, fixed = SMALL[name]
    return kind(**{"batch": (2,), "own": ((2,), (2,)), "seed": 2, **fixed, **how})


def way_of(how):
    return "-".join(how.values()) if isinstance(how, dict) else how


@pytest.mark.parametrize(("name", "how"), DERIVED, ids=way_of)
def test_first_and_second_derivatives(name, how):
    """Of log-partition, marginals and entropy, with a forbidden state."""
    case = small(name, how={**how, **EXACT})
    case.banned[0][0, 0, 0] = True
    assert case.model().is_forest == (name in {"path", *FORESTS})

    def run(*leaves):
        model = case.model(*leaves)
        return model.log_partition(), model.marginals(), model.entropy()

    check(run, case.leaves)


@pytest.mark.parametrize("how", PASSED, ids=way_of)
def test_derivatives_where_pairs_are_forbidden(how):
    case = small("cycle", how={**how, **EXACT})
    case.banned[1][:, 0, 0, 1] = case.banned[1][1, 1, 1, 1] = True

    def run(*leaves):
        model = case.model(*leaves)
        return model.log_partition(), model.marginals(), model.entropy()

    check(run, case.leaves, twice=False)


@pytest.mark.parametrize("name", ["tree", "mixed", "cycle"])
def test_derivatives_of_other_operations(name):
    case = small(name, how=EXACT)
    other = case.sibling(seed=3).model()
    subset = random_subset(case, case.model(), seed=1, k=2)

    def run(*leaves):
        model = case.model(*leaves)
        small = model.restrict(subset)
        found = [model.kl(other), other.kl(model), model.cross_entropy(other), small.log_partition(), small.entropy()]
        found += [x for _, x in case.factor_beliefs(model)]
        found.append(model.rsample(0.7, generator=torch.Generator().manual_seed(1)).weights)
        return [x[x.isfinite()] for x in found]

    check(run, case.leaves, twice=False)


# Types and modes.


def values(model, other=None):
    return [model.log_partition(), model.entropy(), model.marginals(), model.kl(other or model)]


@pytest.mark.parametrize(("name", "way"), FEW_OF_BOTH)
def test_single_precision_agrees(name, way):
    case, model = possible(name, way, forbidden=0.1)
    other = case.sibling(seed=50, forbidden=0.0)
    singles = [x.model(*(leaf.float() for leaf in x.leaves)) for x in (case, other)]
    single = singles[0] if model.kept is None else singles[0].restrict(model.kept)
    for found, expected in zip(values(single, singles[1]), values(model, other.model()), strict=True):
        assert (found.dtype, expected.dtype) == (torch.float32, torch.float64)
        close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["tree", "star, scored", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name, dtype):
    case = named(name, seed=8)
    leaves = [x.to(dtype).requires_grad_() for x in case.leaves]
    model, exact = case.model(*leaves), case.model(*(x.detach().double() for x in leaves))
    rough = "scored" in name  # the function itself is evaluated in half precision
    for half, double in zip(values(model), values(exact), strict=True):
        assert half.dtype == torch.float32
        close(half.double(), double, **({"rtol": 0.1, "atol": 0.1} if rough else {"rtol": 1e-4, "atol": 1e-5}))
    total = model.log_partition().sum() + model.entropy().sum()
    gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    for gradient in gradients:
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("mode", "way"),
    [(torch.inference_mode, "whole"), (torch.inference_mode, "lookahead"), (torch.no_grad, "restricted")],
)
@pytest.mark.parametrize("name", ["tree", "star, scored", "no edges", "mixed"])
def test_modes_without_gradients(name, way, mode):
    case, model = possible(name, way, forbidden=0.1)
    expected = [*values(model), *(x for _, x in case.factor_beliefs(model)), model.argmax()]
    leaves = [x.clone().requires_grad_() for x in case.leaves]
    with mode():
        fresh = case.model(*(x + 0 for x in leaves))
        fresh = fresh if model.kept is None else fresh.restrict(model.kept)
        for x in (fresh, model):
            found = [*values(x), *(y for _, y in case.factor_beliefs(x)), x.argmax()]
            for a, b in zip(found, expected, strict=True):
                assert not a.requires_grad
                close(a, b)
            g = torch.Generator().manual_seed(0)
            others = [x.topk(2).scores, x.sample((2,), generator=g), x.rsample(generator=g).weights, x.cross_entropy(x)]
            assert not any(y.requires_grad or y.isnan().any() for y in others)


def test_parameters_in_inference_mode():
    """Scores of pairs that are made of parameters and of what a network gives."""
    net, states = torch.nn.Linear(2, 3), torch.nn.Parameter(torch.randn(4, 3))
    given, nodes = torch.randn(3, 2), torch.randn(4, 4)

    def results():
        pairs = ts.Scored(lambda i, j, context: (states[i] * states[j] * context).sum(-1), 4, 4, net(given))
        model = ts.PairwiseGraph(nodes, [(0, 1), (1, 2), (2, 3)], pairs)
        g = torch.Generator().manual_seed(0)
        return model.marginals(), model.entropy(), model.rsample(generator=g).weights, model.cross_entropy(model)

    with torch.no_grad():
        expected = results()
    with torch.inference_mode():
        found = results()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", FEW)
def test_without_gradients_nothing_is_recorded(name):
    assert not any(x.requires_grad for x in values(named(name).model()))


@pytest.mark.parametrize("name", FEW)
def test_inputs_are_never_changed(name):
    case = named(name, seed=8)
    before = [x.clone() for x in case.leaves]
    for way in ("whole", "lookahead"):
        model = made(case, way)
        values(model), model.topk(2), model.sample(), model.rsample()
    assert all(torch.equal(x, y) for x, y in zip(case.leaves, before, strict=True))


@pytest.mark.parametrize("name", FORESTS)
def test_restricting_twice_is_restricting_once(name):
    case = named(name, seed=2)
    model = case.model()
    first = model.restrict(random_subset(case, model, seed=1, k=3))
    second = first.restrict(random_subset(case, first, seed=2, k=2, shared=True))
    assert second.whole is model
    assert second.n_states == 2
    for b, truth in enumerate(case.truths(second)):
        close(second.log_partition()[b], truth.log_partition)
        close(case.marginals(second)[b], truth.marginals)
        if truth.possible:
            close(second.entropy()[b], truth.entropy)


@pytest.mark.parametrize("way", ["some states", "static lookahead", "lookahead"])
@pytest.mark.parametrize("name", FORESTS)
def test_sketches_sum_over_the_states_they_keep(name, way):
    case = named(name, seed=2)
    model = made(case, way)
    assert model.n_states == (max(1, case.n - 1) if way == "some states" else case.n)
    for b, truth in enumerate(case.truths(model)):
        close(model.log_partition()[b], truth.log_partition)
        close(case.marginals(model)[b], truth.marginals)


@pytest.mark.parametrize("name", FORESTS)
def test_large_scores_and_offsets(name):
    case = named(name, seed=11, scale=50.0, forbidden=0.1)
    case.shift(1e4)
    for way in ("whole", "restricted"):
        model = made(case, way)
        log_partition, entropy, marginals = model.log_partition(), model.entropy(), case.marginals(model)
        for b, truth in enumerate(case.truths(model)):
            close(log_partition[b], truth.log_partition)
            close(marginals[b], truth.marginals)
            if truth.possible:
                close(entropy[b], truth.entropy, rtol=1e-9, atol=1e-7)
