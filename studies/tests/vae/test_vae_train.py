"""Training that is stopped goes on to the same bits as training in one go; what it does on the way and comes to."""

import math
import re
import shutil

import pytest
import torch

pytest.importorskip("safetensors")


from vae_cases import (
    CPU,
    SMALL,
    STEPS,
    checkpoint,
    fresh,
    go_on,
    new_run,
    rows,
    same_run,
    same_tensors,
    step_of,
    trained,
)

from tailsum.nn import Elbo, StructuredVAE
from tailsum_studies.vae.checkpoint import BEST, PREVIOUS, read
from tailsum_studies.vae.data import Corpus
from tailsum_studies.vae.explore import gather
from tailsum_studies.vae.processes import Processes
from tailsum_studies.vae.run import OWN, Run
from tailsum_studies.vae.settings import Settings
from tailsum_studies.vae.train import NotFiniteError, Trainer, Watcher, train

pytestmark = pytest.mark.usefixtures("quick")


HOW = {
    "full": {"estimator": "full"},
    "full, soft": {"estimator": "full", "hard": False, "final_temperature": 0.3},
    "topk": {"estimator": "topk", "kept": 5},
    "rdp": {"estimator": "rdp", "kept": 6},
    "rdp, soft": {"estimator": "rdp", "kept": 6, "hard": False},
    "tailsum, whole": {"estimator": "tailsum"},
    "tailsum": {"estimator": "tailsum", "kept": 6, "landmarks": 5},
    "tailsum, soft": {"estimator": "tailsum", "kept": 6, "hard": False, "temperature": 0.7},
    "transformer": {"estimator": "tailsum", "kept": 6, "encoder": "transformer"},
    "shards": {"estimator": "full", "shards": 3, "batch": 119},  # every third batch has two sentences
}


# The start.


@pytest.mark.parametrize("encoder", ["lstm", "transformer"])
def test_words_start_with_the_states_of_their_classes(tmp_path, data, encoder):
    def output_of(certainty):
        new_run(tmp_path / str(certainty), data, certainty=certainty, encoder=encoder)
        trainer = fresh(tmp_path / str(certainty))
        trainer.begin()
        found = gather(trainer.model.eval(), trainer.corpus.train, trainer.sums)
        return found.information.net.sum().item(), found

    (none, _), (much, found) = output_of(0.0), output_of(12.0)
    assert much > none + 0.5
    assert found.perplexity > 3


# Stops.


@pytest.mark.parametrize("how", HOW)
def test_stopped_after_every_step(tmp_path, data, how, monkeypatch):
    monkeypatch.setattr("tailsum_studies.vae.train.LISTS_EVERY", 3)
    settings = {**HOW[how], "steps": 7, "check_every": 3}
    once = trained(tmp_path / "once", data, **settings)
    new_run(tmp_path / "often", data, **settings)
    for step in range(1, 8):
        often, done = go_on(tmp_path / "often", stop=lambda _: True)
        assert often.done == step == step_of(tmp_path / "often")
        assert not done  # also when it was the last step: who asks for a stop gets one
    assert go_on(tmp_path / "often")[1]
    same_run(tmp_path / "often", tmp_path / "once")
    same_tensors(often.checkpoint().tensors, once.checkpoint().tensors)
    assert len(rows(tmp_path / "once")) == 7
    assert [int(row["step"]) for row in rows(tmp_path / "once", "dev")] == [3, 6, 7]


def test_random_numbers_matter_and_the_seed_decides(tmp_path, data, whole):
    """Otherwise a resumed run that forgot its random state would agree all the same."""
    other = trained(tmp_path / "other", data, seed=1)
    calm = trained(tmp_path / "calm", data, dropout=0.0, word_dropout=0.0)
    wanted = checkpoint(whole).tensors
    for trainer in (other, calm):
        assert not torch.equal(
            trainer.checkpoint().tensors["model.decoder.words.weight"], wanted["model.decoder.words.weight"]
        )
    trained(tmp_path / "again", data)
    same_run(tmp_path / "again", whole)


def test_stopped_at_checks(tmp_path, data, whole):
    new_run(tmp_path / "run", data)
    for step in (4, 8, 12):
        trainer, done = go_on(tmp_path / "run", stop=lambda trainer: trainer.done % 4 == 0)
        assert (trainer.done, done) == (step, False)
    same_run(tmp_path / "run", whole)


