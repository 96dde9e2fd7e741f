"""Extremes that are no errors: anything in the padding, and sentences of one word."""

import math

import pytest
import torch

import tailsum as ts

zeros, tensor = torch.zeros, torch.tensor
SEGMENT, PAIRS = zeros(2, 4, 3, 5), zeros(5, 5)
ROOT, RULE, EMISSION = zeros(3), zeros(3, 5, 5), zeros(2, 4, 2)
ARC, NODE, STEP = zeros(2, 4, 4), zeros(2, 4, 3), zeros(3, 3)


def test_what_counts_nowhere_may_hold_anything():
    """Padding, spans below the diagonal, and segments that reach beyond the end."""
    inside = torch.arange(4) < tensor([[4], [2]])
    both = inside[:, :, None] & inside[:, None, :]
    spans = both & torch.ones(4, 4).triu().bool()
    reach = torch.arange(4)[:, None] + torch.arange(3) < tensor([4, 2])[:, None, None]
    clean = {
        "segment": torch.randn(2, 4, 3, 5),
        "span": torch.randn(2, 4, 4, 5),
        "emission": torch.randn(2, 4, 2),
        "arc": torch.randn(2, 4, 4),
        "node": torch.randn(2, 4, 3),
    }
    masks = {"segment": reach, "span": spans, "emission": inside, "arc": both, "node": inside}
    for value in (math.nan, math.inf, -math.inf):
        dirty = {
            name: torch.where(masks[name].reshape(*masks[name].shape, *(1,) * (x.dim() - masks[name].dim())), x, value)
            for name, x in clean.items()
        }
        for make in (
            lambda x: ts.SemiMarkov(x["segment"], zeros(5, 5), [4, 2]),
            lambda x: ts.SpanTree(x["span"], [4, 2]),
            lambda x: ts.PCFG(ROOT, RULE, x["emission"], [4, 2]),
            lambda x: ts.DependencyTree(x["arc"], [4, 2], node=x["node"], transition=STEP),
            lambda x: ts.DependencyTree(x["arc"], [4, 2], projective=False),
        ):
            one, other = make(clean), make(dirty)
            assert torch.equal(one.log_partition(), other.log_partition())
            assert torch.equal(one.entropy(), other.entropy())
            assert torch.equal(one.marginals(), other.marginals())


@pytest.mark.parametrize("kind", ["semi-Markov", "dependencies"])
def test_transitions_of_the_padding_may_hold_anything(kind):
    if kind == "semi-Markov":
        steps = torch.randn(2, 3, 5, 5)
        dirty = steps.clone()
        dirty[1, 1:] = math.nan
        one, other = (ts.SemiMarkov(SEGMENT, x, [4, 2]) for x in (steps, dirty))
    else:
        steps = torch.randn(2, 4, 4, 3, 3)
        dirty = steps.clone()
        dirty[1, 2:], dirty[1, :, 2:] = math.nan, math.nan
        one, other = (ts.DependencyTree(ARC, [4, 2], node=NODE, transition=x) for x in (steps, dirty))
    assert torch.equal(one.log_partition(), other.log_partition())
    assert torch.equal(one.marginals(), other.marginals())


def factors(kind, n=3, c=5, lead=(), size=2):
    return kind(zeros(*lead, n, size), zeros(c, size), zeros(c, size))


ONE_WORD = {
    "semi-Markov": lambda: ts.SemiMarkov(zeros(1, 2, 3), zeros(3, 3)),
    "span tree": lambda: ts.SpanTree(zeros(1, 1, 3)),
    "grammar": lambda: ts.PCFG(ROOT, RULE, zeros(1, 2)),
    "grammar of factors": lambda: ts.PCFG(ROOT, factors(ts.FactoredRule), zeros(1, 2)),
    "grammar of low rank": lambda: ts.PCFG(ROOT, factors(ts.LowRankRule), zeros(1, 2)),
    "grammar by a function": lambda: ts.PCFG(ROOT, ts.ScoredRule(lambda a, b, c: (a + b + c) * 0.0, 3, 2), zeros(1, 2)),
    "dependencies": lambda: ts.DependencyTree(zeros(1, 1), node=zeros(1, 3), transition=zeros(3, 3)),
}


@pytest.mark.parametrize(
    "name",
    ONE_WORD,
)
def test_one_word(name):
    """There is one tree of one state, or no tree at all: a sketch has the same result."""
    model = ONE_WORD[name]()
    expected = -math.inf if name.startswith("grammar") else math.log(3)
    for small in (model, model.sketch(2), model.sketch(2, proposal=ts.Local())):
        assert small.log_partition().item() == pytest.approx(expected)
