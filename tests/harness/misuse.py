"""Bad arguments to methods that all structures have, and what the ValueError says.

Every entry is a use of a model of two sentences, and words: a pattern, or a function from the model to one.
"""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

import tailsum as ts


def fails(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def misused(model: Any, use: Any, words: Any) -> None:
    fails(lambda: use(model), words(model) if callable(words) else words)


def subset(model: Any, k: int = 2, state: float = 0, log_weight: float = 0.0, lead: tuple = (), lose: int = 0):
    """All nodes keep one state, k times; `lose` positions are missing."""
    shape = (*lead, *(size - lose for size in model.node_shape), k)
    return ts.Subset(torch.full(shape, state), torch.full(shape, log_weight))


def sizes(*given: Any) -> str:
    """A pattern of the given sizes as they stand in an error."""
    return re.escape(", ".join(map(str, given)))


WHOLE = "must be a whole number of at least"
EITHER = "either k, the number of states to keep, or a selection"
SHAPED = "subset must have an integer index and a log_weight of one shape, "


def wanted(model: Any) -> str:
    return rf"{SHAPED}\[{sizes(*model.batch_shape, *model.node_shape)}, 'K'\]"


OPERATIONS = [
    (lambda m: m.topk(0), f"k {WHOLE} 1: got 0"),
    (lambda m: m.topk(2.5), f"k {WHOLE} 1: got 2.5"),
    (lambda m: m.topk(True), f"k {WHOLE} 1: got True"),
    (lambda m: m.sample((-1,)), rf"sample_shape\[0\] {WHOLE} 0: got -1"),
    (lambda m: m.sample((3, 2.5)), rf"sample_shape\[1\] {WHOLE} 0: got 2.5"),
    (lambda m: m.sample(3), r"sample_shape must be a tuple of sizes, such as \(3,\): got 3"),
    (lambda m: m.sample(None), "sample_shape must be a tuple of sizes, .*: got None"),
    (lambda m: m.sample("ab"), "sample_shape must be a tuple of sizes, .*: got 'ab'"),
    (lambda m: m.rsample(sample_shape=3), "sample_shape must be a tuple of sizes, .*: got 3"),
    (lambda m: m.topk("a"), f"k {WHOLE} 1: got a"),
    (lambda m: m.topk(None), f"k {WHOLE} 1: got None"),
    (lambda m: m.score([0, 1, 2]), "must be .*: got list"),
    (lambda m: m.log_prob([0, 1, 2]), "must be .*: got list"),
    (lambda m: m.log_prob(None), "must be .*: got NoneType"),
    (lambda m: m.log_prob(3), "must be .*: got int"),
    (lambda m: m.log_prob(np.zeros((2, 3), dtype=int)), "must be .*: got ndarray"),
    (lambda m: m.sample_log_prob([0, 1, 2]), "must be .*: got list"),
    (lambda m: m.scatter([1.0]), "values must be a tensor: got list"),
    (lambda m: m.rsample(0.0), "temperature must be above 0: got 0.0"),
    (lambda m: m.rsample(-1.0), "temperature must be above 0: got -1.0"),
    (lambda m: m.rsample(math.nan), "temperature must be above 0: got nan"),
    (lambda m: m.rsample(sample_shape=(-1,)), rf"sample_shape\[0\] {WHOLE} 0: got -1"),
    (lambda m: m.kl(3), lambda m: f"other must be a {type(m).__name__}: got int"),
    (lambda m: m.cross_entropy(None), lambda m: f"other must be a {type(m).__name__}: got NoneType"),
]
# Chains have a check of their own.
RELAXED = [
    (lambda m: m.rsample((3,)), r"temperature must be a number \(the samples' shape is sample_shape\): got \(3,\)"),
    (lambda m: m.rsample(None), "temperature must be a number .*: got None"),
    (lambda m: m.rsample("a"), "temperature must be a number .*: got 'a'"),
]
LENGTHS = [
    ([2, None], r"lengths must be integers, in a tensor or lists of equal length: got \[2, None\]"),
    ([[1, 2], [3]], "lengths must be integers, in a tensor or lists of equal length: got"),
    ("ab", "lengths must be integers, in a tensor or lists of equal length: got str"),
    ({1: 2}, "lengths must be integers, in a tensor or lists of equal length: got dict"),
    ([1.5, 2.0], "lengths must be integers: got torch.float32"),
]
SKETCHES = [
    (lambda m: m.restrict(ts.Subset([0], torch.zeros(1))), "subset.index must be a tensor: got list"),
    (lambda m: m.restrict(ts.Subset(torch.zeros(1).long(), [0.0])), "subset.log_weight must be a tensor: got list"),
    (lambda m: m.sketch("a"), f"k {WHOLE} 1: got a"),
    (lambda m: m.sketch(), f"{EITHER}: got both or neither"),
    (lambda m: m.sketch(2, selection=ts.TopK(2)), EITHER),
    (lambda m: m.sketch(0), f"k {WHOLE} 1: got 0"),
    (lambda m: m.sketch(-1), f"k {WHOLE} 1: got -1"),
    (lambda m: m.sketch(2.5), f"k {WHOLE} 1: got 2.5"),
    (lambda m: m.sketch(True), f"k {WHOLE} 1: got True"),
    (lambda m: m.sketch(selection=3), "selection must be a selection: got 3"),
    (lambda m: m.sketch(2, proposal=3), "proposal must be a proposal or a function .*: got 3"),
    (lambda m: m.sketch(2, proposal=ts.Local), "proposal must be a proposal or a function"),
    (lambda m: m.sketch(2, proposal=lambda _: None), "proposal must give a tensor log_q: got NoneType"),
    (
        lambda m: m.sketch(2, proposal=lambda _: torch.zeros(3, 7)),
        lambda m: (
            rf"proposal must give .* log_q \[{sizes(*m.batch_shape, *m.node_shape, m.n_states)}\] .*: got .*\[3, 7\]"
        ),
    ),
    (lambda m: m.sketch(2, proposal=lambda m: m.node_scores() * math.nan), "proposal gave a log_q that is NaN"),
    (lambda m: m.restrict(subset(m, lose=1)), wanted),
    (
        lambda m: m.restrict(subset(m, lead=(3,))),
        lambda m: rf"{wanted(m)}: got torch.int64 \[3, {sizes(*m.node_shape)}, 2\]",
    ),
    (lambda m: m.restrict(subset(m, k=0)), lambda m: rf"{wanted(m)}: got torch.int64 \[{sizes(*m.node_shape)}, 0\]"),
    (lambda m: m.restrict(subset(m, state=0.0)), "subset must have an integer index .*: got torch.float32"),
    (
        lambda m: m.restrict(subset(m, state=m.n_states)),
        lambda m: f"subset.index must lie between 0 and N-1 = {m.n_states - 1}: got one outside",
    ),
    (
        lambda m: m.restrict(subset(m, state=-1)),
        lambda m: f"subset.index must lie between 0 and N-1 = {m.n_states - 1}: got one outside",
    ),
    (lambda m: m.restrict(subset(m, log_weight=math.nan)), r"subset.log_weight must not hold NaN or \+inf"),
    (lambda m: m.restrict(subset(m, log_weight=math.inf)), r"subset.log_weight must not hold NaN or \+inf"),
    (lambda m: m.restrict(subset(m, log_weight=0)), "subset.log_weight must be floating-point: got torch.int64"),
    (
        lambda m: m.restrict(ts.Subset(subset(m).index, subset(m, k=3).log_weight)),
        lambda m: rf"{wanted(m)}.* 2\] and \[{sizes(*m.node_shape)}, 3\]",
    ),
    (lambda m: m.restrict((subset(m).index, subset(m).log_weight)), "subset must be a Subset: got tuple"),
    (lambda m: m.restrict(None), "subset must be a Subset: got NoneType"),
]
ESTIMATES = [
    (
        lambda m: ts.estimate(m, "mean", k=2),
        "what must be a function of a sketch or one of 'log_partition', .*: got 'mean'",
    ),
    (lambda m: ts.estimate(m, 3, k=2), "what must be a function of a sketch or one of .*: got 3"),
    (
        lambda m: ts.estimate(m, lambda _: None, k=2),
        r"what must give a floating-point tensor \[16, 2, ...\]: got NoneType",
    ),
    (lambda m: ts.estimate(m, lambda _: torch.zeros(3), k=2), r"what must give .*: got torch.float32 \[3\]"),
    (lambda m: ts.estimate(m, "entropy"), f"{EITHER}: got both or neither"),
    (lambda m: ts.estimate(m, "entropy", k=2, selection=ts.TopK(2)), EITHER),
    (lambda m: ts.estimate(m, "entropy", k=0), f"k {WHOLE} 1: got 0"),
    (lambda m: ts.estimate(m, "entropy", selection=3), "selection must be a selection: got 3"),
    (lambda m: ts.estimate(m, "entropy", k=2, proposal=3), "proposal must be a proposal or a function .*: got 3"),
    (lambda m: ts.estimate(m, "entropy", k=2, replicates=0), f"replicates {WHOLE} 1: got 0"),
    (lambda m: ts.estimate(m, "entropy", k=2, replicates=2.5), f"replicates {WHOLE} 1: got 2.5"),
    (lambda m: ts.estimate(m, "entropy", k=2, confidence=95), "confidence must be a number between 0 and 1: got 95"),
    (lambda m: ts.estimate(m, "entropy", k=2, confidence=1.0), "confidence must be a number between 0 and 1: got 1.0"),
    (lambda m: ts.estimate(m.sketch(2), "entropy", k=2), "model must be a whole structure, not a sketch: got .* of "),
    (lambda m: ts.estimate(None, "entropy", k=2), "model must be a whole structure, not a sketch: got None"),
    (ts.check_sketch, "small must be a sketch: got "),
    (lambda m: ts.check_sketch(3), "small must be a sketch: got 3"),
]
WITHOUT_EMBEDDINGS = [
    (lambda m: m.sketch(2, proposal=ts.Global()), "the global proposal needs .*embedding"),
    (lambda m: m.sketch(2, proposal=ts.LocalGlobal()), "the global proposal needs .*embedding"),
]


def with_value(scores, value, place=-1):
    """The scores with one entry changed."""
    scores = scores.clone()
    scores.view(-1)[place] = value
    return scores


def broken_factors(n, size=2):
    return ts.Factored(with_value(torch.zeros(n, size), -math.inf), torch.zeros(n, size))
