"""Graphs with loops against loopy belief propagation written plainly: messages in a dictionary, one factor at a time.

The reference works with probabilities, and takes the Bethe value from the beliefs: expected scores plus the entropies of
the factors, less those of the variables that are counted too often. On forests it equals enumeration.
"""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch

import tailsum as ts

EXACTLY = {"tolerance": 1e-10, "iterations": 2000}
CLOSE = {"rtol": 0, "atol": 1e-6}


def close(found, expected, **how):
    torch.testing.assert_close(found, torch.as_tensor(np.asarray(expected)), **(how or CLOSE))


# The reference.


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


# Graphs.

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


class Case:
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


SCHEDULES = ["sweep", "flooding"]


def enumerated_forest():
    scopes = [(0, 1, 2), (2, 3), (3, 4)]
    random = np.random.default_rng(3)
    unary = random.normal(size=(5, 3))
    return unary, [(scope, random.normal(size=[3] * len(scope))) for scope in scopes]


def test_the_reference_is_exact_on_a_forest():
    instance = enumerated_forest()
    np.testing.assert_allclose(Loopy(*instance).log_partition, Enumerated(*instance).log_partition, atol=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_bethe_is_not_exact_on_these_graphs(name):
    """So a test of equality with the reference would notice exact values."""
    case = Case(name, 0.8)
    (instance,) = case.instances()
    assert abs(Loopy(*instance).log_partition - Enumerated(*instance).log_partition) > 1e-5


# The fixed point.


@pytest.mark.parametrize(("coupling", "schedule"), [(0.3, "sweep"), (0.8, "sweep"), (0.8, "flooding")])
@pytest.mark.parametrize("name", ALL)
def test_sum_product_equals_the_reference(name, coupling, schedule):
    case = Case(name, coupling)
    agrees(case.model(schedule=schedule), case)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ALL)
def test_sum_product_equals_the_reference_where_much_is_forbidden(name, seed):
    case = Case(name, 0.5, forbidden=0.2, seed=seed)
    assert any((table == -math.inf).any() for table in case.tables)
    agrees(case.model(damping=0.2), case)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["triangle", "apart", "ring of triples", "triples and pairs"])
def test_sum_product_equals_the_reference_where_states_are_forbidden(name, schedule):
    """By the scores of single variables only: no message forbids anything."""
    case = Case(name, 0.5, seed=4)
    case.unary[0, 1] = case.unary[1, :2] = case.unary[2, 0] = -math.inf
    agrees(case.model(schedule=schedule), case)


@pytest.mark.parametrize(("batch", "forbidden"), [((1,), 0.0), ((3,), 0.15), ((2, 2), 0.0)])
@pytest.mark.parametrize("name", ["triangle", "apart", "two in common", "triples and pairs"])
def test_every_instance_of_a_batch_equals_the_reference(name, batch, forbidden):
    case = Case(name, 0.5, forbidden, batch)
    model = case.model()
    assert model.log_partition().shape == model.entropy().shape == batch
    assert model.marginals().shape == (*batch, case.n_nodes, 3)
    agrees(model, case)


@pytest.mark.parametrize("name", ["triangle", "square", "complete"])
def test_pairs_as_factors_are_the_same(name):
    case = Case(name, 0.8, forbidden=0.1, seed=2)
    agrees(case.factor_graph(), case)


def test_scores_shared_by_a_batch_or_by_all_edges():
    case = Case("grid", 0.5, batch=(3,), seed=5)
    case.tables = [np.broadcast_to(case.tables[0][0], (3, 3, 3)) for _ in case.tables]
    unary, shared = torch.tensor(case.unary), torch.tensor(case.tables[0][0])
    agrees(ts.PairwiseGraph(unary, GRID, shared, **EXACTLY), case)
    agrees(ts.PairwiseGraph(unary, GRID, shared.expand(12, 3, 3), **EXACTLY), case)
    case.unary = np.broadcast_to(case.unary[:1], (3, 9, 3))
    agrees(ts.PairwiseGraph(unary[0], GRID, shared.expand(3, 1, 3, 3), **EXACTLY), case)


