"""Loopy belief propagation written plainly: messages in a dictionary, one factor at a time.

It works with probabilities, and takes the Bethe value from the beliefs: expected scores plus the entropies of the
factors, less those of the variables that are counted too often. On forests it equals enumeration. Graphs with loops are
no `Case`: there is no truth that their sums should equal, but this reference.
"""

import itertools
import math

import numpy as np
import torch

import tailsum as ts

EXACTLY = {"tolerance": 1e-10, "iterations": 2000, "method": "propagation"}
CLOSE = {"rtol": 0, "atol": 1e-6}


def close(found, expected, **how):
    torch.testing.assert_close(found, torch.as_tensor(np.asarray(expected)), **(how or CLOSE))


def bits(p):
    """The entropy of a table of probabilities, in nats."""
    positive = p[p > 0]
    return -(positive * np.log(positive)).sum()


def mean(p, scores):
    """The expected score; what is forbidden has no chance."""
    return (p[p > 0] * scores[p > 0]).sum()


def along(vector, axis, dims):
    shape = [1] * dims
    shape[axis] = -1
    return vector.reshape(shape)


class Loopy:
    """The fixed point of belief propagation for one instance: `unary [V, N]`, factors as `(variables, table)`."""

    def __init__(self, unary, factors, damping=0.3, steps=5000):
        self.unary, self.factors = unary, factors
        self.local = [np.exp(row) for row in unary]
        self.tables = [np.exp(table) for _, table in factors]
        self.at = [[f for f, (scope, _) in enumerate(factors) if v in scope] for v in range(len(unary))]
        self.sent = {(f, v): np.full(len(unary[v]), 1.0) for f, (scope, _) in enumerate(factors) for v in scope}
        for _ in range(steps):
            after = {(f, v): self._message(f, v) for f, v in self.sent}
            moved = max((np.abs(after[key] - self.sent[key]).max() for key in after), default=0.0)
            for key, message in after.items():
                self.sent[key] = (1 - damping) * message + damping * self.sent[key]
            if moved < 1e-14:
                break
        assert moved < 1e-12, "the reference must converge: choose another seed"
        self.nodes = [self._normal(self._cavity(v)) for v in range(len(unary))]
        self.joint = [self._normal(self._told(f, scope)) for f, (scope, _) in enumerate(factors)]

    @staticmethod
    def _normal(p):
        return p / p.sum()

    def _cavity(self, v, without=None):
        """What a variable and all of its factors but one say of its states."""
        product = self.local[v].copy()
        for f in self.at[v]:
            if f != without:
                product = product * self.sent[f, v]
        return product

    def _told(self, f, by):
        """A factor's table times what the given of its variables say."""
        scope, table = self.factors[f][0], self.tables[f]
        for axis, v in enumerate(scope):
            if v in by:
                table = table * along(self._cavity(v, without=f), axis, len(scope))
        return table

    def _message(self, f, v):
        scope = self.factors[f][0]
        table = self._told(f, [w for w in scope if w != v])
        others = tuple(axis for axis, w in enumerate(scope) if w != v)
        return self._normal(table.sum(others))

    @property
    def entropy(self):
        """Bethe's: of the factors, less what they share."""
        total = sum(bits(p) for p in self.joint)
        for v, p in enumerate(self.nodes):
            total += (1 - len(self.at[v])) * bits(p)
        return total

    def expected(self, unary, factors):
        """The expected score under the beliefs, by the given scores."""
        total = sum(mean(p, row) for p, row in zip(self.nodes, unary, strict=True))
        return total + sum(mean(p, table) for p, (_, table) in zip(self.joint, factors, strict=True))

    @property
    def log_partition(self):
        return self.expected(self.unary, self.factors) + self.entropy


class Enumerated:
    """All configurations of one instance."""

    def __init__(self, unary, factors):
        self.all = list(itertools.product(*(range(len(row)) for row in unary)))
        self.scores = np.array([self.score(x, unary, factors) for x in self.all])

    @staticmethod
    def score(x, unary, factors):
        total = sum(unary[v][state] for v, state in enumerate(x))
        return total + sum(table[tuple(x[v] for v in scope)] for scope, table in factors)

    @property
    def log_partition(self):
        return np.logaddexp.reduce(self.scores)

    @property
    def best(self):
        return self.all[int(self.scores.argmax())]


