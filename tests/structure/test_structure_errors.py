"""Bad input to segmentations, trees, grammars and dependency trees: a ValueError that names the argument, what it was
and what was expected. Configurations that are no trees of the right kind score minus infinity, or are an error."""

import math

import pytest
import torch

import tailsum as ts

pytestmark = pytest.mark.usefixtures("unchecked")

zeros, tensor = torch.zeros, torch.tensor


def with_value(scores, value, place=-1):
    scores = scores.clone()
    scores.view(-1)[place] = value
    return scores


def broken_factors(n, size=2):
    return ts.Factored(with_value(zeros(n, size), -math.inf), zeros(n, size))


def _part(model):
    """What a node's values vary with, beside its state: segments have durations."""
    return (*model.node_shape, 3) if isinstance(model, ts.SemiMarkov) else model.node_shape


def fails(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# Construction.

SEGMENT, PAIRS = zeros(2, 4, 3, 5), zeros(5, 5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[0.0]], PAIRS), r"segment must be \[\*batch, T, D, N\], none of T, D, N zero: got list"),
        ((zeros(3, 5), PAIRS), r"segment must be \[\*batch, T, D, N\].*: got \[3, 5\]"),
        ((ts.Factored(zeros(3, 2), zeros(5, 2)), PAIRS), "segment must be .*: got Factored"),
        ((zeros(0, 3, 5), PAIRS), r"none of T, D, N zero: got \[0, 3, 5\]"),
        ((zeros(4, 0, 5), PAIRS), r"none of T, D, N zero: got \[4, 0, 5\]"),
        ((zeros(4, 3, 0), zeros(0, 0)), r"none of T, D, N zero: got \[4, 3, 0\]"),
        ((SEGMENT.long(), PAIRS), "segment must be floating-point: got torch.int64"),
        ((SEGMENT.bool(), PAIRS), "segment must be floating-point: got torch.bool"),
        ((SEGMENT.to(torch.complex64), PAIRS), "segment must be floating-point: got torch.complex64"),
        ((with_value(SEGMENT, math.nan, 0), PAIRS), r"segment must not hold NaN or \+inf .* at \[0, 0, 0, 0\]"),
        ((with_value(SEGMENT, math.inf, 0), PAIRS), r"segment must not hold NaN or \+inf .* at \[0, 0, 0, 0\]"),
        ((SEGMENT, PAIRS.long()), "transition must be floating-point: got torch.int64"),
        ((SEGMENT, with_value(PAIRS, math.nan)), r"transition must not hold NaN or \+inf .* got one at \[4, 4\]"),
        ((SEGMENT, with_value(PAIRS, math.inf)), r"transition must not hold NaN or \+inf .* got one at \[4, 4\]"),
        ((SEGMENT, None), r"transition must be a potential or a tensor \[N, N\] .*: got NoneType"),
        ((SEGMENT, [[0.0]]), "transition must be a potential or a tensor .*: got list"),
        ((SEGMENT, zeros(5)), r"transition must be a potential or a tensor .*: got \[5\]"),
        ((SEGMENT, zeros(4, 4)), "transition must join 5 states with 5, as segment has: got 4 with 4"),
        ((SEGMENT, ts.Factored(zeros(4, 2), zeros(5, 2))), "transition must join 5 states with 5.*: got 4 with 5"),
        ((SEGMENT, broken_factors(5)), r"transition must have finite factors: got -inf at \[4, 1\]"),
        ((SEGMENT, zeros(4, 5, 5)), "transition must have 1 or 3 steps in dimension -3: got 4"),
        ((SEGMENT, zeros(5, 3, 5, 5)), r"transition has batch shape \[5\], which does not match segment's \[2\]"),
        ((SEGMENT, PAIRS.to("meta")), "transition must be on cpu, where (?!emission).*: got meta"),
        ((SEGMENT, PAIRS, [1, 2, 3]), r"lengths has batch shape \[3\], which does not match .* \[2\]"),
        ((SEGMENT, PAIRS, [0, 2]), "lengths must lie between 1 and 4, the number of positions: got 0"),
        ((SEGMENT, PAIRS, [1, 5]), "lengths must lie between 1 and 4, the number of positions: got 5"),
        ((SEGMENT, PAIRS, tensor([1.0, 2.0])), "lengths must be integers: got torch.float32"),
        ((SEGMENT, PAIRS, tensor([True, True])), "lengths must be integers: got torch.bool"),
    ],
)
def test_semi_markov(arguments, words):
    fails(lambda: ts.SemiMarkov(*arguments), words)