def test_pairs_by_factors_and_by_a_function():
    case = Case("complete", 0.5, seed=6)
    random = np.random.default_rng(7)
    left, right = 0.5 * random.normal(size=(2, 6, 3, 2))
    case.tables = [a @ b.T for a, b in zip(left, right, strict=True)]
    left, right, unary = torch.tensor(left), torch.tensor(right), torch.tensor(case.unary)
    agrees(ts.PairwiseGraph(unary, COMPLETE, ts.Factored(left, right), **EXACTLY), case)
    edge = torch.arange(6)[:, None]

    def function(i, j, e):
        return (left[e[..., 0], i] * right[e[..., 0], j]).sum(-1)

    agrees(ts.PairwiseGraph(unary, COMPLETE, ts.Scored(function, 3, 3, edge), **EXACTLY), case)


def test_variables_with_different_numbers_of_states():
    random, sizes = np.random.default_rng(8), [2, 4, 3, 1]
    scopes = [(0, 1), (2, 1), (2, 3), (0, 3), (0, 2)]
    unary = [random.normal(size=size) for size in sizes]
    factors = [(s, random.normal(size=[sizes[v] for v in s])) for s in scopes]
    truth = Loopy(unary, factors)
    rows, tables = [torch.tensor(row) for row in unary], [torch.tensor(table) for _, table in factors]
    pairs = ts.PairwiseGraph(rows, scopes, tables, **EXACTLY)
    larger = ts.FactorGraph(rows, list(zip(scopes, tables, strict=True)), **EXACTLY)
    for model in (pairs, larger):
        close(model.log_partition(), truth.log_partition)
        close(model.entropy(), truth.entropy)
        for v, size in enumerate(sizes):
            close(model.marginals()[v, :size], truth.nodes[v])
            assert model.marginals()[v, size:].eq(0).all()
    for f, (a, b) in enumerate(scopes):
        close(pairs.pair_marginals()[f, : sizes[a], : sizes[b]], truth.joint[f])
        close(pairs.pair_marginals()[f].sum(), 1.0)
        close(larger.factor_marginals()[f][0], truth.joint[f])


def test_factors_given_together_are_the_same_as_one_by_one():
    case = Case("ring of triples", 0.6, forbidden=0.1, batch=(2,), seed=1)
    tables = torch.tensor(np.stack(case.tables, 1))
    model = ts.FactorGraph(torch.tensor(case.unary), [(torch.tensor(case.scopes), tables)], **EXACTLY)
    (found,) = model.factor_marginals()
    truths = case.loopy()
    close(model.log_partition(), [t.log_partition for t in truths])
    close(found, [np.stack(t.joint) for t in truths])


@pytest.mark.parametrize("forbidden", [0.0, 0.2])
@pytest.mark.parametrize("name", ALL)
def test_beliefs_are_locally_consistent(name, forbidden):
    case = Case(name, 0.8, forbidden, batch=(2,), seed=3)
    model = case.model(damping=0.2)
    nodes = model.marginals()
    close(nodes.sum(-1), np.ones((2, case.n_nodes)))
    for scope, found in zip(case.scopes, joint_beliefs(model, case), strict=True):
        assert (found >= 0).all()
        for axis, v in enumerate(scope):
            others = [1 + a for a in range(len(scope)) if a != axis]
            close(found.sum(others), nodes[:, v])


@pytest.mark.parametrize(("name", "forbidden"), [("grid", 0.0), ("complete", 0.15), ("four at once", 0.15)])
def test_all_ways_of_passing_messages_reach_the_same_point(name, forbidden):
    case = Case(name, 0.7, forbidden, batch=(2,), seed=1)
    first = case.model()
    others = ("flooding", 0.0, "implicit"), ("sweep", 0.3, "implicit"), ("flooding", 0.6, "unrolled")
    for schedule, damping, gradient in others:
        model = case.model(schedule=schedule, damping=damping, gradient=gradient, tolerance=1e-9)
        close(model.log_partition(), first.log_partition())
        close(model.marginals(), first.marginals())
        close(model.entropy(), first.entropy())


