"""Sums over tiles of a table that is never built, differentiable any number of times.

There are two kinds of tensors: *row* tensors `[..., rows, x]`, cut along dimension -2, and *whole* tensors, passed whole to
every tile. A tile function maps them to row outputs, which are concatenated, and whole outputs, which are summed. Its
derivative has the same form (the gradient of a row input is a row output, the gradient of a whole input is a sum), so the
backward pass, to any order, is itself a streamed function.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tailsum.numerics.gradients import tracked
from tailsum.numerics.precision import full_precision


class Parts(NamedTuple):
    """The row tensors and the whole tensors that a tile function takes or returns."""

    rows: tuple[Tensor, ...]
    whole: tuple[Tensor, ...] = ()


Tile = Callable[[Parts], Parts]


def streamed(tile: Tile, parts: Parts, chunk: int, row_outputs: int) -> Parts:
    """`tile` over `chunk` rows at a time. Only the inputs are kept for the backward pass, which computes each tile again."""
    outputs = _Streamed.apply(tile, len(parts.rows), row_outputs, chunk, *parts.rows, *parts.whole)
    return Parts(outputs[:row_outputs], outputs[row_outputs:])


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tile: Tile, row_inputs: int, row_outputs: int, chunk: int, *tensors: Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        ctx.settings = tile, row_inputs, row_outputs, chunk
        rows, whole = tensors[:row_inputs], tensors[row_inputs:]

        def piece(start: int, stop: int) -> Parts:
            return tile(Parts(tuple(x[..., start:stop, :] for x in rows), whole))

        result = in_tiles(piece, rows[0].shape[-2], chunk)
        return (*result.rows, *result.whole)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        tile, row_inputs, row_outputs, chunk = ctx.settings
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[4:]
        parts = Parts((*tensors[:row_inputs], *grads[:row_outputs]), (*tensors[row_inputs:], *grads[row_outputs:]))
        pullback = _pullback(tile, row_inputs, len(tensors) - row_inputs, wanted)
        result = streamed(pullback, parts, chunk, sum(wanted[:row_inputs]))
        slopes = iter((*result.rows, *result.whole))
        return None, None, None, None, *(next(slopes) if want else None for want in wanted)


def in_tiles(tile: Callable[[int, int], Parts], size: int, chunk: int) -> Parts:
    """`tile(start, stop)` for `size` rows, `chunk` at a time: its row outputs side by side, its whole outputs summed.

    All tiles write into one result. Small results in a list would lie between the large intermediate tensors of the tiles,
    whose memory could then neither be reused nor returned: the heap would grow to the size of all tiles.
    """
    rows, sums = tuple[Tensor, ...](), tuple[Tensor, ...]()
    for start in range(0, max(1, size), chunk):
        stop = min(start + chunk, size)
        piece = tile(start, stop)
        if stop - start == size:
            return piece
        if start == 0:
            rows = tuple(x.new_empty(*x.shape[:-2], size, x.shape[-1]) for x in piece.rows)
            sums = tuple(torch.zeros_like(x) for x in piece.whole)
        for whole, part in zip(rows, piece.rows, strict=True):
            whole[..., start:stop, :] = part
        for total, part in zip(sums, piece.whole, strict=True):
            total.add_(part)
    return Parts(rows, sums)


def _pullback(tile: Tile, row_inputs: int, whole_inputs: int, wanted: Sequence[bool]) -> Tile:
    """The tile function from the inputs of `tile` and the gradients of its outputs to the gradients of its inputs."""

    def run(parts: Parts) -> Parts:
        recording = torch.is_grad_enabled()
        inputs = (*parts.rows[:row_inputs], *parts.whole[:whole_inputs])
        with torch.enable_grad():
            inputs = [tracked(x, recording, want) for x, want in zip(inputs, wanted, strict=True)]
            result = tile(Parts(tuple(inputs[:row_inputs]), tuple(inputs[row_inputs:])))
        pairs = zip((*result.rows, *result.whole), (*parts.rows[row_inputs:], *parts.whole[whole_inputs:]), strict=True)
        active = [x for x, want in zip(inputs, wanted, strict=True) if want]
        depending = [(out, grad) for out, grad in pairs if out.requires_grad]
        if depending:
            outputs, grads = zip(*depending, strict=True)
            with full_precision(outputs[0].device):
                slopes = torch.autograd.grad(outputs, active, grads, create_graph=recording, materialize_grads=True)
        else:  # no output depends on what is differentiated in, as the slope of a linear function
            slopes = tuple(map(torch.zeros_like, active))
        split = sum(wanted[:row_inputs])
        return Parts(slopes[:split], slopes[split:])

    return run
