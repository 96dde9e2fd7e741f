"""Gradients within backward passes, so that their results can be differentiated again."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tailsum.numerics.precision import full_precision
from tailsum.numerics.tiles import tile_size


def tracked(x: Tensor, recording: bool, wanted: bool = True) -> Tensor:
    """A copy of `x` to differentiate in, if `wanted`; connected to the graph of `x` if `recording` the derivative itself.

    It is always a new node: other inputs of the function, and the gradient of its output, may depend on `x`. The outer graph
    has those paths, so a derivative in `x` itself would count them twice.
    """
    return x.view_as(x) if recording and x.requires_grad else x.detach().requires_grad_(wanted)


def gradients(
    function: Callable[[Sequence[Tensor]], Tensor],
    inputs: Sequence[Tensor],
    wanted: Sequence[bool],
    grad: Tensor | None = None,
) -> list[Tensor | None]:
    """The gradients of `function(inputs)` in the wanted inputs, the others held fixed, from the gradient of its result (or one).

    They are recorded if autograd is recording the caller.
    """
    recording = torch.is_grad_enabled()
    with torch.enable_grad(), full_precision(inputs[0].device):
        nodes = [tracked(x, recording, want) for x, want in zip(inputs, wanted, strict=True)]
        active = [x for x, want in zip(nodes, wanted, strict=True) if want]
        result = function(nodes)
        if result.requires_grad:
            slopes = torch.autograd.grad(result, active, grad, create_graph=recording, materialize_grads=True)
        else:  # it depends on none of them, as on the scores of pairs where there is one position
            slopes = [torch.zeros_like(x) for x in active]
    remaining = iter(slopes)
    return [next(remaining) if want else None for want in wanted]


def with_slope(
    function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor], along: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """`function(inputs)`, and its slope along a direction, with derivatives of every order if autograd is recording the caller.

    The slope of a weighted sum of the results is linear in the weights, and its gradient in them is the slope of each result.
    """
    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        step = inputs[0].new_zeros((), requires_grad=True)
        result = function([x + step * change for x, change in zip(inputs, along, strict=True)])
        if not result.requires_grad:  # it depends on no input
            return result, torch.zeros_like(result)
        weights = torch.ones_like(result, requires_grad=True)
        (slope,) = torch.autograd.grad(result, step, weights, create_graph=True)
        (slopes,) = torch.autograd.grad(slope, weights, create_graph=recording, materialize_grads=True)
    return (result, slopes) if recording else (result.detach(), slopes)


@torch.no_grad()
def regained(source: Tensor, flow: Tensor, summed: Callable[[Tensor], Tensor] = lambda x: x.sum(-1)) -> Tensor:
    """A correction for the rounding of a gradient that flows back: factors `[T, B, 1]` close to one.

    Products drop small addends, which adds up over the steps. But the sum of the flow at a position must equal the sum of
    all sources from there on. Where numbers of both signs cancel, the sums say nothing, and the factor is one.
    """
    entered = summed(source).double().flip(0).cumsum(0).flip(0)
    # Several times faster than a norm, which needs no copy.
    few = flow.numel() <= tile_size(flow.device)
    norm = flow.abs().sum(-1, keepdim=True) if few else torch.linalg.vector_norm(flow, 1, -1, keepdim=True)
    total, size = summed(flow).double(), summed(norm)
    factor = torch.where(total.abs() > 0.5 * size, entered / total, 1.0)
    return torch.where((factor - 1.0).abs() < 0.05, factor, 1.0).to(flow.dtype)[..., None]