def test_single_precision_is_close():
    case = Case("grid", 0.5)
    model = ts.PairwiseGraph(torch.tensor(case.unary).float(), GRID, torch.tensor(np.stack(case.tables)).float())
    (truth,) = case.loopy()
    assert model.log_partition().dtype == torch.float32
    close(model.log_partition().double(), truth.log_partition, rtol=0, atol=1e-5)
    close(model.marginals().double(), np.stack(truth.nodes), rtol=0, atol=1e-3)  # tolerance: root of the precision


# How it went.

FRUSTRATED = {
    "unary": torch.tensor([[0.3, 0.0], [0.0, 0.2], [0.1, 0.0], [0.0, 0.4]]).double(),
    "edges": COMPLETE,
    "pairwise": torch.tensor([[-4.0, 4.0], [4.0, -4.0]]).double(),
}


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.log_partition(),
        lambda m: m.marginals(),
        lambda m: m.pair_marginals(),
        lambda m: m.sample((2,)),
    ],
)
def test_what_does_not_converge_warns(use):
    model = ts.PairwiseGraph(**FRUSTRATED, iterations=7)
    words = r"messages .* did not converge: after 7 iterations .* 1 of 1 instances .* damping .* more iterations"
    with pytest.warns(ts.ConvergenceWarning, match=words):
        use(model)


def test_convergence_does_not_warn():
    model = ts.PairwiseGraph(**FRUSTRATED, iterations=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.convergence()
    assert isinstance(found, ts.Convergence)
    assert not found.converged
    assert found.change > model.tolerance
    assert found.iterations == 7


def test_the_warning_is_a_runtime_warning():
    assert issubclass(ts.ConvergenceWarning, RuntimeWarning)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_damping_helps_where_it_does_not_converge(schedule):
    unary = torch.tensor([[0.3, 0.0], [0.0, 0.2], [0.1, 0.0], [0.0, 0.4], [0.3, 0.1]]).double()
    edges, pairwise = list(itertools.combinations(range(5), 2)), FRUSTRATED["pairwise"] / 4
    plain, damped = (
        ts.PairwiseGraph(unary, edges, pairwise, iterations=300, schedule=schedule, damping=damping).convergence()
        for damping in (0.0, 0.5)
    )
    assert not plain.converged
    assert damped.converged


def test_the_warning_counts_the_instances():
    pairwise = FRUSTRATED["pairwise"] * torch.tensor([0.0, 1.0, 0.01, 1.0])[:, None, None, None]
    model = ts.PairwiseGraph(FRUSTRATED["unary"], COMPLETE, pairwise, iterations=20)
    assert model.convergence().converged.tolist() == [True, False, True, False]
    with pytest.warns(ts.ConvergenceWarning, match="2 of 4 instances"):
        model.log_partition()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_convergence_is_told_for_every_instance(schedule):
    strength = torch.tensor([[0.0, 0.05], [0.2, 0.9]]).double()
    pairwise = strength[..., None, None, None] * torch.tensor(Case("grid", 1.0).tables[0])
    unary = torch.tensor(Case("grid").unary)
    how = {"tolerance": 1e-9, "schedule": schedule}
    found = ts.PairwiseGraph(unary, GRID, pairwise, **how).convergence()
    assert found.converged.all()
    assert (found.change <= 1e-9).all()
    assert found.change.dtype == torch.float64
    assert found.iterations.dtype == torch.long
    assert found.iterations[0, 0] == 1  # nothing couples the variables: all messages are zero from the start
    assert found.iterations.flatten().diff().ge(0).all()
    assert found.iterations[0, 0] < found.iterations[0, 1] < found.iterations[1, 1]
    for place in itertools.product(range(2), repeat=2):
        alone = ts.PairwiseGraph(unary, GRID, pairwise[place], **how).convergence()
        assert alone.iterations == found.iterations[place]
        close(alone.change, found.change[place], rtol=1e-3, atol=1e-15)


def test_the_change_is_that_of_the_last_iteration():
    """It gets smaller with every iteration, and none is counted that was not made."""
    case = Case("grid", 0.5)
    found = [case.model(iterations=count, tolerance=1e-9).convergence() for count in range(2, 30)]
    changes = [x.change.item() for x in found if not x.converged]
    assert len(changes) > 3
    assert all(after < before for before, after in itertools.pairwise(changes))
    assert [x.iterations.item() for x in found[: len(changes)]] == list(range(2, 2 + len(changes)))
    assert all(x.converged for x in found[len(changes) :])
    assert len({x.iterations.item() for x in found[len(changes) :]}) == 1


def test_a_forest_converges_at_once():
    found = ts.PairwiseGraph(torch.randn(2, 3, 4).double(), [(0, 1), (1, 2)], torch.randn(4, 4).double()).convergence()
    assert found.iterations.tolist() == [1, 1]
    assert found.change.tolist() == [0.0, 0.0]
    assert found.converged.all()


def test_variables_without_factors_converge_at_once():
    unary = torch.randn(2, 3, 4).double()
    for model in (ts.PairwiseGraph(unary, [], torch.zeros(4, 4).double()), ts.FactorGraph(unary, [])):
        found = model.convergence()
        assert found.iterations.shape == found.change.shape == (2,)
        assert found.change.dtype == torch.float64
        assert found.converged.all()
        close(model.log_partition(), unary.logsumexp(-1).sum(-1))


def test_flooding_a_forest_takes_as_many_iterations_as_it_is_long():
    how = {"schedule": "flooding", "tolerance": 1e-12}
    path = ts.PairwiseGraph(
        torch.randn(6, 3).double(), [(i, i + 1) for i in range(5)], torch.randn(3, 3).double(), **how
    )
    assert path.is_forest
    assert path.convergence().iterations == 6  # five to cross it, one to see that nothing changes


def test_forest_or_not():
    assert not any(Case(name).model().is_forest for name in ALL)
    assert ts.FactorGraph(torch.zeros(5, 2), [((0, 1, 2), torch.zeros(2, 2, 2)), ((2, 3), torch.zeros(2, 2))]).is_forest


# Configurations.


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ALL)
def test_argmax_equals_enumeration_for_weak_couplings(name, seed):
    case = Case(name, 0.2, seed=seed, n=2 if name in ("grid", "apart") else 3)
    (instance,) = case.instances()
    assert tuple(case.model().argmax().tolist()) == Enumerated(*instance).best


