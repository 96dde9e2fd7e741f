"""The same code on a GPU: checked against float64 on the CPU, then timed at the sizes where peers were measured."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.measure import Figure, seconds
from tailsum import HMM, Factored, LinearChain, Lookahead, Optimal, Refined, Subset, TopAndSample, Uniform
from tailsum_studies.bench.chains import embeddings
from tailsum_studies.bench.measure import timed
from tailsum_studies.bench.rows import Sizes


def gpu_figures() -> Iterator[Figure]:
    if not torch.cuda.is_available():
        return
    yield _same_results()
    yield from _exact()
    yield from _sketches()
    yield from _refined()


def _same_results() -> Figure:
    """Every operation, exact and restricted to one subset, against the CPU in float64."""
    worst = 0.0
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(3, 12, 16, generator=generator)
    states, right = torch.randn(200, 16, generator=generator) / 2, torch.randn(200, 16, generator=generator)
    lengths = torch.tensor([12, 7, 1])
    for factored in (True, False):
        wide = _model(context.double(), states.double(), right.double(), lengths, factored)
        gpu = _model(context.cuda(), states.cuda(), right.cuda(), lengths.cuda(), factored)
        subset = wide.sketch(20, generator=generator).kept
        assert subset is not None
        small, wide_small = gpu.restrict(_moved(subset)), wide.restrict(subset)
        for ours, truth in ((gpu, wide), (small, wide_small), (small.refine(), wide_small.refine())):
            for name in ("log_partition", "entropy", "marginals"):
                difference = getattr(ours, name)().double().cpu() - getattr(truth, name)()
                worst = max(worst, difference.abs().max().item())
        if not torch.equal(small.argmax().cpu(), wide_small.argmax()) or not torch.equal(
            gpu.argmax().cpu(), wide.argmax()
        ):
            raise AssertionError("argmax differs")
        device_generator = torch.Generator("cuda").manual_seed(0)
        small = gpu.sketch(20, generator=device_generator)
        small.rsample(generator=device_generator)
        small.sample((5,), generator=device_generator)
        gpu.sketch(selection=TopAndSample(10, 5), proposal=Uniform(), generator=device_generator).kl(gpu)
    log_p = torch.randn(5, 5, device="cuda").log_softmax(-1)
    HMM(log_p[0], log_p, log_p, torch.tensor([0, -1, 3], device="cuda")).log_partition()
    return Figure("GPU against float64 on the CPU: largest difference", f"{worst:.1e}", "at most 1e-3", worst <= 1e-3)


def _moved(subset: Subset) -> Subset:
    pilot = None if subset.pilot is None else _moved(subset.pilot)
    return Subset(subset.index.cuda(), subset.log_weight.float().cuda(), pilot)


def _model(context: Tensor, states: Tensor, right: Tensor, lengths: Tensor, factored: bool) -> LinearChain:
    if factored:
        return LinearChain(Factored(context, states), Factored(states, right), lengths)
    return LinearChain(context @ states.mT, states @ right.mT, lengths)


def _peaked(n: int, length: int, batch: int, transition: float, emission: float) -> LinearChain:
    """Gaussian embeddings; transition and emission scores of the given standard deviations."""
    context, left, right = (x.detach().cuda() for x in embeddings(Sizes(n, length, batch), torch.device("cpu")))
    states = (left * math.sqrt(left.shape[-1])).requires_grad_()
    scale = transition / math.sqrt(left.shape[-1])
    return LinearChain(Factored(context * emission, states), Factored(states * scale, right.requires_grad_()))


def _exact() -> Iterator[Figure]:
    n, length, batch = 10_240, 100, 16
    context, left, right = (
        x.detach().cuda().requires_grad_() for x in embeddings(Sizes(n, length, batch), torch.device("cpu"))
    )
    chain = LinearChain((context @ right.mT).detach().requires_grad_(), Factored(left, right))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()

    def both() -> None:
        chain.log_partition().sum().backward()

    with torch.no_grad():
        forward = seconds(chain.log_partition, 10)
    together = seconds(both, 10)
    memory = (torch.cuda.max_memory_allocated() - before) / 2**30
    yield Figure(
        f"GPU, exact, N={n:,} T={length} B={batch}, float32: forward / forward + backward",
        f"{forward * 1e3:.1f} / {together * 1e3:.1f} ms, {memory:.2f} GiB",
        "PyJuice, float32: 48.7 / 122.1 ms, 2.3 GiB",
        together < 0.122,
    )


def _sketches() -> Iterator[Figure]:
    sizes = ((100_000, 50, 4, 1.0, 1.0), (100_000, 50, 4, 3.0, 3.0), (1_000_000, 10, 1, 3.0, 3.0))
    for n, length, batch, transition, emission in sizes:
        chain = _peaked(n, length, batch, transition, emission)
        torch.manual_seed(0)
        with torch.no_grad():
            exact, exact_time = timed(chain.log_partition)
        for landmarks in (256, 1024):
            proposal = Lookahead(landmarks)

            def sketch(chain: LinearChain = chain, proposal: Lookahead = proposal) -> LinearChain:
                return chain.sketch(selection=Optimal(1000), proposal=proposal)

            choose = seconds(sketch, 3)
            small = sketch()
            run = seconds(lambda small=small: small.log_partition().sum().backward(retain_graph=True), 3)
            errors = torch.stack([sketch().log_partition().detach() - exact for _ in range(5)])
            error = errors.square().mean().sqrt().item()
            yield Figure(
                f"GPU, sketch, N={n:,} T={length} B={batch} K=1000, s={transition:g} e={emission:g}, {landmarks} landmarks: "
                "choose / forward + backward",
                f"{choose * 1e3:.0f} / {run * 1e3:.1f} ms; exact forward {exact_time * 1e3:.0f} ms; RMSE {error:.3f} nats",
                "choosing and both passes in less time than exact forward",
                choose + run < exact_time and math.isfinite(error),
            )


def _refined() -> Iterator[Figure]:
    """Entropy and gradients, plain and refined, where the exact ones can still be had."""
    n, length, kept = 10_000, 40, 100
    for transition, emission in ((1.0, 1.0), (3.0, 3.0)):
        chain = _peaked(n, length, 1, transition, emission)
        leaves = [x for x in (*chain.emission.tensors, *chain.transition.tensors) if x.requires_grad and x.is_leaf]
        exact, truth = chain.entropy().detach(), _gradient(chain, leaves)
        wrong = {"plain": [], "refined": []}
        angle = {"plain": [], "refined": []}
        for seed in range(5):
            small = chain.sketch(kept, generator=torch.Generator("cuda").manual_seed(seed))
            for name, model in (("plain", small), ("refined", small.refine())):
                wrong[name].append((model.entropy().detach() - exact).square().mean())
                angle[name].append(1 - torch.cosine_similarity(_gradient(model, leaves), truth, 0))
        error = {name: torch.stack(x).mean().sqrt().item() for name, x in wrong.items()}
        apart = {name: torch.stack(x).mean().item() for name, x in angle.items()}
        refined = chain.sketch(kept).refine()
        both = seconds(lambda refined=refined, leaves=leaves: _gradient(refined, leaves), 3)
        yield Figure(
            f"GPU, refined, N={n:,} T={length} K={kept}, s={transition:g} e={emission:g}: entropy RMSE, 1 - cosine of gradient",
            f"{error['refined']:.1e} nats (plain {error['plain']:.1e}); {apart['refined']:.1e} (plain {apart['plain']:.1e}); "
            f"forward + backward {both * 1e3:.0f} ms",
            "both lower than plain",
            error["refined"] < error["plain"] and apart["refined"] < apart["plain"],
        )


def _gradient(model: LinearChain | Refined, leaves: list[Tensor]) -> Tensor:
    found = torch.autograd.grad(model.log_partition().sum(), leaves, retain_graph=True, materialize_grads=True)
    return torch.cat([x.double().flatten() for x in found])