SPAN = zeros(2, 4, 4, 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0.0],), r"span must be \[\*batch, T, T, N\], T and N at least 1: got list"),
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


ROOT, RULE, EMISSION = zeros(3), zeros(3, 5, 5), zeros(2, 4, 2)


def factors(kind, n=3, c=5, lead=(), size=2):
    return kind(zeros(*lead, n, size), zeros(c, size), zeros(c, size))


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


ARC, NODE, STEP = zeros(2, 4, 4), zeros(2, 4, 3), zeros(3, 3)


@pytest.mark.parametrize(
    ("arc", "others", "words"),
    [
        ([0.0], {}, r"arc must be \[\*batch, T, T\] or \[\*batch, T, T, L\]: got list"),
        (zeros(4), {}, r"arc must be \[\*batch, T, T\] or \[\*batch, T, T, L\]: got \[4\]"),
        (zeros(4, 3), {}, r"arc must be \[\*batch, T, T.*: got \[4, 3\]"),
        (zeros(0, 0), {}, r"arc must be \[\*batch, T, T\], none of them zero: got \[0, 0\]"),
        (zeros(4, 4, 0), {}, r"arc must be \[\*batch, T, T, L\], none of them zero: got \[4, 4, 0\]"),
        (zeros(4, 4), {"labelled": True}, r"arc must be \[\*batch, T, T, L\].*: got \[4, 4\]"),
        (zeros(4, 4, 2), {"labelled": False}, r"arc must be \[\*batch, T, T\], .*: got \[4, 4, 2\]"),
        (ARC.long(), {}, "arc must be floating-point: got torch.int64"),
        (ARC.bool(), {"projective": False}, "arc must be floating-point: got torch.bool"),
        (with_value(ARC, math.nan), {}, r"arc must not hold NaN or \+inf .* got one at \[1, 3, 3\]"),
        (with_value(ARC, math.inf), {"projective": False}, r"arc must not hold NaN or \+inf"),
        (ARC, {"node": NODE}, "node and transition give words latent states together: got one without the other"),
        (ARC, {"transition": STEP}, "node and transition give words latent states together: got one without the other"),
        (ARC, {"node": NODE, "transition": STEP, "projective": False}, "latent states need projective=True"),
        (ARC, {"node": [0.0], "transition": STEP}, r"node must be \[\*batch, T, N\] with T = 4, as arc has: got list"),
        (ARC, {"node": zeros(3), "transition": STEP}, r"node must be \[\*batch, T, N\] with T = 4.*: got \[3\]"),
        (ARC, {"node": zeros(2, 3, 3), "transition": STEP}, r"node must be .* with T = 4.*: got \[2, 3, 3\]"),
        (ARC, {"node": zeros(4, 0), "transition": zeros(0, 0)}, r"node must be .*: got \[4, 0\]"),
        (ARC, {"node": zeros(3, 4, 3), "transition": STEP}, r"node has batch shape \[3\].* arc's \[2\]"),
        (ARC, {"node": NODE.long(), "transition": STEP}, "node must be floating-point"),
        (ARC, {"node": with_value(NODE, math.nan), "transition": STEP}, r"node must not hold NaN or \+inf"),
        (ARC, {"node": NODE, "transition": [0.0]}, "transition must be a potential or a tensor .*: got list"),
        (ARC, {"node": NODE, "transition": zeros(3)}, r"transition must be a potential or a tensor .*: got \[3\]"),
        (ARC, {"node": NODE, "transition": zeros(4, 4)}, "transition must join 3 states with 3, as node has: got 4"),
        (ARC, {"node": NODE, "transition": zeros(4, 3, 3)}, r"leading dimensions \[\*batch, T, T\] .*: got \[4\]"),
        (
            ARC,
            {"node": NODE, "transition": zeros(2, 4, 3, 3)},
            r"leading dimensions \[\*batch, T, T\] .*: got \[2, 4\]",
        ),
        (ARC, {"node": NODE, "transition": zeros(4, 2, 3, 3)}, "transition must have 1 or 4 steps .*: got 2"),
        (ARC, {"node": NODE, "transition": zeros(5, 4, 4, 3, 3)}, r"transition has batch shape \[5\].* \[2\]"),
        (ARC, {"node": NODE, "transition": STEP.long()}, "transition must be floating-point: got torch.int64"),
        (ARC, {"node": NODE, "transition": with_value(STEP, math.nan)}, r"transition must not hold NaN or \+inf"),
        (
            ARC,
            {"node": NODE, "transition": broken_factors(3)},
            r"transition must have finite factors: got -inf at \[2, 1\]",
        ),
        (ARC, {"node": NODE.to("meta"), "transition": STEP}, "node must be on cpu, where (?!emission).*: got meta"),
        (ARC, {"lengths": [1, 2, 3]}, r"lengths has batch shape \[3\], which does not match .* \[2\]"),
        (ARC, {"lengths": [0, 1]}, "lengths must lie between 1 and 4, the number of positions: got 0"),
        (ARC, {"lengths": [5, 1]}, "lengths must lie between 1 and 4, the number of positions: got 5"),
        (ARC, {"lengths": zeros(2)}, "lengths must be integers: got torch.float32"),
        (ARC, {"lengths": True}, "lengths must be integers: got torch.bool"),  # meant for `projective`
    ],
)
def test_dependency_tree(arc, others, words):
    fails(lambda: ts.DependencyTree(arc, **others), words)


