"""Replicates of a sketch: independent estimates, combined with a standard error."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.check import at_least
from tailsum.sketch.model import Propose
from tailsum.sketch.selection import Selection
from tailsum.structure.base import Structure


@dataclass(frozen=True)
class Replicates:
    """Independent estimates of one model's log-partition and entropy, and the mean seconds of one."""

    log_partition: Float[Tensor, "r *batch"]
    entropy: Float[Tensor, "r *batch"]
    seconds: float

    def combined(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """The log of the mean of the partition estimates, which is unbiased, and its standard error in nats.

        >>> zeros = torch.zeros(4)
        >>> Replicates(torch.tensor([1.0, 1.0, 1.0, 1.0]), zeros, 0.0).combined()
        (tensor(1.), tensor(0.))
        """
        count = len(self.log_partition)
        together = self.log_partition.logsumexp(0) - math.log(count)
        if count == 1:  # one estimate has no standard error
            return together, torch.full_like(together, math.inf)
        relative = (self.log_partition - together).exp().masked_fill(together == -math.inf, 0.0)
        return together, relative.std(0) / math.sqrt(count)


@torch.no_grad()
def replicate(
    model: Structure,
    count: int,
    selection: Selection,
    proposal: Propose | None = None,
    generator: torch.Generator | None = None,
    step: Callable[[], None] = lambda: None,
) -> Replicates:
    """Sketch `model` several times; `step` is called after each, for a progress bar.

    >>> from tailsum import LinearChain, Optimal
    >>> model = LinearChain(torch.randn(5, 300), torch.randn(300, 300))
    >>> replicate(model, 4, Optimal(30)).log_partition.shape
    torch.Size([4])
    """
    at_least(1, count=count)
    log_partition, entropy = [], []
    start = time.perf_counter()
    for _ in range(count):
        small = model.sketch(proposal=proposal, selection=selection, generator=generator)
        log_partition.append(small.log_partition())
        entropy.append(small.entropy())
        step()
    seconds = (time.perf_counter() - start) / count
    return Replicates(torch.stack(log_partition), torch.stack(entropy), seconds)
