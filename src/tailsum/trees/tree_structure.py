"""The base of all distributions over binary trees with a state at each span. Nodes are spans `[T, T]`."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.numerics.noise import Choose, drawn_by, most_likely
from tailsum.numerics.reduce import Reduce, highest, log_sum_exp
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import tile_rows
from tailsum.structure.base import Structure
from tailsum.structure.terms import Terms, with_tables
from tailsum.structure.transforms import outside_transforms
from tailsum.trees.configuration import Trees, check_tree, tree_parts
from tailsum.trees.reader import TreeReader
from tailsum.trees.span_chart import best_trees


class TreeStructure(Structure[Terms, Trees]):
    """Binary trees; the first term scores the states of spans, `[*batch, T, T, N]`."""

    @for_authors
    @abstractmethod
    def reader(self, terms: Terms, reduce: Reduce, choose: Choose) -> TreeReader:
        """A reader of trees under the given scores, by sums or maxima; `choose(logits [R, n])` makes each choice."""

    def spans_inside(self) -> Bool[Tensor, "*batch T T"]:
        """Which spans lie within their sentence."""
        upper = torch.ones(self.node_shape, dtype=torch.bool, device=self.device).triu()
        return upper & self.inside()[..., None, :]

    def flat_spans(self, terms: Terms) -> Float[Tensor, "B T T n"]:
        """The scores of the states of spans, the batch flattened."""
        spans = terms[0].tensors[0]
        return spans.reshape(self.batch_shape.numel(), *spans.shape[-3:])

    def add_to_states(self, terms: Terms, extra: Float[Tensor, "*batch T T n"]) -> Terms:
        return with_tables(terms, [terms[0].tensors[0] + torch.where(self.spans_inside()[..., None], extra, 0.0)])

    def centred(self, terms: Terms) -> Terms:
        """Subtracts the highest score of each leaf, and of all other spans: every tree has the same number of both."""
        span = terms[0].tensors[0]
        top = span.detach().amax(-1, keepdim=True)
        leaf = torch.eye(self.node_shape[0], dtype=torch.bool, device=self.device)[..., None]
        inner = top.masked_fill(leaf | ~self.spans_inside()[..., None], -math.inf).amax((-3, -2), keepdim=True)
        return with_tables(terms, [span - finite(torch.where(leaf, top, inner))])

    @torch.no_grad()
    def best(self, terms: Terms) -> Trees:
        tree = self._read(self.reader(terms, highest, most_likely), 1)
        return Trees(tree.spans[0], tree.states[0])

    def drawn(self, terms: Terms, sample_shape: Sequence[int], generator: torch.Generator | None) -> Trees:
        reader = self.reader(terms, log_sum_exp, drawn_by(generator))
        chunk = max(1, tile_rows(reader.width, self.device) // max(1, self.batch_shape.numel()))
        return self.chunked(lambda count: self._read(reader, count), math.prod(sample_shape), chunk, sample_shape)

    @outside_transforms
    @torch.no_grad()
    def mbr(self, labelled: bool = True) -> Trees:
        """The tree that has the most spans in common with a tree of the model, in expectation (minimum Bayes risk).

        A span counts with its state or, unless `labelled`, whatever its state; each then gets its most probable state. In
        global ids; -1 throughout where no tree is possible. It may score minus infinity: its spans are probable one by
        one, not necessarily together.

        >>> from tailsum import SpanTree
        >>> tree = SpanTree(torch.randn(5, 5, 3))
        >>> tree.mbr().spans.shape
        torch.Size([9, 2])
        """
        counts = self.scatter(self.marginals()).reshape(self.batch_shape.numel(), *self.node_shape, -1)
        length = self.sequence_lengths()
        spans, states = best_trees(counts if labelled else counts.sum(-1, keepdim=True), length)
        possible = counts[torch.arange(len(length), device=self.device), 0, length - 1].sum(-1) > 0
        spans = torch.where(possible[:, None, None], spans, -1).reshape(*self.batch_shape, *spans.shape[1:])
        states = torch.where(possible[:, None], states, -1).reshape(*self.batch_shape, *states.shape[1:])
        if not labelled:
            place = (spans[..., 0] * self.node_shape[0] + spans[..., 1]).clamp(min=0)
            likeliest = counts.argmax(-1).reshape(*self.batch_shape, -1).gather(-1, place)
            states = torch.where(states < 0, -1, likeliest)
        return Trees(spans, states)

    def _read(self, reader: TreeReader, count: int) -> Trees:
        """`count` trees `[count, *batch, ..]` in local ids."""
        length = self.sequence_lengths()
        batch = torch.arange(len(length), device=self.device).repeat(count)
        spans, states = reader.read(length[batch], self.node_shape[0], batch)
        possible, shape = reader.possible[batch], (count, *self.batch_shape)
        return Trees(
            torch.where(possible[:, None, None], spans, -1).reshape(*shape, *spans.shape[1:]),
            torch.where(possible[:, None], states, -1).reshape(*shape, *states.shape[1:]),
        )

    def used(self, configuration: Trees) -> tuple[Float[Tensor, "*sample_batch T T n"], ...]:
        return (tree_parts(configuration, self.node_shape[0], self.n_states, self.dtype),)

    def node_states(self, configuration: Trees) -> Int[Tensor, "*sample_batch T T"]:
        spans, states = configuration
        length = self.node_shape[0]
        place = torch.where(states < 0, length * length, spans[..., 0] * length + spans[..., 1])
        table = torch.full((*states.shape[:-1], length * length + 1), -1, device=self.device)
        return table.scatter(-1, place, states)[..., :-1].unflatten(-1, self.node_shape)

    def exclusions(self, demanded: Sequence[Bool[Tensor, "..."]]) -> list[Bool[Tensor, "..."]]:
        """The other states of demanded spans, and all spans that cross one: a tree without these has the span."""
        (states,) = demanded
        spans = states.any(-1).long()
        upper = torch.ones(spans.shape[-2:], dtype=torch.bool, device=spans.device).triu()
        # [.., i, b]: the spans from i that end after b, i <= b. [.., a, j]: those that end at j and start before a, a <= j.
        beyond = (spans.sum(-1, keepdim=True) - spans.cumsum(-1)) * upper
        before = (spans.cumsum(-2) - spans) * upper
        crossed = beyond.sum(-2, keepdim=True) - beyond.cumsum(-2) + before.cumsum(-1) - before
        return [((crossed > 0) | (spans > 0))[..., None] & ~states]

    def to_global(self, configuration: Trees) -> Trees:
        if self.kept is None:
            return configuration
        spans, states = configuration
        return Trees(spans, torch.where(states < 0, -1, self._at(configuration, self.states)))

    def check_configuration(self, configuration: Trees) -> Trees:
        return check_tree(configuration, self.sequence_lengths().reshape(self.batch_shape), self.node_shape[0])

    def span_scores(self, tree: Trees) -> Float[Tensor, "*sample_batch"]:
        """The sum of the scores of the states of each tree's spans; minus infinity for an empty tree."""
        total = torch.where(tree.states < 0, 0.0, self._at(tree, self.node_scores())).sum(-1)
        return total.masked_fill((tree.states < 0).all(-1), -math.inf)

    def _at(self, tree: Trees, table: Num[Tensor, "*batch T T n"]) -> Tensor:
        """The entries of a table for each span of a tree and its state, `[.., node]`."""
        spans, states = tree
        place = (spans[..., 0] * self.node_shape[0] + spans[..., 1]) * self.n_states + states
        return table.expand(*states.shape[:-1], *table.shape[-3:]).flatten(-3).gather(-1, place.clamp(min=0))
