"""Bad input to trees and grammars: a ValueError that names the argument, what it was and what was expected.

What is no binary tree over the sentence is an error too.
"""

import math

import pytest
import torch

import tailsum as ts
from harness.misuse import fails, with_value

pytestmark = pytest.mark.usefixtures("unchecked")

zeros, tensor = torch.zeros, torch.tensor

SPAN = zeros(2, 4, 4, 3)
ROOT, RULE, EMISSION = zeros(3), zeros(3, 5, 5), zeros(2, 4, 2)


def span_tree(length=4, n=5, batch=(2,), lengths=None):
    return ts.SpanTree(zeros(*batch, length, length, n), lengths)


def grammar(length=4, n=5, p=4, batch=(2,), lengths=None):
    return ts.PCFG(zeros(n), zeros(n, n + p, n + p), zeros(*batch, length, p), lengths)


def factors(kind, n=3, c=5, lead=(), size=2):
    return kind(zeros(*lead, n, size), zeros(c, size), zeros(c, size))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0.0],), r"span must be a tensor or Factored: got list"),
        ((zeros(4, 4),), r"span must be \[\*batch, T, T, N\].*: got \[4, 4\]"),
        ((zeros(4, 3, 2),), r"span must be \[\*batch, T, T, N\].*: got \[4, 3, 2\]"),
        ((zeros(0, 0, 2),), r"T and N at least 1: got \[0, 0, 2\]"),
        ((zeros(3, 3, 0),), r"T and N at least 1: got \[3, 3, 0\]"),
        ((SPAN.long(),), "span must be floating-point: got torch.int64"),
        ((with_value(SPAN, math.nan),), r"span must not hold NaN or \+inf .* got one at \[1, 3, 3, 2\]"),
        ((with_value(SPAN, math.inf),), r"span must not hold NaN or \+inf"),
        ((SPAN, [1, 2, 3]), r"lengths has batch shape \[3\], which does not match .* \[2\]"),
        ((SPAN, [0, 2]), "lengths must lie between 1 and 4, the number of positions: got 0"),
        ((SPAN, [1, 5]), "lengths must lie between 1 and 4, the number of positions: got 5"),
        ((SPAN, zeros(2)), "lengths must be integers: got torch.float32"),
    ],
)
def test_span_tree(arguments, words):
    fails(lambda: ts.SpanTree(*arguments), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0.0], RULE, EMISSION), r"root must be \[\*batch, N\], none of them zero: got list"),
        ((zeros(()), RULE, EMISSION), r"root must be \[\*batch, N\].*: got \[\]"),
        ((zeros(0), RULE, EMISSION), r"root must be \[\*batch, N\], none of them zero: got \[0\]"),
        ((ROOT, RULE, [0.0]), r"emission must be \[\*batch, T, P\], none of them zero: got list"),
        ((ROOT, RULE, zeros(2)), r"emission must be \[\*batch, T, P\].*: got \[2\]"),
        ((ROOT, RULE, zeros(0, 2)), r"emission must be .*none of them zero: got \[0, 2\]"),
        ((ROOT, zeros(3, 3, 3), zeros(4, 0)), r"emission must be .*none of them zero: got \[4, 0\]"),
        ((ROOT.long(), RULE, EMISSION), "root must be floating-point: got torch.int64"),
        ((ROOT, RULE.long(), EMISSION), "rule must be floating-point: got torch.int64"),
        ((ROOT, RULE, EMISSION.long()), "emission must be floating-point: got torch.int64"),
        ((with_value(ROOT, math.nan), RULE, EMISSION), r"root must not hold NaN or \+inf .* got one at \[2\]"),
        ((ROOT, with_value(RULE, math.nan), EMISSION), r"rule must not hold NaN or \+inf .* got one at \[2, 4, 4\]"),
        ((ROOT, with_value(RULE, math.inf), EMISSION), r"rule must not hold NaN or \+inf .* got one at \[2, 4, 4\]"),
        ((ROOT, RULE, with_value(EMISSION, math.nan)), r"emission must not hold NaN or \+inf .* at \[1, 3, 1\]"),
        ((zeros(5, 3), RULE, EMISSION), r"root has batch shape \[5\], which does not match emission's \[2\]"),
        ((ROOT, zeros(5, 3, 5, 5), EMISSION), r"rule has batch shape \[5\], which does not match .* \[2\]"),
        ((ROOT, zeros(3, 5), EMISSION), r"rule must be .* = \[..., 3, 5, 5\], as root and emission have: got \[3, 5\]"),
        ((ROOT, zeros(3, 4, 4), EMISSION), r"rule must be .* = \[..., 3, 5, 5\].*: got \[3, 4, 4\]"),
        ((ROOT, zeros(3, 5, 4), EMISSION), r"rule must be .* = \[..., 3, 5, 5\].*: got \[3, 5, 4\]"),
        ((ROOT, None, EMISSION), "rule must be a tensor, a LowRankRule, a FactoredRule or a ScoredRule: got NoneType"),
        ((ROOT, ts.Dense(RULE), EMISSION), "rule must be a tensor.* or a ScoredRule: got Dense"),
        ((ROOT, ts.DenseRule(zeros(3, 4, 4)), EMISSION), r"rule must have N = 3 heads and N\+P = 5 .*: got 3 and 4"),
        (lambda: (ROOT, ts.DenseRule(zeros(3, 5, 4)), EMISSION), "rules must .* 5, 4"),
        ((ROOT, factors(ts.LowRankRule, c=4), EMISSION), r"rule must have N = 3 heads and N\+P = 5 .*: got 3 and 4"),
        ((ROOT, factors(ts.FactoredRule, n=2), EMISSION), r"rule must have N = 3 heads and N\+P = 5 .*: got 2 and 5"),
        ((ROOT, factors(ts.LowRankRule, lead=(3,)), EMISSION), r"rule has batch shape \[3\], which does not match"),
        ((ROOT, ts.ScoredRule(lambda a, b, c: 0.0, 3, 3), EMISSION), r"rule must have .* N\+P = 5 .*: got 3 and 6"),
        (lambda: (ROOT, factors(ts.LowRankRule).map(torch.Tensor.long), EMISSION), "rule must be floating-point"),
        (
            (ROOT, ts.LowRankRule(with_value(zeros(3, 2), math.nan), zeros(5, 2), zeros(5, 2)), EMISSION),
            r"rule must not hold NaN or \+inf .* got one at \[2, 1\]",
        ),
        (
            (ROOT, ts.FactoredRule(zeros(3, 2), with_value(zeros(5, 2), -math.inf), zeros(5, 2)), EMISSION),
            "rule must have finite factors: got -inf",
        ),
        ((ROOT.to("meta"), RULE, EMISSION), "root must be on cpu, where the other scores are: got meta"),
        ((ROOT, RULE.to("meta"), EMISSION), "rule must be on cpu, where the other scores are: got meta"),
        ((ROOT, RULE, EMISSION, [1, 2, 3]), r"lengths has batch shape \[3\], which does not match .* \[2\]"),
        ((ROOT, RULE, EMISSION, [0, 2]), "lengths must lie between 1 and 4, the number of positions: got 0"),
        ((ROOT, RULE, EMISSION, [5, 2]), "lengths must lie between 1 and 4, the number of positions: got 5"),
        ((ROOT, RULE, EMISSION, zeros(2)), "lengths must be integers: got torch.float32"),
    ],
)
def test_grammar(arguments, words):
    fails(lambda: ts.PCFG(*(arguments() if callable(arguments) else arguments)), words)


