"""Semi-Markov models: a sequence cut into segments, each with a state and a duration.

`segment[t, d-1, i]` scores a segment that starts at position t, lasts d positions (1 .. D) and has state i.
`transition[t-1, i, j]` scores a segment of state j that starts at position t right after one of state i (from, to); with
`ByDuration`, `[t-1, d-1, i, j]` scores one right after a segment of state i and d positions. A segmentation covers every
position of its sequence; there is no transition into the first segment. Sequences may have different `lengths`; scores of
segments that reach into the padding are ignored.

A sketch keeps K weighted states for each position where a segment may start, shared by all durations.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.chains.durations import Durations
from tailsum.chains.segment_pairs import ByDuration, blanked, pair_scores, score_of_pairs, with_durations
from tailsum.chains.segment_paths import best_segments, drawer
from tailsum.chains.segment_scores import SegmentScores
from tailsum.chains.segment_sums import total_score
from tailsum.chains.segment_sweep import SegmentSweep
from tailsum.chains.segment_table import SegmentTable, as_segments, within_sequence
from tailsum.chains.segments import Segments, overlapping
from tailsum.numerics.check import check_broadcast, check_in_range, check_whole
from tailsum.numerics.gradients import tracked
from tailsum.numerics.reduce import Reduce, log_sum_exp
from tailsum.numerics.tensors import unmasked, working_type
from tailsum.numerics.tiles import tile_rows
from tailsum.scores.factored import embedding_norms
from tailsum.scores.potential import Potential
from tailsum.sketch.sweep import Sweep
from tailsum.structure.base import Structure
from tailsum.structure.check import check_potential, checked_lengths
from tailsum.structure.derivatives import differentiating
from tailsum.structure.distinct import Distinct
from tailsum.structure.k_best import Best
from tailsum.structure.transforms import differentiable


class SegmentTerms(NamedTuple):
    """Scores of the segments, a table `[*batch, T, D, N]` or `Durations`, and of the pair of states at each boundary."""

    segments: SegmentScores
    pairs: Potential


class SemiMarkov(Structure[SegmentTerms, Segments]):
    """A distribution over segmentations with N states: exact, or sketched on K states for each start.

    `segment [*batch, T, D, N]` (start, duration - 1, state) holds scores; `Durations(emission, duration)` needs no such
    table. `transition` is a tensor `[N, N]` (from, to) or any potential, its leading dimensions
    broadcast against `[*batch, T-1]`; or `ByDuration(scores)`. If `censored`, the end of a sequence may cut its last segment,
    whose score then counts all durations that reach the end or beyond.

    Exact: T D N + T N^2 for a transition shared by all positions, T D N^2 by duration. A sketch: T D K^2.

    >>> model = SemiMarkov(torch.zeros(4, 2, 1), torch.zeros(1, 1))
    >>> round(model.log_partition().exp().item())  # 4 as a sum of ones and twos
    5
    """

    _gathered: tuple[SegmentScores, Potential] | None = None  # the scores of a sketch, or tabled scores

    def __init__(
        self,
        segment: Float[Tensor, "*#batch T D N"] | Durations,
        transition: Float[Tensor, "*#lead N N"] | Potential | ByDuration,
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
        censored: bool = False,
    ) -> None:
        segments = as_segments(segment)
        lead, length, self.longest, self.n_states = (
            segments.given_batch(),
            segments.length,
            segments.longest,
            segments.n_states,
        )
        self.device, self.node_shape = segments.tensors[0].device, torch.Size((length,))
        pairs, pairs_lead, self._by_duration = pair_scores(transition, self.n_states, length, self.longest, self.device)
        shape = check_broadcast("transition", pairs_lead, lead, "segment's")
        self.batch_shape, self.lengths = checked_lengths(lengths, shape, length, self.device)
        self.censored, self._given = censored, (segments, pairs)
        self.dtype = working_type(*segments.tensors, *pairs.tensors)
        with torch.no_grad():  # every operation repeats this; here it only checks
            segments.cleaned(self._lengths(), censored=censored, check=True)
            check_potential("transition", self._blanked_pairs())

    @property
    def segments(self) -> SegmentScores:
        # Zeros in the padding, minus infinity in place of masks.
        return self._gathered[0] if self._gathered else self._prepared_segments()

    @property
    def transition(self) -> Potential:
        """The scores of pairs, with a last leading dimension for the duration of the first segment.

        Its size is 1 except in a sketch or with `ByDuration`.
        """
        return self._gathered[1] if self._gathered else with_durations(self._blanked_pairs(), self._by_duration)

    def _prepared_segments(self) -> SegmentScores:
        segments = self._given[0].cleaned(self._lengths(), censored=self.censored, check=False)
        segments = segments.map(lambda x: unmasked(x.to(self.dtype)))
        return segments.cut_at(self._lengths()) if self.censored else segments

    def _lengths(self) -> Int[Tensor, "*batch"]:
        return self.sequence_lengths().reshape(self.batch_shape)

    def _blanked_pairs(self) -> Potential:
        pairs = self._given[1].to(self.dtype)
        return pairs if self.lengths is None else blanked(pairs, self.inside(), self.longest, self._by_duration)

    def _within(self) -> Bool[Tensor, "*batch T D"]:
        """Whether a segment of each start and duration stays within its sequence."""
        return within_sequence(self._lengths(), self.node_shape[0], self.longest)

    def node_scores(self) -> Float[Tensor, "*batch T n"]:
        """The scores of each state at each start, summed over durations in log space."""
        scores = log_sum_exp(self._possible(), -2)
        return torch.where(self.inside()[..., None], scores, 0.0)

    def _table(self) -> Float[Tensor, "*#batch T D n"]:
        """The scores of all segments, as a table also of `Durations`."""
        return self.segments.tabled().tensors[0]

    def _possible(self) -> Float[Tensor, "*batch T D n"]:
        """The scores of the segments, minus infinity where they reach beyond their sequence."""
        segment = self._table().expand(*self.batch_shape, -1, -1, -1)
        return segment.masked_fill(~self._within()[..., None], -math.inf)

    def terms(self) -> SegmentTerms:
        segments, transition = self.segments, self.transition
        pairs = transition.evaluated()
        return SegmentTerms(segments.in_batch(self.batch_shape), pairs if pairs is transition else pairs.map(unmasked))

    def gather(self, index: Int[Tensor, "*#batch T k"]) -> "SemiMarkov":
        table = self._table()
        lead = torch.broadcast_shapes(table.shape[:-3], index.shape[:-2])
        table = table.expand(*lead, -1, -1, -1)
        segments = SegmentTable(table.gather(-1, index[..., None, :].expand(*lead, *table.shape[-3:-1], -1)))
        boundary = torch.arange(1, self.node_shape[0], device=self.device)[:, None]
        start = (boundary - 1 - torch.arange(self.longest, device=self.device)).clamp(min=0)
        pairs = self.transition.gather(index[..., start, :], index[..., 1:, None, :])
        return self.replaced(_gathered=(segments, pairs))

    def total(self, terms: SegmentTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        total = total_score(*terms, self.batch_shape, self.sequence_lengths(), reduce)
        return total.to(self.dtype).reshape(self.batch_shape)

    # Overrides for terms that are segments.

    def add_to_states(self, terms: SegmentTerms, extra: Float[Tensor, "*batch T n"]) -> SegmentTerms:
        return SegmentTerms(terms.segments.tabled().map(lambda x: x + extra[..., None, :]), terms.pairs)

    def centred(self, terms: SegmentTerms) -> SegmentTerms:
        """Subtracts the highest score per position: durations always add up to the length."""
        return SegmentTerms(terms.segments.without_common(self._lengths()), terms.pairs)

    def after_batch(self) -> dict[str, object]:
        fields = {"_given": self._by_duration and self._given, "_gathered": self._gathered}
        # Pairs lead with durations, after the positions.
        return {name: (x[0].after_batch, x[1].after_batch + 1) for name, x in fields.items() if x}

    def form(self) -> tuple[int]:
        return (self.longest,)

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        return embedding_norms(None, self.transition, "a Factored transition shared by all positions")

    def sweep(self) -> Sweep:
        if self.kept is not None:  # the kept states differ by start, so messages differ by duration
            return super().sweep()
        return SegmentSweep(self._possible(), self.transition, self._lengths())

    def part_states(self) -> Int[Tensor, "*batch T 1 n"]:
        return self.states[..., None, :]

    @property
    def part_shape(self) -> tuple[int, ...]:
        return (*self.node_shape, self.longest, self.n_states)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, D={self.longest})"

    # Operations on the parts of a table, which other scores are converted to.

    @for_authors
    def tabled(self) -> "SemiMarkov":
        """The same model with a table of the scores of all segments, `[*batch, T, D, N]`."""
        return self.replaced(_gathered=(self.segments.tabled(), self.transition))

    def topk(self, k: int) -> Best:
        return super(SemiMarkov, self.tabled()).topk(k)

    def sample_distinct(self, k: int, generator: torch.Generator | None = None) -> Distinct:
        return super(SemiMarkov, self.tabled()).sample_distinct(k, generator)

    def relaxed(
        self, temperature: float, hard: bool, generator: torch.Generator | None, sample_shape: Sequence[int]
    ) -> tuple[list[Tensor], Segments]:
        return super(SemiMarkov, self.tabled()).relaxed(temperature, hard, generator, sample_shape)

    @differentiable
    def label_marginals(self) -> Float[Tensor, "*batch T all"]:
        """The probability of each state at each position, over all N states; needs no table for `Durations`.

        >>> SemiMarkov(torch.randn(6, 3, 4), torch.randn(4, 4)).label_marginals().sum(-1).allclose(torch.ones(6))
        True
        """
        with differentiating(self.device, self.summed()) as (recording, (segments, pairs)):
            first, *others = segments.tensors
            first = tracked(first, recording)
            total = self.log_sum(SegmentTerms(segments.with_tensors([first, *others]), pairs))
            (slope,) = torch.autograd.grad(total.sum(), first, create_graph=recording)
        return segments.label_chances(self.scatter(slope))

    # Segmentations.

    @torch.no_grad()
    def best(self, terms: SegmentTerms) -> Segments:
        return best_segments(*terms, self.batch_shape, self.sequence_lengths())

    def drawn(self, terms: SegmentTerms, sample_shape: Sequence[int], generator: torch.Generator | None) -> Segments:
        """Forward filtering, backward sampling.

        >>> SemiMarkov(torch.randn(6, 3, 4), torch.randn(4, 4)).sample((1000,)).labels().shape
        torch.Size([1000, 6])
        """
        draw, entries = drawer(*terms, self.batch_shape, self.sequence_lengths(), generator)
        return self.chunked(draw, math.prod(sample_shape), tile_rows(entries, self.device), sample_shape)

    def used(self, configuration: Segments) -> tuple[Float[Tensor, "*sample_batch T D n"], ...]:
        starts, durations, states = configuration
        length, longest, size = self.part_shape
        used = torch.zeros(*starts.shape[:-1], length * longest * size, dtype=self.dtype, device=self.device)
        present = starts >= 0
        place = (starts * longest + durations - 1) * size + states
        used.scatter_add_(-1, torch.where(present, place, 0), present.to(self.dtype))
        return (used.unflatten(-1, (length, longest, size)),)

    def node_states(self, configuration: Segments) -> Int[Tensor, "*sample_batch T"]:
        starts, _, states = configuration
        length = self.node_shape[0]
        table = torch.full((*starts.shape[:-1], length + 1), -1, device=self.device)
        return table.scatter(-1, torch.where(starts < 0, length, starts), states)[..., :-1]

    def score_of(self, configuration: Segments) -> Float[Tensor, "*sample_batch"]:
        """The sum of the scores of the segments and of the transitions between them.

        >>> model = SemiMarkov(torch.ones(4, 4, 2), torch.zeros(2, 2))
        >>> sample = model.sample()
        >>> bool(model.score(sample) == (sample.durations > 0).sum())
        True
        """
        score = self.segments.score_of(configuration, self._lengths())
        if self.node_shape[0] > 1:
            score = score + score_of_pairs(self.transition, configuration)
        return score.masked_fill((configuration.starts < 0).all(-1), -math.inf).to(self.dtype)

    def check_configuration(self, configuration: Segments) -> Segments:
        """A ValueError unless each segmentation covers its sequence, or is empty (-1 throughout)."""
        if not isinstance(configuration, Segments):
            raise ValueError(f"segments must be Segments: got {type(configuration).__name__}")
        starts, durations, states = (
            check_whole(f"segments.{name}", x) for name, x in zip(Segments._fields, configuration, strict=True)
        )
        length = self.node_shape[0]
        if not starts.shape == durations.shape == states.shape or starts.shape[-1:] != (length,):
            raise ValueError(
                f"segments must have starts, durations and states [..., T] with T = {length}: "
                f"got {list(starts.shape)}, {list(durations.shape)} and {list(states.shape)}"
            )
        shape = check_broadcast("segments", starts.shape[:-1], self.batch_shape, "the model's")
        blanks = zip((starts, durations, states), (-1, 0, -1), strict=True)
        starts, durations, states = (torch.where(self.inside(), x.expand(*shape, -1), blank) for x, blank in blanks)
        check_in_range("segments.states", states, self.n_states)
        present = starts >= 0
        durations = torch.where((starts == -1) & (durations == -1), 0, durations)  # padding, too
        covered = durations.cumsum(-1)
        follows = (starts == covered - durations) & (durations > 0) & (durations <= self.longest)
        follows &= states >= 0
        whole = (covered[..., -1] == self._lengths()) | ~present.any(-1)
        in_order = ~(present[..., 1:] & ~present[..., :-1]).any(-1)
        if not (whole & in_order & torch.where(present, follows, durations == 0).all(-1)).all():
            raise ValueError(
                f"segments must follow one another from position 0 to the end of their sequence, each of 1 to "
                f"D = {self.longest} positions: got some that do not"
            )
        return Segments(starts, durations, states)

    def exclusions(self, demanded: Sequence[Bool[Tensor, "..."]]) -> list[Bool[Tensor, "..."]]:
        """All other segments over the positions of a demanded one: a segmentation without them contains it."""
        return [overlapping(segments) for segments in demanded]

    def to_global(self, configuration: Segments) -> Segments:
        if self.kept is None:
            return configuration
        starts, durations, states = configuration
        kept = self.states.expand(*states.shape, -1).flatten(-2)
        global_ids = kept.gather(-1, (starts * self.n_states + states).clamp(min=0))
        return Segments(starts, durations, torch.where(states < 0, -1, global_ids))
