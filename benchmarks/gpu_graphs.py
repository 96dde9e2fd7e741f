"""Graphs on a GPU: checked against float64 on the CPU, then the largest trees and grids."""

from collections.abc import Iterator

import torch

from benchmarks.graphs import random_grid, tree_figures
from benchmarks.measure import Figure, seconds
from tailsum import Factored, FactorGraph, Graph, Lookahead, PairwiseGraph
from tailsum_studies.bench.measure import timed


def graph_figures() -> Iterator[Figure]:
    if not torch.cuda.is_available():
        return
    yield from _same_results()
    yield from tree_figures(100_000, 500, device="cuda")
    yield _large_grid()


def _models(device: str, dtype: torch.dtype) -> dict[str, Graph]:
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    unary, left, right = rand(2, 12, 30), rand(30, 4) / 2, rand(30, 4) / 2
    edges = [(v // 2, v) for v in range(1, 12)]
    scopes = torch.tensor([[0, 1, 2], [2, 3, 4], [4, 5, 0]])
    return {
        "tree": PairwiseGraph(unary, edges, Factored(left, right)),
        "grid": PairwiseGraph.grid(3, 4, unary, Factored(left, right)),
        "grid, flooding": PairwiseGraph.grid(3, 4, unary, 0.2 * rand(17, 30, 30), schedule="flooding"),
        "factors of three": FactorGraph(unary, [(scopes, 0.2 * rand(3, 30, 30, 30)), ((6, 7), rand(30, 30))]),
    }


def _same_results() -> Iterator[Figure]:
    for name, wide in _models("cpu", torch.float64).items():
        gpu = _models("cuda", torch.float32)[name]
        generator, here = torch.Generator("cuda").manual_seed(0), torch.Generator().manual_seed(0)
        subset = wide.sketch(8, generator=here).kept
        assert subset is not None
        moved = type(subset)(subset.index.cuda(), subset.log_weight.float().cuda())
        worst = 0.0
        for ours, truth in ((gpu, wide), (gpu.restrict(moved), wide.restrict(subset))):
            for operation in ("log_partition", "entropy", "marginals", "whole_marginals"):
                difference = getattr(ours, operation)().double().cpu() - getattr(truth, operation)()
                worst = max(worst, difference.abs().max().item())
            worst = max(worst, (truth.score(truth.argmax()) - truth.score(ours.argmax().cpu())).abs().max().item())
            ours.sample((5,), generator=generator)
            ours.rsample(generator=generator)
        gpu.sketch(8, generator=generator).kl(gpu)
        yield Figure(
            f"GPU against float64 on the CPU, {name}: largest difference", f"{worst:.1e}", "at most 1e-3", worst <= 1e-3
        )


def _large_grid() -> Figure:
    torch.cuda.reset_peak_memory_stats()
    graph, tensors = random_grid(64, 10_000, 1.0, 5.0, own=False, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    small, choosing = timed(lambda: graph.sketch(100, proposal=Lookahead(landmarks=64), generator=generator))
    passes = seconds(lambda: torch.autograd.grad(small.log_partition(), tensors, retain_graph=True))
    peak = torch.cuda.max_memory_allocated() / 2**30
    exact, whole = timed(graph.log_partition)
    return Figure(
        "GPU, grid 64 x 64, N=10,000 K=100: choose / forward + backward / the whole graph forward",
        f"{choosing:.2f} / {passes:.2f} / {whole:.2f} s, {peak:.1f} GiB; log Z {small.log_partition().item():.2f} "
        f"(whole {exact.item():.2f})",
        "none",
        reached=True,
    )