def test_finished(tmp_path, data, whole):
    shutil.copytree(whole, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}
    trainer, done = go_on(tmp_path / "run")
    assert done
    assert trainer.done == STEPS
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}
    same_run(tmp_path / "run", whole)


def test_the_callers_random_state_is_left_alone(tmp_path, data):
    new_run(tmp_path / "run", data, estimator="rdp", kept=6)
    trainer = fresh(tmp_path / "run")
    before = torch.get_rng_state()
    train(trainer, Watcher())
    assert torch.equal(torch.get_rng_state(), before)


def test_schedules_reach_the_model(tmp_path, data, monkeypatch):
    given, plain = list[tuple[float, bool, float, float]](), StructuredVAE.elbo

    def heard(self, words, lengths, estimator, *how):
        given.append(how)
        return plain(self, words, lengths, estimator, *how)

    monkeypatch.setattr(StructuredVAE, "elbo", heard)
    how = {"temperature": 0.9, "final_temperature": 0.5, "word_dropout": 1.0, "last_word_dropout": 0.1}
    settings = trained(tmp_path / "run", data, **how).settings
    wanted = [
        (settings.temperature_at(i), settings.hard, settings.word_dropout_at(i), settings.weight_at(i))
        for i in range(STEPS)
    ]
    assert given == wanted
    assert len(set(wanted)) == STEPS


def test_two_processes_do_not_train_one_run(tmp_path, data, whole):
    run = new_run(tmp_path / "run", data)
    refused = []

    def begin_too(_):
        with pytest.raises(ValueError, match="in training by another process"):
            train(fresh(tmp_path / "run"), Watcher())
        refused.append(True)

    go_on(tmp_path / "run", stepped=begin_too)
    assert len(refused) == STEPS
    same_run(tmp_path / "run", whole)
    with run.alone(), pytest.raises(ValueError, match="another --output"):
        go_on(tmp_path / "run")


def test_two_processes_do_not_begin_one_run(tmp_path, data):
    """Both have found an empty folder; the one that comes second leaves everything as it is."""
    corpus = Corpus.read(data, 60, longest=7)
    runs = [
        Run.new(tmp_path / "run", Settings(**{**SMALL, "data": str(data), "seed": seed}), corpus) for seed in (1, 2, 3)
    ]
    with runs[0].alone(), pytest.raises(ValueError, match="in training by another process"):
        runs[1].write()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]
    runs[2].write()
    with pytest.raises(ValueError, match="holds a run already"):
        runs[1].write()
    assert Run.open(tmp_path / "run").settings.seed == 3


@pytest.mark.parametrize("name", OWN)
def test_files_that_are_no_runs(tmp_path, data, name):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("in nobody's way")
    (folder / name).write_text("someone's")
    with pytest.raises(ValueError, match=f"holds {name} already, which is no run's: choose another --output"):
        new_run(folder, data)
    assert sorted(path.name for path in folder.iterdir()) == sorted([name, "notes.txt"])
    (folder / name).unlink()
    new_run(folder, data)


# Losses that are not numbers.


def spoil(monkeypatch, done, how):
    """Make the loss, or only its gradient, not a number at the step after `done` steps."""
    plain = Trainer._elbo

    def spoiled(trainer, batch):
        elbo = plain(trainer, batch)
        if trainer.done != done:
            return elbo
        if how == "gradient":
            elbo.words.register_hook(lambda gradient: gradient * math.inf)
            return elbo
        return Elbo(elbo.words * (math.nan if how == "nan" else math.inf), elbo.states, elbo.entropy)

    monkeypatch.setattr(Trainer, "_elbo", spoiled)


