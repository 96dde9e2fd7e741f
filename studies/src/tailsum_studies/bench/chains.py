"""Chains to measure: scores from embeddings (`Factored`, d = 64), and the checks that stand before every time.

An exact sum is checked against a plain one in float64, of the first sequence and as many positions as that affords. A
sketch is checked against the exact sum, and where that would take too long, against a second sketch.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tailsum import Factored, LinearChain
from tailsum_studies.bench.rows import Sizes

DIMENSION = 64
EXACT_TOLERANCE = 1e-3  # nats, in float32
SKETCH_TOLERANCE = 0.5  # nats: the root mean square over the batch
PAIRS = {"cpu": 2e8, "cuda": 1e10}  # how many pairs of states the plain sum may look at
FAR = {"cpu": 10.0, "cuda": 2.0}  # times as many for its only step


class Embeddings(NamedTuple):
    """Context `[B, T, d]`, and states as the left and the right of a pair `[N, d]`: leaves of the gradient."""

    context: Tensor
    left: Tensor
    right: Tensor

    def chain(self) -> LinearChain:
        """The chain that they score: the standard deviation of emissions and of transitions is one."""
        return LinearChain(Factored(self.context, self.right), Factored(self.left, self.right))

    def clear(self) -> None:
        """Without gradients, as after an optimiser's step."""
        for leaf in self:
            leaf.grad = None


def embeddings(sizes: Sizes, device: torch.device) -> Embeddings:
    """Random embeddings, the same for the same sizes."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    context = normal(sizes.batch, sizes.length, DIMENSION).div_(math.sqrt(DIMENSION))
    left, right = normal(sizes.states, DIMENSION).div_(math.sqrt(DIMENSION)), normal(sizes.states, DIMENSION)
    return Embeddings(*(x.requires_grad_() for x in (context, left, right)))


@torch.no_grad()
def exact_error(made: Embeddings) -> tuple[float, str, float]:
    """How far the exact sum is from a plain one in float64, what it was compared with, and how far it may be.

    Where a single step is too much for the plain sum, a sketch of two positions has to do.
    """
    states, device = made.left.shape[0], made.left.device
    afforded = int(PAIRS[device.type] / states**2)
    positions = min(made.context.shape[1], 1 + max(1, afforded))
    chain = Embeddings(made.context[:, :positions], made.left, made.right).chain()
    if states**2 > FAR[device.type] * PAIRS[device.type]:
        error, *_ = sketch_error(chain.sketch(1000), chain.log_partition())
        return error, f"sketch, {positions} positions", SKETCH_TOLERANCE
    error = abs(chain.log_partition()[0].item() - plain_log_partition(made, positions))
    whole = positions == made.context.shape[1]
    return error, "float64" if whole else f"float64, {positions} positions", EXACT_TOLERANCE


def plain_log_partition(made: Embeddings, positions: int) -> float:
    """The log-partition of the first sequence's first positions, by the definition, in float64."""
    left, right = made.left.detach().double(), made.right.detach().double()
    emission = made.context[0, :positions].detach().double() @ right.T
    alpha = emission[0]
    for t in range(1, positions):
        rows = max(1, 20_000_000 // len(right))
        blocks = [(right[at : at + rows] @ left.T).add_(alpha).logsumexp(-1) for at in range(0, len(right), rows)]
        alpha = emission[t] + torch.cat(blocks)
    return alpha.logsumexp(-1).item()


@torch.no_grad()
def sketch_error(small: LinearChain, exact: Tensor | None) -> tuple[float, str, float]:
    """How far a sketch's log-partition is from the exact one, or from a second sketch's, over the batch; and may be."""
    reference = "exact sum"
    if exact is None:
        exact, reference = small.whole.sketch(small.n_states).log_partition(), "second sketch"
    return (small.log_partition() - exact).square().mean().sqrt().item(), reference, SKETCH_TOLERANCE
