"""Kernels of chains against their references, on a CPU in Triton's interpreter."""

import math

import pytest
import torch

from harness.interpreter import with_fast_numbers
from harness.poison import poison
from tailsum import (
    Dense,
    Factored,
    LinearChain,
    Lookahead,
    Neighbours,
    Optimal,
    Scored,
    kernels,
    precision,
    table_budget,
)
from tailsum.chains import plan
from tailsum.sketch import selection
from tailsum.sketch.neighbours import Near
from tailsum.sketch.selection import Landmarks, Subset

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter: the logarithm of zero

GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not GPU, reason="no GPU")


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    poison(monkeypatch)


def table(n=19, length=4, batch=3, scale=2.0):
    return [torch.randn(batch, length, n), scale * torch.randn(n, n)], lambda e, t: (e, t)


def forbidden(n=19, length=4, batch=3, mask=-math.inf):
    (nodes, pairs), make = table(n, length, batch)
    nodes[:, 2, ::2], nodes[1], pairs[::3] = mask, mask, mask
    return [nodes, pairs], make


def own_tables(n=19, length=4, batch=2, scale=2.0):
    return [torch.randn(batch, length, n), scale * torch.randn(batch, length - 1, n, n)], lambda e, t: (e, t)


def step_tables(n=9, length=4, batch=3, scale=2.0):
    return [torch.randn(batch, length, n), scale * torch.randn(length - 1, n, n)], lambda e, t: (e, t)


def factors(n=37, length=3, batch=3, scale=1.0, size=5):
    tensors = [torch.randn(batch, length, n), scale * torch.randn(n, size), torch.randn(n, size)]
    return tensors, lambda e, left, right: (e, Factored(left, right))


def own_factors(n=37, length=3, batch=2, size=5):
    lead = (batch, length - 1, n, size)
    return [torch.randn(batch, length, n), torch.randn(lead), torch.randn(lead)], lambda e, a, b: (e, Factored(a, b))


