"""Sums over many states on tensor cores, which truncate every sum towards zero: on a GPU, or by the same arithmetic on a CPU."""

import math

import numpy as np
import pytest
import torch

from harness.poison import poison
from tailsum import Factored, LinearChain, kernels, precision, table_budget
from tailsum.scores.table import Table

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter: the logarithm of zero
GPU = torch.cuda.is_available()
interpreted = pytest.mark.skipif(GPU, reason="kernels run on the GPU itself")


def cut(x: np.ndarray) -> np.ndarray:
    """The nearest float32 towards zero."""
    near = x.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def tensor_core(a: np.ndarray, b: np.ndarray, total: np.ndarray, single: bool) -> np.ndarray:
    """`total + a @ b` as tensor cores compute it: eight rows at a time, truncated.

    Operands of a `single` product lose the bits that tf32 does not have. Three products (tf32x3) lose none, begin at zero,
    and are added in ordinary float32.
    """
    if single:
        a, b = ((x.view(np.int32) & ~0x1FFF).view(np.float32) for x in map(np.ascontiguousarray, (a, b)))
    result = total if single else np.zeros_like(total)
    a, b = a.astype(np.float64), b.astype(np.float64)
    for k in range(0, a.shape[1], 8):
        result = cut(result + a[:, k : k + 8] @ b[k : k + 8])
    return result if single else total + result


