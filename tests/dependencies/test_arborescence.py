"""Non-projective trees: sums, best trees and samples against an enumeration of all trees."""

import functools
import itertools
import math

import pytest
import torch

from tailsum.dependencies import arborescence

MODES = pytest.mark.parametrize("multiroot", [False, True], ids=["single root", "multiroot"])


def rooted(arc, root):
    """Scores of roots on the diagonal."""
    return torch.where(torch.eye(root.shape[-1], dtype=torch.bool), root[:, None], arc)


def log_sum(arc, root, length, multiroot):
    return arborescence.log_sum(rooted(arc, root), lengths=length, multiroot=multiroot)


def best(arc, root, length, multiroot):
    return arborescence.best(rooted(arc, root), lengths=length, multiroot=multiroot)


def sample(arc, root, length, multiroot, count, generator):
    return arborescence.sample(rooted(arc, root), length, multiroot, count, generator)


@functools.cache
def every_tree(n, multiroot):
    """All trees of n words, as heads `[trees, n]`; a root is its own head."""
    heads = torch.tensor(list(itertools.product(range(n), repeat=n)))
    above = heads
    for _ in range(n):
        above = heads.gather(1, above)
    ends = (heads.gather(1, above) == above).all(1)  # every word arrives at a root, none runs in a circle
    roots = (heads == torch.arange(n)).sum(1)
    return heads[ends if multiroot else ends & (roots == 1)]


def tree_scores(arc, root, heads):
    """`[trees]` for one sentence, in the dtype of the scores."""
    words = torch.arange(heads.shape[-1])
    return torch.where(heads == words, root[words], arc[heads, words]).sum(-1)


def truth(arc, root, length, multiroot):
    """For each sentence: its trees and their scores."""
    trees = [every_tree(n, multiroot) for n in length.tolist()]
    return [(t, tree_scores(a, r, t)) for a, r, t in zip(arc, root, trees, strict=True)]


def scores(length, *, masked=0.0, spread=1.0, seed=0, ties=False):
    """Random scores, some of them minus infinity, with NaN on the diagonal and in the padding."""
    g = torch.Generator().manual_seed(seed)
    length = torch.as_tensor(length)
    batch, n = len(length), int(length.max())
    both = torch.randn(batch, n + 1, n, generator=g, dtype=torch.float64) * spread
    if ties:
        both = torch.randint(-1, 2, both.shape, generator=g).double()
    both[torch.rand(both.shape, generator=g) < masked] = -math.inf
    root, arc = both[:, 0].clone(), both[:, 1:].clone()
    padding = torch.arange(n) >= length[:, None]
    root[padding] = math.nan
    arc[padding[:, None] | padding[:, :, None] | torch.eye(n, dtype=torch.bool)] = math.nan
    return arc, root, length


def marginals(arc, root, length, multiroot):
    arc, root = arc.clone().requires_grad_(), root.clone().requires_grad_()
    return torch.autograd.grad(log_sum(arc, root, length, multiroot).sum(), (arc, root))


def true_marginals(trees, scored, n):
    chance = scored.softmax(0) if (scored > -math.inf).any() else torch.zeros_like(scored)
    used = torch.nn.functional.one_hot(trees, n).double()  # tree, child, head
    used = torch.einsum("t,tch->hc", chance, used)
    return used - used.diag().diag(), used.diag()


def assert_right(arc, root, length, multiroot, tolerance=1e-9):
    value = log_sum(arc, root, length, multiroot)
    by_arc, by_root = marginals(arc, root, length, multiroot)
    for b, (trees, scored) in enumerate(truth(arc, root, length, multiroot)):
        n = int(length[b])
        torch.testing.assert_close(value[b], scored.logsumexp(0), rtol=1e-12, atol=tolerance)
        arcs, roots = true_marginals(trees, scored, n)
        torch.testing.assert_close(by_arc[b, :n, :n], arcs, rtol=0, atol=tolerance)
        torch.testing.assert_close(by_root[b, :n], roots, rtol=0, atol=tolerance)
        for rest in (by_arc[b, n:], by_arc[b, :, n:], by_root[b, n:]):
            assert rest.eq(0).all()


LENGTHS = [5, 1, 4, 2, 5, 3, 3, 4, 5, 2, 1, 5]