KINDS = {
    "table": table,
    "wide": lambda: table(scale=300.0),
    "forbidden": forbidden,
    "masked": lambda: forbidden(mask=-1e30),
    "own tables": own_tables,
    "step tables": step_tables,
    "factors": factors,
    "own factors": own_factors,
}
# Up to how many states one launch takes a chain; kernels work in log space; one program takes a whole step of it.
WAYS = {
    "one launch": (256, 512, 512),
    "log space": (0, 512, 512),
    "log space, several programs": (0, 512, 16),
    "products": (0, 4, 512),
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    together, few, alone = WAYS[request.param]
    from tailsum.numerics.fused import log_steps  # noqa: PLC0415

    monkeypatch.setattr(plan, "TOGETHER", together)
    monkeypatch.setattr(plan, "ALONE", few)
    monkeypatch.setattr(log_steps, "ALONE", alone)


def log_sums(kind, use, dtype=torch.float32, lengths=None, device="cpu"):
    """Log-partitions, and the gradients of a weighted sum of the finite ones."""
    tensors, make = kind
    leaves = [x.to(device, dtype).requires_grad_() for x in tensors]
    with kernels(use):
        total = LinearChain(*make(*leaves), lengths=lengths).log_partition()
        weights = torch.arange(1, total.numel() + 1, device=device)
        grads = torch.autograd.grad((total.masked_fill(total == -math.inf, 0.0) * weights).sum(), leaves)
    return total.detach(), grads


def agree(kind, lengths=None, device="cpu", use="always", tolerance=2e-6):
    result, grads = log_sums(kind, use, lengths=lengths, device=device)
    expected, exact = log_sums(kind, "never", torch.float64, lengths, device)
    assert torch.equal(result == -math.inf, expected == -math.inf)
    size = expected.abs().masked_fill(expected == -math.inf, 1.0)
    assert ((result - expected).abs().nan_to_num(0.0) <= 3 * tolerance * (1 + size)).all()
    for a, b in zip(grads, exact, strict=True):
        assert torch.linalg.vector_norm(a - b) <= tolerance * (1 + torch.linalg.vector_norm(b)), (a - b).abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_log_partition_and_gradients(kind, way):
    agree(KINDS[kind](), tolerance=2e-5 if kind == "wide" else 2e-6)


@pytest.mark.parametrize("kind", ["table", "own tables", "factors"])
def test_sequences_of_several_lengths(kind, way):
    example = KINDS[kind]()
    longest = example[0][0].shape[1]
    agree(example, lengths=[longest, 1, 2][: len(example[0][0])])


def test_factors_that_are_never_a_table(way):
    with table_budget(0):
        agree(factors())


def test_own_factors_that_are_never_a_table(way):
    with table_budget(0):
        agree(own_factors())


@pytest.mark.parametrize("n", [65, 130, 257])
@pytest.mark.parametrize("make", [table, factors])
def test_a_tile_with_few_states(make, n, monkeypatch):
    """One or two states in the last tile of a sum."""
    monkeypatch.setattr(plan, "TOGETHER", 0)
    monkeypatch.setattr(plan, "ALONE", 4)
    with table_budget(0 if make is factors else 1 << 30):
        agree(make(n=n, length=3, batch=2))


@pytest.mark.parametrize("programs", [2, 5, 7])
def test_blocks_that_several_programs_share(programs, monkeypatch):
    """Programs with equal numbers of tiles, which begin and end within blocks of columns."""
    from tailsum.numerics.fused import shared_steps  # noqa: PLC0415

    monkeypatch.setattr(plan, "ALONE", 4)
    monkeypatch.setattr(plan, "TOGETHER", 0)
    monkeypatch.setattr(shared_steps, "at_once", lambda *_: programs)
    monkeypatch.setattr(shared_steps, "_table_tile", lambda *_: {"I": 16, "J": 32, "num_warps": 4, "num_stages": 2})
    agree(table(n=70, length=3, batch=2))


def test_more_sequences_than_a_tile_of_most_kernels_has(way):
    agree(table(n=35, length=3, batch=40))


@pytest.mark.parametrize("kind", KINDS)
def test_best_paths(kind, way):
    tensors, make = KINDS[kind]()
    chain = LinearChain(*make(*tensors))
    with kernels("never"):
        expected = chain.argmax()
    with kernels("always"):
        result = chain.argmax()
    assert torch.equal(result[:, 0] < 0, expected[:, 0] < 0)
    assert torch.allclose(chain.score(result), chain.score(expected))


@pytest.mark.parametrize("batch", [1, 19, *(pytest.param(batch, marks=pytest.mark.slow) for batch in (16, 33))])
def test_best_paths_of_many_sequences_in_many_parts(batch, monkeypatch):
    """Several programs for the sequences, the states before and the states after, none of them full."""
    from tailsum.numerics.fused import paths  # noqa: PLC0415

    monkeypatch.setattr(plan, "TOGETHER", 0)
    monkeypatch.setattr(plan, "ALONE", 4)
    monkeypatch.setattr(paths, "_table_tile", lambda *_: {"I": 16, "J": 32, "num_warps": 4})
    nodes, pairs = 3 * torch.randn(batch, 3, 37) + 100, 3 * torch.randn(2, 37, 37) - 1e4
    pairs[:, :, ::5] = -math.inf
    chain = LinearChain(nodes, pairs)
    with kernels("never"):
        expected = chain.argmax()
    with kernels("always"):
        result = chain.argmax()
    assert torch.allclose(chain.score(result), chain.score(expected), rtol=1e-6)
    assert (result == expected).float().mean() > 0.95  # the same but for ties by rounding


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("n", "batch"), [(1000, 32), (1001, 5), (5000, 1), (10_240, 16), (10_001, 33)])
def test_best_paths_on_a_gpu(n, batch):
    chain = LinearChain(torch.randn(batch, 6, n, device="cuda"), torch.randn(n, n, device="cuda"))
    with kernels("never"):
        expected = chain.argmax()
    assert torch.allclose(chain.score(chain.argmax()), chain.score(expected), rtol=1e-6)


