"""Sums over the trees of a grammar, and their slopes along a direction: the means of values over the trees.

The slope of log Z along values of spans and of rules is the mean of their sum under the grammar. The chart has two parts, sums
and their slopes (`grammar.py`), forward and backward: gradients cost a small multiple of those of log Z.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from tailsum.numerics.fused.grammar import Grammar
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.tensors import finite


def forward(
    spans: Tensor, rules: Tensor, span_values: Tensor, rule_values: Tensor, *, lengths: Tensor
) -> tuple[Tensor, Kept] | None:
    """The log sums over all trees, and the means of the sums of values under them: `[2, B]`. Infinite values count as zero."""
    grammar = Grammar.summed(spans, rules, (finite(span_values), finite(rule_values)))
    if grammar.is_lost(spans, rules):
        return None
    return grammar.chart.log_sums(lengths), (*grammar.kept(), span_values, rule_values)


def backward(kept: Kept, grad: Tensor, wanted: Sequence[bool], *, lengths: Tensor) -> Sequence[Tensor | None]:
    """The gradients in the scores of spans and of rules, and in their values."""
    *found, span_values, rule_values = kept
    spans, rules = Grammar.again(tuple(found)).gradients(lengths, grad, wanted[1] or wanted[3])
    of_spans = spans[1], spans[0].masked_fill(span_values == -math.inf, 0.0)
    of_rules = (None, None) if rules is None else (rules[1], rules[0].masked_fill(rule_values == -math.inf, 0.0))
    return of_spans[0], of_rules[0], of_spans[1], of_rules[1]
