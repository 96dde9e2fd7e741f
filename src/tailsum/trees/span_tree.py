"""Binary trees whose spans have independent scores: `score(tree) = sum of span[i, j, state] over its spans (i, j)`.

Positions are numbered `0 .. T-1`; span (i, j) has first position i and last position j, both included, so `span` is
`[*batch, T, T, N]` and what stands below its diagonal counts nowhere. A tree has a state at each span, leaves (i, i)
included. This is the hypertree of the paper's experiments, and its Algorithm 2 (Randomized Inside) is
`tree.sketch(proposal=Uniform(), selection=TopAndSample(K1, K2)).log_partition()`.

Nothing couples the states of a span with those of its children, so the sum over states is taken once for each span:
exact inference costs T^3 + T^2 N, and a sketch saves nothing here but what is gathered. Where rules couple the states
of parent and children, see `PCFG`.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.charts import by_width, fill_chart, of_length, square
from tailsum.numerics.check import check_floating, check_in_range, check_scores
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import Reduce, log_sum_exp
from tailsum.numerics.tensors import working_type
from tailsum.scores.potential import Dense
from tailsum.sketch.selection import Selection, Subset
from tailsum.sketch.sweep import Sweep
from tailsum.structure.base import Terms
from tailsum.structure.check import checked_lengths
from tailsum.trees.reader import Reader
from tailsum.trees.tree_structure import Trees, TreeStructure


class SpanTree(TreeStructure):
    """A distribution over binary trees with a state at each span: exact in T^3 + T^2 N, or sketched on K states a span.

    `span [*batch, T, T, N]` (first position, last position, state) holds scores; minus infinity forbids.

    >>> tree = SpanTree(torch.zeros(4, 4, 1))
    >>> round(tree.log_partition().exp().item())  # the binary trees over four positions
    5
    """

    def __init__(
        self,
        span: Float[Tensor, "*#batch T T N"],
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
    ) -> None:
        if not isinstance(span, Tensor) or span.dim() < 3 or span.shape[-3] != span.shape[-2] or 0 in span.shape[-3:]:
            got = list(span.shape) if isinstance(span, Tensor) else type(span).__name__
            raise ValueError(f"span must be [*batch, T, T, N], T and N at least 1: got {got}")
        self.device = span.device
        self.node_shape, self.n_states = span.shape[-3:-1], span.shape[-1]
        self.batch_shape, self.lengths = checked_lengths(lengths, span.shape[:-3], self.node_shape[0], self.device)
        check_floating("span", span)
        span = torch.where(self._spans()[..., None], span, 0.0)
        check_scores("span", span)
        self.dtype = working_type(span)
        self._span = span.to(self.dtype)

    # What the base asks for.

    def node_scores(self) -> Float[Tensor, "*batch T T n"]:
        return self._span.expand(*self.batch_shape, *self.node_shape, -1)

    def terms(self) -> tuple[Dense]:
        return (Dense(self.node_scores()),)

    def sweep(self) -> "_SpanSweep":
        return _SpanSweep(self.node_scores() if self.kept is None else self.node_scores() + self.log_weight)

    def log_sum(self, terms: Terms) -> Float[Tensor, "*batch"]:
        chart = self._chart(terms, log_sum_exp)
        total = of_length(chart, self._length()).reshape(self.batch_shape)
        return total.masked_fill(total == -math.inf, -math.inf)  # and no gradient: no tree is possible

    def _chart(self, terms: Terms, reduce: Reduce) -> list[Tensor]:
        """Sums (or maxima) over all trees of each span, its states summed out first: that is all it takes."""
        span = cast("Dense", terms[0]).scores
        nodes = by_width(reduce(span.reshape(self.batch_shape.numel(), *span.shape[-3:]), -1))

        def combine(width: int, left: list[Tensor], right: list[Tensor]) -> Tensor:
            return nodes[width - 1] + reduce(torch.stack([a + b for a, b in zip(left, right, strict=True)]), 0)

        return fill_chart(nodes[0], combine)

    def _reader(self, terms: Terms, reduce: Reduce, choose: Choose) -> "_SpanReader":
        span = cast("Dense", terms[0]).scores.reshape(self.batch_shape.numel(), *self.node_shape, self.n_states)
        return _SpanReader(span, square(self._chart(terms, reduce)), self._length(), choose)

    def score(self, configuration: Trees) -> Float[Tensor, "*sample_batch"]:
        """The score of given trees, in original states, kept or not: a sketch asks the whole model.

        >>> SpanTree(torch.ones(3, 3, 2)).score(SpanTree(torch.zeros(3, 3, 2)).sample())
        tensor(5.)
        """
        if self.kept is not None:
            return self.whole.score(configuration)
        spans, states = self._checked(configuration)
        check_in_range("tree.states", states, self.n_states)
        shape = states.shape[:-1]
        table = self._span.expand(*shape, *self._span.shape[-3:]).flatten(-3)
        place = (spans[..., 0] * self.node_shape[0] + spans[..., 1]) * self.n_states + states
        scores = torch.where(states < 0, 0.0, table.gather(-1, place.clamp(min=0))).sum(-1)
        return scores.masked_fill((states < 0).all(-1), -math.inf)

    def _gather(self, index: Int[Tensor, "*#batch T T k"]) -> None:
        lead = torch.broadcast_shapes(self._span.shape[:-1], index.shape[:-1])
        self._span = self._span.expand(*lead, -1).gather(-1, index.expand(*lead, -1))


class _SpanReader(Reader):
    def __init__(self, span: Tensor, inside: Tensor, length: Tensor, choose: Choose) -> None:
        self.span, self.inside, self.length, self.choose = span, inside, length, choose
        self.possible = inside[torch.arange(len(length), device=length.device), 0, length - 1] > -math.inf
        self.width = span.shape[1] + span.shape[-1]
        # From the position after a split: what lies to its right, by last position.
        self.after = F.pad(inside[:, 1:], (0, 0, 0, 1), value=-math.inf)

    def root(self, batch: Tensor) -> Tensor:
        return self.choose(self.span[batch, 0, self.length[batch] - 1])

    def expand(self, batch: Tensor, first: Tensor, last: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position = torch.arange(self.inside.shape[1], device=first.device)
        logits = self.inside[batch, first] + self.after[batch, :, last]
        split = self.choose(logits.masked_fill(position >= last[:, None], -math.inf))
        right = (split + 1).clamp(max=len(position) - 1)
        return split, self.choose(self.span[batch, first, split]), self.choose(self.span[batch, right, last])


class _SpanSweep(Sweep):
    """Nothing couples the states of neighbouring spans: a span's own scores say all there is to know."""

    def __init__(self, scores: Float[Tensor, "*batch T T n"]) -> None:
        self.scores = scores

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        """There is nothing to look for."""

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T T n"]:
        return self.scores

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        return selection(self.scores, generator)
