"""The same model as a graph of pairs, a graph of factors, a chain or a hidden Markov model."""

import math

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.registry import small


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
    case = small("pairs-tree", seed=4, forbidden=0.1)
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
