"""Pair scores that are no table and no factors, in structures other than chains: every operation and every derivative."""

import pytest

from harness.agree import agrees
from harness.pair_scores import STRUCTURED
from harness.registry import STRUCTURES, made
from structure.test_derivatives import gradients_agree, same_states

TREE = [(2, 0), (0, 1), (3, 2)]
KINDS = {
    "segments": ("segments", {"length": 4, "longest": 3, "n": 4, "lead": "shared"}),
    "segments, each boundary": ("segments", {"length": 3, "lengths": [3, 2], "longest": 2, "n": 4, "lead": "both"}),
    "segments, durations": ("segments", {"length": 3, "longest": 2, "n": 3, "lead": "time", "by_duration": True}),
    "tree": ("pairs", {"length": 4, "n": 4, "edges": TREE, "lead": "both"}),
    "tree, shared": ("pairs", {"length": 4, "n": 3, "edges": TREE, "lead": "shared"}),
    "loop": ("pairs", {"length": 3, "n": 4, "edges": [(0, 1), (1, 2), (2, 0)], "lead": "edge"}),
    "dependencies": ("dependencies", {"length": 3, "n": 2, "lead": "batch"}),
}


@pytest.mark.parametrize("pairs", STRUCTURED)
@pytest.mark.parametrize("kind", KINDS)
def test_every_operation(kind, pairs):
    name, how = KINDS[kind]
    for forbidden in (0.0, 0.3):
        case = STRUCTURES[name](**{"batch": (2,), **how, "pairs": pairs, "forbidden": forbidden})
        for way in ("whole", "lookahead", "restricted"):
            agrees(case, made(case, way))


@pytest.mark.parametrize("pairs", STRUCTURED)
@pytest.mark.parametrize("kind", KINDS)
def test_every_derivative(kind, pairs):
    name, how = KINDS[kind]
    case = STRUCTURES[name](**{"batch": (2,), **how, "pairs": pairs, "forbidden": 0.3})
    gradients_agree(case, same_states(case, made(case, "whole")))
