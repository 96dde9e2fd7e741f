"""Small random forests and loopy graphs, each with its truth by enumeration: the cases of `cases.py` for graphs.

A configuration is the tuple of the states of all variables.
"""

import itertools
import math
from abc import abstractmethod
from random import Random
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import tailsum as ts
from harness.cases import PAIRS, Case, Row, Weighted, made, pair_leaves, pair_potential, pair_table
from harness.truth import Truth

EXACT = {"tolerance": 1e-13, "iterations": 500}
Factor = tuple[tuple[int, ...], Tensor]  # its variables and its scores


class GraphTruth(Truth):
    """All states of all variables, with scores `unary [V, N]` and those of the factors, `[n_1, .., n_r]`.

    A factor forbids the states that it does not know.
    """

    def __init__(self, unary: Tensor, factors: list[Factor]):
        self.v, self.n = unary.shape
        scores = torch.zeros([self.n] * self.v).double()
        for variables, table in [*(((i,), row) for i, row in enumerate(unary)), *factors]:
            missing = [x for size in reversed(table.shape) for x in (0, self.n - size)]
            known = F.pad(table, missing, value=-math.inf)
            known = known.permute(sorted(range(len(variables)), key=lambda axis: variables[axis]))
            scores = scores + known.reshape([self.n if i in variables else 1 for i in range(self.v)])
        configurations = list(itertools.product(range(self.n), repeat=self.v))
        self.states = torch.tensor(configurations)
        super().__init__(configurations, scores.flatten(), F.one_hot(self.states, self.n).double())

    def weighted(self, weight: Tensor) -> Weighted:
        """With weights `[V, N]` of the states of each variable."""
        return Weighted(self, weight[torch.arange(self.v), self.states].sum(-1))

    def joint(self, probability: Tensor, variables: tuple[int, ...]) -> Tensor:
        """The probability of all joint states of some variables."""
        table = probability.reshape([self.n] * self.v)
        others = [i for i in range(self.v) if i not in variables]
        table = table.sum(others) if others else table
        left = sorted(variables)
        return table.permute([left.index(i) for i in variables])


def spread(values: Tensor, states: list[Tensor], n: int) -> Tensor:
    """Values `[k_1, .., k_r]` of some states of r variables, over all n states of each."""
    known = [s[:size] for s, size in zip(states, values.shape, strict=True)]
    place = torch.meshgrid(*known, indexing="ij")
    return torch.zeros([n] * len(states)).double().index_put(place, values.double(), accumulate=True)


class AnyGraphCase(Case):
    """What graphs of pairs and of larger factors share. `how` says how messages are passed.

    `unary` is "dense", "factored" or "ragged", and `sizes` says how many states each variable has. `own` has the batch
    dimensions of the unary scores and of the others: together they are the batch.
    """

    def draw_unary(self, n: int, unary: str, sizes: list[int] | None, lead: tuple[int, ...]) -> None:
        self.n, self.unary = n, unary
        self.sizes = [n] * self.length if sizes is None else sizes
        if unary == "ragged":
            for size in self.sizes:
                self.leaf(*lead, size)
        elif unary == "factored":
            self.leaf(*lead, self.length, 2, finite=True)
            self.leaf(n, 2, finite=True)
        else:
            self.leaf(*lead, self.length, n)
        self.n_unary = len(self.leaves)

    def unary_scores(self, leaves: list[Tensor]) -> Any:
        """As the library takes them."""
        if self.unary == "ragged":
            return list(leaves)
        return ts.Factored(*leaves) if self.unary == "factored" else leaves[0]

    def unary_table(self, leaves: list[Tensor]) -> Tensor:
        """Written out, `[*#batch, V, N]`."""
        if self.unary == "ragged":
            rows = [F.pad(x, (0, self.n - x.shape[-1]), value=-math.inf) for x in leaves]
            return torch.stack(rows, -2)
        return leaves[0] @ leaves[1].mT if self.unary == "factored" else leaves[0]

    @abstractmethod
    def factor_tables(self, leaves: list[Tensor]) -> list[Factor]:
        """The variables of each factor and its scores, `[*#batch, n_1, .., n_r]`."""

    @abstractmethod
    def factor_beliefs(self, model: Any) -> list[Factor]:
        """What the library believes of the joint states of factors, `[B, k_1, .., k_r]`."""

    def truth(self, b: int, leaves: list[Tensor]) -> GraphTruth:
        unary = self.of_batch(self.unary_table(leaves[: self.n_unary]), self.length, self.n)[b]
        tables = self.factor_tables(leaves[self.n_unary :])
        factors = [(variables, self.of_batch(x, *x.shape[x.dim() - len(variables) :])[b]) for variables, x in tables]
        return GraphTruth(unary, factors)

    def truths(self, model: Any = None, *leaves: Tensor) -> list[Weighted]:
        """Of the whole model or of a restricted one; from other leaves, if given, with gradients in them."""
        truths = [self.truth(b, self.marked(*leaves)) for b in range(self.size)]
        weight = torch.zeros(self.size, self.length, self.n).double()
        if model is not None and model.kept is not None:
            each = model.log_weight.double().exp()
            empty = torch.zeros(*each.shape[:-1], self.n).double()
            weight = self.flat(empty.scatter_add(-1, model.states, each).log())
        return [truth.weighted(w) for truth, w in zip(truths, weight, strict=True)]

    def joints(self, model: Any, truths: list[Weighted]) -> list[tuple[Tensor, Tensor]]:
        """The probabilities of the joint states of each factor, of each of the batch: found and true."""
        found, states = self.factor_beliefs(model), self.flat(model.states)
        return [
            (spread(x[b], [states[b, i] for i in variables], self.n), truth.truth.joint(truth.probability, variables))
            for b, truth in enumerate(truths)
            for variables, x in found
        ]

    # Configurations.

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [list(enumerate(c)) for c in truth.configurations]

    def row(self, configuration: tuple) -> Row:
        return list(configuration)

    def configuration(self, row: Row) -> tuple:
        return tuple(row)

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        return {"states": (self.length,)}

    def rows(self, configurations: Tensor) -> Tensor:
        assert configurations.dtype == torch.long
        assert configurations.shape[-1 - len(self.batch) :] == (*self.batch, self.length)
        return configurations.reshape(-1, self.size, self.length)

    def written(self, rows: list[list[Row]]) -> Tensor:
        return torch.tensor(rows).reshape(len(rows), *self.batch, self.length)

    def block(self, b: int) -> None:
        """Only where the unary scores are dense, and each of the batch has its own."""
        self.banned[0].view(self.size, self.length, self.n)[b, 0] = True


