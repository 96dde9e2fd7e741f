"""Kernels of trees, grammars and dependency trees against their references, on a CPU in Triton's interpreter."""

import math

import pytest
import torch

from harness.interpreter import with_fast_numbers
from harness.poison import poison
from tailsum import PCFG, DependencyTree, FactoredRule, LowRankRule, SpanTree, kernels
from tailsum.dependencies import arborescence, projective
from tailsum.trees.configuration import children
from tailsum.trees.rules.dense import grammar_sum
from tailsum.trees.rules.low_rank import low_rank_sum
from tailsum.trees.span_chart import log_span_sum

pytest.importorskip("triton")

LENGTHS = (4, 1)
GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    poison(monkeypatch)


def randn(*shape, scale=2.0, forbidden=0.0):
    x = scale * torch.randn(*shape)
    return x.masked_fill(torch.rand(*shape) < forbidden, -math.inf)


def spans(scale, forbidden, size=3, length=4, batch=2):
    return SpanTree, [randn(batch, length, length, size, scale=scale, forbidden=forbidden)], {}


def arcs(scale, forbidden, length=4, batch=2, **how):
    return DependencyTree, [randn(batch, length, length, scale=scale, forbidden=forbidden)], how


def table(scale, forbidden, n=3, p=2, length=4, batch=2):
    lead = (batch,) if forbidden else ()  # a table for each sentence, or one
    rule = randn(*lead, n, n + p, n + p, scale=scale, forbidden=forbidden)
    return PCFG, [randn(n), rule, randn(batch, length, p, scale=scale, forbidden=forbidden / 2)], {}


def low_rank(scale, forbidden, n=3, p=4, rank=5, length=4, batch=2):
    def make(root, head, left, right, emission, **how):
        return PCFG(root, LowRankRule(head, left, right), emission, **how)

    factors = [randn(size, rank, scale=scale, forbidden=forbidden) for size in (n, n + p, n + p)]
    return make, [randn(n), *factors, randn(batch, length, p, scale=scale)], {}


def stateful(scale, forbidden, states=3, length=4, batch=2, own=False, **how):
    def make(arc, node, transition, **more):
        return DependencyTree(arc, node=node, transition=transition, **how, **more)

    pairs = (batch, length, length, states, states) if own else (states, states)
    shapes = (batch, length, length), (batch, length, states), pairs
    return make, [randn(*shape, scale=scale, forbidden=forbidden / 2) for shape in shapes], {}


def stateful_of(**how):
    return lambda *args, **more: stateful(*args, **how, **more)


def arcs_of(**how):
    return lambda *args, **more: arcs(*args, **how, **more)


KINDS = {
    "spans": spans,
    "projective": arcs,
    "projective, several roots": arcs_of(multiroot=True),
    "any tree": arcs_of(projective=False),
    "any tree, several roots": arcs_of(projective=False, multiroot=True),
    "states": stateful,
    "states, several roots": stateful_of(multiroot=True),
    "states, own pairs": stateful_of(own=True, multiroot=True),
    "table": table,
    "low rank": low_rank,
}


def log_sums(make, tensors, how, use, dtype=torch.float32, device="cpu"):
    """Log-partitions, and the gradients of a weighted sum of the finite ones."""
    leaves = [x.to(device, dtype).requires_grad_() for x in tensors]
    with kernels(use):
        total = make(*leaves, **how).log_partition()
        weights = torch.arange(1, total.numel() + 1, device=device)
        grads = torch.autograd.grad((total.masked_fill(total == -math.inf, 0.0) * weights).sum(), leaves)
    return total.detach(), grads


def check(make, tensors, how, use="always", device="cpu", tolerance=1e-4):
    total, grads = log_sums(make, tensors, how, use, device=device)
    truth, slopes = log_sums(make, tensors, how, "never", torch.float64, device)
    torch.testing.assert_close(total.double(), truth, rtol=1e-5, atol=1e-4)
    for grad, slope in zip(grads, slopes, strict=True):
        torch.testing.assert_close(grad.double(), slope, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("scale", "forbidden"), [(2.0, 0.0), (2.0, 0.4)])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_gradients(kind, scale, forbidden):
    make, tensors, how = KINDS[kind](scale, forbidden)
    check(make, tensors, {**how, "lengths": LENGTHS})


@pytest.mark.parametrize(
    "kind", ["spans", "projective", "any tree", "states", "states, own pairs", "table", "low rank"]
)
def test_wide_range(kind):
    """Scores of hundreds: where products underflow, the reference is used."""
    make, tensors, how = KINDS[kind](200.0, 0.0, length=3, batch=1)
    check(make, tensors, how)


