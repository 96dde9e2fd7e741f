"""Linear chains and hidden Markov models: their truth and their cases."""

import itertools
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import tailsum as ts
from harness.case import Case, Counted, Kind, Row, pad
from harness.pair_scores import PAIRS, STRUCTURED, PairScores, spread
from harness.truth import Truth, Weighted


class ChainTruth(Truth):
    """All paths of one sequence with node scores `[L, N]` and pair scores `[L-1, N, N]`."""

    def __init__(self, nodes: Tensor, pairs: Tensor):
        length, self.n = nodes.shape
        self.paths = torch.tensor(list(itertools.product(range(self.n), repeat=length)))
        scores = sum((nodes[t, self.paths[:, t]] for t in range(length)), torch.zeros(()).double())
        for t in range(length - 1):
            scores = scores + pairs[t, self.paths[:, t], self.paths[:, t + 1]]
        one_hot = F.one_hot(self.paths, self.n).to(scores.dtype)
        super().__init__([tuple(path) for path in self.paths.tolist()], scores, one_hot)

    def pair_marginals(self, probability: Tensor) -> Tensor:
        return torch.einsum("p,pti,ptj->tij", probability, self.parts[:, :-1], self.parts[:, 1:])


class PathCase(Case):
    """What all chains share: a configuration is a tensor of states."""

    relaxes_jointly = False
    n: int

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        return {"states": (self.length,)}

    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        return [list(enumerate(c)) for c in truth.configurations]

    def row(self, configuration: tuple) -> Row:
        return pad(list(configuration), self.length)

    def configuration(self, row: Row, length: int) -> tuple:
        return tuple(row[:length])

    def other_marginals(self, model: Any) -> list[Tensor]:
        return [model.pair_marginals()]

    def more(self, model: Any, truths: list[Weighted]) -> list[tuple[Tensor, Tensor]]:
        found, states = self.flat(model.pair_marginals()), self.flat(model.states)
        results = []
        for b, truth in enumerate(truths):
            assert isinstance(truth.truth, ChainTruth)
            expected = truth.truth.pair_marginals(truth.probability)
            table = [spread(x, [states[b, t], states[b, t + 1]], self.n) for t, x in enumerate(found[b])]
            table = torch.stack(table) if table else expected
            results.append((table, F.pad(expected, (0, 0, 0, 0, 0, len(table) - len(expected)))))
        return results


