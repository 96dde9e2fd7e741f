"""Sweeps over the spans of a grammar: inside messages from the bottom up, outside messages from the top down.

A rule joins three states, so a message comes from pairs of states: of two children (inside), or of a parent and a sibling
(outside), for every split. There are far too many pairs to use all of them. So each span has a few landmark states, and a
few of their pairs are selected, by their log mass and by the scores of the rules that join them with landmarks of the
receiving span (*guides*). Every selection is weighted, so the messages are unbiased.

Shapes: the batch is one dimension; spans are squares `[B, T, T, ..]` of first and last positions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from tailsum.numerics.stream import Parts, in_tiles
from tailsum.numerics.tiles import tile_size
from tailsum.scores.potential import Potential
from tailsum.sketch.selection import Landmarks, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached
from tailsum.trees.rules.exact_sweep import square_subset
from tailsum.trees.rules.span_rule import child_ids

HEAD, LEFT, RIGHT = range(3)  # the role in a rule of the state that a message goes to
_MARKS = 128  # states of a span that are paired with those of another, at most
_GUIDES = 16  # landmarks of the receiving span by which pairs are selected


@dataclass(frozen=True)
class Marks:
    """Some states of each span in rule ids, and their log mass."""

    index: Int[Tensor, "B *span m"]
    value: Float[Tensor, "B *span m"]

    def thinned(self, limit: int, generator: torch.Generator | None) -> "Marks":
        """At most `limit` of them, with their weights added to the log mass."""
        if self.index.shape[-1] <= limit:
            return self
        kept = Landmarks(limit)(self.value, generator)
        return Marks(self.index.gather(-1, kept.index), self.value.gather(-1, kept.index) + kept.log_weight)

    def at(self, first: Tensor, last: Tensor) -> "Marks":
        """The marks of the spans from `first` to `last`, index tensors of one shape."""
        return Marks(self.index[:, first, last], self.value[:, first, last])


class PairSweep(Sweep):
    """Messages between the spans of a grammar from pairs of landmark states: 8 selected pairs for each landmark."""

    landmarks = 64

    def __init__(
        self,
        between: Callable[[Tensor, Tensor, Tensor], Tensor],
        fan: Callable[[int, Tensor, Tensor, slice], Potential],
        sizes: tuple[int, int],
        spans: Float[Tensor, "B T T n"],
        length: Int[Tensor, " B"],
        batch: torch.Size,
    ) -> None:
        self.between, self.fan, self.spans, self.batch = between, fan, spans, batch
        self.n_heads, self.n_children = sizes
        position = torch.arange(spans.shape[1], device=spans.device)
        self.is_whole = (position[:, None] == 0) & (position == length[:, None, None] - 1)  # [B, T, T]
        self.outside: Tensor | None = None
        self.pairs = 1

    @classmethod
    def evaluations(cls, length: int, n_states: int) -> int:
        """About how many scores of rules a sweep over a sentence looks up: for guides, and in messages to all states."""
        return length**2 * cls.landmarks * (length * cls.landmarks * _GUIDES + 16 * n_states)

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        self.pairs = 8 * landmarks
        inside, kept = self._up(Landmarks(landmarks), generator)
        self.outside = self._down(inside, kept, generator)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T T n"]:
        assert self.outside is not None
        log_q = self._up(Landmarks(landmarks), generator)[0] + self.outside
        return log_q.reshape(*self.batch, *log_q.shape[1:])

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        self.pairs *= 4
        _, kept = self._up(selection, generator)
        shape = (*self.batch, *kept.index.shape[1:])
        return Subset(kept.index.reshape(shape), kept.log_weight.reshape(shape))

    # From the bottom up.

    def _up(self, selection: Selection, generator: torch.Generator | None) -> tuple[Tensor, Subset]:
        """Inside messages to all states of every span (its own scores included), and the states selected on the way."""
        length, n_heads = self.spans.shape[1], self.n_heads
        inside = torch.full_like(self.spans, -math.inf)
        kept, marks = list[Subset](), None
        for width in range(1, length + 1):
            first = torch.arange(length - width + 1, device=self.spans.device)
            last = first + width - 1
            scores = certain = self.spans[:, first, last]
            outside = None if self.outside is None else self.outside[:, first, last]
            if marks is not None:
                split = first[:, None] + torch.arange(width - 1, device=first.device)
                left = marks.at(first[:, None].expand_as(split), split)
                right = marks.at(split + 1, last[:, None].expand_as(split))
                guides = None if outside is None else self._guides(outside[..., :n_heads], 0, generator)
                sent, exact = self._send(HEAD, left, right, guides, slice(0, n_heads), generator)
                heads, others = scores[..., :n_heads], (0, scores.shape[-1] - n_heads)
                scores = pad(heads + fill_unreached(sent), others, value=-math.inf)
                # Only an exact message from the kept states may rule out states; one from selected pairs may be wrong.
                certain = pad(heads + sent, others, value=-math.inf) if exact else scores
            inside[:, first, last] = scores
            chosen = selection(certain if outside is None else certain + outside, generator)
            kept.append(chosen)
            if marks is None:
                shape = (*self.spans.shape[:3], chosen.index.shape[-1])
                marks = Marks(chosen.index.new_zeros(shape), inside.new_full(shape, -math.inf))
            index = chosen.index + self.n_heads if width == 1 else chosen.index
            marks.index[:, first, last] = index.clamp(max=self.n_children - 1)
            marks.value[:, first, last] = scores.gather(-1, chosen.index) + chosen.log_weight
        return inside, square_subset(kept, length, self.spans.shape[:1])

    @staticmethod
    def _guides(value: Tensor, start: int, generator: torch.Generator | None) -> Marks:
        """Landmarks among the states with the given log mass, whose rule ids begin at `start`."""
        ids = torch.arange(start, start + value.shape[-1], device=value.device).expand(value.shape)
        return Marks(ids, value).thinned(_GUIDES, generator)

    def _heads(self, parents: Marks, valid: Tensor) -> Marks:
        """Parents in the ids of heads, with log mass minus infinity where there is no parent."""
        value = parents.value.masked_fill(~valid[None, ..., None], -math.inf)
        return Marks(parents.index.clamp(max=self.n_heads - 1), value)

    def _send(
        self, role: int, one: Marks, other: Marks, guides: Marks | None, rest: slice, generator: torch.Generator | None
    ) -> tuple[Tensor, bool]:
        """Messages `[B, n, states]` from pairs of marks `[B, n, split, m]`; and whether all pairs were used."""
        whole = max(one.index.shape[-1], other.index.shape[-1]) <= _MARKS
        one, other = one.thinned(_MARKS, generator), other.thinned(_MARKS, generator)
        size = other.index.shape[-1]
        mass = (one.value[..., :, None] + other.value[..., None, :]).flatten(-3)  # [B, n, split m m]
        exact = whole and mass.shape[-1] <= self.pairs
        guided = mass if exact or guides is None else mass + self._joined(role, one.index, other.index, guides)
        picked = Landmarks(self.pairs)(guided, generator)
        value = mass.gather(-1, picked.index) + picked.log_weight
        first = one.index.flatten(-2).gather(-1, picked.index // size)
        place = picked.index // (size * one.index.shape[-1]) * size + picked.index % size
        second = other.index.flatten(-2).gather(-1, place)
        return self._fan(role, first, second, value, rest), exact

    def _joined(self, role: int, one: Tensor, other: Tensor, guides: Marks) -> Tensor:
        """The log sum over guides of their mass and the rules that join them with each pair: `[B, n, split m m]`."""
        triple = [one, other]
        triple.insert(role, guides.index[..., None, :].expand(*one.shape[:-1], -1))
        size = math.prod(one.shape[2:]) * other.shape[-1] * guides.index.shape[-1]

        def tile(start: int, stop: int) -> Parts:
            scores = self.between(*(x[:, start:stop] for x in triple))
            scores = scores.movedim(3 + role, 3)  # [B, n, split, guide, m, m]
            return Parts(((scores + guides.value[:, start:stop, None, :, None, None]).logsumexp(3).flatten(2),))

        chunk = max(1, 16 * tile_size(one.device) // max(1, len(one) * size))
        return in_tiles(tile, one.shape[1], chunk).rows[0]

    def _fan(self, role: int, first: Tensor, second: Tensor, value: Tensor, rest: slice) -> Tensor:
        """The message of the pairs to all states `rest` in the given role, a few spans at a time."""
        batch, count, pairs = value.shape

        def tile(start: int, stop: int) -> Parts:
            one, other = (x[:, start:stop].flatten(1) for x in (first, second))
            potential = self.fan(role, one, other, rest)  # [B, n m, states]
            return Parts((_by_span(potential, pairs).message(None, value[:, start:stop]),))

        chunk = max(1, 64 * tile_size(value.device) // max(1, batch * pairs * (rest.stop - rest.start)))
        return in_tiles(tile, count, chunk).rows[0]

    # From the top down.

    def _down(self, inside: Tensor, kept: Subset, generator: torch.Generator | None) -> Tensor:
        """Outside messages to all states of every span, without its own scores."""
        length = self.spans.shape[1]
        outside = torch.full_like(self.spans, -math.inf).masked_fill_(self.is_whole[..., None], 0.0)
        children = child_ids(kept.index, self.n_heads, self.n_children)
        below = Marks(children, inside.gather(-1, kept.index) + kept.log_weight)
        position = torch.arange(length, device=self.spans.device)
        for width in range(length - 1, 0, -1):
            first = position[: length - width + 1]
            last = first + width - 1
            above = Marks(kept.index, (outside + self.spans).gather(-1, kept.index) + kept.log_weight)
            rest = slice(self.n_heads, self.n_children) if width == 1 else slice(0, self.n_heads)
            states = slice(0, rest.stop - rest.start)
            guides = self._guides(inside[:, first, last, states], rest.start, generator)
            every = position.expand(len(first), -1)
            low, high = (x[:, None].expand_as(every) for x in (first, last))
            # As the left child of a span that ends later, and as the right child of one that starts earlier.
            parents, siblings = above.at(low, every), below.at((high + 1).clamp(max=length - 1), every)
            as_left, _ = self._send(LEFT, self._heads(parents, every > high), siblings, guides, rest, generator)
            parents, siblings = above.at(every, high), below.at(every, (low - 1).clamp(min=0))
            as_right, _ = self._send(RIGHT, self._heads(parents, every < low), siblings, guides, rest, generator)
            entry = outside[:, first, last]
            entry[..., states] = torch.logaddexp(entry[..., states], torch.logaddexp(as_left, as_right))
            outside[:, first, last] = entry
        allowed = self.spans > -math.inf
        return torch.where(allowed, fill_unreached(outside.masked_fill(~allowed, -math.inf)), 0.0)


def _by_span(potential: Potential, pairs: int) -> Potential:
    """A potential from the pairs of all spans, `[B, n m, states]`, as one for each span."""
    own = potential.in_rows()
    rows, whole = own.parts()
    of_span = Parts(tuple(x.unflatten(-2, (-1, pairs)) for x in rows), tuple(x.unsqueeze(-3) for x in whole))
    return own.with_tensors(own.of_parts(of_span))