class PairCase(AnyGraphCase):
    """A `PairwiseGraph`. Pair scores are shared, of each "edge", of each "batch" or of "both"; or a list of "tables"."""

    def draw(
        self, n: int, edges: list[tuple[int, int]], own: tuple = ((), ()), unary: str = "dense",
        sizes: list[int] | None = None, pairs: str = "dense", lead: str = "shared", how: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.edges, self.pairs, self.how = edges, pairs, how or {}
        self.draw_unary(n, unary, sizes, own[0])
        if pairs == "tables":
            for u, v in edges:
                self.leaf(*own[1], self.sizes[u], self.sizes[v])
            return
        leads = {"shared": (), "edge": (len(edges),), "batch": (*own[1], 1), "both": (*own[1], len(edges))}
        pair_leaves(self, pairs, leads[lead], n, torch.tensor(True))

    def build(self, *leaves: Tensor) -> ts.PairwiseGraph:
        unary, pairs = list(leaves[: self.n_unary]), list(leaves[self.n_unary :])
        scores = pairs if self.pairs == "tables" else pair_potential(self.pairs, self.n, self.forbidden > 0, pairs)
        return ts.PairwiseGraph(self.unary_scores(unary), self.edges, scores, **self.how)

    def factor_tables(self, leaves: list[Tensor]) -> list[Factor]:
        if self.pairs == "tables":
            return list(zip(self.edges, leaves, strict=True))
        table = pair_table(self.pairs, self.n, self.forbidden > 0, leaves)
        table = table[None] if table.dim() == 2 else table
        count = len(self.edges)
        each = table.expand(*table.shape[:-3], count, -1, -1)
        return [(tuple(edge), each[..., e, :, :]) for e, edge in enumerate(self.edges)]

    def factor_beliefs(self, model: Any) -> list[Factor]:
        found = model.pair_marginals()
        assert found.shape == (*self.batch, len(self.edges), model.n_states, model.n_states)
        found = self.flat(found)
        return [(tuple(edge), found[:, e]) for e, edge in enumerate(self.edges)]


class FactorCase(AnyGraphCase):
    """A `FactorGraph` with groups `(factors, sizes, lead)`: the variables of each factor, how many states it knows at
    each position, and whether its scores are "single" (one factor alone), shared, of each "factor", "batch" or "both".
    """

    def draw(
        self, n: int, groups: list[tuple], own: tuple = ((), ()), unary: str = "dense",
        sizes: list[int] | None = None, how: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.groups, self.how = groups, how or {}
        self.draw_unary(n, unary, sizes, own[0])
        for factors, known, lead in groups:
            count = len(factors)
            leads = {
                "single": own[1], "shared": (), "factor": (count,), "batch": (*own[1], 1), "both": (*own[1], count),
            }  # fmt: skip
            self.leaf(*leads[lead], *known)

    def build(self, *leaves: Tensor) -> ts.FactorGraph:
        unary, tables = list(leaves[: self.n_unary]), leaves[self.n_unary :]
        factors = [
            (factors[0] if lead == "single" else torch.tensor(factors), table)
            for (factors, _, lead), table in zip(self.groups, tables, strict=True)
        ]
        return ts.FactorGraph(self.unary_scores(unary), factors, **self.how)

    def factor_tables(self, leaves: list[Tensor]) -> list[Factor]:
        found: list[Factor] = []
        for (factors, known, lead), table in zip(self.groups, leaves, strict=True):
            arity = len(known)
            each = table[None] if lead == "shared" else table.unsqueeze(-arity - 1) if lead == "single" else table
            each = each.expand(*each.shape[: -arity - 1], len(factors), *known)
            found += zip(factors, each.unbind(-arity - 1), strict=True)
        return found

    def factor_beliefs(self, model: Any) -> list[Factor]:
        found: list[Factor] = []
        groups = [(factors, known) for factors, known, _ in self.groups if len(known) > 1]
        for (factors, known), belief in zip(groups, model.factor_marginals(), strict=True):
            sizes = known if model.kept is None else [model.n_states] * len(known)
            assert belief.shape == (*self.batch, len(factors), *sizes)
            found += zip(factors, self.flat(belief).unbind(1), strict=True)
        return found


# Random instances.

OWN = [
    ((), ()), ((2,), (2,)), ((2,), ()), ((), (2,)), ((2, 1), (2, 1)), ((2, 1), ()), ((), (2, 1)), ((1,), (2, 1)),
    ((2, 1), (1, 1)), ((2, 1), (2,)),
]  # fmt: skip


def together(own: tuple) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*own))


