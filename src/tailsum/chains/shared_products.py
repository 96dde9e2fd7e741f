"""Messages from a few states of each sequence to all states, where all steps and sequences share one table of pair scores.

Instead of exponentiating the rows of the kept states for every sequence and step, the whole table is exponentiated once.
Other states have mass zero in the products: more arithmetic, but all of it in matrix products.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains.expected_message import PathMass
from tailsum.numerics.reduce import column_tops, log_or_never
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import fits_budget, times
from tailsum.scores.potential import Potential

TABLES = 4  # of N x N numbers that exist at the same time, at most
WORTH = 2  # how many times faster it must be to be worth the memory of these tables
EXPONENTIAL = 100  # multiplications that take about as long as an exponential; measured on a CPU


class SharedProducts:
    """Products with the exponentials of shared scores `[N, N]`, each column divided by its largest.

    They are None if a sum is so small that some of its terms may have underflowed.
    """

    def __init__(self, scores: Float[Tensor, "n n"], means: bool = False) -> None:
        self.top = column_tops(scores)
        self.plain = (scores - self.top).exp()
        self.weighed = self.plain * scores if means else None
        limits = torch.finfo(scores.dtype)
        self.floor = limits.tiny / limits.eps * len(scores)

    def sums(
        self, index: Int[Tensor, "*batch k"], value: Float[Tensor, "*batch k"]
    ) -> Float[Tensor, "*batch n"] | None:
        """`log sum_k exp(value_k + score(index_k, j))` for every j."""
        shape = (*value.shape[:-1], len(self.plain))
        index, value = (x.reshape(-1, x.shape[-1]) for x in (index, value))
        peak = finite(value.detach().amax(-1, keepdim=True))
        total = times(self._spread(index, (value - peak).exp()), self.plain)
        if bool((total < self.floor).any()):
            return None
        return (total.log() + peak + self.top).reshape(shape)

    def carried(
        self, index: Int[Tensor, "B k"], value: Float[Tensor, "B k"], carried: Float[Tensor, "B k"]
    ) -> PathMass | None:
        """`sums`, and the means of `carried_k + score(index_k, j)` under these weights."""
        assert self.weighed is not None
        peak = finite(value.detach().amax(-1, keepdim=True))
        mass = (value - peak).exp()
        sent, also = self._spread(index, mass), self._spread(index, mass * carried)
        total, mean = times(torch.cat((sent, also)), self.plain).chunk(2)
        if bool((total < self.floor).any()):
            return None
        return PathMass(log_or_never(total) + peak + self.top, (mean + times(sent, self.weighed)) / total)

    def _spread(self, index: Tensor, mass: Tensor) -> Tensor:
        """The mass of the kept states, at the places of all states."""
        return mass.new_zeros(len(mass), len(self.plain)).scatter_add(-1, index, mass)


def shared_products(pairs: Potential, kept: int, batch: int, steps: int, means: bool = False) -> SharedProducts | None:
    """Products with one table for all steps and sequences; None where they would not be much faster.

    Only on a CPU, where this was measured, and for scores that are all finite.
    """
    if not pairs.always_finite or pairs.lead.numel() != 1 or pairs.device.type != "cpu":
        return None
    n, batch, time = pairs.n_from, max(1, batch), pairs.numbers_per_score + EXPONENTIAL
    apart = batch * steps * kept * pairs.n_to * time
    together = n * pairs.n_to * (time + batch * steps)
    if n != pairs.n_to or WORTH * together > apart or not fits_budget(TABLES * pairs.table_bytes):
        return None
    scores = pairs.map(lambda x: x.reshape(x.shape[-2:])).block()
    return SharedProducts(scores, means)