# Use, the same for all.


def semi_markov(length=4, longest=3, n=5, batch=(2,), lengths=None):
    return ts.SemiMarkov(zeros(*batch, length, longest, n), zeros(n, n), lengths)


def span_tree(length=4, n=5, batch=(2,), lengths=None):
    return ts.SpanTree(zeros(*batch, length, length, n), lengths)


def grammar(length=4, n=5, p=4, batch=(2,), lengths=None):
    return ts.PCFG(zeros(n), zeros(n, n + p, n + p), zeros(*batch, length, p), lengths)


def dependencies(length=4, n=5, batch=(2,), lengths=None, **kind):
    arc = zeros(*batch, length, length)
    return ts.DependencyTree(arc, lengths, node=zeros(*batch, length, n), transition=zeros(n, n), **kind)


WITH_STATES = {
    "semi-Markov": semi_markov,
    "span tree": span_tree,
    "grammar": grammar,
    "grammar of factors": lambda: ts.PCFG(zeros(5), factors(ts.FactoredRule, 5, 9), zeros(2, 4, 4)),
    "grammar of low rank": lambda: ts.PCFG(zeros(5), factors(ts.LowRankRule, 5, 9), zeros(2, 4, 4)),
    "dependencies": dependencies,
    "dependencies, several roots": lambda: dependencies(multiroot=True),
}
WITHOUT_STATES = {
    "plain dependencies": lambda: ts.DependencyTree(ARC),
    "labelled dependencies": lambda: ts.DependencyTree(zeros(2, 4, 4, 3)),
    "non-projective dependencies": lambda: ts.DependencyTree(ARC, projective=False),
}
ALL = WITH_STATES | WITHOUT_STATES


