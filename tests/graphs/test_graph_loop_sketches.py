"""Graphs with loops: sketches and restricted models against a plain reference."""

import numpy as np
import pytest
import torch

import tailsum as ts
from harness.loopy import CLOSE, EXACTLY, GRID, Enumerated, Loopy, LoopyCase, close, joint_beliefs


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
    [
        ("triangle", 0.0),
        pytest.param("square", 0.1, marks=pytest.mark.slow),
        pytest.param("two in common", 0.1, marks=pytest.mark.slow),
        ("triples and pairs", 0.0),
    ],
)
def test_a_sketch_of_all_states_equals_the_whole_in_every_operation(name, forbidden):
    model = LoopyCase(name, 0.4, forbidden, batch=(2,), seed=1).model(iterations=30, tolerance=1e-8)
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
    case = LoopyCase(name, 0.6, batch=batch, seed=2, n=5)
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
    case = LoopyCase(name, 0.2, seed=3, n=5)
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
    case = LoopyCase("grid", 0.4, seed=3, n=5)
    index, log_weight = random_subset(case, 4, seed=2)
    again, more = random_subset(LoopyCase("grid", n=4), 2, seed=3)
    small = case.model().restrict(ts.Subset(torch.tensor(index), torch.tensor(log_weight)))
    small = small.restrict(ts.Subset(torch.tensor(again), torch.tensor(more)))
    index, log_weight = np.take_along_axis(index, again, -1), np.take_along_axis(log_weight, again, -1) + more
    ((weighted, _, tables),) = restricted(case, index, log_weight)
    assert torch.equal(small.states, torch.tensor(index))
    close(small.log_partition(), Loopy(weighted, tables).log_partition)


def test_one_subset_for_all_variables_and_repeated_states():
    case = LoopyCase("complete", 0.4, seed=3, n=5)
    index = np.broadcast_to(np.array([4, 1, 4]), (4, 3))
    log_weight = np.broadcast_to(np.log([0.5, 1.0, 0.25]), (4, 3))
    small = case.model().restrict(ts.Subset(torch.tensor(index.copy()), torch.tensor(log_weight.copy())))
    ((weighted, _, tables),) = restricted(case, index, log_weight)
    close(small.log_partition(), Loopy(weighted, tables).log_partition)
    assert len({tuple(x) for x in small.topk(4).configurations.tolist()}) == 4


@pytest.mark.parametrize("proposal", [ts.Uniform(), ts.Lookahead(4), ts.Lookahead(4, sequential=False)])
@pytest.mark.parametrize("name", ["complete", "ring of triples", "four at once"])
def test_a_sketch_of_some_states_is_a_restricted_model(name, proposal, generator):
    case = LoopyCase(name, 0.4, seed=3, n=5)
    small = case.model().sketch(3, proposal=proposal, generator=generator)
    assert small.states.shape == (case.n_nodes, 3)
    ((weighted, _, tables),) = restricted(case, small.states.numpy(), small.log_weight.numpy())
    close(small.log_partition(), Loopy(weighted, tables).log_partition)


def test_copies_of_a_model_converge_to_the_same_point_as_one():
    """Replicates of one graph in a batch: each is on its own."""
    case = LoopyCase("grid", 0.5)
    unary, tables = torch.tensor(case.unary), torch.tensor(np.stack(case.tables))
    many = ts.PairwiseGraph(unary.expand(7, -1, -1), GRID, tables, **EXACTLY)
    close(many.log_partition(), case.model().log_partition().expand(7))