@pytest.mark.parametrize("kind", [ts.LowRankRule, ts.FactoredRule])
@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (
            ((3, 2), (5, 4), (5, 2)),
            r"head, left and right must have the same last dimension, of at least 1: got \[3, 2\], \[5, 4\]",
        ),
        (((3, 2), (5, 2), (4, 2)), r"head, left and right must be \[\*lead, N, d\].*\[5, 2\] and \[4, 2\]"),
        (((3,), (5,), (5,)), r"head, left and right must be \[\*lead, N, d\].*: got \[3\], \[5\] and \[5\]"),
        (((2, 3, 2), (4, 5, 2), (5, 2)), "head, left and right must have leading dimensions that broadcast"),
    ],
)
def test_factors_that_do_not_match(kind, shapes, words):
    fails(lambda: kind(*(zeros(shape) for shape in shapes)), words)


def test_no_ranks():
    fails(lambda: ts.PCFG(ROOT, factors(ts.LowRankRule, size=0), EMISSION).log_partition(), "rule|head")


def test_dense_rule_of_too_few_dimensions():
    fails(lambda: ts.DenseRule(zeros(5, 5)), "must be .*N, N")


def test_sizes_of_scored_rules():
    fails(lambda: ts.ScoredRule(lambda a, b, c: a, 0, 2), "n_heads and n_leaves must be at least 1: got 0 and 2")
    fails(lambda: ts.ScoredRule(lambda a, b, c: a, 3, -2), "n_heads and n_leaves must be at least 1: got 3 and -2")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda a, b, c: a * 1.0,
            r"function must give one floating-point score for each triple, \[.*\]: got .*float32",
        ),
        (lambda a, b, c: a + b + c, "function must give one floating-point score for each triple, .*: got torch.int64"),
        (lambda a, b, c: (a + b + c) * math.nan, r"function gave a score that is NaN or \+inf"),
        (lambda a, b, c: (a + b + c) + math.inf, r"function gave a score that is NaN or \+inf"),
        (lambda a, b, c: None, "function must give .*NoneType"),
        (lambda a, b, c: 0.0, "function must give .*float"),
    ],
)
def test_functions_of_scored_rules(function, words):
    grammar = ts.PCFG(ROOT, ts.ScoredRule(function, 3, 2), EMISSION)
    fails(grammar.log_partition, words)
    fails(lambda: grammar.sketch(2), words)
    fails(lambda: grammar.sketch(2, proposal=ts.Local()), words)