def subset(model, k=2, state=0, log_weight=0.0, lead=(), lose=0):
    """All nodes keep one state, k times; `lose` positions are missing."""
    shape = (*lead, *(size - lose for size in model.node_shape), k)
    return ts.Subset(torch.full(shape, state), torch.full(shape, log_weight))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda m: m.topk(0), "k must be a whole number of at least 1: got 0"),
        (lambda m: m.topk(2.5), "k must be a whole number of at least 1: got 2.5"),
        (lambda m: m.topk(True), "k must be a whole number of at least 1: got True"),
        (lambda m: m.sample((-1,)), r"sample_shape\[0\] must be a whole number of at least 0: got -1"),
        (lambda m: m.sample((3, 2.5)), r"sample_shape\[1\] must be a whole number of at least 0: got 2.5"),
        (lambda m: m.rsample(0.0), "temperature must be above 0: got 0.0"),
        (lambda m: m.rsample(-1.0), "temperature must be above 0: got -1.0"),
        (lambda m: m.rsample(math.nan), "temperature must be above 0: got nan"),
        (lambda m: m.rsample(sample_shape=(-1,)), r"sample_shape\[0\] must be a whole number of at least 0: got -1"),
        (lambda m: m.sketch(), "either k, the number of states to keep, or a selection: got both or neither"),
        (lambda m: m.sketch(2, selection=ts.TopK(2)), "either k, the number of states to keep, or a selection"),
        (lambda m: m.sketch(0), "k must be a whole number of at least 1: got 0"),
        (lambda m: m.sketch(2.5), "k must be a whole number of at least 1: got 2.5"),
        (lambda m: m.sketch(2, proposal=3), "proposal must be a proposal or a function .*: got 3"),
        (lambda m: m.sketch(2, proposal=ts.Local), "proposal must be a proposal or a function"),
        (lambda m: m.sketch(2, proposal=lambda _: None), "proposal must give a tensor log_q: got NoneType"),
        (
            lambda m: m.sketch(2, proposal=lambda _: zeros(3, 5)),
            r"proposal must give .* log_q \[2, 4,.*: got .*\[3, 5\]",
        ),
        (lambda m: m.sketch(2, proposal=lambda m: m.node_scores() * math.nan), "proposal gave a log_q that is NaN"),
        (lambda m: m.sketch(2, proposal=ts.Global()), "the global proposal needs .*embedding"),
        (lambda m: m.sketch(2, proposal=ts.LocalGlobal()), "the global proposal needs .*embedding"),
        (
            lambda m: m.restrict(subset(m, lose=1)),
            r"subset must have an integer index and a log_weight of one shape, \[2, 4",
        ),
        (lambda m: m.restrict(subset(m, lead=(3,))), r"subset must have .*'K'\]: got torch.int64 \[3, 4"),
        (lambda m: m.restrict(subset(m, k=0)), r"subset must have .*'K'\]: got torch.int64 \[4.* 0\]"),
        (lambda m: m.restrict(subset(m, state=0.0)), "subset must have an integer index .*: got torch.float32"),
        (lambda m: m.restrict(subset(m, state=5)), "subset.index must lie between 0 and N-1 = .: got one outside"),
        (lambda m: m.restrict(subset(m, state=-1)), "subset.index must lie between 0 and N-1 = .: got one outside"),
        (lambda m: m.restrict(subset(m, log_weight=math.nan)), "subset.log_weight must not hold NaN"),
        (lambda m: m.restrict(subset(m, log_weight=math.inf)), r"subset.log_weight must not hold NaN or \+inf"),
        (lambda m: m.restrict(subset(m, log_weight=0)), "subset.log_weight must be floating-point: got torch.int64"),
        (
            lambda m: m.restrict(ts.Subset(subset(m).index, subset(m, k=3).log_weight)),
            r"subset must have an integer index and a log_weight of one shape.*2\] and \[4.* 3\]",
        ),
        (lambda m: m.restrict((subset(m).index, subset(m).log_weight)), "subset must be a Subset: got tuple"),
        (lambda m: m.kl(3), "other must be a .*: got int"),
        (lambda m: m.cross_entropy(None), "other must be a .*: got NoneType"),
        (lambda m: m.kl(ts.LinearChain(zeros(2, 4, 5), zeros(5, 5))), "other must be a .*: got LinearChain"),
    ],
)
def test_use(use, words, name):
    fails(lambda: use(ALL[name]()), words)


