"""The folder of a run: its settings, words, checkpoints and losses."""

import dataclasses
from pathlib import Path

import pytest
import torch

from tailsum_studies.vae.build import build, learned
from tailsum_studies.vae.checkpoint import Checkpoint
from tailsum_studies.vae.data import Corpus
from tailsum_studies.vae.run import Run
from tailsum_studies.vae.seeds import seeded
from tailsum_studies.vae.settings import Settings

CPU = torch.device("cpu")
TINY = Settings(states=3, size=4, state_size=3, hidden=4, steps=4, batch=2)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"a b c{i % 3}" for i in range(30)))
    return path


@pytest.fixture
def run(tmp_path, text):
    settings = dataclasses.replace(TINY, data=str(text))
    return Run.new(tmp_path / "run", settings, Corpus.read(text)).write()


def checkpoint_of(run, model):
    tensors = {f"model.{name}": x for name, x in learned(model).items()}
    return Checkpoint(tensors, {"settings": run.settings.as_json(), "digest": run.digest})


def test_a_run_is_opened_as_it_was_created(run, text, tmp_path):
    opened = Run.open(run.folder)
    assert (opened.settings, opened.vocabulary, opened.digest) == (run.settings, run.vocabulary, run.digest)
    assert opened.corpus() == Corpus.read(text)
    moved = text.rename(tmp_path / "moved.txt")
    assert opened.corpus(moved).train == Corpus.read(moved).train


def test_a_run_is_not_created_over_another(run):
    with pytest.raises(ValueError, match="holds a run already"):
        Run.new(run.folder, run.settings, run.corpus()).write()


@pytest.mark.parametrize("name", ["", "nowhere", "checkpoints"])
def test_a_folder_without_a_run_is_refused(run, name):
    with pytest.raises(ValueError, match=r"folder of a run"):
        Run.open(run.folder / name if name else run.folder.parent)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"states": "many"}', '{"rate": -1.0}', "\udcff"])
def test_damaged_settings_are_refused(run, content):
    (run.folder / "settings.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"settings|rate"):
        Run.open(run.folder)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "3", '{"words": ["a"], "digest": ""}', '{"words": 3, "digest": ""}', None]
)
def test_damaged_words_are_refused(run, content):
    path = run.folder / "words.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ValueError, match=r"words\.json"):
        Run.open(run.folder)


@pytest.mark.parametrize(
    "change", [lambda s: s + "\na b", lambda s: s.replace("c2", "c1", 1), lambda s: s[: len(s) // 2]]
)
def test_changed_text_is_refused(run, text, change):
    text.write_text(change(text.read_text()))
    with pytest.raises(ValueError, match="it has changed"):
        run.corpus()


def test_the_best_model_is_loaded(run):
    with seeded(5, CPU):
        model = build(run.settings, run.vocabulary)
        for weight in model.parameters():
            torch.nn.init.normal_(weight)
    run.keeper.save_best(checkpoint_of(run, model))
    found = Run.open(run.folder).model()
    assert not found.training
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), model.parameters(), strict=True))


def test_a_checkpoint_of_another_run_is_refused(run, tmp_path, text):
    model = build(run.settings, run.vocabulary)
    before = [x.clone() for x in model.parameters()]
    other_settings = Run.new(tmp_path / "b", dataclasses.replace(run.settings, seed=1), run.corpus()).write()
    text.write_text(text.read_text() + "\na b c0")
    other_text = Run.new(tmp_path / "c", run.settings, Corpus.read(text)).write()
    for other, name in ((other_settings, "settings"), (other_text, "digest")):
        theirs = checkpoint_of(other, build(other.settings, other.vocabulary))
        with pytest.raises(ValueError, match=f"one of this run.*{name}"):
            run.put(theirs, model)
    run.accept(checkpoint_of(run, model))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


# The curve of losses.

ROWS = [
    {"step": 1, "part": "train", "words": "-5.25", "states": "-2.5", "entropy": "1.125", "nll": "3.0625"},
    {"step": 2, "part": "train", "words": "-4.25", "states": "-2.25", "entropy": "1.5", "nll": "2.0625"},
    {"step": 2, "part": "dev", "nll": "2.8125"},
    {"step": 13, "part": "train", "words": "-3.25", "states": "-2.125", "entropy": "1.75", "nll": "1.9375"},
]


def written(run, rows):
    run.cut_curve(0)
    for row in rows:
        run.add_to_curve(row)
    return [
        {name: str(row.get(name, "")) for name in ("step", "part", "words", "states", "entropy", "nll")} for row in rows
    ]


def test_the_curve_is_read_as_it_was_written(run):
    assert run.losses() == []
    assert written(run, ROWS) == run.losses()


def test_the_curve_forgets_what_came_after_a_step(run):
    rows = written(run, ROWS)
    run.cut_curve(2)
    assert run.losses() == rows[:3]
    run.add_to_curve(ROWS[3])
    assert run.losses() == rows
    run.cut_curve(0)
    assert run.losses() == []


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_row_that_was_cut_off_is_left_out_wherever_it_was_cut(run, count):
    """Also within its last number, which would be another then."""
    rows = written(run, ROWS[:count])
    whole = run.curve.read_bytes()
    start = len(b"".join(whole.splitlines(keepends=True)[:-1]))
    for end in range(start, len(whole.rstrip())):
        run.curve.write_bytes(whole[:end])
        assert run.losses() == rows[:-1], whole[start:end]


def test_a_cut_off_row_does_not_spoil_the_next(run):
    rows = written(run, ROWS)
    run.curve.write_bytes(run.curve.read_bytes()[:-12])
    run.cut_curve(13)
    run.add_to_curve(ROWS[3])
    assert run.losses() == rows


def test_paths_are_made(tmp_path, text):
    folder = Path(tmp_path) / "a" / "b"
    Run.new(folder, TINY, Corpus.read(text)).write()
    assert {path.name for path in folder.iterdir()} == {"lock", "settings.json", "words.json"}
