"""Semi-Markov models: a sequence cut into segments, each with a state and a duration.

`segment[t, d-1, i]` scores a segment that starts at position t, lasts d positions (1 .. D) and has state i;
`transition[t-1, i, j]` scores a segment of state j that starts at position t right after one of state i (from, to). A
segmentation covers every position of its sequence; there is no transition into the first segment. Sequences may have
different `lengths`; scores of segments that reach into the padding are ignored.

A sketch keeps K weighted states for each position where a segment may start, shared by all durations.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.chains.segment_sweep import SegmentSweep
from tailsum.numerics.check import (
    check_broadcast,
    check_floating,
    check_in_range,
    check_sample_shape,
    check_scores,
    check_whole,
)
from tailsum.numerics.noise import Choose, gumbel
from tailsum.numerics.reduce import LogProduct, Reduce, highest, log_sum_exp
from tailsum.numerics.table import tile_rows
from tailsum.numerics.tensors import at_step, finite, flattened, working_type
from tailsum.scores.factored import embedding_norms
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.sweep import Sweep
from tailsum.structure.base import Structure
from tailsum.structure.check import check_lead, check_potential, checked_lengths


class Segments(NamedTuple):
    """Segmentations: the first position, the duration and the state of each segment, in order; -1, 0, -1 after the last."""

    starts: Int[Tensor, "*sample_batch T"]
    durations: Int[Tensor, "*sample_batch T"]
    states: Int[Tensor, "*sample_batch T"]

    def labels(self) -> Int[Tensor, "*sample_batch T"]:
        """The state at each position (-1 in the padding).

        >>> tensor = torch.tensor
        >>> Segments(tensor([0, 2, -1]), tensor([2, 1, 0]), tensor([7, 5, -1])).labels().tolist()
        [7, 7, 5]
        """
        which = self.begins().long().cumsum(-1) - 1
        covered = torch.arange(which.shape[-1], device=which.device) < self.durations.sum(-1, keepdim=True)
        return torch.where(covered, self.states.gather(-1, which.clamp(min=0)), -1)

    def begins(self) -> Bool[Tensor, "*sample_batch T"]:
        """Whether a segment starts at each position."""
        present = (self.starts >= 0).long()
        return torch.zeros_like(self.starts).scatter_add(-1, self.starts.clamp(min=0), present) > 0


class SegmentTerms(NamedTuple):
    """Scores of the segments `[*batch, T, D, N]`, and of the pairs of states at each boundary."""

    segments: Dense
    pairs: Potential


class SemiMarkov(Structure[SegmentTerms, Segments]):
    """A distribution over segmentations with N states: exact, or sketched on K states for each start.

    `segment [*batch, T, D, N]` (start, duration - 1, state) holds scores. `transition` is a tensor `[N, N]` (from, to) or
    any `Dense`, `Factored` or `Scored`, its leading dimensions broadcast against `[*batch, T-1]`.

    Exact: T D N + T N^2 for a transition shared by all positions. A sketch: T D K^2.

    >>> model = SemiMarkov(torch.zeros(4, 2, 1), torch.zeros(1, 1))
    >>> round(model.log_partition().exp().item())  # 4 as a sum of ones and twos
    5
    """

    def __init__(
        self,
        segment: Float[Tensor, "*#batch T D N"],
        transition: Float[Tensor, "*#lead N N"] | Potential,
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
    ) -> None:
        if not isinstance(segment, Tensor) or segment.dim() < 3 or 0 in segment.shape[-3:]:
            got = list(segment.shape) if isinstance(segment, Tensor) else type(segment).__name__
            raise ValueError(f"segment must be [*batch, T, D, N], none of T, D, N zero: got {got}")
        length, _, self.n_states = segment.shape[-3:]
        self.device, self.node_shape = segment.device, torch.Size((length,))
        pairs = check_lead("transition", transition, self.n_states, (length - 1,), self.device, "segment")
        shape = check_broadcast("transition", pairs.lead[:-1], segment.shape[:-3], "segment's")
        self.batch_shape, self.lengths = checked_lengths(lengths, shape, length, self.device)
        check_floating("segment", segment)
        segment = torch.where(self._within(segment.shape[-2])[..., None], segment, 0.0)
        if self.lengths is not None:
            pairs = pairs.blank_outside(self.inside()[..., 1:])
        check_scores("segment", segment)
        check_potential("transition", pairs)
        self.dtype = working_type(segment, *pairs.tensors)
        # One more leading dimension of the pairs, for the duration of the segment before: of size 1, unless in a sketch.
        dim = -pairs.trailing - 1
        self.transition = pairs.to(self.dtype).map(lambda x: x.unsqueeze(dim) if x.dim() > -dim - 1 else x)
        self.segment = segment.to(self.dtype)

    def _within(self, longest: int) -> Tensor:
        """Whether a segment of each start and duration stays within its sequence: `[*batch, T, D]`."""
        start, more = (torch.arange(size, device=self.device) for size in (self.node_shape[0], longest))
        return start[:, None] + more < self.sequence_lengths().reshape(*self.batch_shape, 1, 1)

    def node_scores(self) -> Float[Tensor, "*batch T n"]:
        """The scores of each state at each start, summed over durations in log space."""
        scores = log_sum_exp(self._possible(), -2)
        return torch.where(self.inside()[..., None], scores, 0.0)

    def _possible(self) -> Float[Tensor, "*batch T D n"]:
        """The scores of the segments, minus infinity where they reach beyond their sequence."""
        segment = self.segment.expand(*self.batch_shape, -1, -1, -1)
        return segment.masked_fill(~self._within(segment.shape[-2])[..., None], -math.inf)

    def terms(self) -> SegmentTerms:
        return SegmentTerms(Dense(self.segment.expand(*self.batch_shape, -1, -1, -1)), self.transition.evaluated())

    def gather(self, index: Int[Tensor, "*#batch T k"]) -> "SemiMarkov":
        lead = torch.broadcast_shapes(self.segment.shape[:-3], index.shape[:-2])
        segment = self.segment.expand(*lead, -1, -1, -1)
        wanted = index[..., None, :].expand(*lead, *segment.shape[-3:-1], -1)
        boundary = torch.arange(1, self.node_shape[0], device=self.device)[:, None]
        start = (boundary - 1 - torch.arange(segment.shape[-2], device=self.device)).clamp(min=0)
        pairs = self.transition.gather(index[..., start, :], index[..., 1:, None, :])
        return self.replaced(segment=segment.gather(-1, wanted), transition=pairs)

    def total(self, terms: SegmentTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        totals = torch.stack([reduce(x.flatten(-2), -1) for x in self._ending(terms, reduce)], -1)
        return totals.gather(-1, self.sequence_lengths().reshape(*self.batch_shape, 1) - 1)[..., 0]

    def _ending(self, terms: SegmentTerms, reduce: Reduce) -> list[Tensor]:
        """The reduction over all segmentations of the first 1, 2, .. T positions, by the last segment.

        A list of `[*batch, duration, n]`, with durations 1 .. min(D, positions).
        """
        segment, pairs = terms.segments.scores, terms.pairs
        length, longest, size = segment.shape[-3:]
        shared = None if pairs.lead else LogProduct(pairs.block(), reduce)
        entering, ending = [segment.new_zeros(*self.batch_shape, size)], []
        for after in range(1, length + 1):
            starts = range(after - 1, max(-1, after - 1 - longest), -1)
            ending.append(torch.stack([entering[t] + segment[..., t, after - t - 1, :] for t in starts], -2))
            if after == length:
                break
            if shared is not None:
                flat = reduce(ending[-1], -2).reshape(self.batch_shape.numel(), size)
                entering.append(shared(flat).reshape(*self.batch_shape, size))
                continue
            table = pairs.map(lambda x, step=after - 1: at_step(x, 3, step)).block()  # [*batch, D or 1, n, n]
            if table.shape[-3] == 1:
                value, table = reduce(ending[-1], -2), table[..., 0, :, :]
            else:
                value, table = ending[-1].flatten(-2), table[..., : len(starts), :, :].flatten(-3, -2)
            entering.append(LogProduct(table, reduce)(value[..., None, :])[..., 0, :])
        return ending

    # Overrides for terms that are segments.

    def add_to_states(self, terms: SegmentTerms, extra: Float[Tensor, "*batch T n"]) -> SegmentTerms:
        return SegmentTerms(Dense(terms.segments.scores + extra[..., None, :]), terms.pairs)

    def centred(self, terms: SegmentTerms) -> SegmentTerms:
        """Subtracts the highest score per position: durations always add up to the length."""
        segment = terms.segments.scores
        lasting = torch.arange(1, segment.shape[-2] + 1, device=self.device, dtype=self.dtype)[:, None]
        per_position = segment.detach().masked_fill(~self._within(len(lasting))[..., None], -math.inf) / lasting
        highest_rate = finite(per_position.amax((-3, -2, -1), keepdim=True))
        return SegmentTerms(Dense(segment - highest_rate * lasting), terms.pairs)

    def form(self) -> tuple[int]:
        return (self.segment.shape[-2],)

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        return embedding_norms(None, self.transition, "a Factored transition shared by all positions")

    def sweep(self) -> Sweep:
        if self.kept is not None:  # the kept states differ by start, so messages differ by duration
            return super().sweep()
        return SegmentSweep(self._possible(), self.transition, self.sequence_lengths().reshape(self.batch_shape))

    def part_states(self) -> Int[Tensor, "*batch T 1 n"]:
        return self.states[..., None, :]

    @property
    def part_shape(self) -> tuple[int, ...]:
        return (*self.node_shape, self.segment.shape[-2], self.n_states)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, D={self.segment.shape[-2]})"

    # Segmentations.

    @torch.no_grad()
    def best(self, terms: SegmentTerms) -> Segments:
        found = self._walk_back(terms, self._ending(terms, highest), 1, lambda logits: logits.argmax(-1))
        return Segments(*(x[0] for x in found))

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Segments:
        """Exact samples (forward filtering, backward sampling), in global ids; -1 where none is possible.

        >>> SemiMarkov(torch.randn(6, 3, 4), torch.randn(4, 4)).sample((1000,)).labels().shape
        torch.Size([1000, 6])
        """
        check_sample_shape(sample_shape)
        terms = self.summed()
        ending = self._ending(terms, log_sum_exp)

        def draw(count: int) -> Segments:
            return self._walk_back(terms, ending, count, lambda x: gumbel(x, generator).argmax(-1))

        chunk = tile_rows(ending[-1].numel(), self.device)
        return self.to_global(self.chunked(draw, math.prod(sample_shape), chunk, sample_shape))

    def _walk_back(self, terms: SegmentTerms, ending: list[Tensor], count: int, choose: Choose) -> Segments:
        """`count` segmentations `[count, *batch, T]` in local ids, each segment by `choose(logits [R, D n])`."""
        longest, size = ending[-1].shape[-2:]
        padded = [F.pad(x, (0, 0, 0, longest - x.shape[-2]), value=-math.inf) for x in ending]
        table = torch.stack(padded).reshape(len(ending), self.batch_shape.numel(), longest, size)
        length = self.sequence_lengths()
        batch = torch.arange(len(length), device=self.device)
        possible = (table[length - 1, batch] > -math.inf).any((-2, -1))
        after, batch = torch.where(possible, length, 0).repeat(count), batch.repeat(count)
        state, nothing = torch.zeros_like(after), torch.tensor([[-1], [0], [-1]], device=self.device)
        steps: list[Tensor] = []
        for step in range(len(ending)):
            going = after > 0
            logits = table[(after - 1).clamp(min=0), batch]
            if step > 0:
                logits = logits + self._columns(terms.pairs, batch, after, state)[:, :longest]
            pick = choose(logits.flatten(-2))
            duration, state = pick // size + 1, pick % size
            after = torch.where(going, after - duration, 0)
            steps.append(torch.where(going, torch.stack((after, duration, state)), nothing))
        found = torch.stack(steps[::-1], -1)  # [3, R, T]
        order = (
            (found[0] < 0).long().argsort(dim=-1, stable=True)
        )  # moves the empty places, which came first, to the end
        return Segments(*found.gather(-1, order.expand_as(found)).reshape(3, count, *self.batch_shape, len(ending)))

    def _columns(self, pairs: Potential, batch: Tensor, after: Tensor, state: Tensor) -> Tensor:
        """Scores of the transitions to `state [R]` at the boundary `after [R]`: `[R, D or 1, n]`."""
        if not pairs.lead:
            return pairs.block(None, state[:, None]).movedim(-1, -2)
        boundary = (after - 1).clamp(0, max(0, self.node_shape[0] - 2))

        def rows(x: Tensor) -> Tensor:
            """`[R, D or 1, n, d]` from a tensor `[*batch, T-1, D, n, d]` whose leading dimensions may be shared."""
            x = flattened(x[(None,) * (3 - x.dim())], 3, self.batch_shape)
            places = zip((batch, boundary), x.shape[:2], strict=True)
            return x[tuple(i if size > 1 else torch.zeros_like(i) for i, size in places)]

        own = pairs.map(rows)
        return own.block(None, state[:, None, None].expand(-1, own.lead[-1], 1))[..., 0]

    def used(self, configuration: Segments) -> tuple[Float[Tensor, "*sample_batch T D n"], ...]:
        starts, durations, states = configuration
        length, longest, size = self.part_shape
        used = torch.zeros(*starts.shape[:-1], length * longest * size, dtype=self.dtype, device=self.device)
        present = starts >= 0
        place = (starts * longest + durations - 1) * size + states
        used.scatter_add_(-1, torch.where(present, place, 0), present.to(self.dtype))
        return (used.unflatten(-1, (length, longest, size)),)

    def score_of(self, configuration: Segments) -> Float[Tensor, "*sample_batch"]:
        """The sum of the scores of the segments and of the transitions between them.

        >>> model = SemiMarkov(torch.ones(4, 4, 2), torch.zeros(2, 2))
        >>> sample = model.sample()
        >>> bool(model.score(sample) == (sample.durations > 0).sum())
        True
        """
        starts, durations, states = configuration
        longest, size = self.segment.shape[-2:]
        table = self.segment.expand(*starts.shape[:-1], *self.segment.shape[-3:]).flatten(-3)
        place = (starts * longest + durations - 1) * size + states
        own = torch.where(starts < 0, 0.0, table.gather(-1, place.clamp(min=0))).sum(-1)
        if self.node_shape[0] > 1:
            labels = configuration.labels().clamp(min=0)[..., None]
            pairs = self.transition.at(labels[..., :-1, :], labels[..., 1:, :])[..., 0]
            own = own + torch.where(configuration.begins()[..., 1:], pairs, 0.0).sum(-1)
        return own.masked_fill((starts < 0).all(-1), -math.inf)

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
        starts, durations, states = (x.expand(*shape, -1) for x in (starts, durations, states))
        check_in_range("segments.states", states, self.n_states)
        present = starts >= 0
        covered = durations.cumsum(-1)
        follows = (starts == covered - durations) & (durations > 0) & (durations <= self.segment.shape[-2])
        follows &= states >= 0
        whole = (covered[..., -1] == self.sequence_lengths().reshape(self.batch_shape)) | ~present.any(-1)
        in_order = ~(present[..., 1:] & ~present[..., :-1]).any(-1)
        if not (whole & in_order & torch.where(present, follows, durations == 0).all(-1)).all():
            raise ValueError(
                f"segments must follow one another from position 0 to the end of their sequence, each of 1 to "
                f"D = {self.segment.shape[-2]} positions: got some that do not"
            )
        return Segments(starts, durations, states)

    def to_global(self, configuration: Segments) -> Segments:
        if self.kept is None:
            return configuration
        starts, durations, states = configuration
        kept = self.states.expand(*states.shape, -1).flatten(-2)
        global_ids = kept.gather(-1, (starts * self.n_states + states).clamp(min=0))
        return Segments(starts, durations, torch.where(states < 0, -1, global_ids))