@pytest.mark.parametrize("name", WITH_STATES)
@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda m, s: s.scatter(zeros(2, *m.node_shape, 3)), r"values must be \[..., 4,.* 2\]: got \[2, 4,.* 3\]"),
        (lambda m, s: s.scatter(zeros(2, *m.node_shape, 1)), r"values must be \[..., 4,.* 2\]: got \[2, 4,.* 1\]"),
        (lambda m, s: s.scatter(zeros(2)), r"values must be \[..., 4,.* 2\]: got \[2\]"),
        (lambda m, s: s.scatter(zeros(3, *_part(m), 2)), r"values has batch shape \[3\]"),
        (lambda m, s: m.kl(s), r"other must have the same positions and states as .*N=5.*: got .*N=2 of 5"),
        (lambda m, s: s.kl(m.sketch(2, proposal=ts.Uniform())), "other must have the same positions and states"),
        (lambda m, s: m.sketch(selection=3), "selection must be a selection: got 3"),
    ],
)
def test_use_of_sketches(use, words, name):
    model = WITH_STATES[name]()
    fails(lambda: use(model, model.sketch(2, proposal=ts.Uniform(), generator=torch.Generator().manual_seed(1))), words)


@pytest.mark.parametrize("name", WITHOUT_STATES)
@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.sketch(2),
        lambda m: m.sketch(1, proposal=ts.Local()),
        lambda m: m.sketch(selection=ts.TopK(1), proposal=ts.Uniform()),
        lambda m: m.restrict(subset(m)),
    ],
)
def test_a_tree_without_states_has_no_sketch(name, use):
    fails(lambda: use(WITHOUT_STATES[name]()), "this tree has no latent states to .*: give node and transition")


def test_a_tree_without_states_has_no_marginals_of_them():
    tree = ts.DependencyTree(ARC)
    fails(tree.state_marginals, "the words of this tree have no states: give node and transition")
    fails(lambda: tree.rsample().mix(zeros(5, 2)), "the words of this tree have no states to mix")


def test_a_sketched_grammar_has_no_lookahead():
    fails(lambda: grammar().sketch(3).sketch(2), "a sketched grammar has no Lookahead: sketch the whole grammar, or")


def test_embeddings_that_vary_are_none():
    """Of a factored transition for each step or arc there is not one embedding for a state."""
    by_step = ts.Factored(zeros(3, 5, 2), zeros(5, 2))
    fails(
        lambda: ts.SemiMarkov(SEGMENT, by_step).sketch(2, proposal=ts.Global()),
        "the global proposal needs state embeddings: a Factored transition shared by all positions",
    )
    by_arc = ts.Factored(zeros(4, 4, 3, 2), zeros(3, 2))
    fails(
        lambda: ts.DependencyTree(ARC, node=NODE, transition=by_arc).sketch(2, proposal=ts.Global()),
        "the global proposal needs state embeddings: a Factored transition shared by all arcs",
    )


def test_marginals_of_segments_are_spread_by_their_starts():
    """Where D = T, starts and durations look the same."""
    small = ts.SemiMarkov(torch.randn(3, 3, 6), zeros(6, 6)).sketch(2, proposal=ts.Uniform())
    spread, own = small.scatter(small.marginals()), small.marginals()
    assert spread.shape == (3, 3, 6)
    for start in range(3):
        torch.testing.assert_close(spread[start][:, small.states[start]], own[start])


# Comparisons.


@pytest.mark.parametrize("name", ["semi-Markov", "span tree", "grammar", "dependencies"])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"length": 5}, "other must have the same positions and states as .*T=4.*: got .*T=5"),
        ({"n": 6}, "other must have the same positions and states as .*N=5.*: got .*N=6"),
        ({"batch": (3,)}, r"other has batch shape \[3\], which does not match this model's \[2\]"),
        ({"batch": (3, 2)}, r"other must have a batch shape within \[2\]: got \[3, 2\]"),
        ({"lengths": [4, 2]}, "other must have the same lengths"),
    ],
)
def test_divergence_between_different_sizes(name, other, words):
    make = WITH_STATES[name]
    fails(lambda: make().kl(make(**other)), words)
    fails(lambda: make().cross_entropy(make(**other)), words)
    fails(lambda: torch.distributions.kl_divergence(make(), make(**other)), words)


def test_divergence_between_different_structures():
    models = [make() for make in (semi_markov, span_tree, grammar, dependencies)]
    for one in models:
        for other in models:
            if one is not other:
                fails(lambda: one.kl(other), f"other must be a {type(one).__name__}: got {type(other).__name__}")  # noqa: B023


