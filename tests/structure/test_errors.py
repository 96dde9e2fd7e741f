"""Bad arguments to the methods of all structures: a ValueError that names the argument, and what was expected."""

import pytest
import torch

import tailsum as ts
from harness.misuse import ESTIMATES, LENGTHS, OPERATIONS, RELAXED, SKETCHES, WITHOUT_EMBEDDINGS, fails, misused, sizes
from harness.registry import EMBEDDED, FEW, LARGE, ONE_EACH, STATELESS, large, small

pytestmark = pytest.mark.usefixtures("unchecked")


def two(name, **how):
    """A model of two sentences."""
    return (large if name in LARGE else small)(name, **{"batch": (2,), **how}).model()


@pytest.mark.parametrize("name", [*LARGE, *STATELESS])
@pytest.mark.parametrize(("use", "words"), OPERATIONS)
def test_operations(name, use, words):
    misused(two(name), use, words)


def of_families(names, *, but):
    return [name for name in names if family(name) not in but]


def family(name):
    """A hidden Markov model is a chain."""
    return name.split("-")[0].replace("hmm", "chain")


@pytest.mark.parametrize("name", [*LARGE, *STATELESS])
@pytest.mark.parametrize(("use", "words"), RELAXED)
def test_relaxed_samples(name, use, words):
    misused(two(name), use, words)


@pytest.mark.parametrize("name", [name for name in FEW if small(name).has_lengths])
@pytest.mark.parametrize(("lengths", "words"), LENGTHS)
def test_lengths(name, lengths, words):
    case = small(name)
    case.given = lengths
    fails(case.model, words)


# Lattices and graphs are tested in their rooms (a graph takes lists), and a ring is a user's.
SCORES = [
    (name, which)
    for name in of_families(FEW, but={"ctc", "alignment", "ring", "factors", "pairs"})
    for which, seen in enumerate(small(name).seen)
    if seen and not name.startswith("hmm")
]


@pytest.mark.parametrize(("name", "which"), SCORES)
def test_scores_that_are_no_dense_tensors(name, which):
    case = small(name)
    kinds = [(lambda x: x.to_sparse(), "dense tensor, .*: got one of layout torch.sparse_coo")]
    kinds += [
        (lambda x: x.tolist(), "got list"),
        (lambda x: x.numpy(), "got ndarray"),
        (lambda _: None, "got NoneType"),
    ]
    for change, words in kinds:
        if words == "got NoneType" and name.startswith("dependencies") and which:
            continue  # no states at all
        fails(
            lambda change=change: case.build(*(change(x) if i == which else x for i, x in enumerate(case.leaves))),
            words,
        )


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize(("use", "words"), SKETCHES)
def test_sketches(name, use, words):
    misused(two(name), use, words)


@pytest.mark.parametrize("name", ONE_EACH)
@pytest.mark.parametrize(("use", "words"), ESTIMATES)
def test_estimates(name, use, words):
    misused(two(name), use, words)


@pytest.mark.parametrize("name", [name for name in LARGE if name not in EMBEDDED])
@pytest.mark.parametrize(("use", "words"), WITHOUT_EMBEDDINGS)
def test_proposals_that_need_embeddings(name, use, words):
    misused(two(name), use, words)


def part(name, model):
    """The dimensions of values before the state: segments have durations."""
    return (*model.node_shape, 3) if name.startswith("segments") else tuple(model.node_shape)


@pytest.mark.parametrize("name", LARGE)
def test_values_to_scatter(name):
    model = two(name)
    sketch, node = model.sketch(2, proposal=ts.Uniform()), part(name, model)
    wanted = r"values must be \[\.\.\., " + sizes(node[0]) + r",.* 2\]"
    for shape in ((2, *node, 3), (2, *node, 1), (2,)):
        fails(lambda shape=shape: sketch.scatter(torch.zeros(shape)), rf"{wanted}: got \[{sizes(*shape)}\]")
    fails(lambda: sketch.scatter(torch.zeros(3, *node, 2)), r"values has batch shape \[3\]")


@pytest.mark.parametrize("name", LARGE)
def test_divergence_from_other_states(name):
    model = two(name)
    one, other = (
        model.sketch(2, proposal=ts.Uniform(), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)
    )
    n = model.n_states
    fails(lambda: model.kl(one), rf"other must have the same positions and states as .*N={n}.*: got .*N=2 of {n}")
    fails(lambda: one.kl(other), "other must have the same positions and states as .*: got .*, which keeps others: at ")


OTHERS = {
    "length": ({"length": 5}, "other must have the same positions and states as .*T=.*: got .*T=5"),
    "states": ({"n": 7}, "other must have the same positions and states as .*N=.*: got .*N=7"),
    "batch": ({"batch": (3,)}, r"other has batch shape \[3\], which does not match this model's \[2\]"),
    "larger batch": ({"batch": (3, 2)}, r"other must have a batch shape within \[2\]: got \[3, 2\]"),
    "lengths": ({"lengths": [3, 2]}, "other must have the same lengths"),
}


# The sizes of a graph belong to its factors, and are tested among the graphs.
DIFFERENT = [(name, which) for name in ONE_EACH for which in OTHERS if large(name).has_lengths or "batch" in which]


@pytest.mark.parametrize(("name", "which"), DIFFERENT)
def test_divergence_between_different_sizes(name, which):
    changed, words = OTHERS[which]
    one, other = two(name), two(name, **changed)
    fails(lambda: one.kl(other), words)
    fails(lambda: one.cross_entropy(other), words)
    fails(lambda: torch.distributions.kl_divergence(one, other), words)


DIFFERENT_STRUCTURES = [
    (one, other) for one in (*LARGE, *STATELESS) for other in ONE_EACH if family(one) != family(other)
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT_STRUCTURES)
def test_divergence_between_different_structures(one, other):
    one, other = two(one), two(other)
    fails(lambda: one.kl(other), f"other must be a {type(one).__name__}: got {type(other).__name__}")