def forest(r: Random, v: int) -> list[tuple[int, int]]:
    """The edges of a random forest, in any order, numbering and direction."""
    order = r.sample(range(v), v)
    kind = r.choice(["none", "path", "star", "any", "any", "any"])
    edges = []
    for i in range(1, v):
        if kind == "none" or (kind == "any" and r.random() < 0.25):
            continue
        before = {"path": i - 1, "star": 0}.get(kind, r.randrange(i))
        edges.append(tuple(r.sample((order[i], order[before]), 2)))
    return r.sample(edges, len(edges))


def hyperforest(r: Random, v: int) -> list[tuple[int, ...]]:
    """Factors of two to four variables that form a forest, their variables in any order."""
    order, seen, factors = r.sample(range(v), v), 1, []
    while seen < v:
        more = min(r.randint(1, 3), v - seen)
        if r.random() < 0.8:
            scope = [order[r.randrange(seen)], *order[seen : seen + more]]
            factors.append(tuple(r.sample(scope, len(scope))))
        seen += more
    return r.sample(factors, len(factors))


def ways_to_pass(r: Random) -> dict[str, Any]:
    how: dict[str, Any] = {"schedule": r.choice(["sweep", "flooding"]), "gradient": r.choice(["implicit", "unrolled"])}
    if r.random() < 0.3:
        how |= {"damping": r.choice([0.3, 0.5]), **EXACT}
    return how


def common(r: Random) -> dict[str, Any]:
    v, own = r.choice([1, 2, 3, 3, 4, 4, 5]), r.choice(OWN)
    unary = r.choice(["dense", "dense", "factored", "ragged"])
    n = r.randint(1, 4 if v < 5 else 3)
    sizes = [r.randint(1, n) for _ in range(v)] if unary == "ragged" else [n] * v
    return {
        "batch": together(own), "own": own, "length": v, "n": max(sizes), "unary": unary, "sizes": sizes,
        "forbidden": r.choice([0.0, 0.0, 0.15, 0.4]), "scale": r.choice([0.1, 1.0, 5.0]), "seed": r.randint(0, 2**32),
        "how": ways_to_pass(r),
    }  # fmt: skip


def random_pairs(r: Random) -> PairCase:
    kind = common(r)
    pairs, edges = r.choice([*PAIRS, "tables"]), forest(r, kind["length"])
    if pairs == "tables" and not edges:
        pairs = "dense"
    lead = r.choice(["batch", "both"]) if kind["own"][1] else r.choice(["shared", "edge", "both", "batch"])
    return PairCase(**kind, edges=edges, pairs=pairs, lead=lead)


