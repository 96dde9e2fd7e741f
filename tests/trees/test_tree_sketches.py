"""Sketches of trees: each span must be selected on its own."""

import math

import pytest
import torch

import tailsum as ts
from harness.registry import large
from harness.statistics import off

FEW = {"1": ts.Lookahead(1), "1, static": ts.Lookahead(1, sequential=False)}


@pytest.mark.parametrize("few", FEW)
def test_partition_of_a_grammar_whose_pairs_are_selected_too(few, generator):
    """Four words and three states a span: more pairs of children than a single landmark asks for."""
    case = large("pcfg-dense", length=4)
    with ts.table_budget(0):
        assert off(case.many(10_000).sketch(3, proposal=FEW[few], generator=generator), case.model()) < 4


def peaked(g, n, length, lengths=None, batch=(), shared=True, forbidden=0.0):
    """N nonterminals and N preterminals, independent scores of deviation 2."""
    root, emission = (2 * torch.randn(*batch, *shape, generator=g).double() for shape in ((n,), (length, n)))
    rule = 2 * torch.randn(*(() if shared else batch), n, 2 * n, 2 * n, generator=g).double()
    rule = rule.masked_fill(torch.rand(rule.shape, generator=g) < forbidden, -math.inf)
    return ts.PCFG(root, rule, emission, lengths)


def factored(g):
    head, left, right = (torch.randn(m, 4, generator=g).double() for m in (5, 12, 12))
    return ts.PCFG(
        torch.zeros(5).double(), ts.FactoredRule(head, left, right), torch.randn(2, 6, 7, generator=g).double()
    )


def scored(g):
    model = factored(g)
    head, left, right = model.rule.tensors
    rule = ts.ScoredRule(lambda a, b, c: (head[a] * left[b] * right[c]).sum(-1), 5, 7)
    return ts.PCFG(model.root, rule, model.emission)


KINDS = {
    "table": lambda g: peaked(g, 5, 6, (6, 4, 2), (3,)),
    "table of each sentence": lambda g: peaked(g, 5, 6, (6, 4, 2), (3,), shared=False),
    "table, much forbidden": lambda g: peaked(g, 5, 6, (6, 4, 2), (3,), forbidden=0.4),
    "factored": factored,
    "scored": scored,
}


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_exact_where_a_table_of_rules_fits(kind):
    model = KINDS[kind](torch.Generator().manual_seed(0))
    marginals, log_q = model.marginals(), ts.Lookahead()(model)
    used = marginals.sum(-1) > 0
    found = log_q.softmax(-1)[used].where(marginals[used] > 0, 0.0)  # states out of reach may have any mass
    torch.testing.assert_close(found / found.sum(-1, keepdim=True), (marginals / marginals.sum(-1, keepdim=True))[used])
    with ts.table_budget(0):
        assert not torch.allclose(ts.Lookahead(2)(model)[used].softmax(-1), log_q[used].softmax(-1))


def test_a_tenth_of_the_states_of_a_peaked_grammar(generator):
    """The error of log Z in nats."""
    errors = []
    for seed in range(3):
        model = peaked(torch.Generator().manual_seed(seed), 60, 8)
        sketches = (model.sketch(6, generator=generator) for _ in range(4))
        errors += [small.log_partition() - model.log_partition() for small in sketches]
    assert torch.stack(errors).square().mean().sqrt() < 0.2


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_partition_of_a_peaked_grammar(shared, sequential, generator):
    """Sentences of several lengths, rules shared or not, some forbidden; and all states kept."""
    whole = peaked(torch.Generator().manual_seed(1), 8, 4, (2, 3, 4), (3,), shared, 0.3)
    root, emission = (x.expand(1500, *x.shape) for x in (whole.root, whole.emission))
    many = ts.PCFG(root, whole.rule.block(), emission, lengths=(2, 3, 4))
    proposal = ts.Lookahead(sequential=sequential)
    assert off(many.sketch(2, proposal=proposal, generator=generator), whole) < 4
    torch.testing.assert_close(whole.sketch(8, proposal=proposal).log_partition(), whole.log_partition())


def shared(model, by_width, generator):
    """The model restricted to one selection for all spans of a sentence, or for all spans of a width."""
    length, n = model.node_shape[0], model.n_states
    sets = length if by_width else 1
    subset = ts.Optimal(2)(torch.zeros(*model.batch_shape, sets, n).double(), generator)
    position = torch.arange(length)
    which = (position - position[:, None]).clamp(min=0) if by_width else torch.zeros(length, length).long()
    return model.restrict(ts.Subset(subset.index[:, which], subset.log_weight[:, which]))


@pytest.mark.parametrize("by_width", [False, True])
@pytest.mark.parametrize(
    ("name", "how"), [("spans-dense", {}), ("pcfg-dense", {"p": 5, "seed": 1})], ids=["spans", "pcfg"]
)
def test_one_subset_for_several_spans_is_biased(name, how, by_width, generator):
    case = large(name, **how)
    whole, replicates = case.model(), case.many(50_000)
    assert off(shared(replicates, by_width, generator), whole) > 4
    assert off(replicates.sketch(2, proposal=ts.Uniform(), generator=generator), whole) < 4


def test_spans_are_selected_independently(generator):
    """Also by Lookahead: where all scores are the same, nothing that one span keeps says what another does."""
    model = ts.PCFG(torch.zeros(4), torch.zeros(4, 8, 8), torch.zeros(10_000, 3, 4))
    kept = torch.zeros(10_000, 3, 3, 4).double().scatter_(-1, model.sketch(2, generator=generator).states, 1.0)
    spans = [kept[:, i, j, 0] for i in range(3) for j in range(i, 3)]
    correlation = torch.corrcoef(torch.stack(spans)) - torch.eye(6).double()
    assert correlation.abs().max() < 4.5 / math.sqrt(10_000)


def test_a_span_tree_is_exact_by_its_own_scores(generator):
    """Nothing couples its spans, and states kept in proportion to what they are worth estimate a sum without error."""
    for seed in range(5):
        model = large("spans-dense", seed=seed, forbidden=0.2).many(50)
        for how in ({"proposal": ts.Local()}, {"proposal": ts.Lookahead()}, {}):
            for selection in (ts.Optimal(1), ts.Optimal(3), ts.TopAndSample(0, 1), ts.TopAndSample(2, 2)):
                small = model.sketch(selection=selection, generator=generator, **how)
                torch.testing.assert_close(small.log_partition(), model.log_partition(), rtol=0, atol=1e-9)
