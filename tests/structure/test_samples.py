"""Samples of every structure, exact and relaxed, against enumeration."""

import math

import pytest
import torch

from harness.agree import close, frequencies_agree
from harness.registry import BOTH, FEW, STATEFUL, possible, small


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def tensors(configuration):
    """The tensors that make up a configuration."""
    fields = (configuration,) if isinstance(configuration, torch.Tensor) else configuration
    return [x for x in fields if x is not None]


@pytest.mark.parametrize(("name", "way"), BOTH)
def test_samples_follow_the_distribution(name, way, generator):
    case, model = possible(name, way, forbidden=0.1)
    count = 20_000
    sample = model.sample((200, count // 200), generator=generator)
    assert all(x.shape[:3] == (200, count // 200, 2) for x in tensors(sample))
    frequencies_agree(case, model, sample, count)


SAMPLERS = (
    "chains.backward_walk",
    "chains.semi_markov",
    "trees.tree_structure",
    "dependencies.arcs",
    "graphs.graph",
)


@pytest.mark.parametrize("name", FEW)
def test_many_samples_are_drawn_in_parts(name, monkeypatch):
    case, model = possible(name)
    for module in SAMPLERS:
        monkeypatch.setattr(f"tailsum.{module}.tile_rows", lambda *_: 16)
    monkeypatch.setattr("tailsum.structure.operations.samples.tile_size", lambda *_: 16 * 18)
    rows = case.rows(model.sample((3, 40), generator=seeded(0)))
    assert rows.shape[:2] == (120, 2)
    assert len(rows.flatten(1)[:32].unique(dim=0)) > len(rows.flatten(1)[:16].unique(dim=0))  # not copies of the first
    for b, truth in enumerate(case.truths()):
        assert all(truth.scores[truth.index_of(case.read(row, b))] > -math.inf for row in rows[:, b])


@pytest.mark.parametrize("name", FEW)
def test_no_samples(name):
    model = small(name).model()
    for configuration in (model.sample((0,)), model.rsample(sample_shape=(0,)).hard):
        assert all(x.shape[:2] == (0, 2) for x in tensors(configuration))


# Relaxed samples.


def relaxed(name, way, *, hard=False, temperature=1.0):
    case, model = possible(name, way, forbidden=0.1)
    sample = model.rsample(temperature, hard=hard, generator=seeded(1), sample_shape=(2, 2))
    weights = case.weights(model, sample)
    assert all(x.shape[:3] == (2, 2, 2) for x in weights)
    return case, model, sample, [x.reshape(4, 2, *x.shape[3:]) for x in weights]


@pytest.mark.parametrize(("name", "way"), BOTH)
@pytest.mark.parametrize("how", ["soft", "cold", "hard"])
def test_relaxed_samples_and_the_configurations_they_relax(name, way, how):
    """The configuration is possible; a cold or hard sample equals it."""
    temperature = {"soft": 0.7, "cold": 1e-6, "hard": 1.0}[how]
    case, model, sample, weights = relaxed(name, way, hard=how == "hard", temperature=temperature)
    rows = case.rows(sample.hard)
    for b, truth in enumerate(case.truths(model)):
        for s in range(4):
            c = truth.index_of(case.read(rows[s, b], b))
            assert truth.scores[c] > -math.inf
            for weight, used in zip(weights, case.used(truth), strict=True):
                assert ((weight >= 0) & (weight <= 1 + 1e-12)).all()
                if how != "soft":
                    here = tuple(slice(size) for size in used[c].shape)
                    close(weight[s, b][here], used[c], rtol=0, atol=1e-6)
                    close(weight[s, b].sum(), used[c].sum(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, way in BOTH if small(name).relaxes_jointly])
def test_relaxed_samples_are_mixtures_of_configurations(name, way):
    case, model, _, weights = relaxed(name, way, temperature=0.7)
    for b, truth in enumerate(case.truths(model)):
        allowed = truth.scores > -math.inf
        for s in range(4):
            corners = [torch.ones(int(allowed.sum()), 1).double()]
            wanted = [torch.ones(1).double()]
            for weight, used in zip(weights, case.used(truth), strict=True):
                here = tuple(slice(size) for size in used.shape[1:])
                assert (weight >= 0).all()
                close(weight[s, b].sum(), weight[s, b][here].sum())  # none in the padding
                corners.append(used[allowed].flatten(1))
                wanted.append(weight[s, b][here].flatten())
            matrix, point = torch.cat(corners, 1).T, torch.cat(wanted)
            close(matrix @ (torch.linalg.pinv(matrix) @ point), point)


@pytest.mark.parametrize("name", STATEFUL)
def test_relaxed_samples_mix_embeddings(name):
    _, model, sample, weights = relaxed(name, "restricted")
    embeddings = torch.randn(model.whole.n_states, 5).double()
    mixed = sample.mix(embeddings)
    close(mixed.reshape(4, 2, *mixed.shape[3:]), weights[-1] @ embeddings)
