"""Trees and grammars: accuracy on the paper's hypertrees and on grammars, time and memory of large sketches."""

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.accuracy import mean_square
from benchmarks.measure import Figure, ResidentMemory, replicate
from tailsum import PCFG, DependencyTree, Lookahead, LowRankRule, Optimal, TopAndSample, Uniform
from tailsum_studies.bench.measure import timed
from tailsum_studies.paper.trees import ADAM_STEPS, hard_dependencies, hard_grammar, paper_tree

# Mean square errors of log Z in the paper's Table 2, N = 2000: K = 1%, 10% and 20%, half of them top states.
PAPER = {
    "dense": (26.331, 1.193, 0.445),
    "intermediate": (37.669, 1.530, 0.544),
    "long-tail": (48.863, 1.384, 0.599),
}


def paper_tree_figures(models: int = 5, repeats: int = 100) -> Iterator[Figure]:
    """The paper's hypertrees: its own method, which should give its figures, and ours."""
    for level in ADAM_STEPS:
        for half, printed in zip((10, 100, 200), PAPER[level], strict=True):
            theirs, ours = [], []
            for seed in range(models):
                generator = torch.Generator().manual_seed(seed)
                model = paper_tree(level=level, generator=generator)
                exact = model.log_partition()
                found = replicate(model, repeats, TopAndSample(half, half), Uniform(), generator)
                theirs.append(mean_square(found.log_partition - exact))
                found = replicate(model, 10, Optimal(2 * half), generator=generator)
                ours.append(mean_square(found.log_partition - exact))
            low, high = min(theirs), max(theirs)
            name = f"paper's tree, {level}, K={2 * half / 2000:.0%}: MSE of log Z"
            yield Figure(
                f"{name}, the paper's method",
                f"{low:.3g} to {high:.3g} over {models} models",
                f"the paper's {printed:g}, within its spread (half to twice)",
                low / 2 <= printed <= 2 * high,
            )
            yield Figure(name, f"{max(ours):.1e}", f"at most {printed / 100:.1e}", max(ours) <= printed / 100)


def grammar_figures(repeats: int = 10) -> Iterator[Figure]:
    """Grammars scored from embeddings, N = P = 500: the error of a sketch on a tenth of the states."""
    for rule, emission, goal in ((1.0, 1.0, 0.1), (1.0, 3.0, 0.1), (2.0, 2.0, 0.2)):
        generator = torch.Generator().manual_seed(0)
        model = hard_grammar(500, 500, rule, emission, generator=generator)
        with torch.no_grad():
            exact, slow = timed(model.log_partition)
            found = replicate(model, repeats, Optimal(50), Lookahead(), generator)
        error = mean_square(found.log_partition - exact) ** 0.5
        yield Figure(
            f"grammar, N=P=500 T=15, rules of deviation {rule:g}, emissions {emission:g}, K=10%: RMSE of log Z",
            f"{error:.3f} ({found.seconds:.1f} s with the entropy; exact {slow:.0f} s)",
            f"at most {goal}",
            error <= goal,
        )


def large_models(device: torch.device) -> Iterator[tuple[str, Any, int]]:
    """Name, model and how many states to keep."""
    generator = torch.Generator().manual_seed(0)
    grammar = hard_grammar(10_000, 500, length=20, generator=generator)
    yield "grammar, N=10,000 P=500 T=20 K=100", _recording(grammar, device), 100
    yield "dependency tree, N=5,000 T=20 K=50", _recording(hard_dependencies(5000, generator=generator), device), 50


def _recording(model: Any, device: torch.device) -> Any:
    """The model on a device, gradients recorded."""
    spans, rule = model.node_scores(), model.terms()[-1].map(lambda x: x.to(device).requires_grad_())
    if isinstance(model, PCFG):
        leaves = spans.diagonal(dim1=0, dim2=1).T[:, : model.n_leaves].to(device).requires_grad_()
        return PCFG(spans[0, -1, : model.n_heads].to(device), rule, leaves)
    arc = model.terms()[0].scores.to(device)
    return DependencyTree(arc, node=spans.to(device).requires_grad_(), transition=rule)


def large_figures(repeats: int = 4) -> Iterator[Figure]:
    """Sketches of models that are far beyond exact inference, or nearly."""
    for (name, model, k), limit in zip(large_models(torch.device("cpu")), (60, 30), strict=True):
        yield _large(name, model, k, repeats, limit)
    yield low_rank_argmax()


def low_rank_argmax(length: int = 8) -> Figure:
    """The best tree under rules of low rank, which no sum through the ranks finds."""
    n, p, rank = 500, 600, 64
    generator = torch.Generator().manual_seed(0)
    head, left, right = (torch.randn(size, rank, generator=generator) for size in (n, n + p, n + p))
    rule = LowRankRule(head.log_softmax(-1), left.log_softmax(0), right.log_softmax(0))
    grammar = PCFG(torch.zeros(n), rule, torch.randn(length, p, generator=generator).log_softmax(-1))
    best, seconds = timed(grammar.argmax)
    valid = bool(grammar.score(best) >= grammar.score(grammar.sample((100,), generator)).max())
    return Figure(
        f"best tree, low rank, N={n} P={p} R={rank} T={length}",
        f"{seconds:.1f} s",
        "under 2 s, no sample better",
        valid and seconds < 2,
    )


def _large(name: str, model: Any, k: int, repeats: int, limit: float) -> Figure:
    tensors = [x for term in model.terms() for x in term.tensors if x.requires_grad and x.is_leaf]
    generator = torch.Generator().manual_seed(0)

    def run() -> float:
        total = model.sketch(k, generator=generator).log_partition()
        assert all(x.isfinite().all() for x in torch.autograd.grad(total, tensors))
        return total.item()

    with ResidentMemory() as memory:
        found = [timed(run) for _ in range(repeats)]
    values, slowest = torch.tensor([x for x, _ in found]), max(seconds for _, seconds in found)
    size = memory.growth / 2**30
    return Figure(
        f"{name}: choose, forward and backward",
        f"{slowest:.1f} s, {size:.2f} GiB; log Z {values.mean():.2f}, deviation over seeds {values.std():.3f}",
        f"under {limit:g} s and 8 GiB, stable",
        slowest < limit and size < 8 and values.std().item() < 0.5,
    )
