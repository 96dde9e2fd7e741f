"""Segments scored by their positions and by their duration: the scores of a semi-Markov model without a table.

A segment of state i that starts at position t and lasts d positions has the score

    emission[t, i] + .. + emission[t+d-1, i] + duration[d-1, i]

so that T N + D N numbers define T D N scores. Sums along positions are float64 and start anew with each segment: a
forbidden position forbids the segments that cover it, and no others.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Float64, Int
from torch import Tensor

from tailsum.chains.segment_scores import SegmentScores, in_lead, zero_outside
from tailsum.chains.segment_table import SegmentTable, common_part, scores_at
from tailsum.chains.segments import Segments
from tailsum.numerics.check import check_broadcast, check_device, check_scores, shape_or_type
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import as_values, finite, scaled
from tailsum.scores.base import Scores


class Durations(SegmentScores):
    """Scores of segments from scores of states at positions and of durations: a `segment` for `SemiMarkov`.

    `emission` is `[*batch, T, N]` and `duration` is `[D, N]`, or `[*batch, D, N]` where sequences differ.

    >>> Durations(torch.randn(100, 5), torch.randn(30, 5)).tabled().scores.shape
    torch.Size([100, 30, 5])
    """

    def __init__(
        self,
        emission: Float[Tensor, "*#batch T N"],
        duration: Float[Tensor, "*#batch D N"],
        last: Float[Tensor, "*#batch D N"] | None = None,
        lengths: Int[Tensor, "*#batch"] | None = None,
    ) -> None:
        """`last` replaces `duration` for the segment that ends its sequence; the model sets it with `lengths`."""
        for name, x in (("emission", emission), ("duration", duration)):
            if not isinstance(x, Tensor) or x.dim() < 2 or 0 in x.shape[-2:]:
                form = "T, N" if name == "emission" else "D, N"
                raise ValueError(f"{name} must be [*batch, {form}], none of {form} zero: got {shape_or_type(x)}")
        if emission.shape[-1] != duration.shape[-1]:
            raise ValueError(
                f"duration must have {emission.shape[-1]} states, as emission has: got {duration.shape[-1]}"
            )
        self.emission, self.duration, self.lengths = emission, duration, lengths
        self.last = duration if last is None else last
        self.tensors = (emission, duration) if last is None else (emission, duration, last)
        (self.length, self.n_states), self.longest = emission.shape[-2:], duration.shape[-2]

    @property
    def after_batch(self) -> int:
        return 2

    def map(self, change: Callable[[Tensor], Tensor]) -> "Durations":
        return self._changed(*map(change, self.tensors))

    def _changed(self, emission: Tensor, duration: Tensor, last: Tensor | None = None) -> "Durations":
        return Durations(emission, duration, last, self.lengths)

    def cut_at(self, lengths: Int[Tensor, "*batch"]) -> "Durations":
        last, step = self.duration.double(), 1
        while step < self.longest:  # each is the sum of the first `step` durations from its own on
            later = F.pad(last[..., step:, :], (0, 0, 0, step), value=-math.inf)
            last, step = log_sum_exp(torch.stack((last, later)), 0), 2 * step
        return Durations(self.emission, self.duration, last.to(self.duration.dtype), lengths)

    def tabled(self) -> SegmentTable:
        """The table `[*batch, T, D, N]`. A segment that reaches beyond its sequence sums over the positions there are."""
        longest, dtype = self.duration.shape[-2], self.emission.dtype
        covered = F.pad(self.emission.double(), (0, 0, 0, longest - 1)).unfold(-2, longest, 1).mT
        sums, duration = covered.cumsum(-2), self.duration[..., None, :, :]
        if self.lengths is None:
            return SegmentTable((sums + duration).to(dtype))
        start, more = (torch.arange(size, device=sums.device) for size in sums.shape[-3:-1])
        ends = start[:, None] + more + 1 == self.lengths[..., None, None]
        return SegmentTable((sums + torch.where(ends[..., None], self.last[..., None, :, :], duration)).to(dtype))

    def in_batch(self, batch: torch.Size) -> "Durations":
        return self._changed(self.emission.expand(*batch, -1, -1), *self.tensors[1:])

    # Arithmetic without a table.

    def without_common(self, lengths: Int[Tensor, "*batch"]) -> "Durations":
        """Less the highest emission of each position, and a score of durations that is in proportion to them."""
        emission, *durations = self.tensors
        common = common_part(self.duration, 2)
        peak = finite(emission.detach().amax(-1, keepdim=True))
        return self._changed(emission - peak, *(x - common for x in durations))

    def scaled(self, factor: Float[Tensor, ""] | float) -> "Durations":
        return self.map(lambda x: scaled(x, factor))

    def plus(self, other: Any) -> Scores:
        if not self.same_form(other):
            return super().plus(other)
        last = None if self.lengths is None and other.lengths is None else self.last + other.last
        lengths = other.lengths if self.lengths is None else self.lengths
        return Durations(self.emission + other.emission, self.duration + other.duration, last, lengths)

    def finite(self) -> "Durations":
        return self.map(as_values)

    def forbidden(self, dtype: torch.dtype) -> "Durations":
        """Above zero for every segment whose score is minus infinity, zero for the others."""
        return self.map(lambda x: (x == -torch.inf).to(dtype))

    # What a semi-Markov model asks.

    def given_batch(self) -> torch.Size:
        check_device("segment.duration", self.duration, self.emission.device)
        other = "that of segment.emission,"
        return check_broadcast("segment.duration", self.duration.shape[:-2], self.emission.shape[:-2], other)

    def cleaned(self, lengths: Int[Tensor, "*batch"], *, censored: bool, check: bool) -> "Durations":
        if check:
            check_scores("segment.duration", self.duration)
        inside = torch.arange(self.length, device=lengths.device) < lengths[..., None]
        return Durations(zero_outside("segment.emission", self.emission, inside, 1, check=check), self.duration)

    def by_boundary(self) -> list[tuple[Tensor, bool]]:
        duration = self.duration[..., : min(self.longest, self.length), :]
        return [(self.emission.movedim(-2, 0)[: self.length - 1], True), (duration, False)]

    def ending(self, window: Float64[Tensor, "*batch D n"], here: list[Tensor]) -> tuple[Tensor, Tensor]:
        emission, duration = here
        window = window + emission[..., None, :]
        return window, window + duration

    def that_end(
        self, batch: tuple[Int[Tensor, " r"], ...], start: Int[Tensor, "r D"], *, final: bool
    ) -> Float[Tensor, "r D n"]:
        duration = (self.last if final else self.duration)[..., : start.shape[1], :]
        if duration.dim() > 2:
            duration = duration[in_lead(duration.shape[:-2], batch)]
        rows = tuple(i[:, None] for i in batch)
        return self.emission[(*rows, start)].double().cumsum(-2) + duration

    def score_of(self, configuration: Segments, lengths: Int[Tensor, "*batch"]) -> Float64[Tensor, "*sample_batch"]:
        starts, durations, states = configuration
        labels, present = configuration.labels()[..., None], starts >= 0
        emission = self.emission.expand(*starts.shape[:-1], -1, -1).gather(-1, labels.clamp(min=0)).double()
        place = (durations - 1) * self.n_states + states
        last, others = (scores_at(x.flatten(-2), present, place) for x in (self.last, self.duration))
        lasting = torch.where(starts + durations == lengths[..., None], last, others)
        return torch.where(labels < 0, 0.0, emission).sum((-2, -1)) + lasting.sum(-1)

    def label_chances(self, slope: Tensor) -> Float[Tensor, "*batch T n"]:
        return slope