def random_factors(r: Random) -> FactorCase:
    kind = common(r)
    sizes, own = kind["sizes"], kind["own"][1]
    by_sizes: dict[tuple, list] = {}
    for scope in [*hyperforest(r, kind["length"]), *((i,) for i in range(kind["length"]) if r.random() < 0.3)]:
        known = tuple(sizes[i] for i in scope)
        by_sizes.setdefault(known, []).append(scope)
    leads = ["batch", "both"] if own else ["shared", "factor", "batch", "both"]
    groups = []
    for known, scopes in by_sizes.items():
        if r.random() < 0.4:
            groups += [([scope], known, "single") for scope in scopes]
        else:
            groups.append((scopes, known, r.choice(leads)))
    # Without factors nothing else has the batch dimensions.
    if not groups:
        kind |= {"own": (kind["own"][0], ()), "batch": kind["own"][0]}
    return FactorCase(**kind, groups=r.sample(groups, len(groups)))


GRAPHS = {"PairwiseGraph": random_pairs, "FactorGraph": random_factors}


def another(case: AnyGraphCase, r: Random) -> Case:
    """A second graph over the same variables and factors, with scores of another kind."""
    changed: dict[str, Any] = {"seed": r.randint(0, 2**32), "forbidden": r.choice([0.0, 0.1]), "how": ways_to_pass(r)}
    if isinstance(case, PairCase) and case.unary != "ragged":
        changed |= {"pairs": r.choice(PAIRS)}
    return case.sibling(**changed)


# One instance of each kind, two of a batch, for what need not be drawn.

TWO = {"batch": (2,), "own": ((2,), (2,))}
TREE = [(1, 0), (1, 3), (2, 1), (3, 4)]
TERNARY = [([(0, 2, 1), (3, 4, 2)], (2, 2, 2), "both")]
FORESTS: dict[str, tuple[type[AnyGraphCase], dict[str, Any]]] = {
    "tree": (PairCase, {"length": 5, "n": 2, "edges": TREE, "lead": "both"}),
    "tree, shared": (PairCase, {"length": 4, "n": 3, "edges": TREE[:3], "own": ((2,), ())}),
    "tree, flooding": (PairCase, {"length": 4, "n": 2, "edges": TREE[:3], "how": {"schedule": "flooding"}, "lead": "both"}),
    "two components, factored": (PairCase, {"length": 4, "n": 3, "edges": [(3, 0), (1, 2)], "pairs": "factored", "lead": "both"}),
    "isolated, factored unary": (PairCase, {"length": 3, "n": 3, "edges": [(2, 0)], "unary": "factored", "lead": "both"}),
    "star, scored": (PairCase, {"length": 4, "n": 2, "edges": [(0, 2), (2, 1), (3, 2)], "pairs": "scored", "lead": "both"}),
    "no edges": (PairCase, {"length": 3, "n": 2, "edges": [], "lead": "both"}),
    "ragged": (PairCase, {"length": 3, "n": 3, "edges": [(0, 2), (1, 0)], "unary": "ragged", "sizes": [2, 3, 1], "pairs": "tables"}),
    "ternary": (FactorCase, {"length": 5, "n": 2, "groups": TERNARY}),
    "ternary, flooding": (FactorCase, {"length": 5, "n": 2, "groups": TERNARY, "how": {"schedule": "flooding"}}),
    "mixed": (
        FactorCase,
        {"length": 5, "n": 3, "unary": "ragged", "sizes": [2, 3, 2, 1, 2], "groups": [
            ([(4, 2, 0)], (2, 2, 2), "single"), ([(1, 0)], (3, 2), "both"), ([(1, 3)], (3, 1), "both"), ([(2,)], (2,), "single"),
        ]},
    ),
    "quaternary": (FactorCase, {"length": 5, "n": 2, "groups": [([(3, 0, 4, 1)], (2, 2, 2, 2), "both"), ([(2, 4)], (2, 2), "single")]}),
}  # fmt: skip


def named(name: str, **how: Any) -> AnyGraphCase:
    kind, fixed = FORESTS[name]
    return kind(**{**TWO, **fixed, **how})


def possible(name: str, way: str = "whole", **how: Any) -> tuple[AnyGraphCase, Any]:
    """A case of which every one of the batch has a configuration, in spite of what is forbidden, and the model to test."""
    for seed in range(100):
        case = named(name, **{"seed": seed, **how})
        model = made(case, way, seed)
        if all(truth.possible for truth in case.truths(model)):
            return case, model
    raise AssertionError(name)