def test_divergence_between_grammars_of_other_preterminals():
    one, other = grammar(n=3, p=5), grammar(n=5, p=3)
    same = "other must have the same positions and states as (.*): got (?!\\1).*"  # and shows in what they differ
    fails(lambda: one.kl(other), same)
    fails(lambda: other.kl(one), same)


def trees(spans, states):
    return ts.Trees(tensor(spans), tensor(states))


SPANS, STATES = [[0, 2], [0, 1], [0, 0], [1, 1], [2, 2]], [0, 1, 2, 2, 1]
NO_TREE = "tree must be a binary tree over its whole sentence: got one that is not"
TREE_MODELS = {
    "span tree": lambda lengths=None: ts.SpanTree(torch.randn(3, 3, 4), lengths),
    "grammar": lambda lengths=None: ts.PCFG(torch.randn(4), torch.randn(4, 8, 8), torch.randn(3, 4), lengths),
    "grammar of factors": lambda lengths=None: ts.PCFG(
        torch.randn(4), factors(ts.FactoredRule, 4, 8), torch.randn(3, 4), lengths
    ),
    "grammar of low rank": lambda lengths=None: ts.PCFG(
        torch.randn(4), factors(ts.LowRankRule, 4, 8), torch.randn(3, 4), lengths
    ),
}


def swapped(place, span):
    return [*SPANS[:place], span, *SPANS[place + 1 :]]


