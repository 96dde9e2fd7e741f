"""Segmentations from the messages of a semi-Markov model, read from the last segment to the first."""

import math

import torch
from torch import Tensor

from tailsum.chains.durations import Durations
from tailsum.chains.segments import Segments
from tailsum.numerics.noise import Choose
from tailsum.numerics.precision import product
from tailsum.numerics.tensors import finite
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Dense, Potential


def places_in_batch(shape: torch.Size, device: torch.device, count: int = 1) -> tuple[Tensor, ...]:
    """The index of every sequence in each dimension of the batch, `count` times over."""
    return torch.unravel_index(torch.arange(shape.numel(), device=device).repeat(count), shape) if shape else ()


def endings(
    segments: Dense | Durations, messages: Tensor, batch: tuple[Tensor, ...], after: Tensor, final: bool
) -> Tensor:
    """Scores of the first `after [R]` positions by their last segment, `[R, D, n]` in float64, from `messages [T, *batch, n]`.

    `batch` has the indices of the R rows in each dimension of the batch; with `final`, their sequences end there.
    """
    longest = min(len(messages), segments.tensors[-1].shape[-2])
    back = torch.arange(1, longest + 1, device=messages.device)
    start = after[:, None] - back
    place, rows = start.clamp(min=0), tuple(i[:, None] for i in batch)
    before = messages[(place, *rows)].masked_fill((start < 0)[..., None], -math.inf)
    if isinstance(segments, Dense):
        return before + segments.scores[(*rows, place, back - 1)]
    duration = (segments.last if final else segments.duration)[..., :longest, :]
    if duration.dim() > 2:
        duration = duration[_places(duration.shape[:-2], batch)]
    return before + segments.emission[(*rows, place)].double().cumsum(-2) + duration


def walk_back(
    segments: Dense | Durations, pairs: Potential, messages: Tensor, lengths: Tensor, count: int, choose: Choose
) -> Segments:
    """`count` segmentations `[count, *batch, T]` in local ids, each segment by `choose(logits [R, D n])`."""
    length, *shape, size = messages.shape
    batch = places_in_batch(torch.Size(shape), lengths.device, count)
    after = lengths.repeat(count)
    logits = endings(segments, messages, batch, after, final=True)
    going = (logits > -math.inf).flatten(1).any(-1)
    nothing = torch.tensor([[-1], [0], [-1]], device=lengths.device)
    steps: list[Tensor] = []
    while going.any():
        relative = logits - finite(logits.amax((-2, -1), keepdim=True))
        pick = choose(relative.to(segments.tensors[0].dtype).flatten(-2))
        duration, state = pick // size + 1, pick % size
        after = torch.where(going, after - duration, 0)
        steps.append(torch.where(going, torch.stack((after, duration, state)), nothing))
        going = after > 0
        if going.any():
            logits = endings(segments, messages, batch, after, final=False)
            logits = logits + columns(pairs, batch, (after - 1).clamp(min=0), state)[:, : logits.shape[-2]]
    missing = nothing[..., None].expand(3, len(after), length - len(steps))
    walked = torch.cat((missing, *(x[..., None] for x in steps[::-1])), -1)
    order = (walked[0] < 0).long().argsort(dim=-1, stable=True)  # moves the empty places, which are first, to the end
    return Segments(*walked.gather(-1, order.expand_as(walked)).reshape(3, count, *shape, length))


def columns(pairs: Potential, batch: tuple[Tensor, ...], boundary: Tensor, state: Tensor) -> Tensor:
    """Scores of the transitions to `state [R]` at a boundary, `[R, D or 1, n]`: only a column for each row is read."""
    each = (*batch, boundary)
    if pairs.plain() is not pairs:
        pairs = pairs.map(lambda x: x[_places(x.shape[:-3], each)] if x.dim() > 2 else x)
        states = state[:, None, None] if pairs.lead else state[:, None]
        return pairs.block(None, states)[..., 0].reshape(len(state), -1, pairs.n_from)
    if not isinstance(pairs, Factored):
        (table,) = pairs.tensors
        if table.dim() == 2:
            return table.index_select(-1, state).mT[:, None]
        return table[(*_places(table.shape[:-3], each), slice(None), slice(None), state)]
    left, right = pairs.tensors
    to = right[state][:, None] if right.dim() == 2 else right[(*_places(right.shape[:-3], each), slice(None), state)]
    if left.dim() == 2:
        return product(to, left.mT)
    return product(left[_places(left.shape[:-3], each)], to[..., None])[..., 0]


def _places(lead: torch.Size, each: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The indices of rows in leading dimensions, of which there may be fewer than in `each`, or some of size 1."""
    indices = each[len(each) - len(lead) :]
    return tuple(i if size > 1 else torch.zeros_like(i) for i, size in zip(indices, lead, strict=True))