SAME = "other must have the same positions and states as (.*): got (?!\\1).*"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ts.DependencyTree(ARC), ts.DependencyTree(ARC, projective=False)),
        (ts.DependencyTree(ARC), ts.DependencyTree(ARC, multiroot=True)),
        (ts.DependencyTree(ARC), dependencies()),
        (dependencies(), dependencies(multiroot=True)),
        (ts.DependencyTree(ARC), dependencies(n=1)),
        (ts.DependencyTree(ARC), ts.DependencyTree(zeros(2, 4, 4, 3))),
        (ts.DependencyTree(zeros(2, 4, 4, 2)), ts.DependencyTree(zeros(2, 4, 4, 3))),
        (semi_markov(longest=2), semi_markov(longest=3)),
        (grammar(n=3, p=5), grammar(n=5, p=3)),
    ],
)
def test_divergence_between_different_forms(one, other):
    """And the message shows in what they differ."""
    fails(lambda: one.kl(other), SAME)
    fails(lambda: other.kl(one), SAME)


# Scores of what is no configuration.


def segments(starts, durations, states):
    return ts.Segments(tensor(starts), tensor(durations), tensor(states))


FOLLOW = "segments must follow one another from position 0 to the end of their sequence, each of 1 to D = 3 positions"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (segments([0, 3, -1, -1], [2, 1, 0, 0], [1, 4, -1, -1]), FOLLOW),  # a gap
        (segments([0, 1, -1, -1], [2, 2, 0, 0], [1, 4, -1, -1]), FOLLOW),  # an overlap
        (segments([0, 2, -1, -1], [2, 1, 0, 0], [1, 4, -1, -1]), FOLLOW),  # ends early
        (segments([0, 2, -1, -1], [2, 3, 0, 0], [1, 4, -1, -1]), FOLLOW),  # ends late
        (segments([1, -1, -1, -1], [3, 0, 0, 0], [1, -1, -1, -1]), FOLLOW),  # starts late
        (segments([0, -1, -1, -1], [4, 0, 0, 0], [1, -1, -1, -1]), FOLLOW),  # lasts too long
        (segments([2, 0, -1, -1], [2, 2, 0, 0], [1, 1, -1, -1]), FOLLOW),  # out of order
        (segments([-1, 0, 2, -1], [0, 2, 2, 0], [-1, 1, 1, -1]), FOLLOW),  # padding first
        (segments([0, 2, -1, -1], [2, -2, 0, 0], [1, 1, -1, -1]), FOLLOW),
        (segments([0, -2, -1, -1], [3, 1, 0, 0], [1, 1, -1, -1]), FOLLOW),
        (segments([0, 2, -1, -1], [2, 2, 0, 0], [1, -1, -1, -1]), FOLLOW),  # a segment without a state
        (segments([-1] * 4, [2, 2, 0, 0], [-1] * 4), FOLLOW),
        (segments([0, 2, -1, -1], [2, 2, 0, 0], [1, 5, -1, -1]), "segments.states must lie between 0 and N-1 = 4"),
        (segments([0, 2, -1, -1], [2, 2, 0, 0], [1, -2, -1, -1]), "segments.states must lie between 0 and N-1 = 4"),
        (
            segments([0.0, 2, -1, -1], [2, 2, 0, 0], [1, 1, -1, -1]),
            "segments.starts must be integers: got torch.float32",
        ),
        (segments([0, 2, -1], [2, 2, 0], [1, 1, -1]), r"segments must have .* with T = 4: got \[3\], \[3\] and \[3\]"),
        (segments([0, 2, -1, -1], [2, 2, 0], [1, 1, -1, -1]), r"segments must have .*: got \[4\], \[3\] and \[4\]"),
        (zeros(4).long(), "segments must"),
        (span_tree().sample(), "segments must"),
    ],
)
def test_scores_of_segments(given, words):
    model = semi_markov(batch=())
    fails(lambda: model.score(given), words)
    fails(lambda: model.log_prob(given), words)
    fails(lambda: model.sketch(2).score(given), words)