@pytest.mark.parametrize("name", TREE_MODELS)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (trees([[0, 2], [0, 1], [1, 2], [1, 1], [2, 2]], STATES), NO_TREE),  # crossing spans
        (trees(swapped(4, [-1, -1]), [0, 1, 2, 2, -1]), NO_TREE),  # a leaf is missing
        (trees(swapped(3, [0, 0]), STATES), NO_TREE),  # a leaf twice
        (trees(swapped(0, [1, 2]), STATES), NO_TREE),  # not the whole
        (trees(swapped(0, [0, 3]), STATES), NO_TREE),  # more than the whole
        (trees(swapped(0, [2, 0]), STATES), NO_TREE),  # the wrong way round
        (trees(swapped(4, [2, -1]), STATES), NO_TREE),
        (trees(swapped(4, [-1, 2]), STATES), NO_TREE),
        (trees(swapped(4, [-2, -2]), STATES), NO_TREE),
        (trees(SPANS, [0, 1, -1, 2, 1]), "tree"),  # a span without a state
        (trees(SPANS, [0, 1, -2, 2, 1]), "tree"),
        (trees(SPANS, [4, 1, 2, 2, 1]), "tree.states must lie between 0 and N-1 = 3: got one outside"),
        (trees(SPANS, [0, 1, 4, 2, 1]), "tree.states must lie between 0 and N-1 = 3: got one outside"),
        (
            trees(SPANS[:3], [0, 1, 2]),
            r"tree must have spans \[..., 5, 2\] and states \[..., 5\]: got \[3, 2\] and \[3\]",
        ),
        (trees([*SPANS, [-1, -1]], [*STATES, -1]), r"tree must have .*: got \[6, 2\] and \[6\]"),
        (trees(SPANS, STATES[:4]), r"tree must have .*: got \[5, 2\] and \[4\]"),
        (trees([[*span, 0] for span in SPANS], STATES), r"tree must have .*: got \[5, 3\] and \[5\]"),
        (trees(swapped(0, [0.0, 2.0]), STATES), "tree.spans must be integers: got torch.float32"),
        (trees(SPANS, [0.0, 1, 2, 2, 1]), "tree.states must be integers: got torch.float32"),
        (tensor(SPANS), "tree must be Trees: got Tensor"),
        (ts.SemiMarkov(zeros(2, 4, 3, 5), zeros(5, 5)).sample(), "tree must be Trees: got Segments"),
    ],
)
def test_scores_of_trees(given, words, name):
    model = TREE_MODELS[name]()
    fails(lambda: model.score(given), words)
    fails(lambda: model.log_prob(given), words)
    fails(lambda: model.sketch(2, proposal=ts.Local()).score(given), words)


def test_preterminals_and_nonterminals_are_counted_apart():
    few_leaves = ts.PCFG(zeros(4), zeros(4, 6, 6), zeros(3, 2))
    fails(lambda: few_leaves.score(trees(SPANS, [3, 3, 1, 2, 1])), "tree.states must lie between 0 and N-1 = 1")
    few_heads = ts.PCFG(zeros(2), zeros(2, 6, 6), zeros(3, 4))
    fails(lambda: few_heads.score(trees(SPANS, [1, 2, 3, 3, 3])), "tree.states must lie between 0 and N-1 = 1")
    assert few_leaves.score(trees(SPANS, [3, 3, 1, 1, 1])) == few_heads.score(trees(SPANS, [1, 1, 3, 3, 3])) == 0


@pytest.mark.parametrize("make", [span_tree, grammar])
def test_scores_of_trees_of_the_wrong_sentence(make):
    model = make(length=3, lengths=[3, 2])
    both = ts.Trees(tensor(SPANS).expand(2, 5, 2), tensor(STATES).expand(2, 5))
    fails(lambda: model.score(both), NO_TREE)
    more = ts.Trees(tensor(SPANS).expand(3, 5, 2), tensor(STATES).expand(3, 5))
    fails(lambda: model.score(more), r"tree has batch shape \[3\], which does not match the model's \[2\]")
    assert make(length=3).score(trees(SPANS, STATES)).eq(0).all()
    assert make(length=3).score(trees([[-1, -1]] * 5, [-1] * 5)).eq(-math.inf).all()
    assert grammar(length=1, batch=()).score(trees([[0, 0]], [1])) == -math.inf  # there is no rule for it


@pytest.mark.parametrize("spans", [[[0, 1], [0, 0], [1, 1], [-1, -1], [-1, -1]], [[-1, -1]] * 5])
@pytest.mark.parametrize("name", TREE_MODELS)
def test_states_in_the_padding(name, spans):
    """Of a tree, or where there is none: an error or no effect, either would do."""
    model = TREE_MODELS[name](2)
    padded = [state if first >= 0 else -1 for (first, _), state in zip(spans, STATES, strict=True)]
    clean = model.score(trees(spans, padded))
    try:
        dirty = model.score(trees(spans, STATES))
    except ValueError:
        return
    assert dirty == clean
