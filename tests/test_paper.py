"""The models of the experiments are what their recipes say."""

import pytest
import torch

from tailsum.paper.chains import ADAM_STEPS, hard_chain, paper_chain, paper_proposal


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
