"""Charts filled by an inside pass and differentiated by an outside pass, without a graph of their many small operations.

A chart of spans is kept twice, as `[T, .., T]`: by width w and first position i at `[w-1, .., i]`, and, widest first, by
last position j at `[T-w, .., j]`. So the left children of all `count` spans of a width, for all splits, are one slice
of the former, `[:splits, .., :count]`, and their right children one of the latter, `[count:, .., splits:]`.
Splits come first because torch reduces the first dimension of a small tensor several times as fast as the last.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.numerics.gradients import gradients
from tailsum.numerics.reduce import Reduce


class Passes(NamedTuple):
    """The two passes over one kind of chart.

    `inside(scores, reduce)` is the chart by first and by last position. Autograd must be able to differentiate it, for
    second derivatives. `outside(first, last, grad, reduce)` is the gradient in the scores, from the chart in both forms
    and the gradient in its first form.
    """

    inside: Callable[[Tensor, Reduce], tuple[Tensor, Tensor]]
    outside: Callable[[Tensor, Tensor, Tensor, Reduce], Tensor]


def filled(scores: Tensor, reduce: Reduce, passes: Passes) -> Tensor:
    """The chart of `scores` by first position, differentiable any number of times."""
    return _Inside.apply(scores, reduce, passes)


class _Inside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, reduce: Reduce, passes: Passes) -> Tensor:
        first, last = passes.inside(scores, reduce)
        ctx.save_for_backward(scores, first, last)
        ctx.how = reduce, passes
        return first

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Outside.apply(*ctx.saved_tensors, *grads, *ctx.how), None, None


class _Outside(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, first: Tensor, last: Tensor, grad: Tensor, reduce: Reduce, passes: Passes
    ) -> Tensor:
        ctx.save_for_backward(scores, grad)
        ctx.how = reduce, passes
        return passes.outside(first, last, grad, reduce)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """By autograd, through the inside pass and its gradient."""
        reduce, passes = ctx.how

        def slope(inputs: Sequence[Tensor]) -> Tensor:
            scores, grad = inputs
            return torch.autograd.grad(passes.inside(scores, reduce)[0], scores, grad, create_graph=True)[0]

        of_scores, of_grad = gradients(slope, ctx.saved_tensors, (True, True), grads[0])
        return of_scores, None, None, of_grad, None, None


def by_first(square: Tensor) -> Tensor:
    """Entries `[k, .., i]` of spans from i to i+k, from `[.., i, j]`; arbitrary where that is no span."""
    length = square.shape[-1]
    return F.pad(square.flatten(-2), (0, length)).unflatten(-1, (length, length + 1))[..., :-1].movedim(-1, 0)


def by_ends(first: Tensor, blank: float) -> Tensor:
    """The inverse of `by_first`; `blank` below the diagonal."""
    length = len(first)
    position = torch.arange(length, device=first.device)
    flat = F.pad(first.movedim(0, -1), (0, 1)).flatten(-2)[..., : length * length]
    return flat.unflatten(-1, (length, length)).masked_fill(position < position[:, None], blank)
