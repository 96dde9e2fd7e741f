"""CTC beside torch's `ctc_loss`, alignments, and a random lattice: time and memory on one thread of a CPU."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from benchmarks.measure import Figure, ResidentMemory
from tailsum import CTC, Alignment, Lattice


def ctc_figures() -> Iterator[Figure]:
    """Forward and backward in float32, behind a comparison of values and gradients."""
    torch.set_num_threads(1)
    yield from _ctc(batch=32, frames=500, labels=60, size=100, goal=3.0)
    yield from _ctc(batch=4, frames=3_000, labels=1_000, size=50, goal=3.0)


def _ctc(batch: int, frames: int, labels: int, size: int, goal: float) -> Iterator[Figure]:
    torch.manual_seed(0)
    logits = torch.randn(batch, frames, size, requires_grad=True)
    targets = torch.randint(1, size, (batch, labels))
    lengths, counts = torch.full((batch,), frames), torch.full((batch,), labels)

    def ours() -> tuple[Tensor, Tensor]:
        loss = -CTC(logits.log_softmax(-1), targets).log_partition().sum()
        return loss.detach(), torch.autograd.grad(loss, logits)[0]

    def theirs() -> tuple[Tensor, Tensor]:
        loss = F.ctc_loss(logits.log_softmax(-1).transpose(0, 1), targets, lengths, counts, reduction="sum")
        return loss.detach(), torch.autograd.grad(loss, logits)[0]

    def entropy() -> Tensor:
        return torch.autograd.grad(CTC(logits.log_softmax(-1), targets).entropy().sum(), logits)[0]

    leaf = logits
    mine, logits = ours(), leaf.detach().double().requires_grad_()  # float32 costs torch three digits of the gradient
    for x, truth in zip(mine, theirs(), strict=True):
        torch.testing.assert_close(x.double(), truth, rtol=1e-4, atol=1e-4)
    logits = leaf
    fast, slow, spread = _alternately(ours, theirs, entropy)
    name = f"CTC B={batch} T={frames} S={labels} V={size}"
    yield Figure(
        f"{name}, loss + backward: time over torch's ctc_loss",
        f"{fast / slow:.2f} ({1e3 * fast:.0f} ms, {1e3 * slow:.0f} ms)",
        f"at most {goal:g}, values and gradients those of ctc_loss in float64 to 1e-4",
        fast <= goal * slow,
    )
    yield Figure(
        f"{name}, entropy + backward: time over the loss's",
        f"{spread / fast:.1f} ({1e3 * spread:.0f} ms)",
        "at most 5",
        spread <= 5 * fast,
    )
    if labels < 1_000:  # what is small may fit into memory that the process has already
        return
    used, other = (_growth(run) for run in (ours, theirs))
    yield Figure(
        f"{name}, loss + backward: memory over torch's ctc_loss",
        f"{used / other:.1f} ({used / 2**20:.0f} MiB, {other / 2**20:.0f} MiB)",
        "at most 5",
        used <= 5 * other,
    )


def alignment_figures() -> Iterator[Figure]:
    """Forward and backward, beside a recursion by diagonals that autograd differentiates."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    match, gaps = torch.randn(16, 200, 200, requires_grad=True), torch.randn(16, 200)

    def trained(total: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return lambda: torch.autograd.grad(total().sum(), match)[0]

    ours = trained(lambda: Alignment(match, gaps, gaps).log_partition())
    plain = trained(lambda: _by_diagonals(match, gaps, gaps))
    torch.testing.assert_close(ours(), plain(), rtol=1e-4, atol=1e-4)
    fast, slow = _alternately(ours, plain)
    yield Figure(
        "Alignment N=200 M=200 B=16, forward + backward: times faster than the same by autograd",
        f"{slow / fast:.1f} ({1e3 * fast:.0f} ms, {1e3 * slow:.0f} ms)",
        "at least 1",
        slow >= fast,
    )


def lattice_figures(n_nodes: int = 20_000, size: int = 100_000) -> Iterator[Figure]:
    """A random lattice whose arcs span up to 40 nodes, behind a sum of paths node by node."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tails = torch.randint(n_nodes - 1, (size,))
    arcs = torch.stack((tails, (tails + 1 + torch.randint(40, (size,))).clamp(max=n_nodes - 1)))
    scores = torch.randn(size, requires_grad=True)
    start = time.process_time()
    lattice = Lattice(arcs, scores, n_nodes)
    made = time.process_time() - start
    truth = _node_by_node(arcs, scores.detach().double(), n_nodes)
    if abs(lattice.log_partition().item() - truth) > 1e-6 * abs(truth):
        raise AssertionError("the sums differ")
    log_sum, trained, entropy, best = _alternately(
        lattice.log_partition,
        lambda: torch.autograd.grad(lattice.log_partition(), scores),
        lambda: torch.autograd.grad(lattice.entropy(), scores),
        lattice.argmax,
    )
    times = f"made {made:.2f} s, log Z {log_sum:.2f} s, with backward {trained:.2f} s, entropy with backward {entropy:.2f} s"
    yield Figure(
        f"Lattice of {size:,} arcs, {lattice.event_shape[0]:,} levels: log Z + backward",
        f"{trained:.2f} s ({times}, argmax {best:.2f} s)",
        "at most 1 s",
        trained <= 1,
    )


def _by_diagonals(match: Tensor, delete: Tensor, insert: Tensor) -> Tensor:
    """The recursion as it is written for autograd; what is impossible scores -1e30."""
    n, m = match.shape[-2:]
    moves = (
        F.pad(match, (1, 0, 1, 0), value=-1e30),
        F.pad(delete[:, :, None].expand(-1, -1, m + 1), (0, 0, 1, 0), value=-1e30),
        F.pad(insert[:, None].expand(-1, n + 1, -1), (1, 0), value=-1e30),
    )
    i = torch.arange(n + 1)
    j = torch.arange(1, n + m + 1)[:, None] - i
    skewed = torch.stack(moves, -1)[:, i, j.clamp(0, m)].masked_fill(((j < 0) | (j > m))[..., None], -1e30)
    before = skewed.new_full((len(match), n + 1), -1e30)
    here = before.masked_fill(i == 0, 0.0)
    for move in skewed.unbind(1):
        down = [F.pad(x, (1, 0), value=-1e30)[:, :-1] for x in (before, here)]
        before, here = here, (torch.stack((*down, here), -1) + move).logsumexp(-1)
    return here[:, -1]


def _node_by_node(arcs: Tensor, scores: Tensor, n_nodes: int) -> float:
    """Nodes are numbered in order here."""
    sums = torch.full((n_nodes,), -torch.inf, dtype=torch.float64)
    sums[0] = 0.0
    into = arcs[1].argsort(stable=True)
    for rows in into.split(arcs[1].bincount(minlength=n_nodes).tolist()):
        if len(rows):
            sums[arcs[1, rows[0]]] = (sums[arcs[0, rows]] + scores[rows]).logsumexp(0)
    return sums[-1].item()


def _alternately(*runs: Callable[[], object], repeats: int = 7) -> list[float]:
    """The median times of the process, of runs taken in turn after a warm-up: other processes disturb all alike."""
    times = list[list[float]]()
    for _ in range(repeats + 1):
        times.append([])
        for run in runs:
            start = time.process_time()
            run()
            times[-1].append(time.process_time() - start)
    return [statistics.median(column) for column in zip(*times[1:], strict=True)]


def _growth(run: Callable[[], object]) -> int:
    """The largest growth of the process, after memory that is free went back to the system (Linux)."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with ResidentMemory() as memory:
        run()
    return memory.growth
