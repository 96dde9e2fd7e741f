"""`--resume --steps MORE`: a run goes on beyond its end, and comes to the same, whenever it was given more steps."""

import os
import shutil

import pytest

pytest.importorskip("safetensors")

from vae_cases import STEPS, checkpoint, go_on, new_run, output_of, output_of_train, rows, same_run, same_tensors

from tailsum_studies.vae import session
from tailsum_studies.vae.checkpoint import BEST, LAST, PREVIOUS
from tailsum_studies.vae.run import Run
from tailsum_studies.vae.settings import Settings

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # tensorboard's own, which the process of a command does not show
    pytest.mark.usefixtures("quick"),
]

MORE = STEPS + 7  # with 13 to 15, 17 to 19 between two looks at the dev part


@pytest.fixture(scope="module")
def extended(tmp_path_factory, whole):
    """A finished run that was given more steps. Not to be changed."""
    folder = shutil.copytree(whole, tmp_path_factory.mktemp("extended") / "run")
    Run.open(folder).extended(MORE).write_settings()
    assert go_on(folder)[1]
    return folder


def test_it_goes_on_from_its_end(extended, whole):
    before = (whole / "losses.csv").read_text()
    assert (extended / "losses.csv").read_text().startswith(before)
    assert len(rows(extended)) == MORE
    assert Run.open(extended).settings.plan == (STEPS, MORE)
    assert checkpoint(extended).facts["step"] == MORE


@pytest.mark.parametrize("step", [5, STEPS])
def test_the_same_whenever_it_is_extended(tmp_path, data, extended, step):
    folder = tmp_path / "run"
    new_run(folder, data)
    go_on(folder, stop=lambda trainer: trainer.done == step)
    code, said = output_of_train(folder, "--resume", "--steps", MORE)
    assert code == 0, said
    assert f"Going on from step {step} of {MORE}.\n" in said
    same(folder, extended)


def test_an_extension_is_interrupted(tmp_path, whole, extended):
    folder = shutil.copytree(whole, tmp_path / "run")
    Run.open(folder).extended(MORE).write_settings()
    go_on(folder, stop=lambda trainer: trainer.done == STEPS + 2)
    code, said = output_of_train(folder, "--resume", "--steps", MORE)  # typed again
    assert code == 0, said
    same(folder, extended)


def same(found, wanted):
    """To the bit; a best checkpoint of before the extension keeps the settings of then."""
    assert (found / "losses.csv").read_bytes() == (wanted / "losses.csv").read_bytes()
    assert checkpoint(found).facts == checkpoint(wanted).facts
    for name in (LAST, BEST):
        same_tensors(checkpoint(found, name).tensors, checkpoint(wanted, name).tensors)


def test_it_goes_on_from_before_its_old_end(tmp_path, extended, whole):
    """Where the last checkpoint is lost, one with the settings of before the extension serves."""
    folder = shutil.copytree(extended, tmp_path / "run")
    (folder / "checkpoints" / LAST).unlink()
    (folder / "checkpoints" / PREVIOUS).unlink()
    shutil.copy(whole / "checkpoints" / PREVIOUS, folder / "checkpoints" / PREVIOUS)
    code, said = output_of_train(folder, "--resume")
    assert code == 0, said
    same(folder, extended)


def test_twice(tmp_path, data):
    folder = tmp_path / "run"
    new_run(folder, data, steps=2)
    for steps in (4, 5):
        code, said = output_of_train(folder, "--resume", "--steps", steps)
        assert code == 0, said
    assert Run.open(folder).settings.plan == (2, 4, 5)
    assert len(rows(folder)) == 5


def test_not_fewer(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / "run")
    code, said = output_of_train(folder, "--resume", "--steps", STEPS - 1)
    assert code == 1
    assert f"Error: steps must be at least {STEPS}, which the run has already: got {STEPS - 1}\n" in said
    same_run(folder, whole)


def test_nothing_is_written_where_it_cannot_go_on(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / "run")
    code, _ = output_of_train(folder, "--resume", "--steps", MORE, "--data", __file__)
    assert code == 1
    assert Run.open(folder).settings.steps == STEPS


def test_other_runs_are_no_extensions():
    settings = Settings(steps=10, earlier=(5,))
    assert settings.is_extension_of(settings)
    assert settings.is_extension_of(Settings(steps=5))
    assert settings.extended(20).is_extension_of(Settings(steps=5))
    for other in (
        Settings(steps=10),
        Settings(steps=20, earlier=(5, 10)),
        Settings(steps=4),
        Settings(steps=5, seed=1),
    ):
        assert not settings.is_extension_of(other), other


def test_schedules_keep_to_the_steps_that_the_run_was_begun_with():
    begun = Settings(steps=100, temperature=2.0, final_temperature=0.5, word_dropout=0.4, last_word_dropout=0.1)
    more = begun.extended(160).extended(400)
    for name in ("rate_at", "weight_at", "temperature_at", "word_dropout_at"):
        assert [getattr(more, name)(i) for i in range(100)] == [getattr(begun, name)(i) for i in range(100)], name
    for step in (100, 250, 399):
        assert (more.weight_at(step), more.temperature_at(step)) == (begun.kl_weight, 0.5)
        assert more.word_dropout_at(step) == pytest.approx(0.1)


def test_the_rate_rises_and_falls_once_more():
    more = Settings(steps=100, rate=1.0).extended(300)
    assert [more.rate_at(step) for step in (99, 100, 119, 200, 250, 299)] == pytest.approx(
        [0.02, 0.05, 1, 1, 0.5, 0.02]
    )


# Finished.


def test_a_finished_run_says_so(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / "a run")
    code, said = output_of_train(folder, "--resume")
    assert code == 0
    more = f"tailsum train --output '{folder}' --resume --steps MORE"
    assert said == f"{folder} is finished already: its {STEPS} steps are done. To train further: {more}\n"
    same_run(folder, whole)


def test_its_report_is_made_once(tmp_path, whole, monkeypatch):
    folder = shutil.copytree(whole, tmp_path / "run")
    made = []

    def make(name):
        made.append(name)
        (folder / name).write_text("")

    monkeypatch.setattr(session, "evaluate_run", lambda *_, **__: make("evaluation.json"))
    monkeypatch.setattr(session, "explore_run", lambda *_, **__: make("index.html"))
    resume = ("train", "--device", "cpu", "--output", folder, "--resume")
    for _ in range(2):
        assert output_of(*resume)[0] == 0
    assert made == ["evaluation.json", "index.html"]
    os.utime(folder / "index.html", ns=(0, 0))  # older than the last checkpoint, as after an extension
    assert output_of(*resume)[0] == 0
    assert made == ["evaluation.json", "index.html"] * 2