@pytest.mark.filterwarnings("ignore::tailsum.ConvergenceWarning")
@pytest.mark.parametrize("name", ["triangle", "complete", "ring of triples", "four at once"])
def test_argmax_never_scores_above_the_best(name):
    for seed in range(12):
        case = Case(name, 1.5, forbidden=0.1 * (seed % 2), seed=seed, n=2)
        (instance,) = case.instances()
        model, truth = case.model(iterations=50), Enumerated(*instance)
        found = model.argmax()
        score = model.score(found)
        assert score <= truth.scores.max() + 1e-9
        if found[0] >= 0:
            close(score, truth.score(found.tolist(), *instance))


@pytest.mark.parametrize("name", ["square", "two in common"])
def test_scores_of_all_configurations_equal_explicit_sums(name):
    case = Case(name, 1.0, forbidden=0.1, seed=1)
    (instance,) = case.instances()
    truth, model = Enumerated(*instance), case.model()
    close(model.score(torch.tensor(truth.all)), truth.scores)
    close(model.log_prob(torch.tensor(truth.all)), truth.scores - Loopy(*instance).log_partition)


@pytest.mark.filterwarnings("ignore::tailsum.ConvergenceWarning")
@pytest.mark.parametrize("name", ["grid", "complete", "ring of triples", "triples and pairs"])
def test_samples_never_have_a_forbidden_state(name, generator):
    case = Case(name, 1.0, batch=(2,), seed=1)
    case.unary[:, ::2, 0] = case.unary[0, 1, 1:] = -math.inf
    model = case.model(iterations=50)
    samples = model.sample((3000,), generator=generator)
    assert samples.shape == (3000, 2, case.n_nodes)
    scores = torch.tensor(case.unary).expand(3000, -1, -1, -1).gather(-1, samples[..., None])
    assert (scores > -math.inf).all()
    assert samples[:, 0, 1].eq(0).all()
    assert model.score(samples).isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_frequencies_of_samples_are_close_to_the_beliefs(name, generator):
    model = Case(name, 0.2, batch=(2,), seed=2).model()
    samples = model.sample((20_000,), generator=generator)
    frequency = torch.nn.functional.one_hot(samples, 3).double().mean(0)
    close(frequency, model.marginals(), rtol=0, atol=0.02)


