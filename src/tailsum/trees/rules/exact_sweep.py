"""Lookahead where exact messages cost no more than those of landmarks: every state is one.

So it is with rules of low rank, and in a grammar that is a sketch already.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from tailsum.numerics.charts import by_width, square
from tailsum.numerics.reduce import log_sum_exp
from tailsum.sketch.selection import Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached
from tailsum.trees.rules.rule import Rule, of_sentences


class ExactSweep(Sweep):
    """Inside and outside sums of all states; then a chart from the bottom up, in which only selected states go on."""

    def __init__(
        self, rule: Rule, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], batch: torch.Size
    ) -> None:
        self.rule, self.spans, self.length, self.batch = rule, spans, length, batch
        self.outside: Tensor | None = None
        self.belief = spans

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        if self.outside is not None:
            return
        with torch.inference_mode(False), torch.enable_grad():
            rule, spans = self.rule.map(lambda x: x.detach().clone()), self.spans.detach().clone().requires_grad_()
            chart = rule.chart(by_width(spans), log_sum_exp)
            total = of_sentences(chart, self.length, log_sum_exp)
            if not total.requires_grad:  # a single word has no tree
                self.outside = torch.zeros_like(self.spans)
                return
            (marginals,) = torch.autograd.grad(total.sum(), spans)
        inside = square([self._padded(x.detach()) for x in chart])
        self.belief = fill_unreached(marginals.log())
        possible = (inside > -math.inf) & (self.belief > -math.inf)
        self.outside = torch.where(possible, self.belief - inside, 0.0)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T T n"]:
        belief = torch.where(self.spans > -math.inf, self.belief, -math.inf)
        return belief.reshape(*self.batch, *belief.shape[1:])

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        assert self.outside is not None
        outside, kept = by_width(self.outside), list[Subset]()

        def select(width: int, inside: Tensor) -> Tensor:
            """The inside sums of the selected states with their weights, minus infinity of the others."""
            kept.append(selection(self._padded(inside) + outside[width - 1], generator))
            weight = torch.zeros_like(self._padded(inside)).scatter_add(-1, kept[-1].index, kept[-1].log_weight.exp())
            return inside + weight.log()[..., : inside.shape[-1]]

        self.rule.chart(by_width(self.spans), log_sum_exp, select)
        return square_subset(kept, self.spans.shape[1], self.batch)

    def _padded(self, entry: Tensor) -> Tensor:
        return pad(entry, (0, self.spans.shape[-1] - entry.shape[-1]), value=-math.inf)


def square_subset(kept: list[Subset], length: int, batch: torch.Size) -> Subset:
    """Squares `[*batch, T, T, K]` of first and last positions; below the diagonal state 0 with no weight."""
    index, log_weight = kept[0].index, kept[0].log_weight
    shape = (len(index), length, length, index.shape[-1])
    whole = Subset(index.new_zeros(shape), log_weight.new_full(shape, -math.inf))
    for width, subset in enumerate(kept):
        first = torch.arange(length - width, device=index.device)
        whole.index[:, first, first + width] = subset.index
        whole.log_weight[:, first, first + width] = subset.log_weight
    return Subset(whole.index.reshape(*batch, *shape[1:]), whole.log_weight.reshape(*batch, *shape[1:]))
