"""The chart of trees whose spans have independent scores, and trees read from it."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.noise import Choose, gumbel, seed_from
from tailsum.numerics.reduce import Reduce, highest, log_sum_exp, shares, suited
from tailsum.numerics.two_passes import Passes, by_ends, by_first, filled
from tailsum.trees.reader import Reader


def _inside(nodes: Float[Tensor, "T B T"], reduce: Reduce) -> tuple[Tensor, Tensor]:
    """The reduction over all trees of each span, by first and by last position, from scores by first position."""
    reduce, length = suited(reduce, nodes), len(nodes)
    first = nodes.clone(memory_format=torch.contiguous_format)
    last = torch.zeros_like(first)
    for splits in range(1, length):
        count = length - splits
        last[count, :, splits - 1 :] = first[splits - 1, :, : count + 1]
        first[splits, :, :count].add_(reduce(first[:splits, :, :count] + last[count:, :, splits:], 0))
    return first, last


def _outside(first: Tensor, last: Tensor, grad: Tensor, reduce: Reduce) -> Float[Tensor, "T B T"]:
    """The gradient in the scores: a span passes its own to the children of each split by the share of the split."""
    of_first, of_last = grad.clone(memory_format=torch.contiguous_format), torch.zeros_like(last)
    for splits in range(len(first) - 1, 0, -1):
        count = len(first) - splits
        of_span = of_first[splits, :, :count].add_(of_last[count - 1, :, splits:])
        of_splits = shares(reduce, first[:splits, :, :count] + last[count:, :, splits:]).mul_(of_span)
        of_first[:splits, :, :count].add_(of_splits)
        of_last[count:, :, splits:].add_(of_splits)
    of_first[0].add_(of_last[-1])
    return of_first


def _chart(nodes: Float[Tensor, "B T T"], reduce: Reduce) -> Float[Tensor, "T B T"]:
    """The reduction over all trees of each span, by width and first position."""
    return filled(by_first(nodes), reduce, Passes(_inside, _outside))


def span_total(spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], reduce: Reduce) -> Float[Tensor, " B"]:
    """The reduction over all trees of each sentence; the states of each span are reduced first."""
    nodes = suited(reduce, spans)(spans, -1)
    return log_span_sum(nodes, lengths=length) if reduce is log_sum_exp else _total(nodes, length, reduce)


def _total(nodes: Float[Tensor, "B T T"], length: Int[Tensor, " B"], reduce: Reduce) -> Float[Tensor, " B"]:
    return _chart(nodes, reduce)[length - 1, torch.arange(len(length), device=length.device), 0]


def _example(batch: int, length: int) -> Example:
    lengths = torch.randint(1, length + 1, (batch,))
    return Example((torch.randn(batch, length, length),), {"lengths": lengths})


log_span_sum = Kernel(
    "spans",
    lambda nodes, lengths: _total(nodes, lengths, log_sum_exp),
    _example,
    sizes=({"batch": 2, "length": 4}, {"batch": 1, "length": 1}),
    large={"batch": 16, "length": 40},
)


def _best_spans(nodes: Float[Tensor, "B T T"], lengths: Int[Tensor, " B"]) -> Int[Tensor, "B nodes 2"]:
    batch, longest, _ = nodes.shape
    row = torch.arange(batch, device=nodes.device)
    first, last = _inside(by_first(nodes), highest)
    grad = torch.zeros_like(first)
    grad[lengths - 1, row, 0] = (first[lengths - 1, row, 0] > -math.inf).to(first)
    used = by_ends(_outside(first, last, grad, highest), 0.0) > 0
    row, begin, end = used.flip(-1).nonzero().unbind(-1)  # parents first and left before right
    count = used.sum((1, 2))
    number = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    spans = torch.full((batch, 2 * longest - 1, 2), -1, device=nodes.device)
    spans[row, number] = torch.stack((begin, longest - 1 - end), -1)
    return spans


best_spans = Kernel(
    "span_trees",
    _best_spans,
    _example,
    sizes=({"batch": 2, "length": 6}, {"batch": 1, "length": 1}),
    large={"batch": 16, "length": 40},
)


def best_trees(spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"]) -> tuple[Tensor, Tensor]:
    """The trees of highest score, in the form of `read_tree`; -1 throughout where no tree is possible."""
    nodes, best = spans.max(-1)
    tree = best_spans(nodes, lengths=length)
    first, last = tree.unbind(-1)
    states = best.flatten(1).gather(1, (first * spans.shape[1] + last).clamp(min=0))
    return tree, torch.where(first < 0, -1, states)


def drawn_trees(
    spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], generator: torch.Generator | None
) -> Callable[[int], tuple[Tensor, Tensor]]:
    """A function that draws a number of trees, `[count, B, ..]` in the form of `read_tree`, by kernels; the chart is filled once."""
    from tailsum.numerics.fused.span_trees import read, span_inside  # noqa: PLC0415  (needs Triton)

    inside, *_ = span_inside(log_sum_exp(spans, -1), length)
    row = torch.arange(len(length), device=length.device)[:, None]

    def draw(count: int) -> tuple[Tensor, Tensor]:
        trees = read(inside, length, count, seed_from(generator))
        first, last = trees.clamp(min=0).unbind(-1)
        states = gumbel(spans[row, first, last], generator).argmax(-1)
        return trees, torch.where(trees[..., 0] < 0, -1, states)

    return draw


class SpanReader(Reader):
    """Reads trees from the chart of scores `spans`."""

    def __init__(
        self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], reduce: Reduce, choose: Choose
    ) -> None:
        self.span, self.inside = spans, by_ends(_chart(reduce(spans, -1), reduce), -math.inf)
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
