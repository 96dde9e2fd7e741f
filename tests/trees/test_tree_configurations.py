"""Trees as values: written as text, chosen from a batch, and rules of every shape."""

import itertools

import pytest
import torch

import tailsum as ts
from harness.agree import close
from harness.misuse import fails
from harness.registry import SMALL, small

TREE = ts.Trees(torch.tensor([[0, 1], [0, 0], [1, 1], [-1, -1], [-1, -1]]), torch.tensor([1, 1, 0, -1, -1]))


def test_names_of_nonterminals_and_preterminals():
    assert TREE.brackets(["a", "b"]) == "(1 (1 a) (0 b))"
    assert TREE.brackets(names=["x", "y"]) == "(y (y 0) (x 1))"
    assert TREE.brackets(names=("x", "y")) == "(y (y 0) (x 1))"
    assert TREE.brackets(["a", "b"], names=(["S", "NP"], ["DET", "N"])) == "(NP (N a) (DET b))"
    assert TREE.brackets(names=(lambda i: f"N{i}", ["DET", "N"])) == "(N1 (N 0) (DET 1))"


def test_brackets_of_too_little():
    fails(lambda: TREE.brackets(["a"]), "words must have one for each of 2 positions: got 1")
    fails(lambda: TREE.brackets(names=["a"]), "names must have one for each state, 1 among them: got 1")
    fails(
        lambda: TREE.brackets(names=(["S", "NP"], ["DET"])), "names must have one for each state, 1 among them: got 1"
    )
    fails(lambda: ts.Trees(TREE.spans[None], TREE.states[None]).brackets(), r"brackets are of one tree: .*at\(0\)")


def test_one_tree_of_many():
    trees = ts.SpanTree(torch.randn(2, 4, 4, 3)).sample((5,))
    one = trees.at((3, 1))
    assert isinstance(one, ts.Trees)
    assert torch.equal(one.spans, trees.spans[3, 1])
    assert torch.equal(one.states, trees.states[3, 1])
    assert trees.at(3).states.shape == (2, 7)
    assert trees.at(slice(2)).states.shape == (2, 2, 7)
    fails(lambda: trees.at((3, 1, 0)), "index must be of the 2 dimensions of samples and batch")
    with pytest.raises(IndexError):
        trees.at(5)


LEADS = [*itertools.product([(), (2,)], repeat=3), ((1,), (2,), ()), ((2,), (1,), (1,)), ((), (1,), (2,))]


@pytest.mark.parametrize("kind", [ts.LowRankRule, ts.FactoredRule])
@pytest.mark.parametrize("leads", LEADS)
def test_the_best_of_a_grammar_with_a_shared_subset_and_factors_of_unequal_batch(kind, leads, generator):
    """As the grammar with all factors written out for every sentence."""
    sizes = (2, 5, 5)
    factors = [torch.randn(*lead, n, 3, generator=generator).double() for lead, n in zip(leads, sizes, strict=True)]
    root, emission = torch.randn(2, generator=generator).double(), torch.randn(2, 4, 3, generator=generator).double()
    subset = ts.Subset(
        torch.randint(3, (4, 4, 2), generator=generator), torch.randn(4, 4, 2, generator=generator).double()
    )
    mixed = ts.PCFG(root, kind(*factors), emission, [4, 3]).restrict(subset)
    whole = ts.PCFG(root, kind(*(x.expand(2, *x.shape[-2:]) for x in factors)), emission, [4, 3]).restrict(subset)
    found, expected = mixed.topk(3), whole.topk(3)
    close(found.scores, expected.scores)
    assert torch.equal(found.configurations.spans, expected.configurations.spans)


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("pcfg")])
def test_sketches_of_no_sentences(name, batch):
    grammar = small(name, batch=batch, length=4).model()
    for proposal in (None, ts.Lookahead(1, sequential=False), ts.Local()):
        sketch = grammar.sketch(1, proposal=proposal)
        assert sketch.log_partition().shape == batch
        assert sketch.sample((2,)).states.shape == (2, *batch, 7)
