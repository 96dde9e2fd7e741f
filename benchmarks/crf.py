"""`nn.CRF` beside pytorch-crf: a batch of sentences, loss with gradients, and decoding."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchcrf

from benchmarks.measure import Figure
from tailsum.nn import CRF
from tailsum_studies.bench.measure import timed


def crf_figures(batch: int = 32, length: int = 50) -> Iterator[Figure]:
    """Sentences of the full length, and of 10 words or more."""
    for n_tags, repeats in ((20, 40), (500, 4)):
        for ragged in (False, True):
            yield from _figures(n_tags, batch, length, ragged, repeats)


def _figures(n_tags: int, batch: int, length: int, ragged: bool, repeats: int) -> Iterator[Figure]:
    torch.manual_seed(0)
    theirs, ours = torchcrf.CRF(n_tags, batch_first=True), CRF(n_tags, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    emissions = torch.randn(batch, length, n_tags, requires_grad=True)
    tags = torch.randint(n_tags, (batch, length))
    least = 10 if ragged else length
    mask = torch.arange(length) < torch.randint(least, length + 1, (batch, 1))

    def trained(crf: torch.nn.Module) -> Callable[[], list[torch.Tensor]]:
        def run() -> list[torch.Tensor]:
            loss = -crf(emissions, tags, mask=mask, reduction="mean")
            return [loss.detach(), *torch.autograd.grad(loss, [emissions, *crf.parameters()])]

        return run

    def decoded(crf: Any) -> Callable[[], list[list[int]]]:
        return lambda: crf.decode(emissions.detach(), mask=mask)

    runs = {"loss + backward": (trained(ours), trained(theirs)), "decode": (decoded(ours), decoded(theirs))}
    _check(runs)
    for what, (mine, other) in runs.items():
        fast, slow = _alternately(mine, other, repeats)
        yield Figure(
            f"nn.CRF {what}, {n_tags} tags, T={length} B={batch}, lengths {least} to {length}: times faster than pytorch-crf",
            f"{slow / fast:.1f} ({1e3 * fast:.2f} ms, {1e3 * slow:.1f} ms)",
            "at least 2, values equal to 1e-5",
            slow >= 2 * fast,
        )


def _check(runs: dict[str, tuple[Callable[[], list], Callable[[], list]]]) -> None:
    """Both give the same: loss and gradients to 1e-5, and the same paths."""
    for mine, other in zip(*(run() for run in runs["loss + backward"]), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    mine, other = (run() for run in runs["decode"])
    if mine != other:
        raise AssertionError("the best paths differ")


def _alternately(mine: Callable[[], object], other: Callable[[], object], repeats: int) -> tuple[float, float]:
    """The shortest times of both, taken in turn: other processes disturb both alike."""
    pairs = [(timed(mine)[1], timed(other)[1]) for _ in range(repeats)]
    return min(a for a, _ in pairs), min(b for _, b in pairs)
