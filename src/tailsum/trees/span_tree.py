"""Binary trees whose spans have independent scores: `score(tree) = sum of span[i, j, state] over its spans (i, j)`.

Positions are numbered `0 .. T-1`; span (i, j) has first position i and last position j, both included. `span` is ignored
below its diagonal. A tree has a state at each span, leaves (i, i) included. This is the hypertree of the paper's
experiments, and its Algorithm 2 (Randomized Inside, Eq. 18) is
`tree.sketch(proposal=Uniform(), selection=TopAndSample(K1, K2)).log_partition()`.

The states of a span and of its children are independent, so the sum over states is taken once for each span: exact
inference costs T^3 + T^2 N, and a sketch saves only memory. `PCFG` has rules that couple the states of parent and
children.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.check import check_in_range
from tailsum.numerics.kernels import fused
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.tensors import working_type
from tailsum.numerics.tiles import tile_size
from tailsum.scores.factored import Factored, embedding_norms
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.selection import Selection, Subset
from tailsum.sketch.sweep import Sweep
from tailsum.structure.check import check_nodes, checked_lengths, node_potential
from tailsum.trees.configuration import Trees
from tailsum.trees.span_chart import SpanReader, best_trees, drawn_trees, span_total
from tailsum.trees.tree_structure import TreeStructure

_ORDINARY = 1e4
FORM = "[*batch, T, T, N], T and N at least 1"


class SpanTerms(NamedTuple):
    """Scores of the states of spans `[*batch, T, T, N]`."""

    spans: Dense


class SpanTree(TreeStructure[SpanTerms]):
    """A distribution over binary trees with a state at each span: exact in T^3 + T^2 N, or sketched on K states a span.

    `span [*batch, T, T, N]` (first position, last position, state) holds scores; minus infinity forbids. Or it is
    `Factored(context [*batch, T, T, d], states [N, d])`: then a sketch computes the scores of the kept states alone.

    >>> tree = SpanTree(torch.zeros(4, 4, 1))
    >>> round(tree.log_partition().exp().item())  # the binary trees over four positions
    5
    """

    def __init__(
        self,
        span: Float[Tensor, "*#batch T T N"] | Factored,
        lengths: Int[Tensor, "*#batch"] | Sequence[int] | None = None,
    ) -> None:
        spans = node_potential("span", span, FORM)
        if len(spans.lead) < 2 or spans.lead[-1] != spans.lead[-2] or 0 in (*spans.lead[-2:], spans.n_to):
            raise ValueError(f"span must be {FORM}: got {[*spans.lead, spans.n_to]}")
        self.device = spans.tensors[0].device
        self.node_shape, self.n_states = spans.lead[-2:], spans.n_to
        self.batch_shape, self.lengths = checked_lengths(lengths, spans.lead[:-2], self.node_shape[0], self.device)
        self._spans = spans
        given = spans.map(torch.detach)
        try:
            check_nodes("span", given)
        except ValueError:  # what lies in the padding may be invalid
            check_nodes("span", given.blank_outside(self.spans_inside()))
        self.dtype = working_type(*spans.tensors)

    @property
    def spans(self) -> Potential:
        """Scores of the states of each span, as a potential from one state to N; zero in the padding and below the diagonal."""
        return self._spans.blank_outside(self.spans_inside()).to(self.dtype)

    def node_scores(self) -> Float[Tensor, "*batch T T n"]:
        return torch.where(self.spans_inside()[..., None], self.spans.block().squeeze(-2), 0.0)

    def terms(self) -> SpanTerms:
        """Without a copy if the padding and the entries below the diagonal are of ordinary size: they do no harm then."""
        spans = self._spans.tabled().scores
        if spans.shape[:-4] == self.batch_shape and _are_ordinary(spans):
            return SpanTerms(Dense(spans.squeeze(-2).to(self.dtype)))
        return SpanTerms(Dense(self.node_scores()))

    def gather(self, index: Int[Tensor, "*#batch T T k"]) -> "SpanTree":
        return self.replaced(_spans=self.spans.gather(None, index))

    def after_batch(self) -> dict[str, int]:
        return {"_spans": self._spans.after_batch + 1}  # first and last position

    def state_norms(self) -> Float[Tensor, "*#batch_node n"]:
        return embedding_norms(self.spans, None, "a Factored span")

    def total(self, terms: SpanTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        total = span_total(self.flat_spans(terms), self.sequence_lengths(), reduce).reshape(self.batch_shape)
        return total.masked_fill(total == -math.inf, -math.inf)  # no gradient where no tree is possible

    def log_sum_and_mean(
        self, own: SpanTerms, values: SpanTerms
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        return self.log_sum_and_mean_of_parts(own, values)

    def reader(self, terms: SpanTerms, reduce: Reduce, choose: Choose) -> SpanReader:
        return SpanReader(self.flat_spans(terms), self.sequence_lengths(), reduce, choose)

    @torch.no_grad()
    def best(self, terms: SpanTerms) -> Trees:
        spans, states = best_trees(self.flat_spans(terms), self.sequence_lengths())
        return Trees(*(x.reshape(*self.batch_shape, *x.shape[1:]) for x in (spans, states)))

    def drawn(self, terms: SpanTerms, sample_shape: Sequence[int], generator: torch.Generator | None) -> Trees:
        spans = self.flat_spans(terms)
        if not fused(spans):
            return super().drawn(terms, sample_shape, generator)
        draw = drawn_trees(spans, self.sequence_lengths(), generator)
        chunk = max(1, tile_size(self.device) // max(1, 2 * spans.shape[1] * spans.shape[0] * self.n_states))

        def trees(count: int) -> Trees:
            return Trees(*(x.reshape(count, *self.batch_shape, *x.shape[2:]) for x in draw(count)))

        return self.chunked(trees, math.prod(sample_shape), chunk, sample_shape)

    def sweep(self) -> "_SpanSweep":
        return _SpanSweep(self.weighted_nodes())

    def score_of(self, configuration: Trees) -> Float[Tensor, "*sample_batch"]:
        """The sum of the scores of the spans.

        >>> SpanTree(torch.ones(3, 3, 2)).score(SpanTree(torch.zeros(3, 3, 2)).sample())
        tensor(5.)
        """
        check_in_range("tree.states", configuration.states, self.n_states)
        return self.span_scores(configuration)


def _are_ordinary(scores: Tensor) -> bool:
    """Whether no score is so large that it would cost others digits."""
    return not scores.numel() or torch.linalg.vector_norm(scores.detach(), math.inf).item() < _ORDINARY


class _SpanSweep(Sweep):
    """The states of different spans are independent, so the beliefs about a span are its scores."""

    def __init__(self, scores: Float[Tensor, "*batch T T n"]) -> None:
        self.scores = scores

    def look(self, landmarks: int, generator: torch.Generator | None) -> None:
        """No messages are needed."""

    def log_q(self, landmarks: int, generator: torch.Generator | None) -> Float[Tensor, "*batch T T n"]:
        return self.scores

    def sequence(self, selection: Selection, generator: torch.Generator | None) -> Subset:
        return selection(self.scores, generator)