@pytest.mark.parametrize("how", ["nan", "infinite", "gradient"])
def test_not_finite(tmp_path, data, whole, monkeypatch, how):
    new_run(tmp_path / "run", data)
    with monkeypatch.context() as patch:
        spoil(patch, 5, how)
        with pytest.raises(NotFiniteError) as caught:
            go_on(tmp_path / "run")
    failure = read(tmp_path / "run" / "failure.safetensors")
    named = int(re.search(r"step (\d+)", str(caught.value))[1])
    assert named == failure.facts["step"]
    assert str(tmp_path / "run" / "failure.safetensors") in str(caught.value)

    trainer = fresh(tmp_path / "run")
    sentences = [trainer.corpus.train[i] for i in trainer.order.at(5)]
    assert failure.facts["sentences"] == [" ".join(trainer.corpus.sentence(each)) for each in sentences]
    assert failure.tensors["lengths"].tolist() == [len(each) for each in sentences]
    for row, each in zip(failure.tensors["words"].tolist(), sentences, strict=True):
        assert row == each + [0] * (len(row) - len(each))
    trainer, _ = go_on(tmp_path / "run", stop=lambda trainer: trainer.done == 5)
    weights = {name: value for name, value in failure.tensors.items() if name not in {"words", "lengths"}}
    same_tensors(weights, trainer.checkpoint().tensors)  # as they were before the step

    assert step_of(tmp_path / "run", PREVIOUS) == 4
    go_on(tmp_path / "run")
    same_run(tmp_path / "run", whole)


def test_not_finite_is_named_as_in_the_curve(tmp_path, data, monkeypatch):
    new_run(tmp_path / "run", data)
    spoil(monkeypatch, 5, "nan")
    with pytest.raises(NotFiniteError) as caught:
        go_on(tmp_path / "run")
    assert len(rows(tmp_path / "run")) == 5
    assert "step 6 " in str(caught.value)


def test_weights_that_are_not_finite(tmp_path, data):
    """An absurd rate: the next step would find out, in the middle of its work."""
    new_run(tmp_path / "run", data, rate=1e30)
    with pytest.raises(NotFiniteError, match=r"the size of all weights at step 1 is not finite.*another --output"):
        go_on(tmp_path / "run")
    assert read(tmp_path / "run" / "failure.safetensors").facts["sentences"]


# Several processes.


@pytest.mark.parametrize(("shards", "count"), [(1, 2), (3, 2), (2, 4)])
def test_shards_and_processes(tmp_path, data, shards, count):
    run = new_run(tmp_path / "run", data, shards=shards)
    with pytest.raises(ValueError, match=f"shards must be a multiple of {count}.* got {shards}"):
        Trainer(run, run.corpus(), CPU, Processes(0, count))


@pytest.mark.parametrize("shards", [3, 5])
def test_processes_share_the_work(tmp_path, data, shards, monkeypatch):
    """What each of several processes adds up to what one does alone: no sentence is left out or done twice."""
    run = new_run(tmp_path / "run", data, shards=shards, batch=7)
    once = Trainer(run, run.corpus(), CPU, Processes())
    monkeypatch.setattr(Processes, "add_up", lambda *_: None)
    monkeypatch.setattr(Processes, "gathered", lambda _, tensor: [tensor])
    several = [Trainer(run, run.corpus(), CPU, Processes(rank, shards)) for rank in range(shards)]
    short = next(step for step in range(100) if len(once.order.at(step)) < shards)
    for trainer in (once, *several):
        trainer.done = short  # a batch so small that some have nothing to do
        trainer.optimiser.step = lambda: None
    step, parts = once.step(), [trainer.step() for trainer in several]
    assert step.words == sum(part.words for part in parts)
    torch.testing.assert_close(step.elbo.total, sum(part.elbo.total for part in parts))


# The best model.


def test_the_best_is_kept(tmp_path, data):
    trained(tmp_path / "run", data, rate=5.0, clip=1e6, kl_weight=1.0, steps=10, check_every=1)  # it gets worse
    losses = {int(row["step"]): float(row["nll"]) for row in rows(tmp_path / "run", "dev")}
    best = min(losses, key=losses.get)
    assert best != 10
    assert step_of(tmp_path / "run", BEST) == best
    assert (
        checkpoint(tmp_path / "run").facts["best"] == losses[best] == checkpoint(tmp_path / "run", BEST).facts["best"]
    )
    model = Run.open(tmp_path / "run").model()
    wanted = checkpoint(tmp_path / "run", BEST).tensors
    same_tensors(
        {f"model.{name}": value for name, value in model.state_dict().items()},
        {name: value for name, value in wanted.items() if name.startswith("model.")},
    )


def test_training_learns(tmp_path, data):
    trained(tmp_path / "run", data, steps=30, check_every=10, rate=0.05, dropout=0.0, word_dropout=0.0)
    losses = [float(row["nll"]) for row in rows(tmp_path / "run", "dev")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < float(rows(tmp_path / "run")[0]["nll"]) - 0.5
