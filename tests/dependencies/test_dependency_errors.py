"""Bad input to dependency trees: a ValueError that names the argument, what it was and what was expected.

Heads that are no tree of the right kind score minus infinity.
"""

import math
import warnings

import pytest
import torch

import tailsum as ts
from harness.misuse import SKETCHES, broken_factors, fails, misused, subset, with_value

pytestmark = pytest.mark.usefixtures("unchecked")

zeros, tensor = torch.zeros, torch.tensor

ARC, NODE, STEP = zeros(2, 4, 4), zeros(2, 4, 3), zeros(3, 3)
STATELESS = {
    "plain": lambda: ts.DependencyTree(ARC),
    "labelled": lambda: ts.DependencyTree(zeros(2, 4, 4, 3), labelled=True),
    "non-projective": lambda: ts.DependencyTree(ARC, projective=False),
}


def dependencies(length=4, n=5, batch=(2,), lengths=None, **kind):
    arc = zeros(*batch, length, length)
    return ts.DependencyTree(arc, lengths, node=zeros(*batch, length, n), transition=zeros(n, n), **kind)


@pytest.mark.parametrize(
    ("arc", "others", "words"),
    [
        ([0.0], {}, r"arc must be \[\*batch, T, T\] or \[\*batch, T, T, L\]: got list"),
        (zeros(4), {}, r"arc must be \[\*batch, T, T\] or \[\*batch, T, T, L\]: got \[4\]"),
        (zeros(4, 3), {}, r"arc must be \[\*batch, T, T.*: got \[4, 3\]"),
        (zeros(0, 0), {}, r"arc must be \[\*batch, T, T\], none of them zero: got \[0, 0\]"),
        (zeros(4, 4, 0), {"labelled": True}, r"arc must be \[\*batch, T, T, L\], none of them zero: got \[4, 4, 0\]"),
        (zeros(4, 4), {"labelled": True}, r"arc must be \[\*batch, T, T, L\].*: got \[4, 4\]"),
        (zeros(4, 4, 2), {"labelled": False}, r"arc must be \[\*batch, T, T\], .*: got \[4, 4, 2\]"),
        (zeros(2, 4, 4, 3), {}, r"arc must be .*, or \[\*batch, T, T, L\] with labelled=True: got \[2, 4, 4, 3\]"),
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


@pytest.mark.parametrize("name", STATELESS)
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
    fails(lambda: use(STATELESS[name]()), "this tree has no latent states to .*: give node and transition")


@pytest.mark.parametrize("name", STATELESS)
@pytest.mark.parametrize(("use", "words"), SKETCHES)
def test_bad_arguments_to_the_sketch_of_a_tree_without_states(name, use, words):
    """They are reported before the lack of states."""
    misused(STATELESS[name](), use, words)


def test_a_tree_without_states_has_no_marginals_of_them():
    tree = ts.DependencyTree(ARC)
    fails(tree.state_marginals, "the words of this tree have no states: give node and transition")
    fails(lambda: tree.rsample().mix(zeros(5, 2)), "the words of this tree have no states to mix")


def test_embeddings_that_vary_are_none():
    """With a factored transition for each arc, a state has no single embedding."""
    by_arc = ts.Factored(zeros(4, 4, 3, 2), zeros(3, 2))
    fails(
        lambda: ts.DependencyTree(ARC, node=NODE, transition=by_arc).sketch(2, proposal=ts.Global()),
        "the global proposal needs state embeddings: a Factored transition shared by all arcs",
    )


SAME = "other must have the same positions and states as (.*): got (?!\\1).*"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ts.DependencyTree(ARC), ts.DependencyTree(ARC, projective=False)),
        (ts.DependencyTree(ARC), ts.DependencyTree(ARC, multiroot=True)),
        (ts.DependencyTree(ARC), dependencies()),
        (dependencies(), dependencies(multiroot=True)),
        (ts.DependencyTree(ARC), dependencies(n=1)),
        (ts.DependencyTree(ARC), STATELESS["labelled"]()),
        (ts.DependencyTree(zeros(2, 4, 4, 2), labelled=True), STATELESS["labelled"]()),
    ],
)
def test_divergence_between_different_forms(one, other):
    """The message shows how they differ."""
    fails(lambda: one.kl(other), SAME)
    fails(lambda: other.kl(one), SAME)


HEADS = [0, 0, 1, 1]
PLAIN, LABELLED = ts.DependencyTree(torch.randn(4, 4)), ts.DependencyTree(torch.randn(4, 4, 3), labelled=True)
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
        (
            PLAIN,
            tree([0, 0, 1, -1]),
            "tree.heads must lie .* a root is its own head: got -1; .*Dependencies.from_conll",
        ),
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
        (PLAIN, ts.SemiMarkov(zeros(2, 4, 3, 5), zeros(5, 5)).sample(), "tree must be Dependencies: got Segments"),
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


def test_crossing_arcs_in_a_projective_model_are_said():
    crossing, nested = tree([2, 3, 2, 2]), tree(HEADS)
    with pytest.warns(UserWarning, match="crossing arcs.*projective=False"):
        assert PLAIN.score(crossing) == -math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PLAIN.score(nested)
        PLAIN.score(tree([1, 0, 2, 2]))  # no tree at all
        ts.DependencyTree(ARC[0], projective=False).score(crossing)
        PLAIN.topk(4), PLAIN.log_prob(PLAIN.sample((3,)))


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        (tensor([2, 0, 4]), "heads must be .* lie between 0 for a root and T, .*: got 0 to 4"),
        (tensor([2, 0, -2]), "heads must be .*: got -2 to 2"),
        (tensor(0), "heads must be"),
        (tensor([0.0, 1.0]), "heads must be integers: got torch.float32"),
        ([[0, 1], [0]], "heads must be integers, in a tensor or lists of equal length"),
    ],
)
def test_heads_that_are_not_of_conll(heads, words):
    fails(lambda: ts.Dependencies.from_conll(heads), words)


NO_TREE = pytest.mark.filterwarnings("ignore:some trees have crossing arcs")


@NO_TREE
@pytest.mark.parametrize("projective", [True, False])
@pytest.mark.parametrize("multiroot", [True, False])
def test_what_is_no_tree_scores_minus_infinity(projective, multiroot):
    plain = ts.DependencyTree(torch.randn(4, 4), projective=projective, multiroot=multiroot)
    labelled = ts.DependencyTree(torch.randn(4, 4, 3), projective=projective, multiroot=multiroot, labelled=True)
    for name, heads in NOT_TREES.items():
        assert plain.score(tree(heads)) == -math.inf, name
        assert plain.log_prob(tree(heads)) == -math.inf, name
        assert labelled.score(tree(heads, [0, 1, 2, 0])) == -math.inf, name
    for name, (heads, allowed) in OF_A_KIND.items():
        assert (plain.score(tree(heads)) > -math.inf) == allowed(plain), name
        assert (labelled.score(tree(heads, [0, 1, 2, 0])) > -math.inf) == allowed(plain), name


@NO_TREE
@pytest.mark.parametrize("model", [STATEFUL, BY_ARC])
def test_what_is_no_tree_scores_minus_infinity_with_states(model):
    for heads in (*NOT_TREES.values(), *(heads for heads, _ in OF_A_KIND.values())):
        allowed = heads == HEADS
        assert (model.score(tree(heads, None, [4, 0, 1, 2])) > -math.inf) == allowed
        assert (model.sketch(2).score(tree(heads, None, [4, 0, 1, 2])) > -math.inf) == allowed
