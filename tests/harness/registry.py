"""All cases: whatever class stands in `CASES` is tested by everything in `tests/structure`.

Instances are named after their class and their kind, as in "pcfg-low rank".
"""

import math
from typing import Any

import torch

import tailsum as ts
from harness.case import Case
from harness.chains import ChainCase, HMMCase
from harness.dependencies import DependencyCase
from harness.graphs import FactorCase, PairCase
from harness.lattices import AlignmentCase, CTCCase, LatticeCase
from harness.rings import RingCase
from harness.segments import SegmentCase
from harness.trees import GrammarCase, SpanCase

CASES: list[type[Case]] = [
    ChainCase, HMMCase, SegmentCase, CTCCase, AlignmentCase, LatticeCase, SpanCase, GrammarCase, DependencyCase, PairCase,
    FactorCase, RingCase,
]  # fmt: skip
STRUCTURES = {kind.name: kind for kind in CASES}


def small(name: str, *, ragged: bool = False, **how: Any) -> Case:
    """An instance that can be enumerated; two sentences of three words unless said otherwise, the second shorter."""
    kind, _, which = name.partition("-")
    case = STRUCTURES[kind]
    lengths = {"lengths": [3, 2]} if ragged and case.has_lengths else {}
    return case(**{"batch": (2,), "length": 3, **lengths, **case.small[which], **how})


def large(name: str, **how: Any) -> Case:
    """An instance with more states, for estimates; one sentence unless said otherwise."""
    kind, _, which = name.partition("-")
    return STRUCTURES[kind](**{"batch": (), **STRUCTURES[kind].large[which], **how})


def sparse(name: str, forbidden: float, seed: int = 0, **how: Any) -> Case:
    """An instance as above in which much is forbidden that couples nodes, but not everything."""
    for other in range(100 * seed, 100 * seed + 100):
        case = large(name, seed=other, forbidden=forbidden, **how).couple_only()
        if (case.model().log_partition() > -math.inf).all():
            return case
    raise AssertionError(name)


SMALL = [f"{kind.name}-{which}" for kind in CASES for which in kind.small]
FEW = [f"{kind.name}-{which}" for kind in CASES for which in kind.few]
LARGE = [f"{kind.name}-{which}" for kind in CASES for which in kind.large]
EMBEDDED = [f"{kind.name}-{which}" for kind in CASES for which in kind.embedded]
STATEFUL = [name for name in SMALL if small(name).has_states]
STATELESS = [name for name in SMALL if name not in STATEFUL]
SEQUENCES = [name for name in SMALL if small(name).has_lengths]
ONE_EACH = [f"{kind.name}-{next(iter(kind.large))}" for kind in CASES if kind.large]
BOTH = [(name, way) for name in SMALL for way in ("whole", "restricted") if way == "whole" or name in STATEFUL]

PROPOSALS = {
    "lookahead": None,
    "static lookahead": ts.Lookahead(2, 1, sequential=False, neighbours=1),
    "uniform": ts.Uniform(),
    "local": ts.Local(),
}
WAYS = ("whole", *PROPOSALS, "some states", "restricted", "restricted, shared")


def made(case: Case, way: str, seed: int = 0, k: int | None = None) -> Any:
    """The whole model; a sketch that keeps all states, or not; or one with some states, some twice, of random weights.

    `k` says how many states are left of a restricted model; without it, that is random.
    """
    model = case.model()
    if way == "whole" or not case.has_states:
        return model
    if way.startswith("restricted"):
        return model.restrict(random_subset(case, model, seed, k, shared=way.endswith("shared")))
    k = max(1, model.n_states - 1) if way == "some states" else model.n_states
    sketch = model.sketch(k, proposal=PROPOSALS.get(way), generator=torch.Generator().manual_seed(seed))
    assert sketch.whole is model
    assert sketch.states.shape == (*case.batch, *model.node_shape, k)
    return sketch


def random_subset(case: Case, model: Any, seed: int, k: int | None = None, *, shared: bool = False) -> ts.Subset:
    """States drawn with repetition and random weights, some zero, for each sentence or the same for all of them."""
    g = torch.Generator().manual_seed(seed)
    k = int(torch.randint(1, model.n_states + 2, (), generator=g)) if k is None else k
    shape = (*(() if shared else case.batch), *model.node_shape, k)
    index = torch.randint(model.n_states, shape, generator=g)
    log_weight = torch.randn(shape, generator=g, dtype=torch.float64)
    return ts.Subset(index, log_weight.masked_fill(torch.rand(shape, generator=g) < 0.1, -math.inf))


def possible(
    name: str, way: str = "whole", *, ragged: bool = True, k: int | None = None, least: int = 1, **how: Any
) -> tuple[Case, Any]:
    """A case of which every sentence has `least` configurations, in spite of what is forbidden, and the model to test."""
    for seed in range(100):
        case = small(name, ragged=ragged, **{"seed": seed, **how})
        model = made(case, way, seed, k)
        if all(int((truth.scores > -math.inf).sum()) >= least for truth in case.truths(model)):
            return case, model
    raise AssertionError(name)
