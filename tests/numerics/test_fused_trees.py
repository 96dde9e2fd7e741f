"""Trees found and drawn by kernels, on a CPU in Triton's interpreter: the best against the references, samples against log_prob."""

import math

import pytest
import torch

from harness.interpreter import with_fast_numbers
from harness.poison import poison
from tailsum import DependencyTree, SpanTree, kernels
from tailsum.dependencies import arborescence, projective

pytest.importorskip("triton")

MODES = pytest.mark.parametrize("multiroot", [False, True], ids=["single root", "multiroot"])


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    poison(monkeypatch)


@pytest.fixture
def _fast_numbers(monkeypatch):
    with_fast_numbers(monkeypatch)


@MODES
@pytest.mark.parametrize("search", [arborescence.best, projective.best_projective], ids=["any tree", "projective"])
@pytest.mark.parametrize("forbidden", [0.0, 0.5])
def test_best_trees_among_many_that_tie(search, multiroot, forbidden):
    """Small whole numbers: many cycles within cycles, and every sum exact."""
    arc = torch.randint(-2, 3, (6, 9, 9)).float()
    arc = arc.masked_fill(torch.rand(arc.shape) < forbidden, -math.inf)
    lengths = torch.tensor([9, 7, 9, 8, 2, 1])
    model = DependencyTree(arc, lengths, projective=search is projective.best_projective, multiroot=multiroot)
    with kernels("always"):
        heads = search(arc, lengths=lengths, multiroot=multiroot)
    with kernels("never"):
        truth = search(arc, lengths=lengths, multiroot=multiroot)
    assert torch.equal(heads < 0, truth < 0)
    possible = heads[:, 0] >= 0
    scores = [model[possible].score(type(model[possible].argmax())(x[possible])) for x in (heads, truth)]
    assert torch.equal(*scores)


def test_best_tree_of_cycles_within_cycles():
    """Each word prefers the next, and each cycle has a head that is hardly better than the others."""
    n = 12
    arc = -torch.rand(1, n, n) * torch.arange(1, n + 1) ** 2
    for c in range(n):
        arc[0, (c + 1) % (c + 2 if c < n - 1 else 1), c] = 5.0 + c
    with kernels("always"):
        heads = arborescence.best(arc, lengths=torch.tensor([n]), multiroot=False)
    with kernels("never"):
        assert torch.equal(heads, arborescence.best(arc, lengths=torch.tensor([n]), multiroot=False))


def spans():
    return SpanTree(torch.randn(2, 3, 3, 2), lengths=[3, 2])


def dependencies(**how):
    arc = torch.randn(2, 4, 4) * 1.5
    arc[0, 0, 1] = -math.inf
    return DependencyTree(arc, lengths=[4, 2], **how)


DRAWN = {
    "spans": spans,
    "projective": dependencies,
    "projective, several roots": lambda: dependencies(multiroot=True),
    "any tree": lambda: dependencies(projective=False),
    "any tree, several roots": lambda: dependencies(projective=False, multiroot=True),
}


@pytest.mark.usefixtures("_fast_numbers")
@pytest.mark.parametrize("kind", [pytest.param(x, marks=pytest.mark.slow if "several" in x else ()) for x in DRAWN])
def test_samples(kind, generator):
    model, count = DRAWN[kind](), 80
    with kernels("always"):
        drawn = model.sample((count,), generator)
    chance = model.log_prob(drawn).exp()
    assert (chance > 0).all()
    for b in range(2):
        rows = [tuple(torch.cat([x[i, b].flatten() for x in drawn if x is not None]).tolist()) for i in range(count)]
        expected = {row: chance[i, b].item() for i, row in enumerate(rows)}
        for row, p in expected.items():
            assert abs(rows.count(row) - count * p) <= 5 * math.sqrt(count * p * (1 - p)) + 2
        assert sum(expected.values()) > 0.5  # few trees are missing


@pytest.mark.parametrize("kind", DRAWN)
def test_nothing_to_draw(kind):
    model = DRAWN[kind]()
    with kernels("always"):
        forbidden = type(model)(
            torch.full_like(model.spans.block()[..., 0, :] if kind == "spans" else model.arc, -math.inf)
        )
        for tree in (forbidden.sample((2,)), forbidden.argmax()):
            assert all(x.eq(-1).all() for x in tree if x is not None)


@pytest.mark.usefixtures("_fast_numbers")
def test_the_same_generator_gives_the_same_samples():
    for make in DRAWN.values():
        model = make()
        with kernels("always"):
            one, other = (model.sample((3,), torch.Generator().manual_seed(5)) for _ in range(2))
        assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True) if x is not None)
