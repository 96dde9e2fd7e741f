"""Trees whose spans have independent scores: their chart, and trees read from it."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import Aligned, by_width, of_length, square
from tailsum.numerics.kernels import fused
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import Reduce, log_sum_exp, suited
from tailsum.trees.reader import Reader


def span_chart(spans: Float[Tensor, "B T T n"], reduce: Reduce) -> list[Tensor]:
    """The reduction over all trees of each span; its states are reduced first."""
    reduce = suited(reduce, spans)
    nodes = by_width(reduce(spans, -1))
    chart, parts = nodes[:1], Aligned(len(nodes))
    for width in range(2, len(nodes) + 1):
        parts.add(chart[-1])
        shape = len(nodes) - width + 1, width - 1
        chart.append(nodes[width - 1] + reduce(parts.starts(*shape) + parts.ends(*shape), -1))
    return chart


def span_total(spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], reduce: Reduce) -> Float[Tensor, " B"]:
    """The reduction over all trees of each sentence."""
    if reduce is log_sum_exp and fused(spans):
        from tailsum.numerics.fused.spans import span_sum  # noqa: PLC0415  (needs Triton)

        return span_sum(
            reduce(spans, -1), length, lambda nodes: of_length(span_chart(nodes[..., None], reduce), length)
        )
    return of_length(span_chart(spans, reduce), length)


def _inside(spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], reduce: Reduce) -> Float[Tensor, "B T T"]:
    """The chart as a square, without gradients; minus infinity below the diagonal."""
    if reduce is log_sum_exp and fused(spans):
        from tailsum.numerics.fused.spans import span_inside  # noqa: PLC0415  (needs Triton)

        return span_inside(reduce(spans, -1), length)[0][:, 0]
    return square(span_chart(spans, reduce))


class SpanReader(Reader):
    """Reads trees from the chart of scores `spans`."""

    def __init__(
        self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], reduce: Reduce, choose: Choose
    ) -> None:
        self.span, self.inside = spans, _inside(spans, length, reduce)
        self.length, self.choose = length, choose
        self.possible = self.inside[torch.arange(len(length), device=length.device), 0, length - 1] > -math.inf
        self.width = spans.shape[1] + spans.shape[-1]
        # Inside scores of the right child, by the last position of the left one and its own last position.
        self.after = F.pad(self.inside[:, 1:], (0, 0, 0, 1), value=-math.inf)

    def root(self, batch: Tensor) -> Tensor:
        return self.choose(self.span[batch, 0, self.length[batch] - 1])

    def expand(self, batch: Tensor, first: Tensor, last: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position = torch.arange(self.inside.shape[1], device=first.device)
        logits = self.inside[batch, first] + self.after[batch, :, last]
        split = self.choose(logits.masked_fill(position >= last[:, None], -math.inf))
        right = (split + 1).clamp(max=len(position) - 1)
        return split, self.choose(self.span[batch, first, split]), self.choose(self.span[batch, right, last])