@MODES
@pytest.mark.parametrize("masked", [0.0, 0.3, 0.6, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_sums_and_marginals(multiroot, masked, seed):
    assert_right(*scores(LENGTHS, masked=masked, seed=seed), multiroot)


@MODES
@pytest.mark.parametrize("masked", [0.0, 0.5])
def test_scores_of_any_range(multiroot, masked):
    arc, root, length = scores(LENGTHS, masked=masked, spread=200.0)
    assert_right(arc, root, length, multiroot)
    assert_right(arc + 1e4, root - 1e4, length, multiroot, 1e-7)
    assert_right(arc + torch.tensor([1e4, -1e4, 0.0, 1e4, 3e4]), root, length, multiroot, 1e-7)  # by child


@MODES
@pytest.mark.parametrize("low", [-1e9, torch.finfo(torch.float32).min, -1e300])
def test_large_negative_scores_are_as_good_as_minus_infinity(multiroot, low):
    """A careless order of elimination adds and subtracts them again, and no other digits are left."""
    possible = 0
    for seed in range(12):
        arc, root, length = scores(LENGTHS, masked=0.5, seed=seed)
        value = log_sum(arc, root, length, multiroot)
        keep = value > -math.inf
        possible += int(keep.sum())
        soft = arc.masked_fill(arc == -math.inf, low), root.masked_fill(root == -math.inf, low)
        torch.testing.assert_close(log_sum(*soft, length, multiroot)[keep], value[keep], rtol=0, atol=1e-9)
        for ours, exact in zip(
            marginals(*soft, length, multiroot), marginals(arc, root, length, multiroot), strict=True
        ):
            torch.testing.assert_close(ours[keep], exact[keep], rtol=0, atol=1e-9)
        heads, other = best(*soft, length, multiroot)[keep], best(arc, root, length, multiroot)[keep]
        assert torch.equal(heads, other)
    assert possible > 50


@pytest.mark.parametrize("offset", [1e9, 1e30])
def test_the_heads_of_the_only_root_do_not_matter(offset):
    for word in range(5):
        arc, root, length = scores([5, 5], seed=word)
        root[:, torch.arange(5) != word] = -math.inf
        value = log_sum(arc, root, length, False)
        for sign in (1, -1):
            arc[:, :, word] = sign * offset
            torch.testing.assert_close(log_sum(arc, root, length, False), value, rtol=0, atol=1e-9)


@MODES
def test_a_cycle_that_outweighs_all_trees(multiroot):
    """A determinant has no correct digit here."""
    arc, root = torch.zeros(1, 4, 4).double(), torch.zeros(1, 4).double()
    arc[0, 0, 1] = arc[0, 1, 0] = 60
    arc[0, 2, 3] = arc[0, 3, 2] = 45
    root[0, 2:] = -30
    assert_right(arc, root, torch.tensor([4]), multiroot)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 40])
def test_number_of_trees(n):
    arc, root, length = torch.zeros(1, n, n).double(), torch.zeros(1, n).double(), torch.tensor([n])
    assert log_sum(arc, root, length, True).item() == pytest.approx((n - 1) * math.log(n + 1), abs=1e-11)
    assert log_sum(arc, root, length, False).item() == pytest.approx((n - 1) * math.log(n), abs=1e-11)
    if n < 6:
        assert len(every_tree(n, True)) == (n + 1) ** (n - 1)
        assert len(every_tree(n, False)) == n ** (n - 1)


@MODES
def test_against_the_matrix_tree_theorem(multiroot):
    g = torch.Generator().manual_seed(1)
    arc, root = torch.randn(2, 30, 30, generator=g).double(), torch.randn(2, 30, generator=g).double()
    weight = arc.exp() * (1 - torch.eye(30))
    laplacian = weight.sum(1).diag_embed() - weight
    if multiroot:
        laplacian = laplacian + root.exp().diag_embed()
    else:
        laplacian[:, 0] = root.exp()
    value = log_sum(arc, root, torch.tensor([30, 30]), multiroot)
    torch.testing.assert_close(value, laplacian.logdet(), rtol=1e-10, atol=0)


