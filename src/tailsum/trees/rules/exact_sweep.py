"""Lookahead by exact messages, where they cost no more than messages of landmarks.

That is so for rules of low rank, for a table of rules that fits in memory (products with it are far faster than look-ups
of the rules of selected pairs), and for a grammar that is already a sketch.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from tailsum.numerics.charts import Watch, by_width, keep, square
from tailsum.numerics.reduce import Reduce, log_sum_exp
from tailsum.numerics.tensors import finite
from tailsum.sketch.selection import Selection, Subset
from tailsum.sketch.sweep import Sweep, reached

Chart = Callable[[list[Tensor], Reduce, Watch], list[Tensor]]  # see `Rule.chart`
# The inside sums and log marginals of all spans, from their scores and which of them are whole sentences.
Beliefs = Callable[[Float[Tensor, "B T T n"], Bool[Tensor, "B T T"]], tuple[Tensor, Tensor]]


class ExactSweep(Sweep):
    """Inside and outside sums of all states; then a chart from the bottom up over the selected states."""

    def __init__(
        self,
        chart: Chart,
        beliefs: Beliefs,
        spans: Float[Tensor, "B T T n"],
        length: Int[Tensor, " B"],
        batch: torch.Size,
    ) -> None:
        self.chart, self.beliefs, self.spans, self.batch, self.belief = chart, beliefs, spans, batch, spans
        position = torch.arange(spans.shape[1], device=spans.device)
        self.is_whole = (position[:, None] == 0) & (position == length[:, None, None] - 1) & (position > 0)  # [B, T, T]
        self.outside: Tensor | None = None

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        if self.outside is not None:
            return
        inside, belief = self.beliefs(self.spans, self.is_whole)
        here = reached(belief, belief.amax(-1, keepdim=True))
        # Log marginals that underflow are guessed: neither so high that the state counts more than others on average, nor
        # higher than its inside sum allows, which is right also where a state is reached through masks alone.
        outside = torch.where(here, belief - inside, 0.0)
        guess = torch.minimum(_mean(belief, here) - finite(inside), _mean(outside, here))
        self.outside = torch.where(here, outside, guess)
        self.belief = torch.where(here, belief, inside + guess)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T T n"]:
        return self.belief.reshape(*self.batch, *self.belief.shape[1:])

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        assert self.outside is not None
        outside, kept = by_width(self.outside), list[Subset]()

        def select(width: int, inside: Tensor) -> Tensor:
            """The inside sums of the selected states with their weights, minus infinity for the others."""
            padded = padded_to(inside, self.spans.shape[-1])
            kept.append(selection(padded + outside[width - 1], generator))
            weight = torch.zeros_like(padded).scatter_add(-1, kept[-1].index, kept[-1].log_weight.exp())
            return inside + weight.log()[..., : inside.shape[-1]]

        self.chart(by_width(self.spans), log_sum_exp, select)
        return square_subset(kept, self.spans.shape[1], self.batch)


def _mean(x: Float[Tensor, "*lead n"], where: Bool[Tensor, "*lead n"]) -> Float[Tensor, "*lead 1"]:
    """The mean over some states; zero where there are none."""
    return x.masked_fill(~where, 0.0).sum(-1, keepdim=True) / where.sum(-1, keepdim=True).clamp(min=1)


def beliefs_by_gradient(
    chart: Chart, spans: Float[Tensor, "B T T n"], is_whole: Bool[Tensor, "B T T"]
) -> tuple[Tensor, Tensor]:
    """Inside sums and log marginals `[B, T, T, n]`: marginals are the gradient of the log-partition."""
    with torch.inference_mode(False), torch.enable_grad():
        spans = spans.detach().clone().requires_grad_()
        inside = square([padded_to(x, spans.shape[-1]) for x in chart(by_width(spans), log_sum_exp, keep)])
        total = log_sum_exp(inside.masked_fill(~is_whole[..., None], -math.inf).flatten(1), -1)
        (marginals,) = torch.autograd.grad(total.sum(), spans)
    return inside.detach(), marginals.log()


def padded_to(entry: Float[Tensor, "B n s"], size: int) -> Float[Tensor, "B n size"]:
    """The entry with minus infinity for states that spans of this width cannot have."""
    return pad(entry, (0, size - entry.shape[-1]), value=-math.inf)


def square_subset(kept: list[Subset], length: int, batch: torch.Size) -> Subset:
    """Subsets of each width as squares `[*batch, T, T, K]` of first and last positions; no weight below the diagonal."""
    index, log_weight = kept[0].index, kept[0].log_weight
    shape = (len(index), length, length, index.shape[-1])
    whole = Subset(index.new_zeros(shape), log_weight.new_full(shape, -math.inf))
    for width, subset in enumerate(kept):
        first = torch.arange(length - width, device=index.device)
        whole.index[:, first, first + width] = subset.index
        whole.log_weight[:, first, first + width] = subset.log_weight
    return Subset(whole.index.reshape(*batch, *shape[1:]), whole.log_weight.reshape(*batch, *shape[1:]))
