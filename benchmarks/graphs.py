"""Graphs: sketches of grids and trees with very many labels, against the whole graph in the same run."""

import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.measure import Figure, ResidentMemory
from tailsum import ConvergenceWarning, Factored, Lookahead, PairwiseGraph, PeakMemory, grid_edges, table_budget
from tailsum_studies.bench.measure import timed


def random_grid(
    side: int, n: int, pair: float, unary: float, own: bool, d: int = 16, device: str = "cpu"
) -> tuple[PairwiseGraph, list[Tensor]]:
    """A square grid, and its parameters; scores of labels and of pairs of Gaussian embeddings with given deviations.

    With `own` every edge has pair scores of its own, otherwise all share one.
    """
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, n, d, generator=generator) * math.sqrt(pair) * d**-0.25
    scores = unary * torch.randn(side * side, n, generator=generator)
    if own:
        weight = 0.5 + torch.rand(2 * side * (side - 1), 1, 1, generator=generator)
        left = left * weight
    scores, left, right = (x.to(device).requires_grad_() for x in (scores, left, right))
    return PairwiseGraph.grid(side, side, scores, Factored(left, right)), [scores, left, right]


def random_tree(
    size: int, n: int, pair: float, unary: float, d: int = 16, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> PairwiseGraph:
    """A random tree, each variable joined with an earlier one; scores as in `random_grid`."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, n, d, generator=generator) * math.sqrt(pair) * d**-0.25
    scores = unary * torch.randn(size, n, generator=generator)
    edges = [(int(torch.randint(v, (), generator=generator)), v) for v in range(1, size)]
    return PairwiseGraph(scores.to(device, dtype), edges, Factored(left.to(device, dtype), right.to(device, dtype)))


def grid_figures() -> Iterator[Figure]:
    """32 x 32, 1,000 labels, a twentieth of them kept: log-partition and marginals of the whole graph and of a sketch."""
    for own, unary in ((True, 5.0), (True, 3.0), (False, 5.0)):
        graph, _ = random_grid(32, 1000, 1.0, unary, own)
        name = f"grid 32 x 32, N=1,000 K=5%, {'own' if own else 'shared'} pair scores, labels {unary:g}"
        yield from _grid(graph, name, goal=own and unary > 3)


def _grid(graph: PairwiseGraph, name: str, *, goal: bool) -> Iterator[Figure]:
    generator, proposal = torch.Generator().manual_seed(0), Lookahead(landmarks=64)

    def whole() -> tuple[Tensor, Tensor]:
        with torch.no_grad(), table_budget(9 << 30):  # all tables kept: streamed, they would take three times as long
            return graph.log_partition(), graph.marginals()

    def sketched() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            small = graph.sketch(50, proposal=proposal, generator=generator)
            return small.log_partition(), small.scatter(small.marginals())

    (exact, marginals), slow = timed(whole)
    (found, beliefs), fast = timed(sketched)
    with PeakMemory() as large:
        whole()
    with PeakMemory() as little:
        sketched()
    less, faster = large.peak / little.peak, slow / fast
    yield Figure(
        f"{name}: memory and time, the whole graph over a sketch",
        f"{less:.1f} x ({large.peak >> 20} / {little.peak >> 20} MiB), {faster:.1f} x ({slow:.1f} / {fast:.2f} s)",
        "20 x, 10 x" if goal else "none",
        (less >= 20 and faster >= 10) or not goal,
    )
    small = graph.sketch(50, proposal=proposal, generator=generator)
    least = 1 - marginals.topk(50).values.sum(-1).mean().item()
    kept_off, whole_off = (_variation(x, marginals) for x in (beliefs, small.whole_marginals()))
    off = (found - exact).abs().item() / exact.abs().item()
    yield Figure(
        f"{name}: error of marginals (total variation) on kept labels / on all, and of log Z",
        f"{kept_off:.4f} (any 50 labels: at least {least:.4f}) / {whole_off:.4f}, {off:.1e}",
        "0.02, 0.1%" if goal else "none",
        (kept_off <= 0.02 and off <= 1e-3) or not goal,
    )


def _variation(found: Tensor, exact: Tensor) -> float:
    return 0.5 * (found - exact).abs().sum(-1).mean().item()


def large_figures() -> Iterator[Figure]:
    """64 x 64, 10,000 labels, 100 kept: choose, forward and backward."""
    graph, tensors = random_grid(64, 10_000, 1.0, 5.0, own=False)

    def run() -> float:
        small = graph.sketch(100, proposal=Lookahead(landmarks=64), generator=torch.Generator().manual_seed(0))
        total = small.log_partition()
        assert all(x.isfinite().all() for x in torch.autograd.grad(total, tensors))
        return total.item()

    with ResidentMemory() as memory:
        value, took = timed(run)
    size = memory.growth / 2**30
    yield Figure(
        "grid 64 x 64, N=10,000 K=100: choose, forward and backward",
        f"{took:.0f} s, {size:.2f} GiB; log Z {value:.1f}",
        "under 8 GiB",
        size < 8,
    )


def tree_figures(n: int = 10_000, k: int = 100, repeats: int = 8, device: str = "cpu") -> Iterator[Figure]:
    """200 variables: the error of log Z against exact inference."""
    for pair, unary in ((1.0, 1.0), (1.0, 3.0), (2.0, 3.0), (3.0, 3.0)):
        tree = random_tree(200, n, pair, unary, device=device)
        exact, slow = timed(tree.log_partition)
        generator, errors, took = torch.Generator(device).manual_seed(0), [], 0.0
        for _ in range(repeats):
            small, seconds = timed(lambda t=tree, g=generator: t.sketch(k, generator=g))
            errors.append((small.log_partition() - exact).item())
            took += seconds / repeats
        error = torch.tensor(errors).square().mean().sqrt().item()
        goal = n >= 100_000 and pair <= 1
        yield Figure(
            f"tree of 200, N={n:,} K={k}, pairs {pair:g}, labels {unary:g}: RMSE of log Z",
            f"{error:.4f} (log Z {exact.item():.1f}; exact {slow:.1f} s, choose {took:.1f} s, {device})",
            "at most 0.1" if goal else "none",
            error <= 0.1 or not goal,
        )


def small_figures() -> Iterator[Figure]:
    """Graphs with loops that are exact: how often the best configuration is found, by either method, and the time."""
    generator, edges = torch.Generator().manual_seed(0), grid_edges(4, 4)
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    unary = torch.randn(100, 16, 2, generator=generator, dtype=torch.float64)
    pairs = 1.5 * torch.randn(100, len(edges), 1, 1, generator=generator, dtype=torch.float64) * signs
    exact, loopy = (PairwiseGraph(unary, edges, pairs, method=method) for method in ("exact", "propagation"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        best, fast = timed(lambda: exact.score(exact.argmax()))
        found, slow = timed(lambda: loopy.score(loopy.argmax()))
    hits = int((found > best - 1e-9).sum())
    yield Figure(
        "100 grids 4 x 4, N=2, couplings 1.5: best configurations found by messages and search / exactly",
        f"{hits} / 100 ({slow:.1f} / {fast:.2f} s)",
        "95 / 100",
        hits >= 95 and bool((found <= best + 1e-9).all()),
    )
    for side in (10, 14):
        grid = PairwiseGraph.grid(side, side, torch.randn(side, side, 2, generator=generator), torch.eye(2))
        _, took = timed(grid.marginals)
        yield Figure(f"grid {side} x {side}, N=2: exact marginals", f"{took:.2f} s", "none", grid.is_exact)