@MODES
@pytest.mark.parametrize("masked", [0.0, 0.3])
def test_derivatives(multiroot, masked):
    arc, root, length = scores([3, 1, 4, 2], masked=masked, seed=5)
    open_arc, open_root = (x.isfinite() for x in (arc, root))
    values = torch.cat((arc[open_arc], root[open_root])).requires_grad_()

    def total(values):
        in_arcs, in_root = values.split([int(open_arc.sum()), int(open_root.sum())])
        filled = arc.masked_scatter(open_arc, in_arcs), root.masked_scatter(open_root, in_root)
        value = log_sum(*filled, length, multiroot)
        return value[value > -math.inf]

    assert len(total(values)) > 2
    assert torch.autograd.gradcheck(total, values)
    assert torch.autograd.gradgradcheck(total, values)


@MODES
@pytest.mark.parametrize("spread", [1.0, 2000.0])
def test_derivatives_of_any_order_are_finite(multiroot, spread):
    arc, root, length = scores(LENGTHS, masked=0.4, spread=spread)
    arc.requires_grad_(), root.requires_grad_()
    value = log_sum(arc, root, length, multiroot)
    for _ in range(4):
        derivatives = torch.autograd.grad(value.sum(), (arc, root), create_graph=True)
        assert all(x.isfinite().all() for x in derivatives)
        value = sum((x.sin().sum() for x in derivatives), torch.zeros(()))


@MODES
def test_derivatives_where_scores_tie(multiroot):
    values = torch.zeros(4, 3).double().requires_grad_()

    def total(values):
        return log_sum(values[None, 1:], values[None, 0], torch.tensor([3]), multiroot)

    assert torch.autograd.gradcheck(total, values)
    assert torch.autograd.gradgradcheck(total, values)


@MODES
def test_impossible(multiroot):
    arc, root, length = scores([3, 3, 3, 3, 2, 1], seed=2)
    root[0] = -math.inf
    arc[1], root[1] = -math.inf, -math.inf
    root[2, :2] = arc[2, :, 2] = -math.inf  # the last must be the root,
    arc[2, 2] = -math.inf  # and it has no children
    arc[3], root[3, 1] = -math.inf, -math.inf
    arc[4, 0, 1] = root[4, 1] = -math.inf
    root[5] = -math.inf
    arc.requires_grad_(), root.requires_grad_()
    value = log_sum(arc, root, length, multiroot)
    assert value.eq(-math.inf).all()
    first = torch.autograd.grad(value.sum(), (arc, root), create_graph=True)
    second = torch.autograd.grad(torch.cat([x.flatten() for x in first]).exp().sum(), (arc, root))
    assert all(x.eq(0).all() for x in first + second)
    assert best(arc, root, length, multiroot).eq(-1).all()
    assert sample(arc, root, length, multiroot, 7, None).eq(-1).all()


def test_several_roots_where_one_is_not_enough():
    arc, root, length = torch.full((1, 3, 3), -math.inf), torch.zeros(1, 3), torch.tensor([3])
    arc[0, 0, 1] = 0
    assert log_sum(arc, root, length, False).item() == -math.inf
    assert log_sum(arc, root, length, True).item() == pytest.approx(math.log(2))
    assert best(arc, root, length, False).tolist() == [[-1, -1, -1]]
    assert best(arc, root, length, True)[0, 2] == 2


@MODES
def test_the_type_of_the_scores_is_kept(multiroot, generator):
    arc, root, length = scores(LENGTHS)
    value = log_sum(arc.float(), root.float(), length, multiroot)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, log_sum(arc, root, length, multiroot).float())
    assert best(arc.float(), root.float(), length, multiroot).dtype == torch.int64
    assert sample(arc.float(), root.float(), length, multiroot, 2, generator).dtype == torch.int64


def assert_best(arc, root, length, multiroot, tolerance=1e-9):
    heads = best(arc, root, length, multiroot)
    for b, (trees, scored) in enumerate(truth(arc, root, length, multiroot)):
        n = int(length[b])
        assert heads[b, n:].eq(-1).all()
        if scored.max() == -math.inf:
            assert heads[b].eq(-1).all()
            continue
        place = (trees == heads[b, :n]).all(1)
        assert place.sum() == 1  # it is a tree
        torch.testing.assert_close(scored[place][0], scored.max(), rtol=0, atol=tolerance)