@pytest.mark.parametrize("kind", ["spans", "projective", "any tree", "states", "states, own pairs", "table"])
def test_impossible(kind):
    make, tensors, how = KINDS[kind](1.0, 0.0, length=3, batch=1)
    total, grads = log_sums(make, [torch.full_like(x, -math.inf) for x in tensors], how, "always")
    assert (total == -math.inf).all()
    assert all((grad == 0).all() for grad in grads)


@pytest.mark.parametrize("kind", ["spans", "projective", "any tree", "table", "low rank"])
def test_second_derivatives(kind):
    make, tensors, how = KINDS[kind](1.0, 0.0, length=3, batch=2)
    result = []
    for use in ("always", "never"):
        with kernels(use):
            model = make(*(x.requires_grad_() for x in tensors), **how)
            entropy = model.entropy()
            result.append((entropy, torch.autograd.grad(entropy.sum(), tensors)))
    torch.testing.assert_close(result[0], result[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", [-math.inf, -1e9])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith(("projective", "any"))])
def test_entropies_of_dependencies_need_no_reference(kind, mask, monkeypatch):
    """Nor do their gradients; some arcs are forbidden, and sentences have different lengths."""
    make, (arc,), how = KINDS[kind](1.0, 0.0, length=5, batch=3)
    arc = torch.where(torch.rand_like(arc).triu(1) > 0.6, mask, arc)  # each word may be the head of all before it
    result = []
    for use, dtype in (("never", torch.float64), ("always", torch.float32)):
        leaf = arc.to(dtype).requires_grad_()
        with kernels(use):
            entropy = make(leaf, lengths=(5, 3, 1), **how).entropy()
            result.append((entropy, *torch.autograd.grad(entropy.sum(), leaf)))
        for kernel in (arborescence.log_sum, projective.projective_sum):
            monkeypatch.setitem(vars(kernel), "reference", None)
    torch.testing.assert_close(result[1], result[0], rtol=5e-6, atol=5e-6, check_dtype=False)


@pytest.mark.parametrize("kind", ["table", pytest.param("low rank", marks=pytest.mark.slow)])
def test_means(kind):
    """Of scores that forbid some rules, of two lengths, and of a model with other ones."""
    make, tensors, how = KINDS[kind](1.0, 0.2, length=3, batch=2)
    other = [x + 0.1 for x in tensors]
    result = []
    for use in ("always", "never"):
        with kernels(use):
            model = make(*(x.requires_grad_() for x in tensors), lengths=(3, 1), **how)
            found = model.entropy()[0], model.kl(make(*other, **how).replaced(lengths=model.lengths))[0]
            result.append((found, torch.autograd.grad(sum(found), tensors)))
    torch.testing.assert_close(result[0], result[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["table", "low rank"])
def test_samples(kind, monkeypatch):
    """Trees of finite score, none where there is none, the same from the same seed."""
    with_fast_numbers(monkeypatch)
    make, tensors, how = KINDS[kind](1.0, 0.1, length=3, batch=3)
    model = make(*tensors, **how, lengths=(3, 2, 1))
    with kernels("always"):
        trees, again = (model.sample((3,), torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(trees.states, again.states)
    assert (trees.states[:, 2] == -1).all()
    assert (model.score(trees)[:, :2] > -math.inf).all()


def sampled_rules(model, count):
    """How often samples use each rule of a grammar of three nonterminals."""
    used, trees = torch.zeros_like(model.rule_marginals()), model.sample((count,))
    head, left, right = children(trees, model.node_shape[0], 3)
    sample, sentence, node = (head >= 0).nonzero(as_tuple=True)
    rules = (x[sample, sentence, node] for x in (head, left, right))
    return used.index_put_((sentence, *rules), torch.ones_like(sentence).to(used) / count, accumulate=True)


@pytest.mark.slow
def test_frequencies_of_few_samples():
    """Of rules of low rank, whose ranks are drawn before the splits."""
    make, tensors, how = low_rank(1.5, 0.1, p=2, rank=3, length=3, batch=1)
    model = make(*tensors, **how)
    chance = model.rule_marginals()
    with kernels("always"):
        error = (sampled_rules(model, 40) - chance).abs()
    assert (error < 5 * (2 * chance / 40).sqrt() + 0.02).all()  # a tree may use a rule more than once


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("kind", ["table", "low rank"])
def test_frequencies_of_samples(kind):
    make, tensors, how = KINDS[kind](1.0, 0.2, length=5, batch=3)
    model = make(*(x.cuda() for x in tensors), **how, lengths=(5, 3, 2))
    chance = model.rule_marginals()
    error = (sampled_rules(model, 40_000) - chance).abs()
    assert (error < 6 * (2 * chance / 40_000).sqrt() + 1e-4).all()  # a tree may use a rule more than once


@pytest.mark.parametrize("kind", ["table", "low rank"])
def test_best_trees(kind):
    make, tensors, how = KINDS[kind](1.0, 0.1, length=4, batch=2)
    model = make(*tensors, **how, lengths=(4, 1))
    truth = model.argmax()
    with kernels("always"):
        found = model.argmax()
    assert all(torch.equal(x, y) for x, y in zip(found, truth, strict=True))


@pytest.mark.parametrize("kind", ["spans", "table", "low rank"])
def test_marginals_need_no_reference(kind, monkeypatch):
    """Nor do they if scores require gradients."""
    make, tensors, how = KINDS[kind](1.0, 0.0, length=3, batch=2)
    model = make(*(x.requires_grad_() for x in tensors), **how)
    truth = model.marginals()
    for kernel in (log_span_sum, grammar_sum, low_rank_sum):
        monkeypatch.setitem(vars(kernel), "reference", None)
    with kernels("always"):
        torch.testing.assert_close(model.marginals(), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("forbidden", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["states", "states, several roots", "states, own pairs"])
def test_best_dependencies(kind, forbidden):
    make, tensors, how = KINDS[kind](1.0, forbidden)
    model = make(*tensors, **how, lengths=LENGTHS)
    with kernels("always"):
        best = model.argmax()
    with kernels("never"):
        truth = model.argmax()
    assert (best.heads == truth.heads).all()
    assert (best.states == truth.states).all()


@pytest.mark.parametrize("kind", ["projective, several roots", "states", "states, own pairs"])
def test_drawn_trees(kind, monkeypatch):
    with_fast_numbers(monkeypatch)
    make, tensors, how = KINDS[kind](1.0, 0.0, length=2, batch=1)
    model, count = make(*tensors, **how), 40
    with kernels("always"):
        drawn = model.sample((count,), generator=torch.Generator().manual_seed(0))
    arcs = torch.stack([(drawn.heads == head).float().mean(0) for head in range(2)], 1)
    assert (arcs - model.marginals()).abs().max() < 2.0 / count**0.5
    if drawn.states is not None:
        states = torch.nn.functional.one_hot(drawn.states, model.n_states).float().mean(0)
        assert (states - model.state_marginals()).abs().max() < 2.0 / count**0.5


def test_gradients_of_rules_by_one_width_at_a_time(monkeypatch):
    from tailsum.numerics.fused import grammar  # noqa: PLC0415

    monkeypatch.setattr(grammar, "PAIRS", 1)
    make, tensors, how = table(1.0, 0.2)
    check(make, tensors, how)


def test_rules_from_embeddings():
    """By the kernels of their table."""
    factors = [randn(size, 3, scale=0.7) for size in (2, 5, 5)]

    def make(root, head, left, right, emission, **how):
        return PCFG(root, FactoredRule(head, left, right), emission, **how)

    tensors = [randn(2), *factors, randn(2, 3, 3)]
    check(make, tensors, {"lengths": (3, 2)})
    with kernels("always"):
        model = make(*tensors)
        assert (model.score(model.sample((2,))) > -math.inf).all()


LARGE = {
    "spans": lambda: spans(1.0, 0.02, size=20, length=40, batch=16),
    "projective": lambda: arcs(2.0, 0.1, length=40, batch=16),
    "any tree": lambda: arcs(2.0, 0.1, length=40, batch=16, projective=False),
    "states": lambda: stateful(1.0, 0.05, states=100, length=20, batch=4),
    "states, own pairs": lambda: stateful(1.0, 0.05, states=50, length=20, batch=4, own=True, multiroot=True),
    "table": lambda: table(1.0, 0.0, n=30, p=60, length=40, batch=16),
    "low rank": lambda: low_rank(1.0, 0.0, n=300, p=500, rank=100, length=30, batch=8),
}


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("kind", LARGE)
def test_on_a_gpu(kind):
    make, tensors, how = LARGE[kind]()
    lengths = torch.randint(1, tensors[-1].shape[1] + 1, (len(tensors[-1]),), device="cuda")
    check(make, tensors, {**how, "lengths": lengths}, "auto", "cuda", 1e-3)