def test_scores_of_segments_of_the_wrong_sentence():
    whole = segments([0, 2, -1, -1], [2, 2, 0, 0], [1, 4, -1, -1])
    each = ts.Segments(*(x.expand(2, 4) for x in whole))
    fails(lambda: semi_markov(lengths=[4, 2]).score(each), FOLLOW)
    more = ts.Segments(*(x.expand(3, 4) for x in whole))
    fails(lambda: semi_markov().score(more), r"segments has batch shape \[3\], which does not match the model's \[2\]")
    assert semi_markov().score(ts.Segments(*(x.expand(3, 2, 4) for x in whole))).eq(0).all()
    none = segments([-1] * 4, [0] * 4, [-1] * 4)
    assert semi_markov(batch=()).score(none) == -math.inf
    assert semi_markov(batch=()).log_prob(none) == -math.inf


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
        (semi_markov().sample(), "tree must be Trees: got Segments"),
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


HEADS = [0, 0, 1, 1]
PLAIN, LABELLED = ts.DependencyTree(torch.randn(4, 4)), ts.DependencyTree(torch.randn(4, 4, 3))
STATEFUL = ts.DependencyTree(torch.randn(4, 4), node=torch.randn(4, 5), transition=torch.randn(5, 5))
BY_ARC = ts.DependencyTree(torch.randn(4, 4), node=torch.randn(4, 5), transition=torch.randn(4, 4, 5, 5))


def tree(heads, labels=None, states=None):
    return ts.Dependencies(*(None if x is None else tensor(x) for x in (heads, labels, states)))


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (LABELLED, tree(HEADS), "tree.labels must be given for DependencyTree"),
        (PLAIN, tree(HEADS, HEADS), "tree.labels must not be given for DependencyTree"),
        (STATEFUL, tree(HEADS), "tree.states must be given for DependencyTree"),
        (PLAIN, tree(HEADS, None, HEADS), "tree.states must not be given for DependencyTree"),
        (STATEFUL, tree(HEADS, HEADS, HEADS), "tree.labels must not be given for DependencyTree"),
        (PLAIN, tree([0, 0, 1, 4]), "tree.heads must lie between 0 and .* = 3: got one outside"),
        (PLAIN, tree([0, 0, 1, -2]), "tree.heads must lie between 0 and .* = 3: got one outside"),
        (PLAIN, tree([0, 0, 1]), r"tree.heads must be \[..., T\] with T = 4: got \[3\]"),
        (PLAIN, tree([0.0, 0, 1, 1]), "tree.heads must be integers: got torch.float32"),
        (LABELLED, tree(HEADS, [0, 1, 2, 3]), "tree.labels must lie between 0 and .* = 2: got one outside"),
        (LABELLED, tree(HEADS, [0, 1]), r"tree.labels must be \[..., T\] with T = 4: got \[2\]"),
        (LABELLED, tree(HEADS, [0.0, 1, 2, 0]), "tree.labels must be integers: got torch.float32"),
        (STATEFUL, tree(HEADS, None, [0, 1, 2, 5]), "tree.states must lie between 0 and N-1 = 4: got one outside"),
        (STATEFUL, tree(HEADS, None, [0, 1, 2]), r"tree.states must be \[..., T\] with T = 4: got \[3\]"),
        (LABELLED, tree(HEADS, [0, 1, 2, -1]), "tree.labels must lie between 0"),
        (STATEFUL, tree(HEADS, None, [0, 1, 2, -1]), "tree.states must lie between 0"),
        (LABELLED, tree([HEADS] * 3, [[0, 1, 2, 0]] * 2), "tree"),
        (PLAIN, semi_markov().sample(), "tree must be Dependencies: got Segments"),
    ],
)
def test_scores_of_dependencies(model, given, words):
    fails(lambda: model.score(given), words)
    fails(lambda: model.log_prob(given), words)


def test_scores_of_dependencies_of_the_wrong_sentence():
    model = ts.DependencyTree(ARC)
    words = r"tree.heads has batch shape \[3\], which does not match the model's \[2\]"
    fails(lambda: model.score(tree([HEADS] * 3)), words)
    ragged = ts.DependencyTree(torch.randn(2, 4, 4), [4, 2])
    assert ragged.score(tree([HEADS, [0, 3, -1, -1]]))[1] == -math.inf  # a head beyond the end
    padded, dirty = (ragged.score(tree([HEADS, [0, 0, x, x]])) for x in (-1, 9))
    assert torch.equal(padded, dirty)
    assert (padded > -math.inf).all()


