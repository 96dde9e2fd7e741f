"""What rules over all states share whose sums need every pair of children."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import Reduce
from tailsum.sketch.sweep import Sweep
from tailsum.trees.reader import Reader
from tailsum.trees.rules.grammar_reader import GrammarReader
from tailsum.trees.rules.pair_sweep import PairSweep
from tailsum.trees.rules.rule import WholeRule
from tailsum.trees.rules.span_rule import Sets, SpanRule, SpanTables, sets_of_width


class PairwiseRule(WholeRule):
    """Rules that are contracted with pairs of children, and looked up for the states that a sketch keeps."""

    def at_spans(self, index: Int[Tensor, "*lead T T k"]) -> SpanRule:
        widths = range(2, index.shape[-2] + 1)
        tables = [self.joint(sets_of_width(index, width, self.n_heads, self.n_children)) for width in widths]
        return SpanTables(tables, self.n_heads, self.n_children)

    def joint(self, sets: Sets) -> Float[Tensor, "*lead n split k k k"]:
        """The scores of all rules between the sets of states of some spans and of their children."""
        head, left, right = sets
        lead = torch.broadcast_shapes(self.lead, left.shape[:-3])
        shape = (*left.shape[-3:-1], *(left.shape[-1],) * 3)
        triples = (
            head[..., None, :, None, None],
            left[..., None, :, None],
            right[..., None, None, :],
        )
        return self.at(*(x.expand(*lead, *shape).flatten(-5) for x in triples)).unflatten(-1, shape)

    def reader(self, chart: list[Tensor], length: Tensor, choose: Choose, reduce: Reduce) -> Reader:
        return GrammarReader(chart, self, length, choose, reduce)

    def sweep(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], batch: torch.Size) -> Sweep:
        return PairSweep(self, spans, length, batch)
