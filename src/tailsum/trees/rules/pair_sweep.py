"""Sweeps over the spans of a grammar: inside messages from the bottom up, outside messages from the top down.

A rule joins three states, so what a message comes from is a pair: of children (inside), or of a parent and a sibling
(outside), for every split. There are far too many pairs to send them all to all states. So a few landmark states stand
for each span, and of their pairs a few again are selected, by what they are worth and by how well rules join them with
the landmarks of the span that the message goes to. Every selection is weighted, so the messages are unbiased.

Shapes: the batch is one dimension; spans are squares `[B, T, T, ..]` of first and last positions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from tailsum.numerics.table import tile_size
from tailsum.scores.factored import Factored
from tailsum.scores.message import message
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.selection import Optimal, Selection, Subset
from tailsum.sketch.sweep import Sweep, fill_unreached
from tailsum.trees.rules.exact_sweep import square_subset

Role = Literal["head", "left", "right"]  # which of a rule's three states a message goes to
_MARKS = 128  # states of a span that are paired with those of another, at most
_GUIDES = 16  # landmarks of the span that a message goes to, which say what pairs are worth


@dataclass(frozen=True)
class Marks:
    """Some states of each span, as rules number children, and the logarithm of what each stands for."""

    index: Int[Tensor, "B *span m"]
    value: Float[Tensor, "B *span m"]

    def thinned(self, limit: int, generator: torch.Generator | None) -> "Marks":
        """No more than `limit` of them, weighted to stand for all."""
        if self.index.shape[-1] <= limit:
            return self
        kept = Optimal(limit)(self.value, generator)
        return Marks(self.index.gather(-1, kept.index), self.value.gather(-1, kept.index) + kept.log_weight)

    def at(self, first: Tensor, last: Tensor) -> "Marks":
        """Of the spans from `first` to `last`, index tensors of one shape."""
        return Marks(self.index[:, first, last], self.value[:, first, last])


class PairSweep(Sweep):
    """Messages between the spans of a grammar from pairs of landmark states; of these pairs, 8 times as many are selected."""

    landmarks = 64

    def __init__(
        self,
        between: Callable[[Tensor, Tensor, Tensor], Tensor],
        fan: Callable[[Role, Tensor, Tensor, slice], Potential],
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

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        self.pairs = 8 * landmarks
        inside, kept = self._up(Optimal(landmarks), generator)
        self.outside = self._down(inside, kept, generator)

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T T n"]:
        assert self.outside is not None
        inside, _ = self._up(Optimal(landmarks), generator)
        log_q = inside + self.outside
        return log_q.reshape(*self.batch, *log_q.shape[1:])

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        self.pairs *= 4
        _, kept = self._up(selection, generator)
        shape = (*self.batch, *kept.index.shape[1:])
        return Subset(kept.index.reshape(shape), kept.log_weight.reshape(shape))

    # From the bottom up.

    def _up(self, selection: Selection, generator: torch.Generator | None) -> tuple[Tensor, Subset]:
        """Inside messages to all states of every span (its own scores included), and the states selected on the way."""
        length = self.spans.shape[1]
        inside = torch.full_like(self.spans, -math.inf)
        guide = torch.zeros_like(self.spans) if self.outside is None else self.outside
        kept: list[Subset] = []
        for width in range(1, length + 1):
            first = torch.arange(length - width + 1, device=self.spans.device)
            last = first + width - 1
            own, towards = self.spans[:, first, last], guide[:, first, last]
            sure = own
            if width > 1:
                sent, exact = self._from_children(
                    first, last, inside, square_subset(kept, length, self.spans.shape[:1]), generator
                )
                sure = own[..., : self.n_heads] + sent
                sure = pad(sure, (0, own.shape[-1] - self.n_heads), value=-math.inf)
                # Given the kept states an exact message rules out states rightly; one from selected pairs may not.
                filled = own[..., : self.n_heads] + fill_unreached(sent)
                own = pad(filled, (0, own.shape[-1] - self.n_heads), value=-math.inf)
                sure = sure if exact else own
            inside[:, first, last] = own
            kept.append(selection(sure + towards, generator))
        return inside, square_subset(kept, length, self.spans.shape[:1])

    def _from_children(
        self, first: Tensor, last: Tensor, inside: Tensor, kept: Subset, generator: torch.Generator | None
    ) -> tuple[Tensor, bool]:
        more = torch.arange(int(last[0] - first[0]), device=first.device)
        first, last = first[:, None], last[:, None]
        marks = self._marks(inside, kept)
        left, right = marks.at(first, first + more), marks.at(first + more + 1, last.expand(-1, len(more)))
        heads = None
        if self.outside is not None:
            heads = self._guides(self.outside[:, first[:, 0], last[:, 0], : self.n_heads], generator)
        return self._send("head", left, right, heads, slice(0, self.n_heads), generator)

    def _marks(self, inside: Tensor, kept: Subset) -> Marks:
        """The kept states of each span with their inside score."""
        values = inside.gather(-1, kept.index) + kept.log_weight
        return Marks(self._numbered(kept.index), values)

    def _numbered(self, index: Tensor) -> Tensor:
        """States of spans as rules number children; what is out of range is worth nothing."""
        leaf = torch.eye(index.shape[1], dtype=torch.bool, device=index.device)[..., None]
        return torch.where(leaf, index + self.n_heads, index).clamp(max=self.n_children - 1)

    @staticmethod
    def _guides(value: Tensor, generator: torch.Generator | None) -> Marks:
        everything = torch.arange(value.shape[-1], device=value.device).expand(value.shape)
        return Marks(everything, value).thinned(_GUIDES, generator)

    def _heads(self, parents: Marks, valid: Tensor) -> Marks:
        """Parents as rules number heads, minus infinity where there is none."""
        value = parents.value.masked_fill(~valid[None, ..., None], -math.inf)
        return Marks(parents.index.clamp(max=self.n_heads - 1), value)

    def _send(
        self, role: Role, one: Marks, other: Marks, guides: Marks | None, rest: slice, generator: torch.Generator | None
    ) -> tuple[Tensor, bool]:
        """Messages `[B, n, states]` from pairs of marks `[B, n, way, m]`; and whether no pair was left out."""
        whole = max(one.index.shape[-1], other.index.shape[-1]) <= _MARKS
        one, other = one.thinned(_MARKS, generator), other.thinned(_MARKS, generator)
        size = other.index.shape[-1]
        worth = (one.value[..., :, None] + other.value[..., None, :]).flatten(-3)  # [B, n, way m m]
        guided = worth
        exact = whole and worth.shape[-1] <= self.pairs
        if not exact and guides is not None:
            guided = worth + self._joined(role, one.index, other.index, guides)
        picked = Optimal(self.pairs)(guided, generator)
        value = worth.gather(-1, picked.index) + picked.log_weight
        first = one.index.flatten(-2).gather(-1, picked.index // size)
        place = picked.index // (size * one.index.shape[-1]) * size + picked.index % size
        second = other.index.flatten(-2).gather(-1, place)
        return self._fan(role, first, second, value, rest), exact

    def _joined(self, role: Role, one: Tensor, other: Tensor, guides: Marks) -> Tensor:
        """How well rules join pairs of states with the guides: `[B, n, way m m]`."""
        given = [one, other]
        place = {"head": 0, "left": 1, "right": 2}[role]
        given.insert(place, guides.index[..., None, :].expand(*one.shape[:-1], -1))
        size = math.prod(one.shape[2:]) * other.shape[-1] * guides.index.shape[-1]
        chunk = max(1, 16 * tile_size(one.device) // max(1, len(one) * size))
        found = []
        for start in range(0, one.shape[1], chunk):
            stop = start + chunk
            scores = self.between(*(x[:, start:stop] for x in given)).movedim(3 + place, 3)  # [B, n, way, guide, m, m]
            worth = scores + guides.value[:, start:stop, None, :, None, None]
            found.append(worth.logsumexp(3).flatten(2))
        return torch.cat(found, 1)

    def _fan(self, role: Role, first: Tensor, second: Tensor, value: Tensor, rest: slice) -> Tensor:
        """The message of the pairs to all states `rest` in the given role, a few spans at a time."""
        batch, count, pairs = value.shape
        chunk = max(1, 64 * tile_size(value.device) // max(1, batch * pairs * (rest.stop - rest.start)))
        found = []
        for start in range(0, count, chunk):
            part = slice(start, start + chunk)
            flat = [x[:, part].flatten(1) for x in (first, second)]
            potential = self.fan(role, flat[0], flat[1], rest)  # [B, n m, states]
            found.append(message(_by_span(potential, pairs), None, value[:, part]))
        return torch.cat(found, 1)

    # From the top down.

    def _down(self, inside: Tensor, kept: Subset, generator: torch.Generator | None) -> Tensor:
        """Outside messages to all states of every span, its own scores not included."""
        length = self.spans.shape[1]
        outside = (
            torch.where(self.is_whole[..., None], 0.0, -math.inf).to(self.spans.dtype).expand_as(self.spans).clone()
        )
        below = self._marks(inside, kept)
        position = torch.arange(length, device=self.spans.device)
        for width in range(length - 1, 0, -1):
            first = torch.arange(length - width + 1, device=self.spans.device)[:, None]
            last = first + width - 1
            above = Marks(kept.index, (outside + self.spans).gather(-1, kept.index) + kept.log_weight)
            rest = slice(self.n_heads, self.n_children) if width == 1 else slice(0, self.n_heads)
            states = slice(0, self.n_children - self.n_heads) if width == 1 else rest
            guides = self._guides(inside[:, first[:, 0], last[:, 0], states], generator)
            guides = Marks(guides.index + rest.start, guides.value)
            # As left child of a span that ends later, and as right child of one that starts earlier.
            every = position.expand(len(first), -1)
            as_left = (
                above.at(first.expand_as(every), every),
                below.at((last + 1).clamp(max=length - 1).expand_as(every), every),
            )
            as_right = (
                above.at(every, last.expand_as(every)),
                below.at(every, (first - 1).clamp(min=0).expand_as(every)),
            )
            found = (
                self._send("left", self._heads(as_left[0], every > last), as_left[1], guides, rest, generator)[0],
                self._send("right", self._heads(as_right[0], every < first), as_right[1], guides, rest, generator)[0],
            )
            sent = torch.logaddexp(*found)
            own = outside[:, first[:, 0], last[:, 0]]
            own[..., states] = torch.logaddexp(own[..., states], sent)
            outside[:, first[:, 0], last[:, 0]] = own
        allowed = self.spans > -math.inf
        flat = fill_unreached(outside.masked_fill(~allowed, -math.inf))
        return torch.where(allowed, flat, 0.0)


def _by_span(potential: Potential, pairs: int) -> Potential:
    """A potential from the pairs of all spans, `[B, n m, states]`, as one for each span."""
    if isinstance(potential, Factored):
        return Factored(potential.left.unflatten(-2, (-1, pairs)), potential.right.unsqueeze(-3))
    return Dense(potential.block().unflatten(-2, (-1, pairs)))