@MODES
@pytest.mark.parametrize("masked", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
def test_best(multiroot, masked, ties):
    assert_best(*scores(LENGTHS * 15, masked=masked, ties=ties), multiroot)


@MODES
@pytest.mark.parametrize("size", [1e6, 1e9])
def test_best_with_large_and_small_differences(multiroot, size):
    arc, root, length = scores(LENGTHS * 8, spread=1e-3, seed=7)
    g = torch.Generator().manual_seed(8)
    low_arc, low_root = (x - size * torch.randint(0, 3, x.shape, generator=g) for x in (arc, root))
    tolerance = 1e-15 * size  # rounding of the sums; the small differences are larger
    for roots in (root, low_root, root - size * torch.arange(5), root + 9 * size):
        assert_best(arc, roots, length, multiroot, tolerance)
        assert_best(low_arc, roots, length, multiroot, tolerance)


@MODES
def test_best_of_many_words(multiroot):
    """Against the derivative of a sum so peaked that only the best tree counts."""
    arc, root, length = scores([40, 33], seed=3)
    heads = best(arc, root, length, multiroot)
    by_arc, by_root = marginals(arc * 1e5, root * 1e5, length, multiroot)
    for b, n in enumerate(length.tolist()):
        chance = by_arc[b, :n, :n] + by_root[b, :n].diag()
        assert torch.equal(chance.argmax(0), heads[b, :n])
        assert chance.amax(0).min() > 0.999


def assert_frequencies(arc, root, length, multiroot, generator, count=20_000):
    drawn = sample(arc, root, length, multiroot, count, generator)
    assert drawn.shape == (count, *root.shape)
    for b, (trees, scored) in enumerate(truth(arc, root, length, multiroot)):
        n = int(length[b])
        assert drawn[:, b, n:].eq(-1).all()
        if scored.max() == -math.inf:
            assert drawn[:, b].eq(-1).all()
            continue
        chance = scored.softmax(0)
        base = n ** torch.arange(n)
        seen = torch.bincount(drawn[:, b, :n] @ base, minlength=n**n)[trees @ base]
        assert seen.sum() == count  # nothing but trees
        assert seen[chance == 0].eq(0).all()
        spread = (count * chance * (1 - chance)).sqrt()
        assert ((seen - count * chance).abs() <= 5 * spread + 1.5).all()


@MODES
@pytest.mark.parametrize("masked", [0.0, 0.5])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_samples(multiroot, masked, spread, generator):
    arc, root, length = scores([4, 4, 4, 3, 2, 1, 4, 4, 4], masked=masked, seed=4)
    arc, root = (torch.where(x == -math.inf, x, x * spread) for x in (arc, root))
    assert_frequencies(arc, root, length, multiroot, generator)


@MODES
def test_samples_of_five_words(multiroot, generator):
    arc, root, length = scores([5, 5], seed=9, spread=1.5)
    assert_frequencies(arc, root, length, multiroot, generator, 100_000)


@MODES
def test_samples_in_spite_of_a_cycle(multiroot, generator):
    """A random walk would go in circles for e^30 steps."""
    arc, root, length = scores([4], seed=6)
    arc[0, 0, 1] = arc[0, 1, 0] = 30
    assert_frequencies(arc, root, length, multiroot, generator)


@MODES
@pytest.mark.parametrize("chain", [0.0, 3.0])
def test_samples_have_the_right_marginals_among_many_words(multiroot, chain, generator):
    arc, root, length = scores([20, 13], seed=11)
    order = torch.randperm(13, generator=generator)
    arc[:, order[:-1], order[1:]] += chain  # deep trees
    count = 20_000
    drawn = sample(arc, root, length, multiroot, count, generator)
    by_arc, by_root = marginals(arc, root, length, multiroot)
    for b, n in enumerate(length.tolist()):
        heads = above = drawn[:, b, :n]
        for _ in range(n):
            above = heads.gather(1, above)
        assert torch.equal(heads.gather(1, above), above)  # no circles
        chance = by_arc[b, :n, :n] + by_root[b, :n].diag()
        seen = torch.nn.functional.one_hot(heads, n).sum(0).T
        spread = (count * chance * (1 - chance)).clamp(min=0).sqrt()
        assert ((seen - count * chance).abs() <= 5 * spread + 1.5).all()


def test_the_same_generator_gives_the_same_samples():
    arc, root, length = scores(LENGTHS)
    one, other, third = (sample(arc, root, length, False, 5, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, other)
    assert not torch.equal(one, third)
