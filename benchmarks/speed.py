"""Time and memory of exact and sketched inference, as ratios measured in one run."""

import warnings
from collections.abc import Callable, Iterator

import torch
import torchcrf
from torch import Tensor

from benchmarks.measure import Figure, ResidentMemory, seconds
from tailsum import Factored, LinearChain, Lookahead, Optimal, PeakMemory
from tailsum_studies.bench.chains import embeddings
from tailsum_studies.bench.rows import Sizes


def exact_figures(n: int = 10_000, length: int = 100, batch: int = 32) -> Iterator[Figure]:
    """Exact forward and backward against the bare matrix products that they cannot do without."""
    context, left, right = embeddings(Sizes(n, length, batch), torch.device("cpu"))
    emission = (context @ right.T).detach().requires_grad_()
    _check_exact()

    def run() -> None:
        LinearChain(emission, Factored(left, right)).log_partition().sum().backward()

    table, x = (left @ right.T).detach().exp_(), torch.rand(batch, n)
    early, late = torch.rand(length - 1, batch, n).flatten(0, 1), torch.rand(length - 1, batch, n).flatten(0, 1)

    def products() -> None:
        for _ in range(length - 1):  # forward, the faster way round
            table.T @ x.T
        for _ in range(length - 1):  # backward
            table @ x.T
        for rows in range(0, n, 512):  # the gradient of the table, and of its factors
            block = early.T[rows : rows + 512] @ late
            block @ right.detach()
            block.T @ left.detach()[rows : rows + 512]

    bare = seconds(products, 1)
    del table
    with ResidentMemory() as memory:
        ours = seconds(run, 1)
    yield Figure(
        f"exact forward + backward, N={n:,} T={length} B={batch}: time over bare matrix products",
        f"{ours / bare:.2f} ({ours:.1f} s over {bare:.1f} s)",
        "at most 1.5",
        ours / bare <= 1.5,
    )
    yield Figure("the same: peak memory", f"{memory.growth / 2**30:.2f} GiB", "under 3 GiB", memory.growth < 3 << 30)


def _check_exact() -> None:
    context, left, right = embeddings(Sizes(500, 12, 3), torch.device("cpu"))
    single = LinearChain(context @ right.T, Factored(left, right))
    wide = LinearChain((context @ right.T).double(), (left.double() @ right.double().T))
    torch.testing.assert_close(single.log_partition().double(), wide.log_partition(), rtol=1e-6, atol=1e-5)


def entropy_figures(n: int = 1000, length: int = 50, batch: int = 16) -> Iterator[Figure]:
    """The entropy and its gradient: digits on a long chain in float32, and time against the log-partition."""
    single, double = (_entropy_gradient(dtype) for dtype in (torch.float32, torch.float64))
    error = ((single - double).abs().max() / double.abs().max()).item()
    yield Figure(
        "gradient of the entropy, T=5,000, float32: largest error", f"{error:.1e}", "at most 1e-04", error <= 1e-4
    )
    context, left, right = embeddings(Sizes(n, length, batch), torch.device("cpu"))
    emission = (context @ right.T).detach().requires_grad_()

    def run(operation: Callable[[LinearChain], Tensor]) -> float:
        return seconds(lambda: operation(LinearChain(emission, Factored(left, right))).sum().backward(), 3)

    ratio = run(LinearChain.entropy) / run(LinearChain.log_partition)
    yield Figure(
        f"entropy forward + backward, N={n:,} T={length} B={batch}: time over the log-partition's",
        f"{ratio:.1f}",
        "at most 4",
        ratio <= 4,
    )


def _entropy_gradient(dtype: torch.dtype, n: int = 20, length: int = 5000) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    nodes = torch.randn(length, n, generator=generator).mul_(2).to(dtype).requires_grad_()
    pairs = torch.randn(n, n, generator=generator).to(dtype)
    (gradient,) = torch.autograd.grad(LinearChain(nodes, pairs).entropy(), nodes)
    return gradient.double()


def best_path_figures(n: int = 500, length: int = 50, batch: int = 8) -> Iterator[Figure]:
    """The best path against pytorch-crf's, of the same scores, one thread and all of them."""
    generator = torch.Generator().manual_seed(0)
    nodes, pairs = torch.randn(batch, length, n, generator=generator), torch.randn(n, n, generator=generator)
    chain, crf = LinearChain(nodes, pairs), torchcrf.CRF(n, batch_first=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of masks, which it makes as bytes
        crf.transitions.copy_(pairs)
        crf.start_transitions.zero_()
        crf.end_transitions.zero_()
        if chain.argmax().tolist() != crf.decode(nodes):
            raise AssertionError("the best paths differ")
        threads = torch.get_num_threads()
        for count in sorted({1, threads}):
            torch.set_num_threads(count)
            ours, theirs = seconds(chain.argmax, 5), seconds(lambda: crf.decode(nodes), 3)
            yield Figure(
                f"argmax, N={n:,} T={length} B={batch}, {count} threads: times faster than pytorch-crf's decode",
                f"{theirs / ours:.1f} ({ours:.3f} s against {theirs:.3f} s)",
                "at least 1.5",
                theirs / ours >= 1.5,
            )
        torch.set_num_threads(threads)


def sketch_figures(n: int = 30_000, k: int = 300, length: int = 20, batch: int = 4) -> Iterator[Figure]:
    """A sketch, proposal included, against exact inference."""
    context, left, right = embeddings(Sizes(n, length, batch), torch.device("cpu"))
    chain = LinearChain(Factored(context, right), Factored(left, right))

    def exact() -> Tensor:
        total = chain.log_partition()
        total.sum().backward()
        return total.detach()

    truth = exact()
    full = seconds(exact, 1)
    for landmarks in (128, 512):
        generator = torch.Generator().manual_seed(0)

        def sketch(landmarks: int = landmarks, generator: torch.Generator = generator) -> Tensor:
            small = chain.sketch(selection=Optimal(k), proposal=Lookahead(landmarks), generator=generator)
            total = small.log_partition()
            total.sum().backward()
            return total.detach()

        error = (sketch() - truth).square().mean().sqrt().item()
        if error > 0.5:
            raise AssertionError(f"the sketch is off by {error} nats")
        ours = seconds(sketch, 3)
        yield Figure(
            f"sketch forward + backward, N={n:,} K={k} T={length} B={batch}, {landmarks} landmarks: times faster than exact",
            f"{full / ours:.1f} ({ours:.2f} s against {full:.1f} s; error {error:.3f} nats)",
            "at least 5",
            full / ours >= 5,
        )


def memory_figures(length: int = 20, batch: int = 8, k: int = 100) -> Iterator[Figure]:
    """What a sketch's forward and backward pass hold as N grows: the gradients of the embeddings, and nothing larger."""
    for n in (10_000, 100_000):
        context, left, right = embeddings(Sizes(n, length, batch), torch.device("cpu"))
        small = LinearChain(Factored(context, right), Factored(left, right)).sketch(k, proposal=Lookahead(32))
        with PeakMemory() as memory:
            small.log_partition().sum().backward()
        allowed = 4 * max(left.numel(), batch * length * k * k)
        yield Figure(
            f"memory of a sketch's passes, N={n:,} K={k} T={length} B={batch}: largest tensor over [N, d] or [B, T, K, K]",
            f"{memory.largest / allowed:.2f} (peak {memory.peak / 2**20:.0f} MiB; [B, T, N] is {4 * length * batch * n / 2**20:.0f})",
            "at most 1",
            memory.largest <= allowed,
        )
