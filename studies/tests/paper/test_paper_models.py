"""The models of the experiments are what their recipes say."""

import pytest
import torch

import tailsum as ts
from tailsum_studies.paper.chains import ADAM_STEPS, hard_chain, paper_chain, paper_proposal
from tailsum_studies.paper.trees import hard_dependencies, hard_grammar, paper_tree


@pytest.mark.parametrize("level", ADAM_STEPS)
def test_the_papers_recipe(level, generator):
    made = paper_chain(300, 5, level, generator=generator)
    products = made.states @ made.states.T
    expected = 10 * (products - products.mean()) / (products.max() - products.min())
    torch.testing.assert_close(made.chain.pair_scores().block(), expected, rtol=1e-4, atol=1e-4)
    emission = made.words @ made.states.T
    extent = emission.amax(-1, keepdim=True) - emission.amin(-1, keepdim=True)
    expected = 10 * (emission - emission.mean(-1, keepdim=True)) / extent
    torch.testing.assert_close(made.chain.node_scores(), expected, rtol=1e-4, atol=1e-4)


def test_more_steps_have_lower_entropy():
    def entropy(level):
        made = paper_chain(300, 5, level, generator=torch.Generator().manual_seed(0))
        return torch.distributions.Categorical(logits=made.words @ made.states.T).entropy().mean()

    assert entropy("dense") > entropy("intermediate") > entropy("long-tail")


def test_the_papers_proposal(generator):
    made = paper_chain(300, 5, generator=generator)
    norms = made.states.abs().sum(-1)
    for softmax, prior in ((True, norms.softmax(-1)), (False, norms / norms.sum())):
        expected = (made.chain.node_scores().softmax(-1) + prior) / 2
        torch.testing.assert_close(paper_proposal(made.states, softmax)(made.chain).exp(), expected)


def test_the_harder_suite(generator):
    chain = hard_chain(2000, 3.0, 2.0, generator=generator)
    assert chain.pair_scores().block().std().item() == pytest.approx(3.0, rel=0.05)
    assert chain.node_scores().std().item() == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("level", ADAM_STEPS)
def test_the_papers_trees(level, generator):
    spans = paper_tree(200, 6, level, generator=generator).node_scores()
    upper = torch.ones(6, 6).triu() > 0
    assert spans[upper].amin(-1).eq(0).all()
    torch.testing.assert_close(spans[upper].amax(-1), torch.full((21,), 10.0))
    # The states are scored alike at every span, but for the scale: words are added, not multiplied.
    torch.testing.assert_close(spans[upper], spans[0, 0].expand(21, -1), rtol=1e-3, atol=1e-3)


def test_the_papers_method_on_trees_has_the_papers_errors(generator):
    """Table 2, N = 2000, K = 10% and 20%: a mean square error of log Z of 1.2 and 0.45; optimal selection has none."""
    tree = paper_tree(generator=generator)
    exact = tree.log_partition()

    def error(count, **how):
        found = torch.stack([tree.sketch(generator=generator, **how).log_partition() for _ in range(count)])
        return (found - exact).square().mean()

    for half, printed in ((100, 1.193), (200, 0.445)):
        paper = error(60, proposal=ts.Uniform(), selection=ts.TopAndSample(half, half))
        assert printed / 2 < paper < printed * 2
        assert error(2, selection=ts.Optimal(2 * half)) < printed / 1000


def test_harder_trees(generator):
    grammar = hard_grammar(200, 300, 2.0, 3.0, 8, generator=generator)
    assert grammar.terms()[1].block().std().item() == pytest.approx(2.0, rel=0.1)
    assert (grammar.n_heads, grammar.n_leaves, grammar.node_shape) == (200, 300, (8, 8))
    tree = hard_dependencies(2000, 3.0, 2.0, 8, generator=generator)
    assert tree.terms()[2].block().std().item() == pytest.approx(3.0, rel=0.1)
    assert tree.node_scores().std().item() == pytest.approx(2.0, rel=0.2)
