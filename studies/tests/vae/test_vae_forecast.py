"""What a step will take is said before it is begun, and too much is refused."""

import re

import pytest

pytest.importorskip("safetensors")

from vae_cases import CPU, SMALL, fresh, new_run, options, output_of_train

from tailsum import PeakMemory
from tailsum_studies.vae import session
from tailsum_studies.vae.data import Corpus
from tailsum_studies.vae.forecast import forecast, memory_of, rate_of, what_to_lower
from tailsum_studies.vae.settings import Settings

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # tensorboard's own, which the process of a command does not show
    pytest.mark.usefixtures("quick"),
]

SIZES = {"size": 64, "state_size": 16, "hidden": 64, "batch": 32}
HOW = {
    "exact": {"states": 1500},
    "full": {"states": 1000, "estimator": "full"},
    "topk": {"states": 1000, "estimator": "topk", "kept": 150},
    "rdp": {"states": 3000, "estimator": "rdp", "kept": 100},
    "sketch": {"states": 1000, "kept": 100, "landmarks": 200},
    "shards": {"states": 1000, "estimator": "topk", "kept": 150, "shards": 4},
}


@pytest.mark.parametrize("how", HOW)
def test_the_memory_of_a_step(tmp_path, data, how):
    new_run(tmp_path / "run", data, **{**SMALL, **SIZES, **HOW[how]})
    trainer = fresh(tmp_path / "run")
    longest = max(
        range(trainer.order.per_epoch), key=lambda i: max(trainer.order.lengths[j] for j in trainer.order.at(i))
    )
    trainer.done = longest
    with PeakMemory() as memory:
        trainer.step()
    weights = sum(2 * x.nbytes for x in trainer.parameters)  # and their gradients, which are there before
    found = forecast(trainer.settings, trainer.corpus).total
    assert 0.5 < found / (memory.peak + weights) < 2.5


@pytest.mark.parametrize("estimator", ["full", "topk", "rdp", "tailsum"])
@pytest.mark.parametrize("name", ["states", "kept", "batch", "longest", "state_size", "probes"])
def test_more_of_anything_takes_no_less(data, estimator, name):
    how = {
        "states": 1000,
        "kept": 100,
        "batch": 16,
        "state_size": 16,
        "longest": 4,
        "probes": 2,
        "estimator": estimator,
    }
    found = []
    for factor in (1, 2):
        settings = Settings(**{**how, name: factor * how[name]})
        found.append(forecast(settings, Corpus.read(data, longest=settings.longest)))
    assert found[0].total <= found[1].total
    assert found[0].work <= found[1].work
    assert found[0].seconds(1e9) <= found[1].seconds(1e9)
    assert found[0].seconds(1e10) < found[0].seconds(1e9)


def test_what_the_machine_has():
    assert memory_of(CPU) > 1e8
    assert rate_of(CPU, 64) > 0


def test_too_many_states_are_refused_at_once(tmp_path, data, monkeypatch):
    monkeypatch.setattr(session, "memory_of", lambda _: 24e9)
    monkeypatch.setattr(session, "Trainer", pytest.fail)  # before anything large is made
    given = options(data, states=10_000_000, batch=64)
    code, said = output_of_train(tmp_path / "run", *given)
    assert code == 1
    assert re.search(
        r"Error: a step takes about \d+\.\d GB of memory, and there are 24\.0 GB: lower --states \(now 10000000\)", said
    )
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_is_refused_is_only_warned_of_when_a_run_goes_on(tmp_path, data, monkeypatch):
    new_run(tmp_path / "run", data)
    monkeypatch.setattr(session, "memory_of", lambda _: 1e3)
    code, said = output_of_train(tmp_path / "run", "--resume")
    assert code == 0, said
    assert "Warning: a step takes about" in said


@pytest.mark.parametrize(("rate", "warned"), [(1e12, False), (1e3, True)])
def test_long_steps_are_warned_of(tmp_path, data, monkeypatch, rate, warned):
    monkeypatch.setattr(session, "rate_of", lambda _: rate)
    code, said = output_of_train(tmp_path / "run", *options(data, steps=1))
    assert code == 0, said
    assert re.search(r"^By forecast, a step takes \S+ GB of memory and \S+ \w+\.$", said, re.MULTILINE)
    assert ("Warning: a step takes about" in said) == warned


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"states": 10_000}, "--states (now 10000)"),
        ({"states": 5_000, "estimator": "topk"}, "--kept (now 1000), --batch (now 64)"),
    ],
)
def test_what_to_lower(data, how, says):
    settings = Settings(**how)
    corpus = Corpus.read(data, settings.words, longest=settings.longest)
    assert says in what_to_lower(forecast(settings, corpus), settings)
