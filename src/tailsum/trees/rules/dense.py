"""Rules as a table of scores."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.numerics.charts import by_width, square
from tailsum.numerics.check import check_tensor
from tailsum.numerics.entries import entries_at
from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.numerics.gradients import with_slope
from tailsum.numerics.kernels import fused
from tailsum.numerics.noise import Choose, Drawn, most_likely, seed_from
from tailsum.numerics.reduce import LogProduct, Reduce, highest, log_sum_exp
from tailsum.numerics.tensors import finite, take, without_common
from tailsum.numerics.tiles import fits_budget
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.sweep import Sweep
from tailsum.trees.reader import TreeReader, Walker
from tailsum.trees.rules.exact_sweep import ExactSweep, padded_to
from tailsum.trees.rules.whole_rule import Between, Heads, Kind, Lefts, Rights, WholeRule, splits_by_kind


class DenseRule(WholeRule):
    """A table of scores `[*lead, N, N+P, N+P]` (head, left, right)."""

    trailing = 3

    def __init__(self, scores: Float[Tensor, "*lead N C C"]) -> None:
        check_tensor("scores", scores)
        if scores.dim() < 3 or scores.shape[-2] != scores.shape[-1] or 0 in scores.shape[-3:]:
            raise ValueError(f"scores of rules must be [*lead, N, N+P, N+P]: got {list(scores.shape)}")
        self.scores, self.tensors = scores, (scores,)
        self.n_heads, self.n_children = scores.shape[-3:-1]
        self._products: dict[tuple[Kind, Reduce], LogProduct] = {}

    def map(self, change: Callable[[Tensor], Tensor]) -> "DenseRule":
        return DenseRule(change(self.scores))

    def tabled(self) -> "DenseRule":
        return self

    def as_table(self) -> "DenseRule":
        return self

    def centred(self) -> "DenseRule":
        return self.map(lambda x: without_common(x, 3))

    def block(self) -> Float[Tensor, "*lead N C C"]:
        """The whole table."""
        return self.scores

    def between(self, head: Heads, left: Lefts, right: Rights) -> Between:
        lead, size = self.scores.shape[:-3], self.n_children
        start = torch.arange(lead.numel(), device=head.device).view(*lead, 1, 1, 1, 1, 1) * self.n_heads
        heads = (start + head[..., :, None, None]) * size**2
        return entries_at(self.scores.flatten(), heads, left[..., None, :, None] * size, right[..., None, None, :])

    def fan(self, role: int, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        table = self.scores.movedim(role - 3, -1)[..., rest]
        rows = first * table.shape[-2] + second
        return Dense(take(table.flatten(-3, -2), rows))

    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        return self.scores[batch if len(self.scores) > 1 else torch.zeros_like(batch), head]

    def contract_pairs(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        return self._product(kind, reduce)(pairs)

    def _product(self, kind: Kind, reduce: Reduce) -> LogProduct:
        """The product that maps scores of pairs of children to those of heads."""
        if (kind, reduce) not in self._products:
            part = self.scores[..., self.children(kind[0]), self.children(kind[1])]
            self._products[kind, reduce] = LogProduct(part.flatten(-2).mT, reduce)
        return self._products[kind, reduce]

    def total(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], reduce: Reduce) -> Float[Tensor, " B"]:
        if reduce is not log_sum_exp:
            return super().total(spans, length, reduce)
        return grammar_sum(spans, self.scores, lengths=length)

    def reader(self, spans: Float[Tensor, "B T T n"], length: Tensor, choose: Choose, reduce: Reduce) -> TreeReader:
        """By kernels, whole trees at once."""
        if choose is most_likely:
            trees = best_parses(spans, self.scores, lengths=length)
            return Walker(trees[:, 0, 0] >= 0, lambda batch: trees[batch])
        if isinstance(choose, Drawn) and _some_pairs(spans) and fused(spans, self.scores):
            from tailsum.numerics.fused.parses import Samples  # noqa: PLC0415  (needs Triton)

            samples = Samples(spans, self.scores, length)
            if not samples.lost:
                return Walker(samples.possible, lambda batch: samples.drawn(batch, seed_from(choose.generator)))
        return super().reader(spans, length, choose, reduce)

    def log_sum_and_mean(
        self,
        spans: Float[Tensor, "B T T n"],
        values: tuple[Float[Tensor, "B T T n"], "DenseRule"],
        length: Int[Tensor, " B"],
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """The sum over all trees, and the mean of the sum of values of spans and of rules under them."""
        scores, of_rules = torch.broadcast_tensors(self.scores, values[1].scores)
        total, mean = grammar_means(spans, scores, values[0], of_rules, lengths=length)
        return total, mean

    def sweep(self, spans: Float[Tensor, "B T T n"], length: Int[Tensor, " B"], batch: torch.Size) -> Sweep:
        """By exact messages where the exponentials of the table fit the budget for tables."""
        if not fits_budget(self.scores.numel() * self.scores.element_size()):
            return super().sweep(spans, length, batch)
        return ExactSweep(self.chart, self.beliefs, spans, length, batch)

    @torch.no_grad()
    def beliefs(self, spans: Float[Tensor, "B T T n"], is_whole: Bool[Tensor, "B T T"]) -> tuple[Tensor, Tensor]:
        """Inside sums and log marginals, unnormalised, of the states of all spans: `[B, T, T, n]`."""
        scores = [self.of_width(width, entry) for width, entry in enumerate(by_width(spans), 1)]
        inside = self.chart(scores, log_sum_exp)
        outside = [
            torch.full_like(entry, -math.inf).masked_fill_(whole[..., None], 0.0)
            for entry, whole in zip(inside, by_width(is_whole), strict=True)
        ]
        for width in range(len(scores), 1, -1):
            self._pass_down(width, scores[width - 1] + outside[width - 1], inside, outside)
        inside, outside = (square([padded_to(x, spans.shape[-1]) for x in chart]) for chart in (inside, outside))
        return inside, inside + outside

    def _pass_down(
        self, width: int, heads: Float[Tensor, "B n N"], inside: list[Tensor], outside: list[Tensor]
    ) -> None:
        """Add the messages of spans of one width to the outside sums of their children, in place."""
        count = heads.shape[1]
        rows = heads if len(heads) == len(self.scores) else heads.flatten(0, 1)[None]
        for kind, sizes in splits_by_kind(width).items():
            before = torch.stack([inside[size - 1][:, :count] for size in sizes], -1)
            after = torch.stack([inside[width - size - 1][:, size : size + count] for size in sizes], -1)
            shape = (*heads.shape[:2], before.shape[-2], after.shape[-2])
            pairs = self._product(kind, log_sum_exp).back(rows).reshape(shape)
            lefts, rights = LogProduct(after)(pairs).unbind(-1), LogProduct(before)(pairs.mT).unbind(-1)
            for size, left, right in zip(sizes, lefts, rights, strict=True):
                for entry, sent in (
                    (outside[size - 1][:, :count], left),
                    (outside[width - size - 1][:, size : size + count], right),
                ):
                    entry.copy_(torch.logaddexp(entry, sent))


def _total(spans: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    return WholeRule.total(DenseRule(scores), spans, lengths, log_sum_exp)


def _means(spans: Tensor, scores: Tensor, span_values: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    along = finite(span_values), finite(values)
    return torch.stack(with_slope(lambda x: _total(x[0], x[1], lengths), (spans, scores), along))


def _best(spans: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    reader, longest = WholeRule.reader(DenseRule(scores), spans, lengths, most_likely, highest), spans.shape[1]
    tree, states = reader.read(lengths, longest, torch.arange(len(spans), device=spans.device))
    return torch.cat((tree, states[..., None]), -1).masked_fill(~reader.possible[:, None, None], -1)


def _some_pairs(spans: Tensor, *_: Tensor, **__: Tensor) -> bool:
    """Whether there is any sentence of two words."""
    return len(spans) > 0 and spans.shape[1] > 1


def _example(batch: int, length: int, heads: int, leaves: int, tables: int) -> Example:
    spans = torch.randn(batch, length, length, max(heads, leaves))
    rules = torch.randn(tables, heads, heads + leaves, heads + leaves)
    return Example((spans, rules), {"lengths": torch.randint(1, length + 1, (batch,))})


def _example_with_values(**sizes: int) -> Example:
    example, values = _example(**sizes), _example(**sizes)
    return Example((*example.inputs, *values.inputs), example.settings)


_SIZES = (
    {"batch": 2, "length": 4, "heads": 3, "leaves": 2, "tables": 2},
    {"batch": 2, "length": 3, "heads": 2, "leaves": 35, "tables": 1},
)
_LARGE = {"batch": 16, "length": 40, "heads": 30, "leaves": 60, "tables": 16}

# Log of the sum over all trees, beside its slope along values of spans and of rules: their mean. Infinite values count as zero.
grammar_means = Kernel("grammar_means", _means, _example_with_values, _SIZES, _LARGE, takes=_some_pairs)
# The best trees `[B, 2T-1, 3]`: first and last position and state of each span, -1 throughout where none is possible.
best_parses = Kernel("best_parses", _best, _example, _SIZES, _LARGE, takes=_some_pairs)
grammar_sum = Kernel("grammar", _total, _example, _SIZES, _LARGE, takes=_some_pairs, slope=grammar_means)
