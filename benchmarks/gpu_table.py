"""Everything we offer on a GPU, one table from one run: each row behind a check against float64, timed beside its goal.

The check compares with plain torch in float64 on the same inputs: values, gradients in all inputs (relative, in norm), the score of
a best configuration. The mean of signed errors shows a bias that would add up.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import tailsum as ts
from benchmarks.measure import Figure, seconds

Model = Callable[..., Any]  # from leaf tensors to a structure


@dataclass(frozen=True)
class Row:
    """A model of random leaves, what to ask of it, and the milliseconds that it should take."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    model: Model
    operation: str
    goal: float
    scale: float = 1.0
    checked: bool = True  # else it is too large for float64, or random: a smaller row or a test has checked the same
    asked: Callable[[Any], Any] | None = None  # what to ask of the model, if it is no method without arguments
    fast: bool = False  # by `precision("fast")`


def table_figures() -> Iterator[Figure]:
    """All rows; nothing without a GPU."""
    if not torch.cuda.is_available():
        return
    rows = (_chains, _small_chains, _layers, _trees, _grammars, _lattices, _graphs)
    for row in (row for group in rows for row in group()):
        with ts.precision("fast" if row.fast else "full"):
            try:
                yield _figure(row)
            except (RuntimeError, ValueError) as error:
                yield Figure(
                    f"GPU, {row.name}: {row.operation}",
                    f"{type(error).__name__}: {error}"[:100],
                    f"{row.goal:g} ms",
                    False,
                )
    yield from _sketches()


