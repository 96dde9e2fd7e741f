"""Sketches of graphs without loops: right in expectation, and close where it is hard.

Replicates are a batch of identical graphs. Estimates are divided by the truth, so that they scatter around one.
"""

import math

import pytest
import torch

import tailsum as ts
from harness.statistics import Broken, z_score
from tailsum.graphs import graph_sweep

N = 5
EDGES = [(0, 1), (2, 1), (1, 3), (3, 5)]  # 4 is alone
TRIPLES = [(2, 0, 1), (5, 3, 2)]
SELECTIONS = {"optimal": ts.Optimal(2), "top and sample": ts.TopAndSample(1, 2)}
PROPOSALS = {
    "uniform": ts.Uniform(),
    "local": ts.Local(),
    "lookahead": ts.Lookahead(8),
    "lookahead, static": ts.Lookahead(8, sequential=False),
}
FEW = {
    "1": ts.Lookahead(1),
    "1, static": ts.Lookahead(1, sequential=False),
    "2, no rounds": ts.Lookahead(2, rounds=0),
}
REPLICATES = 6000


def randn(*shape, generator, forbidden=0.0):
    scores = torch.randn(*shape, generator=generator).double() * 0.7
    never = torch.rand(*shape, generator=generator) < forbidden
    return scores.masked_fill(never, -math.inf)


def nodes(g, lead, form):
    """Scores of single variables, the same for all of a batch."""
    if form == "factors":
        return ts.Factored(randn(6, 2, generator=g).expand(*lead, -1, -1), randn(N, 2, generator=g))
    return randn(6, N, generator=g).expand(*lead, -1, -1)


def pairs(lead=(), seed=0, forbidden=0.0, form="tables", unary="tables"):
    g = torch.Generator().manual_seed(seed)
    given = nodes(g, lead, unary)
    if form == "tables":
        pairwise = randn(4, N, N, generator=g, forbidden=forbidden)
    elif form == "one table":
        pairwise = randn(N, N, generator=g, forbidden=forbidden)
    elif form == "factors":
        pairwise = ts.Factored(randn(N, 2, generator=g), randn(N, 2, generator=g))
    elif form == "factors of edges":
        pairwise = ts.Factored(randn(4, N, 2, generator=g), randn(4, N, 2, generator=g))
    else:
        table = randn(4, N, N, generator=g, forbidden=forbidden)
        pairwise = ts.Scored(lambda i, j, e: table[e[..., 0], i, j], N, N, torch.arange(4)[:, None])
    return ts.PairwiseGraph(given, EDGES, pairwise)


def larger(lead=(), seed=0, forbidden=0.0, form="one by one", unary="tables"):
    """Two triples and a pair; 4 is joined with 5."""
    g = torch.Generator().manual_seed(seed)
    given, tables = nodes(g, lead, unary), randn(2, N, N, N, generator=g, forbidden=forbidden)
    pair = (5, 4), randn(N, N, generator=g, forbidden=forbidden)
    if form == "together":
        return ts.FactorGraph(given, [(torch.tensor(TRIPLES), tables), pair])
    if form == "one table":
        return ts.FactorGraph(given, [(torch.tensor(TRIPLES), tables[0]), pair])
    return ts.FactorGraph(given, [pair, *zip(TRIPLES, tables, strict=True)])


def with_form(make, **form):
    return lambda *args, **how: make(*args, **how, **form)


MAKE = {
    "tables": pairs,
    "one table": with_form(pairs, form="one table"),
    "factors": with_form(pairs, form="factors"),
    "factors of edges": with_form(pairs, form="factors of edges"),
    "a function": with_form(pairs, form="function"),
    "triples": larger,
    "triples together": with_form(larger, form="together"),
    "triples of one table": with_form(larger, form="one table"),
}
ONE_EACH = ["tables", "factors", "a function", "triples"]
FORBIDDING = ["tables", "one table", "a function", "triples", "triples together"]


