"""What a semi-Markov model asks of the scores of its segments, in whichever form they are given.

Positions come before durations: `[*batch, T, D, N]`, the segment that starts at t and lasts d+1 positions at `[t, d]`.
"""

from abc import abstractmethod
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from tailsum.chains.segments import Segments
from tailsum.numerics.check import check_floating, check_scores
from tailsum.scores.base import Scores

This = TypeVar("This", bound="SegmentScores")


class SegmentScores(Scores):
    """Scores of all segments of T positions, with D durations and N states: a table, or what takes less room than one."""

    length: int
    longest: int
    n_states: int

    # Given by a user.

    @abstractmethod
    def given_batch(self) -> torch.Size:
        """The batch shape; a ValueError if the tensors do not fit each other."""

    @abstractmethod
    def cleaned(self: This, lengths: Int[Tensor, "*batch"], *, censored: bool, check: bool) -> This:
        """Zeros in place of scores that no sequence uses; with `check`, a ValueError if others are NaN or infinite.

        If `censored`, a segment that the end cuts counts with the scores of its longer durations.
        """

    @abstractmethod
    def cut_at(self: This, lengths: Int[Tensor, "*batch"]) -> This:
        """The same if the end may cut the last segment, which then counts all durations that reach the end or beyond."""

    # Sums.

    @abstractmethod
    def tabled(self) -> "SegmentScores":
        """A table of all scores, which is its only tensor."""

    @abstractmethod
    def in_batch(self: This, batch: torch.Size) -> This:
        """The same with scores for every sequence of the batch."""

    @abstractmethod
    def without_common(self: This, lengths: Int[Tensor, "*batch"]) -> This:
        """Less a score in proportion to durations, which always add up to the length."""

    @abstractmethod
    def by_boundary(self) -> list[tuple[Tensor, bool]]:
        """The tensors that `ending` reads: either one for each inner boundary, these first, or the same one for all."""

    @abstractmethod
    def ending(self, window: Float64[Tensor, "*batch D n"], here: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The next window, and the scores of endings at a boundary, from the `by_boundary` tensors there.

        The window has the scores of all that comes before segments that end here or later, by how long ago they began.
        """

    @abstractmethod
    def that_end(
        self, batch: tuple[Int[Tensor, " r"], ...], start: Int[Tensor, "r D"], *, final: bool
    ) -> Float[Tensor, "r D n"]:
        """The scores of the segments of each duration from `start`, which end together; with `final`, at the sequence's end.

        `batch` has the place of each row in each dimension of the batch.
        """

    @abstractmethod
    def score_of(self, configuration: Segments, lengths: Int[Tensor, "*batch"]) -> Float64[Tensor, "*sample_batch"]:
        """The sum of the scores of the segments of each configuration."""

    @abstractmethod
    def label_chances(self, slope: Tensor) -> Float[Tensor, "*batch T n"]:
        """The probability that a segment of each state covers each position, from log Z's gradient in the first tensor."""


def zero_outside(name: str, scores: Tensor, used: Bool[Tensor, "..."], trailing: int, *, check: bool) -> Tensor:
    """Zeros where no sequence has `used` the scores, in all but the last `trailing` dimensions; the others checked."""
    if check:
        check_floating(name, scores)
    lead = scores.shape[: scores.dim() - trailing]
    unused = used.long().sum_to_size(lead) == 0  # shared scores are used if one sequence uses them
    scores = scores.masked_fill(unused.reshape(*lead, *(1,) * trailing), 0.0)
    if check:
        check_scores(name, scores)
    return scores


def in_lead(lead: torch.Size, each: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The indices of rows in leading dimensions, of which there may be fewer than in `each`, or some of size 1."""
    indices = each[len(each) - len(lead) :]
    return tuple(i if size > 1 else torch.zeros_like(i) for i, size in zip(indices, lead, strict=True))