@pytest.mark.parametrize(
    ("heads", "labels"),
    [([HEADS] * 3, [0, 1, 2, 0]), (HEADS, [[0, 1, 2, 0]] * 3)],
)
def test_labels_that_broadcast(heads, labels):
    assert LABELLED.score(tree(heads, labels)).eq(LABELLED.score(tree(HEADS, [0, 1, 2, 0]))).all()


NOT_TREES = {
    "a cycle": [1, 0, 2, 2],
    "a cycle of all": [1, 2, 3, 0],
    "no root": [1, 0, 3, 2],
    "a head missing": [0, 0, 1, -1],
    "all heads missing": [-1, -1, -1, -1],
}
OF_A_KIND = {
    "crossing arcs": ([2, 3, 2, 2], lambda m: not m.projective),
    "an arc over the root": ([2, 1, 1, 1], lambda m: not m.projective),
    "several roots": ([0, 1, 1, 1], lambda m: m.multiroot),
    "all roots": ([0, 1, 2, 3], lambda m: m.multiroot),
    "several roots, one below an arc": ([2, 1, 2, 2], lambda m: m.multiroot and not m.projective),
    "a tree": (HEADS, lambda m: True),
}


@pytest.mark.parametrize("projective", [True, False])
@pytest.mark.parametrize("multiroot", [True, False])
def test_what_is_no_tree_scores_minus_infinity(projective, multiroot):
    plain = ts.DependencyTree(torch.randn(4, 4), projective=projective, multiroot=multiroot)
    labelled = ts.DependencyTree(torch.randn(4, 4, 3), projective=projective, multiroot=multiroot)
    for name, heads in NOT_TREES.items():
        assert plain.score(tree(heads)) == -math.inf, name
        assert plain.log_prob(tree(heads)) == -math.inf, name
        assert labelled.score(tree(heads, [0, 1, 2, 0])) == -math.inf, name
    for name, (heads, allowed) in OF_A_KIND.items():
        assert (plain.score(tree(heads)) > -math.inf) == allowed(plain), name
        assert (labelled.score(tree(heads, [0, 1, 2, 0])) > -math.inf) == allowed(plain), name


@pytest.mark.parametrize("model", [STATEFUL, BY_ARC])
def test_what_is_no_tree_scores_minus_infinity_with_states(model):
    for heads in (*NOT_TREES.values(), *(heads for heads, _ in OF_A_KIND.values())):
        allowed = heads == HEADS
        assert (model.score(tree(heads, None, [4, 0, 1, 2])) > -math.inf) == allowed
        assert (model.sketch(2).score(tree(heads, None, [4, 0, 1, 2])) > -math.inf) == allowed


# Extremes that are no errors.


def test_what_counts_nowhere_may_hold_anything():
    """Padding, what is below the diagonal of spans, and segments that reach beyond the end."""
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
    """Has one tree of one state, or no tree at all: a sketch says so."""
    model = ONE_WORD[name]()
    expected = -math.inf if name.startswith("grammar") else math.log(3)
    for small in (model, model.sketch(2), model.sketch(2, proposal=ts.Local())):
        assert small.log_partition().item() == pytest.approx(expected)


@pytest.mark.parametrize("name", ALL)
def test_no_samples(name):
    model = ALL[name]()
    none = model.sample((0,))
    assert all(x is None or x.shape[:2] == (0, 2) for x in none)
    relaxed = model.rsample(sample_shape=(0,))
    assert all(x is None or x.shape[:2] == (0, 2) for x in relaxed.hard)


@pytest.mark.parametrize(
    "make",
    [
        semi_markov,
        span_tree,
        grammar,
        dependencies,
    ],
)
def test_no_sentences(make):
    assert make(batch=(0,)).log_partition().shape == (0,)
    assert make(batch=(0,)).sketch(2).log_partition().shape == (0,)
