"""Scores far beyond the range of exp: never a wrong number."""

import math
import random

import pytest
import torch

import tailsum as ts
from harness.chains import ChainTruth
from tailsum.chains import forward as forward_module


def chain_and_truth(scale, dtype, forbidden=0.0, n=4, length=4, factored=False):
    nodes = (torch.rand(length, n, dtype=torch.float64) * 2 - 1) * scale
    pairs = (torch.rand(n, n, dtype=torch.float64) * 2 - 1) * scale
    if factored:
        left, right = torch.randn(n, 2).double() * scale**0.5, torch.randn(n, 2).double() * scale**0.5
        left, right = left.to(dtype).double(), right.to(dtype).double()
        pairs = left @ right.T
        transition = ts.Factored(left.to(dtype), right.to(dtype))
    else:
        pairs[torch.rand(n, n) < forbidden] = -math.inf
        pairs = pairs.to(dtype).double()
        transition = pairs.to(dtype)
    nodes = nodes.to(dtype).double()
    return ts.LinearChain(nodes.to(dtype), transition), ChainTruth(nodes, pairs.expand(length - 1, n, n))


@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 50.0, 200.0, 2000.0, 1e5])
def test_large_scores(scale, dtype, factored):
    rtol = 1e-5 if dtype == torch.float32 else 1e-10
    for _ in range(10):
        chain, truth = chain_and_truth(scale, dtype, factored=factored, forbidden=0.2)
        if not truth.possible:
            continue
        log_partition, entropy = chain.log_partition().double(), chain.entropy().double()
        torch.testing.assert_close(log_partition, truth.log_partition, rtol=rtol, atol=rtol)
        torch.testing.assert_close(entropy, truth.entropy, rtol=rtol, atol=10 * rtol * max(1.0, scale))
        atol = max(rtol, 4 * scale * torch.finfo(dtype).eps)
        torch.testing.assert_close(chain.marginals().double(), truth.marginals, rtol=0, atol=atol)


def test_the_best_path_passes_where_the_products_underflow():
    """State 1 is e^-150 at first and pays off only at the end: products in float32 alone would lose it."""
    nodes = torch.tensor([[0.0, -150.0], [0.0, 0.0], [0.0, 300.0]])
    pairs = torch.tensor([[0.0, -200.0], [-200.0, 0.0]])
    chain = ts.LinearChain(nodes, pairs)
    truth = ChainTruth(nodes.double(), pairs.double().expand(2, 2, 2))
    torch.testing.assert_close(chain.log_partition().double(), truth.log_partition)
    torch.testing.assert_close(chain.marginals().double(), truth.marginals)
    assert chain.argmax().tolist() == [1, 1, 1]