@pytest.mark.parametrize("name", ["triangle", "two in common"])
def test_frequencies_of_joint_states_are_close_to_the_beliefs_of_factors(name, generator):
    case = Case(name, 0.2, seed=2)
    model = case.model()
    samples = model.sample((20_000,), generator=generator)
    for scope, found in zip(case.scopes, joint_beliefs(model, case), strict=True):
        place = torch.zeros(20_000, dtype=torch.long)
        for v in scope:
            place = 3 * place + samples[:, v]
        frequency = torch.bincount(place, minlength=3 ** len(scope)).double() / 20_000
        close(frequency, found.flatten(), rtol=0, atol=0.02)


# Divergences.


@pytest.mark.parametrize("forbidden", [0.0, 0.15])
@pytest.mark.parametrize("name", ["triangle", "grid", "triples and pairs"])
def test_the_divergence_from_itself_is_zero(name, forbidden):
    model = Case(name, 0.6, forbidden, batch=(2,)).model(damping=0.2)
    close(model.kl(model), np.zeros(2), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_divergences_equal_the_reference(name):
    p, q = Case(name, 0.5, batch=(2,), seed=1), Case(name, 0.5, batch=(2,), seed=2)
    cross = []
    for mine, theirs, instance in zip(p.loopy(), q.loopy(), q.instances(), strict=True):
        cross.append(theirs.log_partition - mine.expected(*instance))
    entropy = [t.entropy for t in p.loopy()]
    close(p.model().cross_entropy(q.model()), cross)
    close(p.model().kl(q.model()), np.array(cross) - entropy)


def test_the_divergence_is_infinite_where_the_other_forbids_what_has_a_chance():
    case = Case("triangle", 0.5)
    model = case.model()
    case.tables[1][0, 2] = -math.inf
    assert model.kl(case.model()) == math.inf
    assert case.model().kl(model).isfinite()


# Sketches.


def everything(model, generator):
    """All operations of a model."""
    top = model.topk(2 if model.node_shape[0] < 4 else 1)
    relaxed = model.rsample(0.7, generator=generator(1))
    samples = model.sample((5,), generator=generator(2))
    configurations = torch.zeros(*model.batch_shape, *model.node_shape, dtype=torch.long)
    return {
        "log_partition": model.log_partition(),
        "entropy": model.entropy(),
        "marginals": model.scatter(model.marginals()),
        "joint": model.pair_marginals() if isinstance(model, ts.PairwiseGraph) else model.factor_marginals(),
        "argmax": model.argmax(),
        "top": top.configurations,
        "top scores": top.scores,
        "samples": samples,
        "relaxed": relaxed.weights,
        "hard": relaxed.hard,
        "score": model.score(configurations),
        "log_prob": model.log_prob(configurations),
        "kl": model.kl(model),
        "cross_entropy": model.cross_entropy(model),
        "iterations": model.convergence().iterations,
    }


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.filterwarnings("ignore::tailsum.ConvergenceWarning")  # of the noisy scores in `rsample`
@pytest.mark.parametrize(
    ("name", "forbidden"),
    [("triangle", 0.0), ("square", 0.1), ("two in common", 0.1), ("triples and pairs", 0.0)],
)
def test_a_sketch_of_all_states_equals_the_whole_in_every_operation(name, forbidden):
    model = Case(name, 0.4, forbidden, batch=(2,), seed=1).model(iterations=30, tolerance=1e-8)
    small = model.sketch(k=3)
    assert small.whole is model
    whole, found = everything(model, seeded), everything(small, seeded)
    for use, value in whole.items():
        torch.testing.assert_close(found[use], value, **CLOSE, msg=lambda text, use=use: f"{use}: {text}")


def random_subset(case, k, seed):
    """Kept states of every variable, in any order, with weights."""
    random = np.random.default_rng(seed)
    index = random.permuted(np.broadcast_to(np.arange(case.n), (*case.batch, case.n_nodes, case.n)), axis=-1)[..., :k]
    return index, 0.5 * random.normal(size=index.shape)


def restricted(case, index, log_weight):
    """The scores of a case at the kept states: of each instance with weights, and without."""
    for b, (unary, factors) in zip(np.ndindex(case.batch), case.instances(), strict=True):
        kept = index[b]
        rows = np.take_along_axis(unary, kept, -1)
        tables = [(scope, table[np.ix_(*(kept[v] for v in scope))]) for scope, table in factors]
        yield rows + log_weight[b], rows, tables


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("name", ["square", "grid", "ring of triples", "triples and pairs", "four at once"])
def test_a_restricted_model_equals_the_reference_on_the_kept_states(name, batch):
    case = Case(name, 0.6, batch=batch, seed=2, n=5)
    index, log_weight = random_subset(case, 3, seed=1)
    small = case.model().restrict(ts.Subset(torch.tensor(index), torch.tensor(log_weight)))
    truths = [Loopy(weighted, tables) for weighted, _, tables in restricted(case, index, log_weight)]
    plain = [(rows, tables) for _, rows, tables in restricted(case, index, log_weight)]
    close(small.log_partition().flatten(), [t.log_partition for t in truths])
    close(small.marginals().reshape(-1, case.n_nodes, 3), [np.stack(t.nodes) for t in truths])
    for f, found in enumerate(joint_beliefs(small, case)):
        close(found, [t.joint[f] for t in truths])
    expected = [t.log_partition - t.expected(*scores) for t, scores in zip(truths, plain, strict=True)]
    close(small.entropy().flatten(), expected)  # the weights count in the sum, not in the score


@pytest.mark.parametrize("name", ["triangle", "grid", "two in common", "triples and pairs"])
def test_restricted_models_keep_the_numbers_of_the_states(name, generator):
    case = Case(name, 0.2, seed=3, n=5)
    index, log_weight = random_subset(case, 2, seed=2)
    model = case.model()
    small = model.restrict(ts.Subset(torch.tensor(index), torch.tensor(log_weight)))
    assert torch.equal(small.states, torch.tensor(index))
    assert torch.equal(small.log_weight, torch.tensor(log_weight))
    samples, best = small.sample((500,), generator=generator), small.argmax()
    assert (samples[..., None] == small.states).any(-1).all()
    assert (best[..., None] == small.states).any(-1).all()
    close(small.score(best), model.score(best))
    ((_, rows, tables),) = restricted(case, index, log_weight)
    truth = Enumerated(rows, tables)  # weights do not count
    assert best.tolist() == [int(index[v, state]) for v, state in enumerate(truth.best)]
    spread = small.scatter(small.marginals())
    assert spread.shape == (case.n_nodes, 5)
    close(spread.gather(-1, small.states), small.marginals())
    close(spread.sum(-1), np.ones(case.n_nodes))


def test_a_restricted_restricted_model_adds_its_weights():
    case = Case("grid", 0.4, seed=3, n=5)
    index, log_weight = random_subset(case, 4, seed=2)
    again, more = random_subset(Case("grid", n=4), 2, seed=3)
    small = case.model().restrict(ts.Subset(torch.tensor(index), torch.tensor(log_weight)))
    small = small.restrict(ts.Subset(torch.tensor(again), torch.tensor(more)))
    index, log_weight = np.take_along_axis(index, again, -1), np.take_along_axis(log_weight, again, -1) + more
    ((weighted, _, tables),) = restricted(case, index, log_weight)
    assert torch.equal(small.states, torch.tensor(index))
    close(small.log_partition(), Loopy(weighted, tables).log_partition)


def test_one_subset_for_all_variables_and_repeated_states():
    case = Case("complete", 0.4, seed=3, n=5)
    index = np.broadcast_to(np.array([4, 1, 4]), (4, 3))
    log_weight = np.broadcast_to(np.log([0.5, 1.0, 0.25]), (4, 3))
    small = case.model().restrict(ts.Subset(torch.tensor(index.copy()), torch.tensor(log_weight.copy())))
    ((weighted, _, tables),) = restricted(case, index, log_weight)
    close(small.log_partition(), Loopy(weighted, tables).log_partition)
    assert len({tuple(x) for x in small.topk(4).configurations.tolist()}) == 4


@pytest.mark.parametrize("proposal", [ts.Uniform(), ts.Lookahead(4), ts.Lookahead(4, sequential=False)])
@pytest.mark.parametrize("name", ["complete", "ring of triples", "four at once"])
def test_a_sketch_of_some_states_is_a_restricted_model(name, proposal, generator):
    case = Case(name, 0.4, seed=3, n=5)
    small = case.model().sketch(3, proposal=proposal, generator=generator)
    assert small.states.shape == (case.n_nodes, 3)
    ((weighted, _, tables),) = restricted(case, small.states.numpy(), small.log_weight.numpy())
    close(small.log_partition(), Loopy(weighted, tables).log_partition)


def test_copies_of_a_model_converge_to_the_same_point_as_one():
    """Replicates of one graph in a batch: each is on its own."""
    case = Case("grid", 0.5)
    unary, tables = torch.tensor(case.unary), torch.tensor(np.stack(case.tables))
    many = ts.PairwiseGraph(unary.expand(7, -1, -1), GRID, tables, **EXACTLY)
    close(many.log_partition(), case.model().log_partition().expand(7))


# Memory.


def saved(make, use, **how):
    """How many tensors are kept for the backward pass, and how many bytes."""
    count, size = 0, 0

    def pack(x):
        nonlocal count, size
        count, size = count + 1, size + x.numel() * x.element_size()
        return x

    leaf = torch.tensor(Case("square").unary).requires_grad_()
    model = make(leaf, tolerance=0.0, damping=0.9, **how)
    assert model.convergence().iterations == model.iterations  # none of them is spared
    with warnings.catch_warnings(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        warnings.simplefilter("ignore", ts.ConvergenceWarning)
        value = use(model)
        value.square().sum().backward()
    assert leaf.grad.abs().sum() > 0
    return count, size


def pairs(leaf, **how):
    return ts.PairwiseGraph(leaf, SQUARE, torch.tensor(Case("square", 0.5).tables[0]), **how)


def triples(leaf, **how):
    scopes = torch.tensor([(0, 1, 2), (3, 1, 2)])
    return ts.FactorGraph(leaf, [(scopes, torch.tensor(Case("two in common", 0.5).tables[0]))], **how)


USES = {
    "log_partition": lambda m: m.log_partition(),
    "marginals": lambda m: m.marginals(),
    "entropy": lambda m: m.entropy(),
    "joint": lambda m: m.pair_marginals() if isinstance(m, ts.PairwiseGraph) else m.factor_marginals()[0],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("make", [pairs, triples])
def test_memory_of_the_implicit_gradient_does_not_grow_with_the_iterations(make, use, schedule):
    few, many = (saved(make, USES[use], iterations=i, schedule=schedule) for i in (10, 200))
    assert few == many


@pytest.mark.parametrize("use", ["log_partition", "marginals"])
@pytest.mark.parametrize("make", [pairs, triples])
def test_memory_of_the_unrolled_gradient_grows_with_the_iterations(make, use):
    few, many = (saved(make, USES[use], iterations=i, gradient="unrolled") for i in (10, 40))
    assert many[0] > 3 * few[0]
    assert many[1] > 3 * few[1]
