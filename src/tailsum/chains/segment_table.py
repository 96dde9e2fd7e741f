"""The scores of segments in a table `[*batch, T, D, N]`: start, duration - 1, state."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from tailsum.chains.segment_scores import SegmentScores, zero_outside
from tailsum.chains.segments import Segments
from tailsum.numerics.check import shape_or_type
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import finite


class SegmentTable(SegmentScores):
    """A score for every start, duration and state."""

    def __init__(self, scores: Float[Tensor, "*#batch T D N"]) -> None:
        self.scores, self.tensors = scores, (scores,)
        self.length, self.longest, self.n_states = scores.shape[-3:]

    @property
    def after_batch(self) -> int:
        return 3

    def map(self, change: Callable[[Tensor], Tensor]) -> "SegmentTable":
        return SegmentTable(change(self.scores))

    def tabled(self) -> "SegmentTable":
        return self

    def given_batch(self) -> torch.Size:
        return self.scores.shape[:-3]

    def cleaned(self, lengths: Int[Tensor, "*batch"], *, censored: bool, check: bool) -> "SegmentTable":
        if censored:
            used, trailing = torch.arange(self.length, device=lengths.device) < lengths[..., None], 2
        else:
            used, trailing = within_sequence(lengths, self.length, self.longest), 1
        return SegmentTable(zero_outside("segment", self.scores, used, trailing, check=check))

    def cut_at(self, lengths: Int[Tensor, "*batch"]) -> "SegmentTable":
        length, longest = self.length, self.longest
        scores = self.scores.expand(*lengths.shape, -1, -1, -1)
        lasting = torch.arange(1, longest + 1, device=scores.device)
        start = (lengths[..., None] - lasting[: min(longest, length)]).clamp(
            min=0
        )  # of the last segment, by its duration
        reaching = scores.gather(-3, start[..., None, None].expand(*start.shape, longest, self.n_states))
        short = lasting < lasting[: start.shape[-1], None]
        last = log_sum_exp(reaching.masked_fill(short[..., None], -math.inf), -2)
        last = F.pad(last, (0, 0, 0, longest - start.shape[-1]))
        ends = torch.arange(length, device=scores.device)[:, None] + lasting == lengths[..., None, None]
        return SegmentTable(torch.where(ends[..., None], last[..., None, :, :], scores))

    def in_batch(self, batch: torch.Size) -> "SegmentTable":
        return SegmentTable(self.scores.expand(*batch, -1, -1, -1))

    def without_common(self, lengths: Int[Tensor, "*batch"]) -> "SegmentTable":
        beyond = ~within_sequence(lengths, self.length, self.longest)
        within = self.scores.detach().masked_fill(beyond[..., None], -math.inf)
        return SegmentTable(self.scores - common_part(within, 3))

    def by_boundary(self) -> list[tuple[Tensor, bool]]:
        table = by_end(self.scores[..., : min(self.longest, self.length), :])
        return [(table.movedim(-3, 0)[: self.length - 1].contiguous(), True)]

    def ending(self, window: Float64[Tensor, "*batch D n"], here: list[Tensor]) -> tuple[Tensor, Tensor]:
        return window, window + here[0]

    def that_end(
        self, batch: tuple[Int[Tensor, " r"], ...], start: Int[Tensor, "r D"], *, final: bool
    ) -> Float[Tensor, "r D n"]:
        rows, duration = tuple(i[:, None] for i in batch), torch.arange(start.shape[1], device=start.device)
        return self.scores[(*rows, start, duration)]

    def score_of(self, configuration: Segments, lengths: Int[Tensor, "*batch"]) -> Float64[Tensor, "*sample_batch"]:
        starts, durations, states = configuration
        place = (starts * self.longest + durations - 1) * self.n_states + states
        return scores_at(self.scores.flatten(-3), starts >= 0, place).sum(-1)

    def label_chances(self, slope: Tensor) -> Float[Tensor, "*batch T n"]:
        wide = slope.double()
        begun, ended = wide.sum(-2).cumsum(-2), by_end(wide).sum(-2).cumsum(-2)
        return torch.cat((begun[..., :1, :], begun[..., 1:, :] - ended[..., :-1, :]), -2).to(slope.dtype)


def as_segments(segment: object) -> SegmentScores:
    """A user's argument as scores of segments; a ValueError if it is neither a table nor another form of them."""
    if isinstance(segment, SegmentScores):
        return segment
    if not isinstance(segment, Tensor) or segment.dim() < 3 or 0 in segment.shape[-3:]:
        raise ValueError(
            f"segment must be [*batch, T, D, N], none of T, D, N zero: got {shape_or_type(segment)}, which is no Durations either"
        )
    return SegmentTable(segment)


def within_sequence(lengths: Int[Tensor, "*batch"], length: int, longest: int) -> Bool[Tensor, "*batch T D"]:
    """Whether a segment of each start and duration stays within its sequence."""
    start, more = (torch.arange(size, device=lengths.device) for size in (length, longest))
    return start[:, None] + more < lengths[..., None, None]


def scores_at(
    table: Tensor, present: Bool[Tensor, "*sample_batch k"], place: Tensor
) -> Float64[Tensor, "*sample_batch k"]:
    """Entries of flat tables `[*#batch, n]`, zero where nothing is `present`."""
    lead = present.shape[:-1]
    found = table.expand(*lead, -1).gather(-1, torch.where(present, place, 0)).double()
    return torch.where(present, found, 0.0)


def by_end(segment: Tensor) -> Tensor:
    """Values of segments by their last position, `[.., T, D, n]`, from values by their first; zero before the sequence.

    Row d of `[D, T]` moves by d places: with D of padding, the flat numbers are read in rows that are one shorter.
    """
    length, longest, _ = segment.shape[-3:]
    rows = F.pad(segment.movedim(-2, -3), (0, 0, 0, longest)).flatten(-3, -2)
    skewed = rows[..., : rows.shape[-2] - longest, :].unflatten(-2, (longest, length + longest - 1))
    return skewed[..., :length, :].movedim(-3, -2)


def common_part(scores: Float[Tensor, "*lead D n"], axes: int) -> Float[Tensor, "*ones D 1"]:
    """The highest score per position, over the last `axes` dimensions, times each duration.

    The rate is rounded to its first bits (Dekker's splitting), so that its products with durations are exact.
    """
    lasting = torch.arange(1, scores.shape[-2] + 1, device=scores.device, dtype=scores.dtype)[:, None]
    rate = finite((scores.detach() / lasting).amax(tuple(range(-axes, 0)), keepdim=True))
    far = rate * (2.0**16 + 1)
    return (far - (far - rate)) * lasting