class ChainCase(PathCase):
    """`emission` is "dense" or "factored"; pair scores shared, by step ("time"), by sentence ("batch"), or by both."""

    name = "chain"
    LEADS = ("shared", "time", "batch", "both")
    small = {
        "dense": {"n": 2},
        "dense of each step": {"n": 3, "lead": "time"},
        "factored": {"n": 3, "pairs": "factored", "emission": "factored"},
        "half factored": {"n": 2, "pairs": "half factored", "lead": "time"},
        "gated": {"n": 3, "pairs": "gated", "lead": "both"},
        "scored": {"n": 2, "pairs": "scored", "lead": "both"},
        **{pairs: {"pairs": pairs, **form.chain} for pairs, form in STRUCTURED.items()},
    }
    few = ("dense", "factored", "gated", "scored", "sparse", "monarch")
    large = {
        "dense": {"length": 4, "n": 6, "scale": 0.7},
        "factored": {"length": 3, "n": 6, "pairs": "factored", "emission": "factored", "scale": 0.8},
        "scored": {"length": 3, "n": 6, "pairs": "scored", "scale": 0.8},
    }
    embedded = ("factored",)
    examples = {"operations": 600, "divergences": 100, "scores": 100}

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        n = r.randint(1, 4)
        return {
            "n": n, "length": r.randint(1, {1: 6, 2: 6, 3: 5, 4: 4}[n]), "pairs": r.choice(PAIRS),
            "lead": r.choice(cls.LEADS), "emission": r.choice(["dense", "factored"]),
        }  # fmt: skip

    def changes(self, r: Random) -> Kind:
        return {"pairs": r.choice(PAIRS), "lead": r.choice(self.LEADS), "emission": r.choice(["dense", "factored"])}

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        for n in (1, 2, 5):
            yield Counted(ts.LinearChain(torch.zeros(length, n).double(), torch.zeros(n, n).double()), n**length)

    def draw(
        self, n: int, pairs: str = "dense", lead: str = "shared", emission: str = "dense", shared: bool = False
    ) -> None:
        self.n, self.emission = n, emission
        own = () if shared else self.batch
        inside = self.inside()[..., None]
        if emission == "factored":
            self.leaf(*own, self.length, 2, finite=True, used=inside.expand(*self.batch, self.length, 2))
            self.leaf(n, 2, finite=True)
        else:
            self.leaf(*own, self.length, n, used=inside.expand(*self.batch, self.length, n))
        self.n_nodes = len(self.leaves)
        steps = {"shared": (), "time": (self.length - 1,), "batch": (*self.batch, 1)}
        used = self.inside()[..., 1:]
        self.pairs = PairScores(self, pairs, steps.get(lead, (*self.batch, self.length - 1)), n, used)

    @property
    def coupling(self) -> int:
        return self.n_nodes

    @property
    def carrier(self) -> tuple[int, int]:
        return 0, 2

    def build(self, *leaves: Tensor) -> ts.LinearChain:
        nodes, pairs = list(leaves[: self.n_nodes]), list(leaves[self.n_nodes :])
        emission = ts.Factored(*nodes) if self.emission == "factored" else nodes[0]
        return ts.LinearChain(emission, self.pairs.potential(pairs), self.given)

    def tables(self, leaves: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The scores written out: `[B, T, N]` of nodes and `[B, T-1, N, N]` of pairs."""
        leaves = self.marked() if leaves is None else leaves
        nodes, pairs = leaves[: self.n_nodes], leaves[self.n_nodes :]
        table = nodes[0] @ nodes[1].mT if self.emission == "factored" else nodes[0]
        return (
            self.of_batch(table, self.length, self.n),
            self.of_batch(self.pairs.table(pairs), self.length - 1, self.n, self.n),
        )

    def truth(self, b: int, leaves: list[Tensor]) -> ChainTruth:
        nodes, pairs = self.tables(leaves)
        length = self.lengths[b]
        return ChainTruth(nodes[b, :length], pairs[b, : length - 1])

    @property
    def can_block(self) -> bool:
        return self.emission == "dense"

    def block(self, b: int) -> None:
        self.banned[0][b, 0] = True


class HMMCase(PathCase):
    """`n` states and `v` symbols, of which the last is never seen; some observations are missing.

    `own` names the parameters that each sequence has for itself. The leaves are unnormalised: the model is made of their
    log-softmax.
    """

    name = "hmm"
    PARAMETERS = ("initial", "transition", "emission")
    small = {
        "dense": {"n": 2, "v": 3},
        "more states": {"n": 3, "v": 4},
        "own parameters": {"n": 2, "v": 3, "own": PARAMETERS},
    }
    few = ("dense",)
    large = {"dense": {"length": 4, "n": 6, "v": 4}}

    @classmethod
    def sizes(cls, r: Random) -> Kind:
        n = r.randint(1, 4)
        own = tuple(name for name in cls.PARAMETERS if r.random() < 0.4)
        return {"n": n, "v": r.randint(2, 4), "length": r.randint(1, {1: 6, 2: 6, 3: 5, 4: 4}[n]), "own": own}

    @classmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        # All paths have the same probability, and together the probability one of observing nothing.
        for n in (1, 3):
            uniform = -torch.tensor(float(n)).double().log()
            initial, transition = uniform.expand(n), uniform.expand(n, n)
            yield Counted(ts.HMM(initial, transition, torch.zeros(n, 1).double(), torch.full((length,), -1)), 1)

    def draw(self, n: int, v: int, shared: bool = False, own: tuple[str, ...] = ()) -> None:
        self.n, self.v, self.shapes = n, v, ((n,), (n, n), (n, v))
        for name, last in zip(self.PARAMETERS, self.shapes, strict=True):
            shape = (*self.batch, *last) if name in own else last
            self.leaf(*shape, finite=True, seen=False)
            # Forbidden, but for one entry of each row, or there would be no distribution.
            banned = torch.rand(shape, generator=self.generator) < self.forbidden
            kept = torch.arange(shape[-1]) == torch.randint(max(1, shape[-1] - 1), (), generator=self.generator)
            self.banned[-1] = banned & ~kept
        lead = () if shared else self.batch
        self.observed = torch.randint(-1, v - 1, (*lead, self.length), generator=self.generator)
        self.observed = torch.where(self.inside(), self.observed, 99)  # the padding may hold anything

    def build(self, *leaves: Tensor) -> ts.HMM:
        initial, transition, emission = (x.log_softmax(-1) for x in leaves)
        return ts.HMM(initial, transition, emission, self.observed, self.given)

    def many(self, count: int) -> ts.HMM:
        initial, transition, emission = (x.log_softmax(-1) for x in self.marked())
        return ts.HMM(initial, transition, emission, self.observed.expand(count, *self.observed.shape), self.given)

    def truth(self, b: int, leaves: list[Tensor]) -> ChainTruth:
        each = (self.of_batch(x.log_softmax(-1), *shape)[b] for x, shape in zip(leaves, self.shapes, strict=True))
        initial, transition, emission = each
        length = self.lengths[b]
        seen = self.observed.reshape(-1, self.length)[b, :length]
        nodes = torch.where(seen[:, None] < 0, 0.0, emission.mT[seen.clamp(min=0)])
        nodes = torch.cat((nodes[:1] + initial, nodes[1:]))
        return ChainTruth(nodes, transition.expand(length - 1, -1, -1))

    def block(self, b: int) -> None:
        """No state emits the last symbol, and the sentence starts with it."""
        self.banned[2][..., -1] = True
        self.observed[b, 0] = self.v - 1
