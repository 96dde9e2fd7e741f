"""Structured potentials: time against tables and convolutions, and resident memory in processes of their own (Linux).

`python -m benchmarks.structured KIND N T B PASS` prints what `memory` reads, for KIND "sparse", "dense", "banded" or "monarch" and
PASS "forward" or "backward" (both passes).
"""

import contextlib
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from benchmarks.measure import Figure
from benchmarks.resident import resident
from tailsum import Banded, LinearChain, Monarch, Potential, Sparse

ARCS, SIDE = 10, 100  # arcs from each state; cells on a side of the grid


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def some_arcs(n: int) -> Tensor:
    """`ARCS` arcs from each state, `[2, E]`."""
    key = torch.arange(n).repeat_interleave(ARCS) * n + torch.randint(n, (n * ARCS,), generator=seeded())
    key = key.unique()
    return torch.stack((key // n, key % n))


def scores_of(kind: str, n: int) -> tuple[list[Tensor], Callable[..., Tensor | Potential]]:
    """The leaves of some pair scores, and the potential of them."""
    if kind == "banded":
        return [torch.randn(5, n, generator=seeded())], Banded
    if kind == "monarch":
        small = 1 << int(math.log2(n)) // 2
        shapes = (small, n // small, n // small), (n // small, small, small)
        return [torch.randn(shape, generator=seeded()) for shape in shapes], Monarch
    index = some_arcs(n)
    scores = torch.randn(index.shape[1], generator=seeded())
    if kind == "sparse":
        return [scores], lambda scores: Sparse(index, scores, n)
    return [torch.full((n, n), -math.inf).index_put(tuple(index), scores)], lambda table: table


def model(kind: str, n: int, length: int, batch: int, *, recorded: bool) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """The log-partition of a chain, and its leaves."""
    leaves, potential = scores_of(kind, n)
    leaves = [x.requires_grad_(recorded) for x in (torch.randn(batch, length, n, generator=seeded()), *leaves)]

    def run() -> Tensor:
        with contextlib.nullcontext() if recorded else torch.no_grad():
            total = LinearChain(leaves[0], potential(*leaves[1:])).log_partition()
        if recorded:
            total.sum().backward()
        return total.detach()

    return run, leaves


def median(run: Callable[[], object], repeats: int = 5) -> float:
    """Seconds on one thread, without those of other processes."""
    times = list[float]()
    for _ in range(repeats + (repeats > 1)):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times[repeats > 1 :])


class Memory(NamedTuple):
    """Bytes of a process: the growth during an operation, without its results, and all that it held."""

    growth: int
    peak: int


def memory(kind: str, n: int, length: int, batch: int, which: str) -> Memory:
    done = subprocess.run(  # noqa: S603  (our own)
        [sys.executable, "-m", "benchmarks.structured", kind, *map(str, (n, length, batch)), which],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return Memory(*map(int, done.stdout.split()))


def measured(kind: str, n: int, length: int, batch: int, which: str) -> Memory:
    for size in (256, n):  # the first loads what is loaded on first use
        run, leaves = model(kind, size, length, batch, recorded=which == "backward")
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what there is now
        before = resident("VmRSS")
        run()
        peak = resident("VmHWM")
    results = sum(x.grad.numel() * x.grad.element_size() for x in leaves if x.grad is not None)
    return Memory(peak - before - results, peak)


# The figures.


def sparse_figures(n: int = 10_000, length: int = 50, batch: int = 8) -> Iterator[Figure]:
    """Arcs against a table with minus infinity."""
    small = [model(kind, 300, 7, 2, recorded=True) for kind in ("sparse", "dense")]
    torch.testing.assert_close(*(run() for run, _ in small))
    torch.testing.assert_close(*(leaves[0].grad for _, leaves in small))
    sparse, dense = (model(kind, n, length, batch, recorded=True)[0] for kind in ("sparse", "dense"))
    torch.testing.assert_close(sparse(), dense())
    ours, theirs = median(sparse), median(dense, 1)
    what = f"Sparse forward + backward, N={n:,}, {ARCS} arcs a state, T={length} B={batch}"
    yield Figure(
        f"{what}: time of Dense over its own",
        f"{theirs / ours:.0f} ({1000 * ours:.0f} ms)",
        "at least 100",
        theirs / ours >= 100,
    )
    for steps, rows in ((length, batch), (2, 1)):
        ours, theirs = (memory(kind, n, steps, rows, "backward").growth for kind in ("sparse", "dense"))
        yield Figure(
            f"Sparse, T={steps} B={rows}: memory beside inputs and results, of Dense over its own",
            f"{theirs / ours:.0f} ({ours / 2**20:.1f} MiB; {4 * steps * rows * n / 2**20:.1f} MiB are [B, T, N])",
            "at least 200",
            theirs / ours >= 200,
        )


def grid_figures(length: int = 100) -> Iterator[Figure]:
    """Moves to nine cells by arcs, against a filter that convolves probabilities."""
    window = torch.randn(3, 3, generator=seeded())
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    arcs, scores = list[Tensor](), list[Tensor]()
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            inside = (row + down >= 0) & (row + down < SIDE) & (column + right >= 0) & (column + right < SIDE)
            here = (row * SIDE + column)[inside]
            arcs.append(torch.stack((here, here + down * SIDE + right)))
            scores.append(window[1 + down, 1 + right].expand(len(here)))
    moves = Sparse(torch.cat(arcs, 1), torch.cat(scores), SIDE**2)
    for batch in (1, 8):
        seen = torch.randn(batch, length, SIDE**2, generator=seeded())

        def ours(seen: Tensor = seen) -> Tensor:
            return LinearChain(seen, moves).log_partition()

        def theirs(seen: Tensor = seen) -> Tensor:
            return convolved(seen, window)

        torch.testing.assert_close(ours().double(), theirs(), rtol=1e-6, atol=1e-4)
        name = f"moves on a {SIDE} x {SIDE} grid, T={length} B={batch}"
        ratio = median(ours, 15) / median(theirs, 15)
        yield Figure(f"{name}: log Z over a filter by conv2d, time", f"{ratio:.1f}", "at most 5", ratio <= 5)
        leaf = seen.clone().requires_grad_()
        ratio = median(lambda: ours(leaf).sum().backward()) / median(lambda: theirs(leaf).sum().backward())  # noqa: B023
        yield Figure(f"{name}: the same with the gradient", f"{ratio:.1f}", "at most 5", ratio <= 5)


def convolved(seen: Tensor, window: Tensor) -> Tensor:
    """Log of the sum over all paths, by a filter whose messages sum to one; in float64."""
    kernel = window.exp().flip(0, 1)[None, None]
    grid = seen.unflatten(-1, (1, SIDE, SIDE))
    top = grid.detach().amax((-3, -2, -1), keepdim=True)
    chance = (grid - top).exp()
    message, total = chance[:, 0], top.sum((1, 2, 3, 4)).double()
    for t in range(1, seen.shape[1]):
        size = message.sum((1, 2, 3), keepdim=True)
        total = total + size.flatten().double().log()
        message = F.conv2d(message / size, kernel, padding=1) * chance[:, t]
    return total + message.sum((1, 2, 3)).double().log()


def banded_figures(n: int = 100_000, length: int = 100) -> Iterator[Figure]:
    """Memory beside messages of all positions, and time as the states grow."""
    single, leaves = model("banded", 300, 20, 1, recorded=True)
    table = Banded(leaves[1].detach().double()).block()
    torch.testing.assert_close(single().double(), LinearChain(leaves[0].detach().double(), table).log_partition())
    for which, name in (("forward", "forward"), ("backward", "forward + backward")):
        size = memory("banded", n, length, 1, which).growth / (4 * n * length)
        what = f"Banded {name}, N={n:,} w=2 T={length}"
        yield Figure(f"{what}: memory beside inputs and results, over [T, N]", f"{size:.1f}", "at most 3", size <= 3)
        sizes = [n // 4, n // 2, n]
        times = [median(model("banded", each, length, 1, recorded=which == "backward")[0]) for each in sizes]
        slope = math.log(times[-1] / times[0]) / math.log(4)
        yield Figure(
            f"{what}: slope of log time in log N, from N={n // 4:,}",
            f"{slope:.2f} ({', '.join(f'{1000 * x:.0f}' for x in times)} ms)",
            "at most 1.15",
            slope <= 1.15,
        )


def monarch_figures(n: int = 512 * 1024, length: int = 10, batch: int = 2) -> Iterator[Figure]:
    """All that a process holds for half a million states, and digits at 4,096."""
    run, leaves = model("monarch", 4096, length, batch, recorded=True)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    total = LinearChain(wide[0], Monarch(*wide[1:])).log_partition()
    error = ((run().double() - total) / total).abs().max().item()
    for found, expected in zip(leaves, torch.autograd.grad(total.sum(), wide), strict=True):
        assert found.grad is not None
        error = max(error, ((found.grad - expected) / expected.abs().max()).abs().max().item())
    yield Figure("Monarch, N=4,096: log Z and gradients against float64", f"{error:.1e}", "1e-05", error <= 1e-5)
    peak = memory("monarch", n, length, batch, "backward").peak
    yield Figure(
        f"Monarch forward + backward, N={n:,} T={length} B={batch}: all memory of the process",
        f"{peak / 2**30:.1f} GiB",
        "under 8 GiB",
        peak < 8 << 30,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, n, length, batch, which = sys.argv[1:]
    print(*measured(kind, int(n), int(length), int(batch), which))
