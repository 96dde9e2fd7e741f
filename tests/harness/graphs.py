"""Graphs, without loops or small: their truth and their cases. A configuration is the tuple of the states of all variables."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from typing_extensions import Self

import tailsum as ts
from harness.case import Case, Counted, Kind, Row
from harness.forests import OWN, forest, hyperforest, together, ways_to_pass
from harness.pair_scores import PAIRS, PairScores, spread
from harness.truth import Truth, Weighted

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

    def joint(self, probability: Tensor, variables: tuple[int, ...]) -> Tensor:
        """The probability of all joint states of some variables."""
        table = probability.reshape([self.n] * self.v)
        others = [i for i in range(self.v) if i not in variables]
        table = table.sum(others) if others else table
        left = sorted(variables)
        return table.permute([left.index(i) for i in variables])


LOOP = [(0, 1), (2, 1), (2, 3), (0, 3), (1, 3)]
TREE = [(1, 0), (1, 3), (2, 1), (3, 4)]
EDGES = [(0, 1), (2, 1), (1, 3), (3, 5)]  # of six variables, of which 4 is alone
TERNARY = [([(0, 2, 1), (3, 4, 2)], (2, 2, 2), "both")]
TRIPLES = [(2, 0, 1), (5, 3, 2)]
PAIR = ([(5, 4)], (5, 5), "single")


class GraphCase(Case):
    """What graphs of pairs and of larger factors share. `how` says how messages are passed.

    `unary` is "dense", "factored" or "ragged", and `counts` says how many states each variable has. `own` has the batch
    dimensions of the unary scores and of the others, together the batch; or says that "all" have them, or "unary" alone.
    """

    has_lengths = False
    replicates = 6_000
    landmarks = 8
    examples = {"operations": 20, "divergences": 15, "scores": 20}

    @classmethod
    def random(cls, r: Random) -> Self:
        return cls(**cls.sizes(r))

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        v, own = r.choice([1, 2, 3, 3, 4, 4, 5]), r.choice(OWN)
        unary = r.choice(["dense", "dense", "factored", "ragged"])
        n = r.randint(1, 4 if v < 5 else 3)
        counts = [r.randint(1, n) for _ in range(v)] if unary == "ragged" else [n] * v
        return {
            "batch": together(own), "own": own, "length": v, "n": max(counts), "unary": unary, "counts": counts,
            "forbidden": r.choice([0.0, 0.0, 0.15, 0.4]), "scale": r.choice([0.1, 1.0, 5.0]),
            "seed": r.randint(0, 2**32), "how": ways_to_pass(r),
        }  # fmt: skip

    def batches(self, own: str | tuple) -> tuple:
        """The batch dimensions of the unary scores and of the others."""
        return {"all": (self.batch, self.batch), "unary": (self.batch, ())}[own] if isinstance(own, str) else own

    def draw_unary(self, n: int, unary: str, counts: list[int] | None, lead: tuple[int, ...]) -> None:
        self.n, self.unary = n, unary
        self.counts = [n] * self.length if counts is None else counts
        if unary == "ragged":
            for size in self.counts:
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

    def more(self, model: Any, truths: list[Weighted]) -> list[tuple[Tensor, Tensor]]:
        """The probabilities of the joint states of each factor; and what is exact needs no iterations."""
        assert model.is_exact
        assert model.convergence().converged.all()
        found, states = self.factor_beliefs(model), self.flat(model.states)
        return [
            (spread(x[b], [states[b, i] for i in variables], self.n), truth.truth.joint(truth.probability, variables))
            for b, truth in enumerate(truths)
            for variables, x in found
        ]

    def other_marginals(self, model: Any) -> list[Tensor]:
        return [x for _, x in self.factor_beliefs(model)]

    @property
    def coupling(self) -> int:
        return self.n_unary

    @property
    def carrier(self) -> tuple[int, int]:
        return 0, 1 if self.unary == "ragged" else 2

    # Configurations.

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [list(enumerate(c)) for c in truth.configurations]

    def row(self, configuration: tuple) -> Row:
        return list(configuration)

    def configuration(self, row: Row, length: int) -> tuple:
        return tuple(row)

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        return {"states": (self.length,)}

    @property
    def can_block(self) -> bool:
        return self.unary != "factored"

    def block(self, b: int) -> None:
        """All states of the first variable, where each of the batch has its own scores."""
        banned = self.banned[0] if self.unary == "ragged" else self.banned[0][..., 0, :]
        banned.view(self.size, -1)[b] = True


class PairCase(GraphCase):
    """A `PairwiseGraph`. Pair scores are shared, of each "edge", of each "batch" or of "both"; or a list of "tables"."""

    name = "pairs"
    small = {
        "tree": {"length": 5, "n": 2, "edges": TREE, "lead": "both"},
        "tree, shared": {"length": 4, "n": 3, "edges": TREE[:3], "own": "unary"},
        "tree, flooding": {"length": 4, "n": 2, "edges": TREE[:3], "how": {"schedule": "flooding"}, "lead": "both"},
        "two components, factored": {
            "length": 4, "n": 3, "edges": [(3, 0), (1, 2)], "pairs": "factored", "lead": "both"
        },
        "isolated, factored unary": {"length": 3, "n": 3, "edges": [(2, 0)], "unary": "factored", "lead": "both"},
        "star, scored": {"length": 4, "n": 2, "edges": [(0, 2), (2, 1), (3, 2)], "pairs": "scored", "lead": "both"},
        "no edges": {"length": 3, "n": 2, "edges": [], "lead": "both"},
        "loops": {"length": 5, "n": 2, "edges": [*TREE, (4, 0), (0, 2)], "lead": "both"},
        "loops, factored": {"length": 4, "n": 2, "edges": LOOP, "pairs": "factored", "lead": "both", "unary": "factored"},
        "loops, ragged": {
            "length": 4, "n": 3, "edges": LOOP, "unary": "ragged", "counts": [2, 3, 1, 2], "pairs": "tables"
        },
        "ragged": {
            "length": 3, "n": 3, "edges": [(0, 2), (1, 0)], "unary": "ragged", "counts": [2, 3, 1], "pairs": "tables"
        },
    }  # fmt: skip
    few = ("tree", "isolated, factored unary", "star, scored", "no edges", "ragged")
    large = {
        name: {"length": 6, "n": 5, "edges": EDGES, "scale": 0.7, **kind}
        for name, kind in {
            "dense of each edge": {"lead": "edge"},
            "dense": {},
            "factored": {"pairs": "factored"},
            "factored of each edge": {"pairs": "factored", "lead": "edge"},
            "scored": {"pairs": "scored", "lead": "edge"},
            "factored unary": {"unary": "factored", "lead": "edge"},
            "loops": {"edges": [*EDGES, (5, 0), (4, 2), (4, 0)], "lead": "edge"},
        }.items()
    }
    embedded = ("factored", "factored unary")

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        kind = super().sizes(r)
        pairs, edges = r.choice([*PAIRS, "tables"]), forest(r, kind["length"])
        if pairs == "tables" and not edges:
            pairs = "dense"
        lead = r.choice(["batch", "both"]) if kind["own"][1] else r.choice(["shared", "edge", "both", "batch"])
        return {**kind, "edges": edges, "pairs": pairs, "lead": lead}

    def changes(self, r: Random) -> Kind:
        how = {"how": ways_to_pass(r)}
        return how if self.unary == "ragged" else how | {"pairs": r.choice(PAIRS)}

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        for n in (1, 3):
            edges = [(i, (i - 1) // 2) for i in range(1, length)]
            yield Counted(
                ts.PairwiseGraph(torch.zeros(length, n).double(), edges, torch.zeros(n, n).double()), n**length
            )

    def draw(
        self, n: int, edges: list[tuple[int, int]], own: str | tuple = "all", unary: str = "dense",
        counts: list[int] | None = None, pairs: str = "dense", lead: str = "shared", how: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.edges, self.how, own = edges, how or {}, self.batches(own)
        self.draw_unary(n, unary, counts, own[0])
        self.pairs = None
        if pairs == "tables":
            for u, v in edges:
                self.leaf(*own[1], self.counts[u], self.counts[v])
            return
        leads = {"shared": (), "edge": (len(edges),), "batch": (*own[1], 1), "both": (*own[1], len(edges))}
        self.pairs = PairScores(self, pairs, leads[lead], n, torch.tensor(True))

    def build(self, *leaves: Tensor) -> ts.PairwiseGraph:
        unary, pairs = list(leaves[: self.n_unary]), list(leaves[self.n_unary :])
        scores = pairs if self.pairs is None else self.pairs.potential(pairs)
        return ts.PairwiseGraph(self.unary_scores(unary), self.edges, scores, **self.how)

    def factor_tables(self, leaves: list[Tensor]) -> list[Factor]:
        if self.pairs is None:
            return list(zip(self.edges, leaves, strict=True))
        table = self.pairs.table(leaves)
        table = table[None] if table.dim() == 2 else table
        count = len(self.edges)
        each = table.expand(*table.shape[:-3], count, -1, -1)
        return [(tuple(edge), each[..., e, :, :]) for e, edge in enumerate(self.edges)]

    def factor_beliefs(self, model: Any) -> list[Factor]:
        found = model.pair_marginals()
        assert found.shape == (*self.batch, len(self.edges), model.n_states, model.n_states)
        found = self.flat(found)
        return [(tuple(edge), found[:, e]) for e, edge in enumerate(self.edges)]


class FactorCase(GraphCase):
    """A `FactorGraph` with groups `(factors, sizes, lead)`: the variables of each factor, how many states it knows at
    each position, and whether its scores are "single" (one factor alone), shared, of each "factor", "batch" or "both".
    """

    name = "factors"
    small = {
        "ternary": {"length": 5, "n": 2, "groups": TERNARY},
        "ternary, flooding": {"length": 5, "n": 2, "groups": TERNARY, "how": {"schedule": "flooding"}},
        "mixed": {
            "length": 5, "n": 3, "unary": "ragged", "counts": [2, 3, 2, 1, 2],
            "groups": [
                ([(4, 2, 0)], (2, 2, 2), "single"), ([(1, 0)], (3, 2), "both"), ([(1, 3)], (3, 1), "both"),
                ([(2,)], (2,), "single"),
            ],
        },
        "nested": {
            "length": 4, "n": 2,
            "groups": [([(1, 0), (2, 3)], (2, 2), "both"), ([(0, 2, 1)], (2, 2, 2), "single"), ([(2, 0)], (2, 2), "single")],
        },
        "loops": {
            "length": 5, "n": 2, "groups": [([(0, 1, 2), (3, 4, 2)], (2, 2, 2), "both"), ([(4, 0)], (2, 2), "single")]
        },
        "quaternary": {
            "length": 5, "n": 2, "groups": [([(3, 0, 4, 1)], (2, 2, 2, 2), "both"), ([(2, 4)], (2, 2), "single")]
        },
    }  # fmt: skip
    few = ("mixed",)
    large = {
        name: {"length": 6, "n": 5, "groups": groups, "scale": 0.7, **more}
        for name, groups, more in (
            ("triples", [PAIR, *(([scope], (5, 5, 5), "single") for scope in TRIPLES)], {}),
            ("triples together", [(TRIPLES, (5, 5, 5), "factor"), PAIR], {}),
            ("triples of one table", [(TRIPLES, (5, 5, 5), "shared"), PAIR], {}),
            ("factored unary", [(TRIPLES, (5, 5, 5), "factor"), PAIR], {"unary": "factored"}),
        )
    }
    embedded = ("factored unary",)

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        kind = super().sizes(r)
        counts, own = kind["counts"], kind["own"][1]
        by_sizes: dict[tuple, list] = {}
        for scope in [*hyperforest(r, kind["length"]), *((i,) for i in range(kind["length"]) if r.random() < 0.3)]:
            by_sizes.setdefault(tuple(counts[i] for i in scope), []).append(scope)
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
        return {**kind, "groups": r.sample(groups, len(groups))}

    def changes(self, r: Random) -> Kind:
        return {"how": ways_to_pass(r)}

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        for n in (1, 2):
            scopes = [(i, i + 1, i + 2) for i in range(0, length - 2, 2)]
            factors = [(scope, torch.zeros(n, n, n).double()) for scope in scopes]
            yield Counted(ts.FactorGraph(torch.zeros(length, n).double(), factors), n**length)

    def draw(
        self, n: int, groups: list[tuple], own: str | tuple = "all", unary: str = "dense",
        counts: list[int] | None = None, how: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.groups, self.how, own = groups, how or {}, self.batches(own)
        self.draw_unary(n, unary, counts, own[0])
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