def _figure(row: Row) -> Figure:
    torch.manual_seed(0)
    leaves = [(row.scale * torch.randn(shape, device="cuda")).requires_grad_() for shape in row.shapes]
    told, right = _checked(row, leaves) if row.checked else ("not checked", True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    taken = seconds(lambda: _ask(row, leaves), 5) * 1e3
    memory = (torch.cuda.max_memory_allocated() - before) / 2**30
    measured = f"{taken:.2f} ms, {memory:.2f} GiB; {told}"
    return Figure(f"GPU, {row.name}: {row.operation}", measured, f"{row.goal:g} ms", right and taken <= row.goal)


def _ask(row: Row, leaves: list[Tensor]) -> Any:
    name, both = row.operation.removesuffix(" + backward"), row.operation.endswith(" + backward")

    def asked() -> Any:
        model = row.model(*leaves)
        return getattr(model, name)() if row.asked is None else row.asked(model)

    if not both:
        with torch.no_grad():
            return asked()
    result = asked()
    return result, torch.autograd.grad(result.sum(), leaves)


def _checked(row: Row, leaves: list[Tensor]) -> tuple[str, bool]:
    wide = [x.detach().double().requires_grad_() for x in leaves]
    if row.operation == "sample":  # drawn as often as they are probable: the mean of log p is minus the entropy
        model = row.model(*wide)
        with ts.kernels("never"), torch.no_grad():
            entropy = model.entropy()
            drawn = torch.stack([model.log_prob(_ask(row, leaves)) for _ in range(20)])
        error = (drawn.mean() + entropy.mean()).abs() / (drawn.std() / math.sqrt(drawn.numel()))
        return f"mean of log p is {error:.1f} standard errors off", bool(error < 5)
    if row.operation == "argmax":
        model = row.model(*wide)
        with ts.kernels("never"), torch.no_grad():
            gap = (model.score(model.argmax()) - model.score(_ask(row, leaves))).abs().max().item()
        return f"best score off by {gap:.1e}", gap < 1e-3
    ours = _ask(row, leaves)
    with ts.kernels("never"):
        truth = _ask(row, wide)
    if not row.operation.endswith(" + backward"):
        ours, truth = (ours, ()), (truth, ())
    difference = (ours[0].double() - truth[0]).masked_fill(truth[0] == -math.inf, 0.0)
    norms = [((a - b).norm() / b.norm()).item() for a, b in zip(ours[1], truth[1], strict=True)]
    told = f"signed mean error {difference.mean():+.1e}, worst {difference.abs().max():.1e}"
    right = difference.abs().max().item() < 1e-2 and all(norm < 1e-3 for norm in norms)
    return told + (f", gradients {max(norms):.1e}" if norms else ""), right


def _embedded(left: Tensor, right: Tensor, context: Tensor) -> ts.LinearChain:
    scale = left.shape[-1] ** -0.5
    return ts.LinearChain(ts.Factored(context * scale, right), ts.Factored(left * scale, right))


def _chains() -> Iterator[Row]:
    n, length, batch, size = 10_240, 100, 16, 64
    shapes = (n, size), (n, size), (batch, length, size)
    name = f"chain by embeddings, N={n:,} T={length} B={batch}"
    goals = {"log_partition": 18, "log_partition + backward": 40, "argmax": 22, "sample": 20, "marginals": 26}
    for operation, goal in {**goals, "entropy + backward": 80}.items():
        yield Row(name, shapes, _embedded, operation, goal)
    for operation, goal in {"log_partition": 10, "log_partition + backward": 22}.items():
        yield Row(f'{name}, precision("fast")', shapes, _embedded, operation, goal, fast=True)
    n, length = 100_000, 20
    shapes = (n, size), (n, size), (batch, length, size)
    for fast, goals in ((False, (450, 1100)), (True, (150, 420))):
        for operation, goal in zip(("log_partition", "log_partition + backward"), goals, strict=True):
            name = f"chain by embeddings, N={n:,} T={length} B={batch}" + (', precision("fast")' if fast else "")
            yield Row(name, shapes, _embedded, operation, goal, checked=False, fast=fast)


def _small_chains() -> Iterator[Row]:
    by_size = {
        (20, 50, 32): (0.6, 0.5, 1.5),
        (64, 1000, 32): (3.5, 3, 9),
        (256, 32, 8): (0.7, 0.6, 1.8),
        (1000, 100, 32): (5, 4, 8),
        (16, 1_000_000, 1): (30, 60, 90),
    }
    for (n, length, batch), goals in by_size.items():
        for operation, goal in zip(("log_partition + backward", "argmax", "entropy + backward"), goals, strict=True):
            name = f"chain, N={n:,} T={length:,} B={batch}"
            yield Row(name, ((batch, length, n), (n, n)), ts.LinearChain, operation, goal)
    shapes, name = ((32, 50, 20), (20, 20)), "chain, N=20 T=50 B=32"
    yield Row(name, shapes, ts.LinearChain, "marginals", 0.7)
    yield Row(name, shapes, ts.LinearChain, "sample", 0.7)
    yield Row(name, shapes, ts.LinearChain, "rsample", 1.5, checked=False)
    yield Row(name, shapes, ts.LinearChain, "topk(5)", 2.5, asked=lambda chain: chain.topk(5).scores)

    def two(*leaves: Tensor) -> tuple[ts.LinearChain, ts.LinearChain]:
        return ts.LinearChain(leaves[0], leaves[1]), ts.LinearChain(leaves[2], leaves[3])

    yield Row(name, shapes * 2, two, "kl", 1.2, asked=lambda pair: pair[0].kl(pair[1]))


def _layers() -> Iterator[Row]:
    layer, tags = ts.nn.CRF(20).cuda(), torch.randint(20, (32, 50), device="cuda")
    wide = copy.deepcopy(layer).double()

    def with_scores(scores: Tensor) -> tuple[Any, Tensor]:
        return (layer if scores.dtype == torch.float32 else wide), scores

    shapes, name = ((32, 50, 20),), "nn.CRF, N=20 T=50 B=32"
    yield Row(name, shapes, with_scores, "loss + backward", 1.2, asked=lambda pair: pair[0](pair[1], tags))
    yield Row(name, shapes, with_scores, "decode", 0.7, checked=False, asked=lambda pair: pair[0].decode(pair[1]))
    seen = torch.randint(100, (32, 100), device="cuda")

    def hidden(*tables: Tensor) -> ts.HMM:
        first, onward, emission = (x.log_softmax(-1) for x in tables)
        return ts.HMM(first, onward, emission, seen)

    yield Row("HMM, N=64 T=100 B=32", ((64,), (64, 64), (64, 100)), hidden, "log_partition + backward", 1.2)


def _trees() -> Iterator[Row]:
    batch, length, n = 16, 40, 20
    goals = {"log_partition + backward": 1.5, "argmax": 1.5, "sample": 3, "entropy + backward": 5}
    for operation, goal in goals.items():
        yield Row("SpanTree, B=16 T=40 N=20", ((batch, length, length, n),), ts.SpanTree, operation, goal)
    for projective, limits in ((True, (2, 3, 5, 8)), (False, (2.5, 4, 8, 8))):

        def tree(arc: Tensor, projective: bool = projective) -> ts.DependencyTree:
            return ts.DependencyTree(arc, projective=projective)

        for operation, goal in zip(goals, limits, strict=True):
            kind = "projective" if projective else "any tree"
            yield Row(f"DependencyTree, {kind}, B=16 T=40", ((batch, length, length),), tree, operation, goal)

    def stated(arc: Tensor, node: Tensor, pairs: Tensor) -> ts.DependencyTree:
        return ts.DependencyTree(arc, node=node, transition=pairs)

    shapes = (4, 20, 20), (4, 20, 100), (100, 100)
    yield Row("DependencyTree with states, N=100 T=20 B=4", shapes, stated, "log_partition", 8)


def _grammars() -> Iterator[Row]:
    batch, length, n, p = 16, 40, 30, 60
    shapes = (batch, n), (batch, n, n + p, n + p), (batch, length, p)
    goals = {"log_partition + backward": 18, "argmax": 20, "marginals": 25, "sample": 30, "entropy + backward": 60}
    for operation, goal in goals.items():
        yield Row("PCFG, 30 + 60 states, B=16 T=40", shapes, ts.PCFG, operation, goal)


def _lattices() -> Iterator[Row]:
    for (batch, length, longest, n), goals in {(16, 200, 16, 20): (4, 3), (64, 500, 32, 100): (60, 30)}.items():
        shapes = (batch, length, longest, n), (n, n)
        for operation, goal in zip(("log_partition + backward", "argmax"), goals, strict=True):
            name = f"SemiMarkov, B={batch} T={length} D={longest} N={n}"
            yield Row(name, shapes, ts.SemiMarkov, operation, goal, checked=batch < 64)
    targets = torch.randint(1, 100, (32, 60), device="cuda")

    def ctc(scores: Tensor) -> ts.CTC:
        return ts.CTC(scores.log_softmax(-1), targets)

    yield Row("CTC, B=32 T=500 S=60 V=100", ((32, 500, 100),), ctc, "log_partition + backward", 2.7)
    shapes = (16, 200, 200), (16, 200), (16, 200)
    yield Row("Alignment, B=16 200 x 200", shapes, ts.Alignment, "log_partition + backward", 4)


def _graphs() -> Iterator[Row]:
    for side, n, batch, goal in ((32, 100, 8, 60), (16, 50, 1, 15)):

        def grid(unary: Tensor, pairs: Tensor, side: int = side) -> ts.PairwiseGraph:
            return ts.PairwiseGraph.grid(side, side, unary, pairs)

        yield Row(f"grid {side} x {side}, N={n} B={batch}", ((batch, side**2, n), (n, n)), grid, "marginals", goal, 0.3)


def _sketches() -> Iterator[Figure]:
    """Choosing the states of a sketch, and both passes given the choice; the error is that of log Z over eight sketches."""
    sizes = {(10_000, 100, 16, 100): (18, 2), (10_000, 100, 16, 1000): (30, 14), (100_000, 50, 4, 1000): (120, 6)}
    for (n, length, batch, kept), goals in sizes.items():
        torch.manual_seed(0)
        shapes = (n, 64), (n, 64), (batch, length, 64)
        chain = _embedded(*(torch.randn(shape, device="cuda").requires_grad_() for shape in shapes))
        choose = seconds(lambda chain=chain, kept=kept: chain.sketch(kept)) * 1e3
        small = chain.sketch(kept)
        both = seconds(lambda small=small: small.log_partition().sum().backward(retain_graph=True)) * 1e3
        with torch.no_grad():
            exact = chain.log_partition()
            errors = torch.stack([chain.sketch(kept).log_partition() - exact for _ in range(8)])
        error = errors.square().mean().sqrt().item()
        yield Figure(
            f"GPU, sketch, N={n:,} T={length} B={batch} K={kept:,}: choose / forward + backward",
            f"{choose:.1f} / {both:.1f} ms; RMSE of log Z {error:.3f} nats",
            f"{goals[0]} / {goals[1]} ms, below 0.3 nats",
            choose <= goals[0] and both <= goals[1] and error < 0.3,
        )