@pytest.mark.parametrize("value", [-math.inf, -1e4, -1e9])
def test_masks_of_any_size_stay_on_the_fast_path(value, monkeypatch):
    """Left-to-right models, and masks by large negative numbers, must not fall back to log space."""

    def refuse(*_):
        pytest.fail("fell back to log space")

    monkeypatch.setattr(forward_module, "log_space_scan", refuse)
    pairs = torch.full((5, 5), value).double()
    pairs[torch.arange(5), torch.arange(5)] = pairs[torch.arange(4), torch.arange(1, 5)] = 0.0
    nodes = torch.randn(6, 5).double()
    nodes[0, 1:] = value
    truth = ChainTruth(nodes, pairs.expand(5, 5, 5))
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        chain = ts.LinearChain(nodes.to(dtype), pairs.to(dtype))
        torch.testing.assert_close(chain.log_partition().double(), truth.log_partition, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(chain.marginals().double(), truth.marginals, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(chain.entropy().double(), truth.entropy, rtol=tolerance, atol=tolerance)


def test_long_sequences_keep_their_precision():
    nodes, pairs = torch.randn(2, 3000, 5), torch.randn(5, 5)
    single, double = ts.LinearChain(nodes, pairs), ts.LinearChain(nodes.double(), pairs.double())
    torch.testing.assert_close(single.log_partition().double(), double.log_partition(), rtol=1e-6, atol=0)
    torch.testing.assert_close(single.marginals().double(), double.marginals(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("offset", "pair_offset", "scale"), [(0, 0, 1), (1000, 0, 1), (0, -1000, 1), (1000, 1000, 1), (0, 0, 30)]
)
def test_offsets_and_large_scores_cost_no_digits(offset, pair_offset, scale):
    nodes, pairs = torch.randn(500, 20) * scale + offset, torch.randn(20, 20) + pair_offset
    single, double = ts.LinearChain(nodes, pairs), ts.LinearChain(nodes.double(), pairs.double())
    torch.testing.assert_close(single.log_partition().double(), double.log_partition(), rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(single.entropy().double(), double.entropy(), rtol=2e-5, atol=2e-3)
    torch.testing.assert_close(single.marginals().double(), double.marginals(), rtol=0, atol=2e-4)
    torch.testing.assert_close(single.marginals().sum(-1), torch.ones(500), rtol=0, atol=1e-5)
    other = nodes + torch.randn(500, 20) * 0.1
    kl = single.kl(ts.LinearChain(other, pairs)).double()
    expected = double.kl(ts.LinearChain(other.double(), pairs.double()))
    torch.testing.assert_close(kl, expected, rtol=1e-3, atol=1e-3)


def test_kept_streamed_gauged_and_log_space_agree(monkeypatch):
    nodes, left, right = torch.randn(2, 7, 40).double(), torch.randn(40, 3).double(), torch.randn(40, 3).double()
    chain = ts.LinearChain(nodes, ts.Factored(left, right))
    monkeypatch.setattr("tailsum.scores.table.tile_rows", lambda *_: 16)
    kept = chain.log_partition(), chain.marginals(), chain.entropy()
    with ts.table_budget(0):
        streamed = chain.log_partition(), chain.marginals(), chain.entropy()
    monkeypatch.setattr("tailsum.chains.ways.products.in_range", lambda *_: False)
    gauged = chain.log_partition(), chain.marginals(), chain.entropy()
    monkeypatch.setattr("tailsum.chains.plan.has_room", lambda *_: False)
    log_space = chain.log_partition(), chain.marginals(), chain.entropy()
    for found, *others in zip(kept, streamed, gauged, log_space, strict=True):
        for other in others:
            torch.testing.assert_close(found, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("batch", [1, 2])
def test_rounding_does_not_add_up_along_the_chain(batch):
    """Products in float32 drop small addends; over many steps that must not make probabilities smaller."""
    generator = torch.Generator().manual_seed(0)
    nodes, pairs = (3 * torch.randn(*shape, 1000, generator=generator) for shape in ((batch, 300), (1000,)))
    lengths = [300, 200][:batch]
    found = ts.LinearChain(nodes, pairs, lengths).marginals()
    expected = ts.LinearChain(nodes.double(), pairs.double(), lengths).marginals()
    inside = torch.arange(300) < torch.tensor(lengths)[:, None]
    torch.testing.assert_close(found.double().sum(-1), inside.double(), rtol=0, atol=3e-6)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_gradients_through_marginals_keep_their_digits(scale):
    """A loss whose terms share an offset, which must not be subtracted from itself along the chain."""
    nodes, pairs, weight = torch.randn(1000, 20) * scale, torch.randn(20, 20), torch.rand(1000, 20)

    def gradients(dtype):
        leaves = [x.to(dtype).requires_grad_() for x in (nodes, pairs)]
        return torch.autograd.grad((ts.LinearChain(*leaves).marginals() * weight.to(dtype)).sum(), leaves)

    for single, double in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        assert (single - double).abs().max() < 5e-5 * double.abs().max()


@pytest.mark.parametrize("scale", [pytest.param(0.3, marks=pytest.mark.slow), 2.0])
@pytest.mark.parametrize("change", [0.0, pytest.param(1e-4, marks=pytest.mark.slow), 1e-3, 1e-2])
def test_divergence_of_nearly_equal_chains(scale, change):
    nodes, pairs = torch.randn(1000, 20) * scale, torch.randn(20, 20)
    other = nodes + change * torch.randn(1000, 20)
    single, double = (
        ts.LinearChain(nodes.to(dtype), pairs.to(dtype)).kl(ts.LinearChain(other.to(dtype), pairs.to(dtype))).double()
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(single, double, rtol=1e-5, atol=1e-5)
    assert single > -1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_beyond_the_range_of_numbers_are_an_error(dtype):
    large = torch.finfo(dtype).max ** 0.6
    factors = ts.Factored(torch.full((3, 2), large, dtype=dtype), torch.full((3, 2), -large, dtype=dtype))
    nodes = torch.zeros(4, 3, dtype=dtype)
    with pytest.raises(ValueError, match=f"transition must have factors whose inner products fit {dtype}"):
        ts.LinearChain(nodes, factors)
    with pytest.raises(ValueError, match=f"emission must have factors whose inner products fit {dtype}"):
        ts.LinearChain(ts.Factored(torch.full((4, 2), large, dtype=dtype), factors.right), torch.zeros(3, 3))
    small = ts.Factored(factors.left, factors.right / large / large)
    assert ts.LinearChain(nodes, small).log_partition().isfinite()


@pytest.mark.parametrize("mask", [-1e30, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("seed", range(1, 5))
def test_finite_masks_are_as_good_as_infinite_ones(seed, mask):
    """Every operation, and gradients in all that is not masked."""
    g = torch.Generator().manual_seed(seed)
    shapes = (2, 5, 3), (3, 3)
    free, other = ([torch.randn(*shape, generator=g) for shape in shapes] for _ in range(2))
    masked = [torch.rand(*shape, generator=g) < 0.15 for shape in shapes]

    def results(value):
        leaves = [x.clone().requires_grad_() for x in free]
        model = ts.LinearChain(*(x.masked_fill(m, value) for x, m in zip(leaves, masked, strict=True)), [5, 3])
        theirs = ts.LinearChain(*other, [5, 3])
        noise = torch.Generator().manual_seed(seed)
        smooth = [model.log_partition(), model.entropy(), model.marginals(), model.pair_marginals(), model.kl(theirs)]
        smooth += [model.cross_entropy(theirs), model.rsample(0.5, generator=noise).weights]
        total = sum((x * torch.linspace(0.5, 1, x.numel()).reshape(x.shape)).sum() for x in smooth)
        fixed = [theirs.kl(model), model.kl(model), model.argmax(), *model.topk(4)]
        return [*smooth, *fixed, *torch.autograd.grad(total, leaves)]

    expected = results(-math.inf)
    assert expected[0].isfinite().all()
    for found, wanted in zip(results(mask), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def in_log_space(nodes, pairs):
    """Log Z, entropy and marginals in float64, one position after another; scores below -1e29 are minus infinity."""
    nodes, pairs = (x.double().masked_fill(x < -1e29, -math.inf) for x in (nodes, pairs))
    messages = [nodes[0]]
    for own in nodes[1:]:
        messages.append((messages[-1][:, None] + pairs).logsumexp(0) + own)
    log_partition = messages[-1].logsumexp(0)
    if log_partition == -math.inf:
        return log_partition, log_partition, torch.zeros_like(nodes)
    chance = (messages[-1] - log_partition).exp()
    marginals, entropy = [chance], -torch.special.xlogy(chance, chance).sum()
    for message in messages[-2::-1]:
        joint = message[:, None] + pairs
        before = (joint - joint.logsumexp(0)).exp().nan_to_num(0.0)
        entropy = entropy - torch.special.xlogy(before, before).sum(0) @ chance
        chance = before @ chance
        marginals.append(chance)
    return log_partition, entropy, torch.stack(marginals[::-1])


def masked_chain(seed, mask):
    """Random scores in float32, some masked; in one of four so that every path breaks masks."""
    generator, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    n, length = draw.choice([2, 3, 5, 8, 20]), int(math.exp(draw.uniform(math.log(2), math.log(300))))
    scale, share = draw.choice([1.0, 3.0, 10.0, 30.0]), draw.choice([0.05, 0.2, 0.5, 0.8])
    nodes, pairs = (torch.randn(*shape, generator=generator) * scale for shape in ((length, n), (n, n)))
    nodes += draw.choice([0.0, 0.0, 100.0, -1000.0])
    for i, x in enumerate((nodes, pairs)):
        if seed % 4 in {i, 2}:
            x[torch.rand(x.shape, generator=generator) < share] = mask
    if seed % 4 == 3:
        nodes[length // 2] = mask
        nodes[length // 3 :, :-1][torch.rand(length - length // 3, n - 1, generator=generator) < share] = mask
        pairs[torch.ones(n, n).tril(-1).bool()] = mask
    return nodes, pairs


@pytest.mark.parametrize("mask", [-1e4, -1e9, -1e30, torch.finfo(torch.float32).min, -math.inf])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
def test_masked_chains_in_float32_are_as_in_float64(seed, mask):
    """Whether or not a path breaks no mask, however long and cold: finite masks are numbers, those below -1e29 infinite."""
    nodes, pairs = masked_chain(seed, mask)
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in (nodes, pairs)]
        chain = ts.LinearChain(*leaves)
        values = [chain.log_partition(), chain.entropy()]
        gradients = [y for x in values for y in torch.autograd.grad(x, leaves, retain_graph=True)]
        found.append([x.detach().double() for x in (*values, chain.marginals(), *gradients)])
    single, double = found
    for values in found:
        for one, truth in zip(values, in_log_space(nodes, pairs), strict=False):
            torch.testing.assert_close(one, truth, rtol=1e-4, atol=1e-4)
    for one, other in zip(single, double, strict=True):
        assert (one - other).nan_to_num(0.0).abs().max() <= 1e-4 * other.nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(
            min=1
        )


@pytest.mark.parametrize("mask", [-1e4, -1e9, -math.inf])
@pytest.mark.parametrize("seed", range(3))
def test_pairs_and_random_paths_of_masked_chains(seed, mask):
    """Where every path breaks masks, but for minus infinity."""
    generator = torch.Generator().manual_seed(seed)
    nodes, pairs = (torch.randn(*shape, generator=generator) for shape in ((60, 4), (4, 4)))
    nodes[torch.rand(nodes.shape, generator=generator) < 0.35] = mask
    pairs[torch.rand(4, 4, generator=generator) < 0.7] = mask
    chain, wide = ts.LinearChain(nodes, pairs), ts.LinearChain(nodes.double(), pairs.double())
    torch.testing.assert_close(chain.pair_marginals().double(), wide.pair_marginals(), rtol=0, atol=1e-4)
    count, chance = 2000, wide.marginals()
    tolerance = 6 * (chance * (1 - chance)).clamp(min=0).div(count).sqrt() + 3 / count
    for paths in (
        chain.sample((count,), generator=generator),
        chain.rsample(sample_shape=(count,), generator=generator).hard,
    ):
        shares = (paths[..., None] == torch.arange(chain.n_states)).double().mean(0)
        assert ((shares - chance).abs() <= tolerance).all()


def test_a_forced_state_that_nothing_may_lead_to():
    """More states than the shorter ways take: its column is a mask throughout, and at one position all others are masked."""
    n, generator = 150, torch.Generator().manual_seed(0)
    nodes, pairs = torch.randn(6, n, generator=generator), torch.randn(n, n, generator=generator)
    pairs[:, :2], nodes[3, 2:] = -1e9, -1e9
    log_partition, entropy, marginals = in_log_space(nodes, pairs)
    chain = ts.LinearChain(nodes, pairs)
    torch.testing.assert_close(chain.log_partition().double(), log_partition)
    torch.testing.assert_close(chain.entropy().double(), entropy, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(chain.marginals().double(), marginals, rtol=0, atol=1e-4)


@pytest.mark.parametrize("offset", [0.0, pytest.param(1e6, marks=pytest.mark.slow)])
def test_long_cold_chains_in_float32(offset):
    """Left to right: few paths matter, and their scores differ by little of what they are."""
    generator = torch.Generator().manual_seed(1)
    nodes, pairs = (torch.randn(*shape, generator=generator) * 30 for shape in ((2000, 5), (5, 5)))
    state = torch.arange(5)
    pairs[(state - state[:, None] != 0) & (state - state[:, None] != 1)] = -math.inf
    nodes += offset
    log_partition, entropy, marginals = in_log_space(nodes, pairs)
    chain = ts.LinearChain(nodes, pairs)
    torch.testing.assert_close(chain.log_partition().double(), log_partition, rtol=6e-8, atol=0)
    torch.testing.assert_close(chain.entropy().double(), entropy, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(chain.marginals().double(), marginals, rtol=0, atol=1e-5)


def test_gradients_of_the_entropy_of_a_long_left_to_right_chain():
    """Two states, the first of which is left once: a small entropy beside a log Z of hundreds, whose rounding added up."""
    for seed in range(3):
        torch.manual_seed(seed)
        nodes, pairs = torch.randn(1000, 2), torch.randn(2, 2)
        pairs[1, 0] = -math.inf

        def gradients(dtype, scores=(nodes, pairs)):
            leaves = [x.to(dtype).requires_grad_() for x in scores]
            return torch.autograd.grad(ts.LinearChain(*leaves).entropy(), leaves)

        for single, double in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
            assert (single - double).abs().max() < 1e-4 * double.abs().max()


def test_a_large_offset_is_no_sign_of_underflow(monkeypatch):
    """A state that only paths through masks reach: sums with and without it differ by the rounding of the offset alone."""
    monkeypatch.setattr("tailsum.chains.ways.gauge.gauged", lambda *_: pytest.fail("took another gauge"))
    generator = torch.Generator().manual_seed(0)
    nodes, pairs = (torch.randn(*shape, generator=generator).double() for shape in ((300, 60), (60, 60)))
    nodes[torch.rand(300, 60, generator=generator) < 0.5] = -1e4
    pairs[torch.rand(60, 60, generator=generator) < 0.6] = -1e4
    pairs[:, 7], nodes[100, :7], nodes[100, 8:] = -1e4, 0.0, 0.0
    ts.LinearChain(nodes, pairs).entropy()


@pytest.mark.parametrize("mask", [-1e9, -1e18, -1e20, -1e28])
def test_masks_that_leave_no_digits_beside_them(mask):
    """A mask may be any number above -1e29: what it is added to and subtracted from has no digits left, and need not have."""
    nodes = torch.zeros(3, 2)
    nodes[1:, 1] = mask
    chain = ts.LinearChain(nodes, torch.tensor([[-1000.0, 0.0], [-1000.0, 0.0]]))
    torch.testing.assert_close(chain.log_partition().item(), math.log(2) - 2000.0)
    torch.testing.assert_close(chain.entropy().item(), math.log(2))