def test_lists_of_neighbours_have_the_states_of_high_score():
    """Scores of lists are those of the states listed, in both directions, and as high as those of the reference."""
    left, right = torch.randn(2, 70, 5).unbind()
    lists = {}
    for use in ("always", "never"):
        with kernels(use):
            lists[use] = Neighbours(Factored(left, right), size=4)
    for name, scores in (("successors", left @ right.T), ("predecessors", right @ left.T)):
        ours, truth = (scores.gather(1, getattr(lists[use], name)) for use in ("always", "never"))
        torch.testing.assert_close(ours.sort().values, truth.sort().values, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("kind", ["table", "factors"])
def test_samples_follow_the_distribution(kind, monkeypatch):
    with_fast_numbers(monkeypatch)
    tensors, make = KINDS[kind](n=3, length=2, batch=1)
    chain, count = LinearChain(*make(*tensors)), 120
    with kernels("always"):
        drawn = chain.sample((count,))[:, 0]
    chance = torch.zeros(3, 3)
    for i in range(3):
        for j in range(3):
            chance[i, j] = chain.log_prob(torch.tensor([[i, j]])).exp()
    seen = torch.zeros(3, 3).index_put_((drawn[:, 0], drawn[:, 1]), torch.ones(count), accumulate=True)
    expected = count * chance
    assert ((seen - expected).square() / expected.clamp(min=1.0)).sum() < 40  # eight degrees of freedom


def test_a_seed_gives_the_same_samples():
    chain = LinearChain(torch.randn(2, 3, 5), torch.randn(5, 5))
    with kernels("always"):
        first, again, other = (chain.sample((3,), torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", ["table", "forbidden", "factors", "own factors"])
def test_several_programs_find_the_same_paths_as_one(kind, monkeypatch):
    """Each looks at a part of the states; the noise of a sample is that of its states."""
    from tailsum.numerics.fused import paths  # noqa: PLC0415

    tensors, make = KINDS[kind]()
    chain = LinearChain(*make(*tensors), lengths=[3, 1, 2][: len(tensors[0])])
    found = []
    for large in (paths.LARGE, 2):
        monkeypatch.setattr(paths, "LARGE", large)
        with kernels("always"):
            found.append((chain.argmax(), chain.sample((2,), torch.Generator().manual_seed(1))))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("lengths", [None, [4, 1, 2]])
@pytest.mark.parametrize("operation", ["entropy", "marginals", "rsample", "kl", "cross_entropy", "expectation"])
def test_derivatives_of_other_operations(operation, lengths):
    (nodes, pairs), _ = table(n=7)
    others = torch.randn(2, 3, 4, 7), torch.randn(3, 1, 7, 7)
    results = []
    for use in ("never", "always"):
        leaves = [x.clone().requires_grad_() for x in (nodes, pairs)]
        chain, other = LinearChain(*leaves, lengths), LinearChain(others[0][0], others[1], lengths)
        with kernels(use):
            result = {
                "entropy": chain.entropy,
                "kl": lambda chain=chain, other=other: chain.kl(other),
                "cross_entropy": lambda chain=chain, other=other: chain.cross_entropy(other),
                "expectation": lambda chain=chain, other=other: chain.expectation(other),
                "marginals": lambda chain=chain: chain.marginals().square(),
                "rsample": lambda chain=chain: chain.rsample(0.7, generator=torch.Generator().manual_seed(0)).weights,
            }[operation]()
            results.append((result, *torch.autograd.grad((result * result.detach().cos()).sum(), leaves)))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, atol=1e-5, rtol=1e-4)


def test_fast_is_near_and_does_not_hang_on_torchs_switches(monkeypatch):
    kind = factors(n=40, length=6, scale=1.3)
    expected, _ = log_sums(kind, "never", torch.float64)
    with precision("fast"):
        result, _ = log_sums(kind, "always")
    assert (result - expected).abs().max() < 0.02
    full, _ = log_sums(kind, "always")
    assert (full - expected).abs().max() < 1e-4


@pytest.mark.parametrize("scale", [1.0, 4.0, 12.0])
@pytest.mark.parametrize("ordered", [True, False])
def test_selection_is_that_of_the_reference(scale, ordered, monkeypatch):
    from tailsum.numerics.fused.select import Selector  # noqa: PLC0415

    log_q = scale * torch.randn(3, 700)
    log_q[1, ::2], log_q[2, 5:] = -math.inf, -math.inf
    mark, k = torch.rand(3, dtype=torch.float64), 20
    monkeypatch.setattr(selection, "uniform", lambda shape, *_: mark.reshape(shape))
    expected = (Optimal if ordered else Landmarks)(k)(log_q)
    index, log_weight = torch.zeros(3, k, dtype=torch.long), torch.full((3, k), -math.inf)
    selector = Selector(3, 700, 1, log_q.device)
    selector(log_q, mark, index, log_weight, ordered, value=log_q)
    mass = (log_q - log_q.amax(-1, keepdim=True)).exp()
    for b in range(3):
        result, there = log_weight[b] > -math.inf, expected.log_weight[b] > -math.inf
        order, other = index[b][result].argsort(), expected.index[b][there].argsort()
        assert torch.equal(index[b][result][order], expected.index[b][there][other])
        assert torch.allclose(log_weight[b][result][order], expected.log_weight[b][there][other], atol=1e-5)
        mass[b, index[b][result]] -= mass[b, index[b][result]] * log_weight[b][result].exp()
    assert torch.allclose(selector.excess, mass, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dense", [False, True])
def test_messages_of_landmarks_and_neighbours(dense):
    from tailsum.chains.fused_sweep import _near, _params  # noqa: PLC0415
    from tailsum.numerics.fused.landmarks import Excess, Sender  # noqa: PLC0415

    n, k = 150, 12
    pairs = Factored(torch.randn(n, 6), torch.randn(n, 6))
    pairs = Dense(pairs.block()) if dense else pairs
    value, index = torch.randn(2, n), torch.stack([torch.randperm(n)[:k] for _ in range(2)])
    kept = Subset(index, torch.rand(2, k))
    near = Near(pairs, pairs.transposed(), Neighbours(pairs, 4), value.device).onward
    plain = pairs.message(index, value.gather(-1, index) + kept.log_weight)
    mass = (value - value.amax(-1, keepdim=True)).exp()
    rest = mass.scatter_add(-1, index, -mass.gather(-1, index) * kept.log_weight.exp())
    out, log_q, add = torch.empty(2, n), torch.empty(2, n), torch.randn(2, n)
    Sender(_params(pairs))(out, value, index, kept.log_weight, add=add, also=value, log_q=log_q)
    assert torch.allclose(out, plain + add, atol=5e-3)  # by rounded factors
    assert torch.equal(log_q, out + value)
    excess = Excess(rest, value.amax(-1))
    Sender(_params(pairs), _near(near), torch.tensor([3, 2]))(out, value, index, kept.log_weight, excess, t=2)
    assert torch.allclose(out[0], near.joined(plain, value, kept)[0], atol=1e-4)
    assert not out[1].any()  # padding


@pytest.mark.parametrize("kind", ["sticky", *(pytest.param(x, marks=pytest.mark.slow) for x in ("table", "ragged"))])
def test_sketches_are_unbiased(kind):
    n, length, k, replicates = 24, 3, 6, 12
    states = torch.randn(n, 4)
    pairs = Dense(torch.randn(n, n)) if kind == "table" else Factored(states, states)
    lengths = [2] if kind == "ragged" else None
    nodes = torch.randn(1, length, n)
    exact = LinearChain(nodes, pairs, lengths=lengths).log_partition()
    lengths = [2] * replicates if kind == "ragged" else None
    many = LinearChain(nodes.expand(replicates, -1, -1), pairs, lengths=lengths)
    proposal = Lookahead(landmarks=8, rounds=1, neighbours=4)
    with kernels("always"):
        small = many.sketch(k, proposal=proposal, generator=torch.Generator().manual_seed(0))
    ratio = (small.log_partition() - exact).exp()
    assert ratio.std() < 0.3
    assert (ratio.mean() - 1).abs() < 4.5 * ratio.std() / math.sqrt(replicates) + 1e-5


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("n", "length", "batch"), [(20, 50, 32), (300, 40, 5), (700, 30, 1), (1000, 20, 33), (10_001, 5, 3)]
)
@pytest.mark.parametrize("make", [table, factors])
def test_on_a_gpu(make, n, length, batch):
    agree(make(n, length, batch), device="cuda", use="auto", tolerance=1e-5)
    agree(
        make(n, length, batch),
        lengths=[1 + b % length for b in range(batch)],
        device="cuda",
        use="auto",
        tolerance=1e-5,
    )


@pytest.mark.gpu
@needs_gpu
def test_own_scores_on_a_gpu():
    for kind in (own_tables(130, 9, 4), own_factors(1000, 4, 3, 64), own_tables(700, 3, 2)):
        agree(kind, device="cuda", use="auto", tolerance=1e-5)


def test_what_is_forbidden_is_never_kept():
    nodes = torch.randn(2, 4, 40)
    nodes[:, :, ::2] = -math.inf
    pairs = torch.randn(40, 40).masked_fill(torch.rand(40, 40) < 0.7, -math.inf)
    with kernels("always"):
        small = LinearChain(nodes, pairs).sketch(
            8, proposal=Lookahead(landmarks=6, rounds=1, neighbours=3, sequential=False)
        )
    kept = small.log_weight > -math.inf
    assert (small.states[kept] % 2 == 1).all()
    assert kept.sum(-1).min() == 8  # more than eight states are possible at each position


def test_tables_beyond_the_budget_and_wide_factors(way):
    with table_budget(0):
        agree(table())
        agree(factors(n=80, size=70, scale=0.3))


def test_no_samples():
    chain = LinearChain(torch.randn(2, 3, 5), torch.randn(5, 5))
    with kernels("always"):
        assert chain.sample((0,)).shape == (0, 2, 3)


def test_padding_may_hold_anything():
    nodes, pairs = torch.randn(3, 4, 5), torch.randn(5, 5)
    nodes[1, 2:], nodes[2, 1:] = math.nan, math.inf
    found = []
    for use in ("never", "always"):
        leaves = [x.clone().requires_grad_() for x in (nodes, pairs)]
        chain = LinearChain(*leaves, lengths=[4, 2, 1])
        with kernels(use):
            sums = chain.log_partition() + chain.entropy()
            plain = chain.marginals().detach(), chain.argmax()
            found.append((sums.detach(), *torch.autograd.grad(sums.sum(), leaves), *plain))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.parametrize("kind", ["table", "factors", "function"])
def test_the_padding_of_pairs_may_hold_anything(kind, length):
    """Of tables of each sequence, where some sequences have one position."""
    lead, found = (3, length - 1 if length == 2 else 1), []
    given = [torch.randn(*lead, 5, 5)] if kind == "table" else [torch.randn(*lead, 5, 2), torch.randn(*lead, 5, 2)]
    given = [x.index_fill(0, torch.tensor([1]), math.nan) for x in given]
    nodes = torch.randn(3, length, 5)
    for use in ("never", "always"):
        leaves = [x.clone().requires_grad_() for x in (nodes, *given)]
        pairs = Dense(leaves[1]) if kind == "table" else Factored(*leaves[1:])
        if kind == "function":
            pairs = Scored(lambda i, j, x: x[..., 0] * (i - j), 5, 5, leaves[1][..., 0, :1])
        chain = LinearChain(leaves[0], pairs, lengths=[length, 1, length])
        with kernels(use):
            sums = chain.log_partition() + chain.entropy()
            found.append((sums.detach(), *torch.autograd.grad(sums.sum(), leaves[:2])))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", [-1e9, -2e5])
def test_divergence_where_every_path_breaks_a_mask(mask):
    nodes, other = torch.randn(2, 4, 5), torch.randn(2, 4, 5)
    pairs = torch.randn(5, 5)
    nodes[:, 1:, 0], other[:, 1:, 0], pairs[:, 1:] = mask, mask, mask
    found = []
    for use, dtype in (("never", torch.float64), ("always", torch.float32)):
        with kernels(use):
            found.append(
                LinearChain(nodes.to(dtype), pairs.to(dtype)).kl(LinearChain(other.to(dtype), pairs.to(dtype)))
            )
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3, check_dtype=False)


@pytest.mark.parametrize("mask", [-1e9, -2e5, -1e30, -math.inf])
def test_entropy_where_every_path_breaks_a_mask(mask):
    nodes, pairs = torch.randn(2, 4, 3), torch.randn(3, 3)
    nodes[0, 1], pairs[0] = mask, mask
    found = []
    for use, dtype in (("never", torch.float64), ("always", torch.float32)):
        leaves = [x.to(dtype).requires_grad_() for x in (nodes, pairs)]
        with kernels(use):
            total = LinearChain(*leaves).entropy()
        weighed = torch.where(total > -math.inf, total, 0.0).sum()
        found.append((total.detach(), *torch.autograd.grad(weighed, leaves)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4, check_dtype=False)


def test_where_every_path_breaks_a_mask():
    """The best way into the middle has no way out: beside its mask, what decides between the others has no digits."""
    nodes, pairs = torch.randn(1, 4, 3), torch.randn(3, 3)
    nodes[0, 1, 1:], pairs[0] = -1e9, -2e9
    wide = LinearChain(nodes.double(), pairs.double())
    with kernels("always"):
        chain = LinearChain(nodes, pairs)
        found = chain.marginals(), chain.pair_marginals()
        paths = chain.sample((50,), generator=torch.Generator().manual_seed(0))
    for one, other in zip(found, (wide.marginals(), wide.pair_marginals()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5)
    share, chance = (paths[:, 0, 1, None] == torch.arange(3)).double().mean(0), wide.marginals()[0, 1]
    assert ((share - chance).abs() <= 6 * (chance * (1 - chance)).clamp(min=0).div(50).sqrt() + 0.05).all()
