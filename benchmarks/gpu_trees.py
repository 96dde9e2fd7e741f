"""Segments, trees and grammars on a GPU: checked against float64 on the CPU, then timed."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Figure, seconds
from benchmarks.trees import large_models
from tailsum import (
    PCFG,
    DependencyTree,
    Factored,
    FactoredRule,
    LowRankRule,
    ScoredRule,
    SemiMarkov,
    SpanTree,
    TopAndSample,
    Uniform,
)
from tailsum_studies.bench.measure import timed


def tree_figures() -> Iterator[Figure]:
    if not torch.cuda.is_available():
        return
    yield from _same_results()
    yield from _sketches()


def _same_results() -> Iterator[Figure]:
    """Every operation, exact and restricted to one subset, against the CPU in float64."""
    for name, wide in _models(torch.device("cpu"), torch.float64).items():
        gpu = _models(torch.device("cuda"), torch.float32)[name]
        generator, here = torch.Generator("cuda").manual_seed(0), torch.Generator().manual_seed(0)
        pairs = [(gpu, wide)]
        latent = wide.n_states > 1
        if latent:
            subset = wide.sketch(8, generator=here).kept
            moved = type(subset)(subset.index.cuda(), subset.log_weight.float().cuda())
            pairs.append((gpu.restrict(moved), wide.restrict(subset)))
            gpu.sketch(8, generator=generator).rsample(generator=generator)
            gpu.sketch(selection=TopAndSample(4, 4), proposal=Uniform(), generator=generator).kl(gpu)
        worst = 0.0
        for ours, truth in pairs:
            for operation in ("log_partition", "entropy", "marginals"):
                difference = getattr(ours, operation)().double().cpu() - getattr(truth, operation)()
                worst = max(worst, difference.nan_to_num(0.0).abs().max().item())
            best = truth.score(truth.argmax())
            found = truth.score(_cpu(ours.argmax()))
            worst = max(worst, (best - found).nan_to_num(0.0).abs().max().item())
            ours.sample((5,), generator=generator)
            ours.topk(2)
        yield Figure(
            f"GPU against float64 on the CPU, {name}: largest difference", f"{worst:.1e}", "at most 1e-3", worst <= 1e-3
        )


def _cpu(configuration: Any) -> Any:
    return type(configuration)(*(None if x is None else x.cpu() for x in configuration))


def _models(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    n, p, d, length = 30, 20, 6, 7
    lengths = torch.tensor([7, 4, 2], device=device)
    head, left, right = rand(n, d), rand(n + p, d), rand(n + p, d)
    root, emission, arc = rand(n), rand(3, length, p), rand(3, length, length)
    node, factors = rand(3, length, n), Factored(rand(n, d), rand(n, d))
    rules = {
        "table": rand(n, n + p, n + p),
        "low-rank": LowRankRule(head, left, right),
        "factored": FactoredRule(head, left, right),
        "scored": ScoredRule(lambda a, b, c: torch.tanh(head[a] * left[b] + right[c]).sum(-1), n, p),
    }
    return {
        "SemiMarkov": SemiMarkov(rand(3, length, 3, n), factors, lengths),
        "SpanTree": SpanTree(rand(3, length, length, n), lengths),
        **{f"PCFG, {name}": PCFG(root, rule, emission, lengths) for name, rule in rules.items()},
        "DependencyTree": DependencyTree(arc, lengths),
        "DependencyTree, non-projective, labels": DependencyTree(
            rand(3, length, length, 4), lengths, projective=False, multiroot=True, labelled=True
        ),
        "DependencyTree, states": DependencyTree(arc, lengths, node=node, transition=factors),
    }


def _sketches() -> Iterator[Figure]:
    for name, model, k in large_models(torch.device("cuda")):
        generator = torch.Generator("cuda").manual_seed(0)
        small, choosing = timed(lambda model=model, k=k, g=generator: model.sketch(k, generator=g))
        tensors = [x for term in model.terms() for x in term.tensors if x.requires_grad and x.is_leaf]
        passes = seconds(lambda s=small, t=tensors: torch.autograd.grad(s.log_partition(), t, retain_graph=True))
        peak = torch.cuda.max_memory_allocated() / 2**30
        yield Figure(
            f"GPU, {name}: choose / forward + backward",
            f"{choosing:.2f} / {passes:.2f} s, {peak:.1f} GiB; log Z {small.log_partition().item():.2f}",
            "none",
            reached=True,
        )
