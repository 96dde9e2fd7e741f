"""Segmentations from the messages of a semi-Markov model, read from the last segment to the first."""

import math

import torch
from torch import Tensor

from tailsum.chains.segment_scores import SegmentScores, in_lead
from tailsum.chains.segments import Segments
from tailsum.numerics.noise import Choose
from tailsum.numerics.stream import Parts
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Potential


def places_in_batch(shape: torch.Size, device: torch.device, count: int = 1) -> tuple[Tensor, ...]:
    """The index of every sequence in each dimension of the batch, `count` times over."""
    return torch.unravel_index(torch.arange(shape.numel(), device=device).repeat(count), shape) if shape else ()


def endings(segments: SegmentScores, messages: Tensor, batch: tuple[Tensor, ...], after: Tensor, final: bool) -> Tensor:
    """Scores of the first `after [R]` positions by their last segment, `[R, D, n]` in float64, from `messages [T, *batch, n]`.

    `batch` has the indices of the R rows in each dimension of the batch; with `final`, their sequences end there.
    """
    back = torch.arange(1, min(len(messages), segments.longest) + 1, device=messages.device)
    start = after[:, None] - back
    place, rows = start.clamp(min=0), tuple(i[:, None] for i in batch)
    before = messages[(place, *rows)].masked_fill((start < 0)[..., None], -math.inf)
    return before + segments.that_end(batch, place, final=final)


def walk_back(
    segments: SegmentScores, pairs: Potential, messages: Tensor, lengths: Tensor, count: int, choose: Choose
) -> Segments:
    """`count` segmentations `[count, *batch, T]` in local ids, each segment by `choose(logits [R, D n])`."""
    length, *shape, size = messages.shape
    arrivals = pairs.backwards()  # whose rows are the states that a transition leads to
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
            logits = logits + _row(arrivals, batch, (after - 1).clamp(min=0), state)[:, : logits.shape[-2]]
    missing = nothing[..., None].expand(3, len(after), length - len(steps))
    walked = torch.cat((missing, *(x[..., None] for x in steps[::-1])), -1)
    order = (walked[0] < 0).long().argsort(dim=-1, stable=True)  # moves the empty places, which are first, to the end
    return Segments(*walked.gather(-1, order.expand_as(walked)).reshape(3, count, *shape, length))


def _row(pairs: Potential, batch: tuple[Tensor, ...], boundary: Tensor, state: Tensor) -> Tensor:
    """The scores of row `state [R]` of the pairs at a boundary, `[R, D or 1, n]`: only that row is read."""
    each = (*batch, boundary)

    def here(x: Tensor) -> Tensor:
        return x if x.dim() == 2 else x[in_lead(x.shape[:-3], each)]

    def row(x: Tensor) -> Tensor:
        one = x[state][:, None] if x.dim() == 2 else x[(*in_lead(x.shape[:-3], each), slice(None), state)]
        return one[..., None, :]

    if not pairs.by_parts:
        return pairs.map(here).block(state[:, None, None], None)[..., 0, :]
    rows, whole = pairs.parts()
    return pairs.scores_of(Parts(tuple(map(row, rows)), tuple(map(here, whole))))[..., 0, :]
