"""The scores of segments in a semi-Markov model: a table or `Durations`, checked and cleaned."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.chains.durations import Durations
from tailsum.chains.segment_scan import by_end
from tailsum.chains.segments import Segments
from tailsum.numerics.check import check_broadcast, check_device, check_floating, check_scores, shape_or_type
from tailsum.numerics.reduce import log_sum_exp
from tailsum.scores.potential import Dense


def segment_scores(segment: object) -> tuple[Dense | Durations, torch.Size, int, int, int]:
    """The scores as a term, their batch shape, and T, D and N; a ValueError if the shapes do not fit."""
    if isinstance(segment, Durations):
        emission, duration = segment.emission, segment.duration
        check_device("segment.duration", duration, emission.device)
        other = "that of segment.emission,"
        lead = check_broadcast("segment.duration", duration.shape[:-2], emission.shape[:-2], other)
        return segment, lead, emission.shape[-2], duration.shape[-2], duration.shape[-1]
    if not isinstance(segment, Tensor) or segment.dim() < 3 or 0 in segment.shape[-3:]:
        raise ValueError(
            f"segment must be [*batch, T, D, N], none of T, D, N zero: got {shape_or_type(segment)}, which is no Durations either"
        )
    *lead, length, longest, size = segment.shape
    return Dense(segment), torch.Size(lead), length, longest, size


def cleaned(segments: Dense | Durations, used: Tensor, trailing: int, *, check: bool) -> Dense | Durations:
    """The scores with zeros where no sequence has `used` them; with `check`, a ValueError if others are NaN or infinite.

    `used` has all but the last `trailing` dimensions of the scores.
    """
    duration = segments.duration if isinstance(segments, Durations) else None
    name, scores = "segment" if duration is None else "segment.emission", segments.tensors[0]
    if check:
        if duration is not None:
            check_scores("segment.duration", duration)
        check_floating(name, scores)
    lead = scores.shape[: scores.dim() - trailing]
    unused = used.long().sum_to_size(lead) == 0  # shared scores are used if one sequence uses them
    scores = scores.masked_fill(unused.reshape(*lead, *(1,) * trailing), 0.0)
    if check:
        check_scores(name, scores)
    return Dense(scores) if duration is None else Durations(scores, duration)


def cut_at_the_end(segments: Dense | Durations, lengths: Tensor) -> Dense | Durations:
    """The scores if the end of a sequence may cut its last segment, for `lengths [*batch]`.

    A segment that ends its sequence counts all durations that reach the end or beyond.
    """
    if isinstance(segments, Durations):
        return segments.cut_at(lengths)
    scores = segments.scores.expand(*lengths.shape, *segments.scores.shape[-3:])
    length, longest, size = scores.shape[-3:]
    lasting = torch.arange(1, longest + 1, device=scores.device)
    start = (lengths[..., None] - lasting[: min(longest, length)]).clamp(min=0)  # of the last segment, by its duration
    reaching = scores.gather(-3, start[..., None, None].expand(*start.shape, longest, size))
    short = lasting < lasting[: start.shape[-1], None]
    last = log_sum_exp(reaching.masked_fill(short[..., None], -math.inf), -2)
    last = F.pad(last, (0, 0, 0, longest - start.shape[-1]))
    ends = torch.arange(length, device=scores.device)[:, None] + lasting == lengths[..., None, None]
    return Dense(torch.where(ends[..., None], last[..., None, :, :], scores))


def score_of_segments(segments: Dense | Durations, configuration: Segments, lengths: Tensor) -> Tensor:
    """The sum of the scores of the segments of each configuration, in float64: `[*sample_batch]`."""
    starts, durations, states = configuration
    lead, present = starts.shape[:-1], starts >= 0

    def at(table: Tensor, place: Tensor) -> Tensor:
        return table.expand(*lead, -1).gather(-1, torch.where(present, place, 0)).double()

    if isinstance(segments, Dense):
        longest, size = segments.scores.shape[-2:]
        scores = at(segments.scores.flatten(-3), (starts * longest + durations - 1) * size + states)
        return torch.where(present, scores, 0.0).sum(-1)
    labels, size = configuration.labels()[..., None], segments.emission.shape[-1]
    emission = segments.emission.expand(*lead, -1, -1).gather(-1, labels.clamp(min=0)).double()
    place, ends = (durations - 1) * size + states, starts + durations == lengths[..., None]
    duration = torch.where(ends, at(segments.last.flatten(-2), place), at(segments.duration.flatten(-2), place))
    return torch.where(labels < 0, 0.0, emission).sum((-2, -1)) + torch.where(present, duration, 0.0).sum(-1)


def label_chances(marginals: Tensor) -> Tensor:
    """The probability that a segment of each state covers each position, `[.., T, n]`, from marginals of segments."""
    wide = marginals.double()
    begun, ended = wide.sum(-2).cumsum(-2), by_end(wide).sum(-2).cumsum(-2)
    return torch.cat((begun[..., :1, :], begun[..., 1:, :] - ended[..., :-1, :]), -2).to(marginals.dtype)