@pytest.fixture
def tensor_cores(monkeypatch):
    """The interpreter multiplies as tensor cores do."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: PLC0415

    def create_dot(_, a, b, d, input_precision, *__):
        single = str(input_precision).upper().endswith("TF32")
        return TensorHandle(tensor_core(a.data, b.data, d.data, single), d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    poison(monkeypatch)


def positive_scores(n, batch=2, size=8):
    return torch.randn(2, batch, n), (torch.randn(1, 1, n, size), torch.randn(1, 1, n, size) / math.sqrt(size))


@interpreted
@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.parametrize("mode", ["full", "fast"])
@pytest.mark.parametrize("kept", [True, False])
def test_steps_have_no_bias(kept, mode, monkeypatch):
    """One step: every step of a chain adds the mean error over the states to log Z."""
    from tailsum.numerics.fused import shared_steps  # noqa: PLC0415
    from tailsum.numerics.fused.shared_steps import flow_steps, forward_steps, split  # noqa: PLC0415

    n = 600
    wide = {"I": 64, "J": 128, "num_warps": 4, "num_stages": 2}  # in the interpreter, few tiles take less time
    monkeypatch.setattr(shared_steps, "_table_tile", lambda *_: wide)
    node, params = positive_scores(n)
    with kernels("always"), precision(mode), table_budget(1 << 30 if kept else 0):
        table = Table(Factored(*params))
        entered = forward_steps(node, table)[2][1]
        one = torch.ones_like(node)
        flowed = flow_steps(table, True, one, None, one, node.exp())[1][0]
    scores = params[0][0, 0].double() @ params[1][0, 0].double().mT - table.scale[0, 0].double()
    entries = split(scores.exp().float())[0] if mode == "fast" else scores.exp()
    mass, sent = torch.exp(node[0] - node[0].amax(-1, keepdim=True)), node[1].exp()
    if mode == "fast":
        mass, sent = split(mass)[0], split(sent)[0]
    for result, expected in (
        (entered, mass.double() @ entries.double()),
        (flowed, sent.double() @ entries.double().mT),
    ):
        error = (result.double() / expected).log()
        assert error.abs().max() < (1e-5 if mode == "full" else 1e-4)
        assert error.mean().abs() < 1e-6  # 1e-4 nats in 100 steps


def test_one_accumulator_would_have_a_bias():
    """As measured on an H200 when tiles shared an accumulator: -1.1e-4 a step at N = 10,240, and -2.2e-5 at 2,048."""
    n, rows = 10_240, 4
    x, y = (torch.randn(n, rows).exp().numpy() for _ in range(2))
    x, y = ((z.view(np.int32) & ~0x1FFF).view(np.float32) for z in (x, y))
    exact = np.log((x.astype(np.float64) * y).sum(0))

    def summed(part):
        total = np.zeros((rows, rows), np.float32)
        for start in range(0, n, part):
            tile, left, right = np.zeros_like(total), x[start : start + part].T, y[start : start + part]
            for small in (True, True, False):  # small products add nothing here, but are cut all the same
                tile = tensor_core(0 * left if small else left, right, tile, True)
            total = total + tile
        return (np.log(total.diagonal().astype(np.float64)) - exact).mean()

    assert summed(n) < -1e-5
    assert abs(summed(64)) < 2e-6


@interpreted
@pytest.mark.usefixtures("tensor_cores")
def test_fast_products_do_not_touch_scores():
    """All mass in one state: its entries are rounded, by less than 2^-11, but their scores are not."""
    from tailsum.numerics.fused.shared_steps import forward_steps  # noqa: PLC0415

    n, size = 70, 64
    node = torch.full((2, 1, n), -math.inf)
    node[0, :, 3], node[1] = 0.0, 0.0
    params = 3 * torch.randn(1, 1, n, size) / math.sqrt(size), torch.randn(1, 1, n, size)
    for budget in (0, 1 << 30):
        with kernels("always"), precision("fast"), table_budget(budget):
            table = Table(Factored(*params))
            entered = forward_steps(node, table)[2][1, 0]
        expected = params[0][0, 0, 3].double() @ params[1][0, 0].double().mT - table.scale[0, 0, 0].double()
        assert (entered.double().log() - expected).abs().max() < 2**-11


@interpreted
@pytest.mark.usefixtures("tensor_cores")
def test_fast_scores_in_log_space_are_those_of_full():
    own = [torch.randn(2, 2, 33, 8) for _ in range(2)]
    node, result = torch.randn(2, 3, 33), []
    for mode in ("full", "fast"):
        chain = LinearChain(node, Factored(*own))
        with kernels("always"), precision(mode), table_budget(0):
            result.append((chain.log_partition(), chain.score(chain.argmax())))
    assert all(map(torch.equal, *result))


def embedded(n, length, batch, scale, size=64):
    """Pair scores of this standard deviation, as in the benchmarks."""
    draw = torch.Generator("cuda").manual_seed(1)
    left = torch.randn(n, size, device="cuda", generator=draw) * scale / math.sqrt(size)
    right = torch.randn(n, size, device="cuda", generator=draw)
    context = torch.randn(batch, length, size, device="cuda", generator=draw) / math.sqrt(size)
    return context, left, right


def errors(context, left, right):
    """The error of log Z in float32, by sequence."""
    sums = []
    for dtype in (torch.float64, torch.float32):
        c, u, v = (x.to(dtype) for x in (context, left, right))
        sums.append(LinearChain(Factored(c, v), Factored(u, v)).log_partition().double())
    return sums[1] - sums[0]


SIZES = [(1000, 100), (2048, 100), (10_001, 100), (10_240, 100), (100_000, 100), (10_240, 1000)]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not GPU, reason="no GPU")
@pytest.mark.parametrize(("n", "length"), SIZES)
@torch.no_grad()
def test_the_error_of_log_z_on_a_gpu(n, length):
    """The mean error over 64 sequences, all about alike."""
    wrong = errors(*embedded(n, length, 64, 1.0)).mean().item()
    assert abs(wrong) <= 2e-6 * length, f"signed mean {wrong:+.1e}"


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="no GPU")
@pytest.mark.parametrize(
    ("n", "length", "limit"), [(512, 100, 0.05), (1000, 100, 0.05), (2048, 100, 0.05), (10_240, 100, 0.05)]
)
@torch.no_grad()
def test_fast_keeps_its_promise_on_a_gpu(n, length, limit):
    for scale in (1.0, 3.0):
        with precision("fast"):
            assert errors(*embedded(n, length, 16, scale)).abs().max() <= limit


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="no GPU")
@torch.no_grad()
def test_plain_torch_does_not_use_tf32_on_a_gpu(monkeypatch):
    given = embedded(700, 20, 4, 3.0)
    chain = LinearChain(Factored(given[0], given[2]), Factored(given[1], given[2]))
    with kernels("never"):
        full = chain.log_partition()
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
        with precision("fast"):
            assert torch.equal(chain.log_partition(), full)
