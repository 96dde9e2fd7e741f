"""Sketched sums have the right expectation, for every selection and every proposal; a broken weight is noticed."""

import math

import pytest
import torch

import tailsum as ts
from harness.statistics import Broken, z_score
from tailsum.sketch.proposal import Custom

REPLICATES = 100_000
SELECTIONS = {
    "optimal": ts.Optimal(3),
    "top and sample, one": ts.TopAndSample(2, 1),
    "top and sample, many": ts.TopAndSample(1, 4),
    "sample alone": ts.TopAndSample(0, 3),
}
PROPOSALS = {
    "uniform": ts.Uniform(),
    "local": ts.Local(),
    "global": ts.Global(),
    "global softmax": ts.Global(softmax=True),
    "local and global": ts.LocalGlobal(),
    "lookahead": ts.Lookahead(2, 1, neighbours=0),
    "lookahead, static": ts.Lookahead(2, 1, sequential=False, neighbours=0),
    "neighbours": ts.Lookahead(2, 1, neighbours=1),
    "user's": lambda model: model.node_scores() * 0.5,
}


def chain(replicates):
    g = torch.Generator().manual_seed(4)
    context, states, left, right = (torch.randn(*s, 2, generator=g).double() * 0.8 for s in ((3,), (6,), (6,), (6,)))
    return ts.LinearChain(ts.Factored(context.expand(replicates, 3, 2), states), ts.Factored(left, right))


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_partition(selection, proposal, generator):
    truth = chain(1).log_partition().exp()
    small = chain(REPLICATES).sketch(proposal=PROPOSALS[proposal], selection=SELECTIONS[selection], generator=generator)
    assert z_score(small.log_partition().exp(), truth) < 4


@pytest.mark.parametrize("proposal", ["lookahead", "lookahead, static"])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_wrong_weight_is_noticed(selection, proposal, generator):
    truth = chain(1).log_partition().exp()
    small = chain(REPLICATES).sketch(
        proposal=PROPOSALS[proposal], selection=Broken(SELECTIONS[selection]), generator=generator
    )
    assert z_score(small.log_partition().exp(), truth) > 4


@pytest.mark.parametrize("proposal", ["lookahead", "lookahead, static"])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_partition_with_forbidden_transitions(selection, proposal, generator):
    """States that no landmark reaches must not be ruled out."""
    g = torch.Generator().manual_seed(6)
    nodes, pairs = torch.randn(4, 7, generator=g).double(), torch.randn(7, 7, generator=g).double()
    pairs[torch.rand(7, 7, generator=g) < 0.4] = -math.inf
    truth = ts.LinearChain(nodes, pairs).log_partition().exp()
    small = ts.LinearChain(nodes.expand(REPLICATES, 4, 7), pairs).sketch(
        proposal=PROPOSALS[proposal], selection=SELECTIONS[selection], generator=generator
    )
    assert z_score(small.log_partition().exp(), truth) < 4


def test_lookahead_on_a_sparse_chain(generator):
    """Three successors a state, most of them reached by no landmark: still close."""
    n = 1000
    pairs, states = torch.full((n, n), -math.inf).double(), torch.arange(n)
    for step in range(3):
        pairs[states, (states + step) % n] = torch.randn(n, generator=generator).double()
    chain = ts.LinearChain(torch.randn(8, n, generator=generator).double().expand(40, 8, n), pairs)
    error = chain.sketch(100, proposal=ts.Lookahead(256), generator=generator).log_partition() - chain.log_partition()
    assert error.square().mean().sqrt() < 0.3


def test_zero_embeddings_rule_out_no_state(generator):
    left = torch.randn(6, 2, generator=generator).double()
    left[2] = 0
    for states in (left, torch.zeros(6, 2).double()):
        for proposal in (ts.Global(), ts.LocalGlobal()):
            log_q = proposal(ts.LinearChain(torch.randn(3, 6).double(), ts.Factored(states, left)))
            assert (log_q > -math.inf).all()


def test_log_partition_is_a_lower_bound_in_expectation(generator):
    """The corollary of the paper's Theorem 1 (Jensen's inequality)."""
    small = chain(REPLICATES).sketch(3, proposal=ts.Uniform(), generator=generator)
    error = small.log_partition() - chain(1).log_partition()
    assert error.mean() < -4 * error.std() / math.sqrt(REPLICATES)


def test_expected_sums_are_unbiased(generator):
    """Z times marginals: the gradient of Z in the node scores, spread over all states."""
    whole = chain(1)
    truth = (whole.log_partition().exp()[..., None, None] * whole.marginals())[0]
    small = chain(REPLICATES).sketch(3, proposal=ts.Lookahead(2, 1, neighbours=0), generator=generator)
    estimates = small.scatter(small.log_partition().exp()[..., None, None] * small.marginals())
    assert z_score(estimates.flatten(1), truth.flatten()) < 4.5


def test_top_k_is_too_low():
    assert (chain(1).sketch(selection=ts.TopK(5), proposal=ts.Local()).log_partition() < chain(1).log_partition()).all()