def off(small, whole):
    """By how many standard errors the mean of the estimates misses the truth."""
    truth = whole.log_partition()
    assert whole.is_forest
    assert (truth > -math.inf).all()
    return z_score((small.log_partition() - truth).exp(), 1.0)


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", MAKE)
def test_partition(name, selection, proposal, generator):
    small = MAKE[name]((REPLICATES,)).sketch(
        proposal=PROPOSALS[proposal], selection=SELECTIONS[selection], generator=generator
    )
    assert off(small, MAKE[name]()) < 4.5


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", MAKE)
def test_a_wrong_weight_is_noticed(name, selection, generator):
    """Of 2%."""
    small = MAKE[name]((REPLICATES,)).sketch(
        proposal=PROPOSALS["lookahead"], selection=Broken(SELECTIONS[selection]), generator=generator
    )
    assert off(small, MAKE[name]()) > 4.5


@pytest.mark.parametrize("few", FEW)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", FORBIDDING)
def test_partition_where_much_is_forbidden(name, seed, few, generator):
    """40% of all joint states, and a single landmark: the states that it does not reach still count."""
    small = MAKE[name]((REPLICATES,), seed, 0.4).sketch(2, proposal=FEW[few], generator=generator)
    assert off(small, MAKE[name](seed=seed, forbidden=0.4)) < 4.5


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("few", FEW)
def test_partition_of_a_triple_of_which_a_landmark_sees_a_half(few, order, generator):
    """Two joint states are possible, and the one landmark of a variable goes with one of them."""
    table = torch.full((2, 2, 2), -math.inf).double()
    table[0, 0, 0] = table[0, 1, 1] = 0.0
    many = ts.FactorGraph(torch.zeros(REPLICATES, 3, 2).double(), [(order, table)])
    whole = ts.FactorGraph(torch.zeros(3, 2).double(), [(order, table)])
    assert off(many.sketch(1, proposal=FEW[few], generator=generator), whole) < 4.5


@pytest.mark.parametrize("proposal", ["uniform", "local"])
@pytest.mark.parametrize("name", ["tables", "triples"])
def test_partition_where_much_is_forbidden_without_looking(name, proposal, generator):
    small = MAKE[name]((20_000,), 1, 0.3).sketch(3, proposal=PROPOSALS[proposal], generator=generator)
    assert off(small, MAKE[name](seed=1, forbidden=0.3)) < 4.5


@pytest.mark.parametrize("few", ["1", "1, static"])
@pytest.mark.parametrize("name", ["tables", "triples"])
def test_the_test_above_sees_states_that_are_ruled_out(name, few, generator, monkeypatch):
    """Were what no landmark reaches taken for forbidden, sums would be too low."""
    monkeypatch.setattr(graph_sweep, "known", lambda sent: sent)
    small = MAKE[name]((REPLICATES,), 1, 0.4).sketch(2, proposal=FEW[few], generator=generator)
    assert off(small, MAKE[name](seed=1, forbidden=0.4)) > 4.5


