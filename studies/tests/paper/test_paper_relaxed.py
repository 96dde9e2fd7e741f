"""Gradients by samples: biases are told from noise, and score functions have none."""

import math

import pytest
import torch
from paper_cases import gradient_rows

pytest.importorskip("safetensors")

from tailsum.nn import Estimator, as_sample
from tailsum_studies.paper import relaxed as experiment
from tailsum_studies.paper.bias import GROUPS, Spread, relative_bias, squared_size
from tailsum_studies.paper.relaxed import Plan, Sampler, Way, relaxed, spread, ways
from tailsum_studies.paper.report.beyond import more_sections
from tailsum_studies.paper.report.summary import summaries
from tailsum_studies.text import Split
from tailsum_studies.vae.data import batch_of
from tailsum_studies.vae.settings import Settings

TINY = {"size": 6, "state_size": 3, "hidden": 5, "words": 20, "longest": 6, "batch": 8}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A VAE with four states, trained for three steps on made-up sentences."""
    lines = [[f"w{(3 * i + j * j) % 15}" for j in range(2 + i % 2)] for i in range(60)]
    monkeypatch.setattr(experiment, "sentences", lambda _: Split(lines[:40], lines[40:50], lines[50:]))
    monkeypatch.setattr(experiment, "SENTENCES", 3)
    settings = Settings(**TINY, states=4, estimator="full", certainty=0.0, steps=3, check_every=3, check_sentences=4)
    monkeypatch.setattr(experiment, "settings", lambda seed: settings)
    experiment.prepared.cache_clear()
    experiment.true_gradient.cache_clear()
    return Plan(None, tmp_path, settings, GROUPS)


def noisy(mean, n=4000, seed=0):
    draws = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)) + torch.tensor(mean)
    found = Spread(draws[0])
    for place, x in enumerate(draws):
        found.add(place, x)
    return found


def test_a_bias_is_told_from_noise():
    truth = noisy([3.0, 4.0, 0.0])
    norm, bias, error, deviation = relative_bias(noisy([3.0, 4.0, 1.0], seed=1), truth)
    assert math.isclose(norm, 5.0, abs_tol=0.1)
    assert abs(bias - 0.2) < 3 * error < 0.1
    assert math.isclose(deviation, math.sqrt(3) / 5, rel_tol=0.05)
    _, bias, error, _ = relative_bias(noisy([3.0, 4.0, 0.0], seed=2), truth)
    assert bias < 3 * error < 0.1


def test_the_squared_size_has_no_bias():
    draws = torch.randn(2000, GROUPS, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = torch.tensor([squared_size(each) for each in draws])
    z = found[:, 0].mean() / (found[:, 0].std() / math.sqrt(len(found)))
    assert abs(z) < 4
    assert found[:, 0].std() < 2 * found[:, 1].square().mean().sqrt()


def exact_gradient(model, batch, states):
    """By the sum over all paths of sentences that are equally long."""
    length = int(batch.lengths[0])
    paths = torch.cartesian_prod(*[torch.arange(states)] * length)[:, None].expand(-1, len(batch.lengths), -1)
    chain = model.posterior(*batch)
    with torch.no_grad():
        reward = model.decoder(*batch, as_sample(paths, chain.dtype)).total
    loss = -((chain.log_prob(paths).exp() * reward).sum(0) + chain.entropy()).mean()
    return torch.autograd.grad(loss, model.inference.states)[0].flatten()


@pytest.mark.parametrize("baseline", ["no baseline", "running mean", "leave one out"])
def test_score_functions_are_unbiased(tiny, baseline):
    model, _ = experiment.prepared(tiny)
    batch = batch_of([[2, 5, 1], [7, 3, 1]])
    exact = exact_gradient(model, batch, 4)
    way = Way("", "exact", Estimator("full", 4), baseline=baseline)
    found = spread(Sampler(model, batch, way, 100), 2 * GROUPS, 1)[0]["states"]
    means = found.means()
    z = (means.mean(0) - exact) / (means.std(0) / math.sqrt(GROUPS))
    assert z.abs().max() < 4.5
    # The relaxed gradient at a high temperature is not.
    way = Way("", "exact", Estimator("full", 4), temperature=3.0)
    means = spread(Sampler(model, batch, way, 100), GROUPS, 1)[0]["states"].means()
    assert ((means.mean(0) - exact) / (means.std(0) / math.sqrt(GROUPS))).abs().max() > 6


def test_cells_are_resumable_and_have_every_part(tiny):
    cells = list(relaxed(tiny.data, tiny.folder, 1, 0))
    assert len({c.name for c in cells}) == len(cells) == len(list(ways(4)))
    chosen = next(c for c in cells if "leave_one_out-our_sketch" in c.name)
    rows = chosen.rows(tiny.folder, lambda: None)
    assert {r.parameter for r in rows} == {"encoder", "read", "states", "all"}
    assert all(r.norm > 0 and r.deviation > 0 and r.bias >= 0 for r in rows)
    assert chosen.finished(tiny.folder) == rows


def test_a_model_is_trained_once(tiny, monkeypatch):
    model, batch = experiment.prepared(tiny)
    experiment.prepared.cache_clear()
    monkeypatch.setattr("tailsum_studies.vae.train.Trainer.step", lambda self: pytest.fail("trained again"))
    again, same = experiment.prepared(tiny)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert torch.equal(batch.words, same.words)


def test_the_table_puts_bias_and_deviation_together():
    (section,) = more_sections(summaries({"relaxed": gradient_rows()}))
    line = section.tables[0].frame.loc["exact", "relaxed, 1"]
    assert line["Bias"] == "0.300 ± 0.010"
    assert line["Root mean square error"] == "0.500"