def test_lookahead_comes_close_where_local_scores_mislead(generator):
    """A peaked chain: the error in nats, against the paper's proposal and selection at the same number of states."""
    states, right = torch.randn(2, 500, 16, generator=generator).double()
    context = torch.randn(40, 20, 16, generator=generator).double() * 0.25
    model = ts.LinearChain(ts.Factored(context, states), ts.Factored(states * 0.75, right))
    exact = model.log_partition()

    def error(**how):
        return (model.sketch(generator=generator, **how).log_partition() - exact).square().mean().sqrt()

    ours = error(selection=ts.Optimal(50))
    static = error(selection=ts.Optimal(50), proposal=ts.Lookahead(sequential=False))
    paper = error(selection=ts.TopAndSample(49, 1), proposal=ts.LocalGlobal())
    assert ours < 0.1
    assert ours < static
    assert static < paper / 10


def test_proposals_are_what_they_say():
    model = chain(2)
    nodes = model.node_scores()
    norms = model.pair_scores().left.abs().sum(-1)
    torch.testing.assert_close(ts.Local()(model), nodes.log_softmax(-1))
    torch.testing.assert_close(ts.Global()(model), (norms / norms.sum()).log().expand(2, 3, 6))
    torch.testing.assert_close(ts.Global(softmax=True)(model), norms.log_softmax(-1).expand(2, 3, 6))
    mean = (nodes.softmax(-1) + norms / norms.sum()) / 2
    torch.testing.assert_close(ts.LocalGlobal()(model).exp(), mean)
    assert ts.Uniform()(model).unique().numel() == 1
    exact = ts.Lookahead(6, 1)(model)  # every state is a landmark: the marginals
    torch.testing.assert_close(exact.softmax(-1), model.marginals())


def test_no_proposal_records_gradients():
    states = torch.randn(6, 2, requires_grad=True)
    model = ts.LinearChain(ts.Factored(torch.randn(3, 2), states), ts.Factored(states, states))
    for proposal in PROPOSALS.values():
        called = proposal if isinstance(proposal, ts.Proposal) else Custom(proposal)
        assert not called(model).requires_grad
        assert not model.sketch(3, proposal=proposal).log_weight.requires_grad


@pytest.mark.parametrize(
    ("proposal", "words"),
    [
        (lambda model: torch.zeros(3, 5), r"proposal must give floating-point log_q \[2, 3, 6\] .*got .*\[3, 5\]"),
        (lambda model: torch.zeros(2, 3, 6).long(), r"proposal must give floating-point log_q"),
        (lambda model: torch.full((2, 3, 6), math.nan), "proposal gave a log_q that is NaN"),
        (3, "proposal must be a proposal or a function"),
    ],
)
def test_bad_proposals(proposal, words, unchecked):
    with pytest.raises(ValueError, match=words):
        chain(2).sketch(3, proposal=proposal)


def test_bad_settings(unchecked):
    with pytest.raises(ValueError, match="landmarks must be a whole number of at least 1: got 0"):
        ts.Lookahead(0)
    with pytest.raises(ValueError, match="rounds must be a whole number of at least 0: got -1"):
        ts.Lookahead(rounds=-1)
    with pytest.raises(ValueError, match="the global proposal needs state embeddings"):
        ts.LinearChain(torch.randn(4, 3), torch.randn(3, 3)).sketch(2, proposal=ts.Global())
    with pytest.raises(ValueError, match="either k, the number of states to keep, or a selection"):
        chain(1).sketch()
    with pytest.raises(ValueError, match="either k, the number of states to keep, or a selection"):
        chain(1).sketch(2, selection=ts.TopK(2))
    with pytest.raises(ValueError, match="k must be a whole number of at least 1: got 0"):
        chain(1).sketch(0)


def test_global_proposals_on_trees_and_grammars():
    """A state's embedding is its vectors in every role, and what a span cannot have is never proposed."""
    context, states = torch.randn(2, 3, 3, 4), torch.randn(6, 4)
    tree = ts.SpanTree(ts.Factored(context, states))
    norms = states.abs().sum(-1)
    torch.testing.assert_close(ts.Global()(tree), (norms / norms.sum()).log().expand(2, 3, 3, 6))
    head, left, right = torch.randn(2, 4), torch.randn(5, 4), torch.randn(5, 4)
    grammar = ts.PCFG(torch.zeros(2), ts.FactoredRule(head, left, right), torch.zeros(3, 3))
    child = left.abs().sum(-1) + right.abs().sum(-1)
    inner = torch.cat([head.abs().sum(-1) + child[:2], torch.zeros(1)])
    wanted = torch.where(torch.eye(3, dtype=torch.bool)[..., None], child[2:], inner)
    torch.testing.assert_close(ts.Global()(grammar).exp(), wanted / wanted.sum(-1, keepdim=True))
    low_rank = ts.PCFG(torch.zeros(2), ts.LowRankRule(head + 500, left, right), torch.zeros(3, 3))
    scaled = [x.exp().sum(-1) / x.max().exp() for x in (head, left, right)]
    inner = torch.cat([scaled[0] + (scaled[1] + scaled[2])[:2], torch.zeros(1)])
    torch.testing.assert_close(ts.Global()(low_rank)[0, 1].exp(), inner / inner.sum())
    again = grammar.sketch(2, proposal=ts.Uniform()).sketch(1, proposal=ts.LocalGlobal())
    assert (again.states[0, 2] < 2).all()