TRIANGLE = [(0, 1), (1, 2), (2, 0)]
SQUARE = [(0, 1), (2, 1), (2, 3), (0, 3)]
GRID = [(3 * i + j, 3 * i + j + 1) for i in range(3) for j in range(2)]
GRID += [(3 * i + j + 3, 3 * i + j) for i in range(2) for j in range(3)]
COMPLETE = [(a, b) if (a + b) % 2 else (b, a) for a, b in itertools.combinations(range(4), 2)]
APART = [(1, 2), (2, 4), (4, 1), (5, 6), (7, 6), (7, 8), (5, 8)]  # two loops; 0, 3 and 9 are alone
PAIRS = {
    "triangle": (3, TRIANGLE),
    "square": (4, SQUARE),
    "grid": (9, GRID),
    "complete": (4, COMPLETE),
    "apart": (10, APART),
}
LARGER = {
    "ring of triples": (6, [(0, 1, 2), (2, 3, 4), (4, 5, 0)]),
    "two in common": (4, [(0, 1, 2), (3, 1, 2)]),
    "triples and pairs": (5, [(0, 1, 2), (2, 3), (0, 3), (3, 4)]),
    "four at once": (6, [(3, 1, 0, 2), (2, 4), (4, 5, 1)]),
}
ALL = PAIRS | LARGER


class LoopyCase:
    """Random scores: `unary [*batch, V, N]` and for each factor `[*batch, N, .., N]`."""

    def __init__(self, name, coupling=0.3, forbidden=0.0, batch=(), seed=0, n=3):
        random = np.random.default_rng(seed)
        self.n_nodes, self.scopes = ALL[name]
        self.batch, self.n, self.pairs = tuple(batch), n, name in PAIRS
        self.unary = random.normal(size=(*batch, self.n_nodes, n))
        self.tables = [coupling * random.normal(size=(*batch, *[n] * len(scope))) for scope in self.scopes]
        if forbidden:
            self._forbid(random, forbidden)

    def _forbid(self, random, share):
        """Some scores become minus infinity; one configuration of each instance stays possible."""
        keep = random.integers(self.n, size=self.n_nodes)
        for array, scope in ((self.unary, None), *zip(self.tables, self.scopes, strict=True)):
            never = random.random(array.shape) < share
            if scope is None:
                never[..., range(self.n_nodes), keep] = False
            else:
                never[(..., *keep[list(scope)])] = False
            array[never] = -math.inf

    def instances(self):
        for b in np.ndindex(self.batch):
            yield self.unary[b], [(scope, table[b]) for scope, table in zip(self.scopes, self.tables, strict=True)]

    def loopy(self):
        return [Loopy(*instance) for instance in self.instances()]

    def model(self, **how):
        how = {**EXACTLY, **how}
        unary = torch.tensor(self.unary)
        if self.pairs:
            tables = torch.tensor(np.stack(self.tables, len(self.batch)))
            return ts.PairwiseGraph(unary, self.scopes, tables, **how)
        return self.factor_graph(**how)

    def factor_graph(self, **how):
        factors = [(scope, torch.tensor(table)) for scope, table in zip(self.scopes, self.tables, strict=True)]
        return ts.FactorGraph(torch.tensor(self.unary), factors, **{**EXACTLY, **how})


def joint_beliefs(model, case):
    """The beliefs of each factor, `[B, n, .., n]`."""
    if isinstance(model, ts.PairwiseGraph):
        found = model.pair_marginals().unbind(len(case.batch))
    else:
        found = [group.squeeze(len(case.batch)) for group in model.factor_marginals()]
    return [x.reshape(-1, *x.shape[len(case.batch) :]) for x in found]


def agrees(model, case, truths=None):
    """Everything that follows from sum-product equals the reference."""
    truths = case.loopy() if truths is None else truths
    close(model.log_partition().flatten(), [t.log_partition for t in truths])
    close(model.entropy().flatten(), [t.entropy for t in truths])
    close(model.marginals().reshape(-1, case.n_nodes, case.n), [np.stack(t.nodes) for t in truths])
    for f, found in enumerate(joint_beliefs(model, case)):
        close(found, [t.joint[f] for t in truths])