@pytest.mark.parametrize("proposal", [ts.Global(), ts.LocalGlobal()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize(
    "make", [with_form(pairs, form="factors"), with_form(pairs, unary="factors"), with_form(larger, unary="factors")]
)
def test_partition_with_embeddings(make, proposal, generator):
    small = make((REPLICATES,)).sketch(2, proposal=proposal, generator=generator)
    assert off(small, make()) < 4.5


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_partition_of_different_graphs_in_a_batch(proposal, generator):
    unary = torch.randn(3, 6, N).double()
    pairwise = 0.7 * torch.randn(3, 4, N, N).double()
    pairwise[1, :, 0, 1:] = -math.inf
    whole = ts.PairwiseGraph(unary, EDGES, pairwise)
    many = ts.PairwiseGraph(unary.expand(REPLICATES, -1, -1, -1), EDGES, pairwise)
    assert off(many.sketch(3, proposal=PROPOSALS[proposal], generator=generator), whole) < 4.5


@pytest.mark.parametrize("schedule", ["sweep", "flooding"])
def test_partition_by_either_schedule(schedule, generator):
    g = torch.Generator().manual_seed(1)
    unary, pairwise = randn(6, N, generator=g), randn(N, N, generator=g)
    whole = ts.PairwiseGraph(unary, EDGES, pairwise, schedule=schedule)
    many = ts.PairwiseGraph(unary.expand(REPLICATES, -1, -1), EDGES, pairwise, schedule=schedule)
    assert off(many.sketch(2, proposal=ts.Lookahead(4), generator=generator), whole) < 4.5


@pytest.mark.parametrize("first", ["uniform", "lookahead"])
@pytest.mark.parametrize("name", ["tables", "triples"])
def test_a_sketch_of_a_sketch(name, first, generator):
    small = MAKE[name]((REPLICATES,)).sketch(4, proposal=PROPOSALS[first], generator=generator)
    for proposal in ("local", "lookahead"):
        again = small.sketch(2, proposal=PROPOSALS[proposal], generator=generator)
        assert again.whole is small.whole
        assert off(again, MAKE[name]()) < 4.5


def spread(model):
    """The chances of all states of all variables, flattened."""
    return model.scatter(model.marginals()).flatten(-2)


@pytest.mark.parametrize("proposal", ["local", "lookahead"])
@pytest.mark.parametrize("name", ONE_EACH)
def test_expected_sums_are_unbiased(name, proposal, generator):
    """Z times marginals: the gradient of Z in the scores."""
    whole = MAKE[name]()
    small = MAKE[name]((REPLICATES,)).sketch(3, proposal=PROPOSALS[proposal], generator=generator)
    ratio = (small.log_partition() - whole.log_partition()).exp()
    assert z_score(ratio[:, None] * spread(small), spread(whole)) < 4.5


@pytest.mark.parametrize("name", ONE_EACH)
def test_log_partition_is_a_lower_bound_in_expectation(name, generator):
    error = MAKE[name]((REPLICATES,)).sketch(2, proposal=ts.Uniform(), generator=generator).log_partition()
    error = error - MAKE[name]().log_partition()
    assert error.mean() < -4.5 * error.std() / math.sqrt(len(error))


@pytest.mark.parametrize("proposal", [*PROPOSALS, *FEW])
@pytest.mark.parametrize("name", MAKE)
def test_keeping_all_states_is_exact(name, proposal):
    model = MAKE[name]((2,))
    small = model.sketch(N, proposal={**PROPOSALS, **FEW}[proposal])
    torch.testing.assert_close(small.log_partition(), model.log_partition(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("proposal", [*PROPOSALS, "1"])
@pytest.mark.parametrize("name", ["tables", "triples"])
def test_a_sketch_follows_its_generator(name, proposal):
    model, chosen = MAKE[name]((20,)), {**PROPOSALS, **FEW}[proposal]
    one, same, other = (
        model.sketch(2, proposal=chosen, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(one.states, same.states)
    assert torch.equal(one.log_weight, same.log_weight)
    assert not torch.equal(one.states, other.states)


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("name", ["tables", "triples"])
def test_top_k_is_too_low(name, proposal):
    model = MAKE[name]((2,))
    for k in range(1, N):
        found = model.sketch(selection=ts.TopK(k), proposal=PROPOSALS[proposal]).log_partition()
        assert (found < model.log_partition()).all()


# Where local scores mislead.


def hard_pairs(replicates, seed):
    """A tree of ten variables and 150 states, whose neighbours matter more than their own scores."""
    g = torch.Generator().manual_seed(seed)
    unary = torch.randn(10, 150, generator=g).double()
    left, right = 1.5 * torch.randn(2, 150, 4, generator=g).double()
    edges = [(i, (i - 1) // 2) for i in range(1, 10)]
    return ts.PairwiseGraph(unary.expand(replicates, -1, -1), edges, ts.Factored(left, right))


def hard_triples(replicates, seed):
    g = torch.Generator().manual_seed(seed)
    unary = torch.randn(7, 24, generator=g).double()
    triples = 3 * torch.randn(3, 24, 24, 24, generator=g).double()
    scopes = torch.tensor([(0, 1, 2), (2, 3, 4), (5, 4, 6)])
    return ts.FactorGraph(unary.expand(replicates, -1, -1), [(scopes, triples)])


def rmse(model, k, proposal):
    found = model.sketch(k, proposal=proposal, generator=torch.Generator().manual_seed(0)).log_partition()
    return (found - model.log_partition()).square().mean().sqrt().item()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("make", "k", "proposal", "least"),
    [(hard_pairs, 12, None, 3), (hard_triples, 6, None, 3), (hard_pairs, 12, ts.Lookahead(10), 2)],
)
def test_lookahead_beats_local(make, k, proposal, least, seed):
    """By default, with more landmarks than these graphs have states; and with few landmarks."""
    model = make(40, seed)
    assert least * rmse(model, k, proposal) < rmse(model, k, ts.Local())
