"""`tailsum evaluate` and `explore`, as people run them."""

import json
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("safetensors")


from vae_cases import STEPS, checkpoint, cut, flip, new_run, options, output_of, replace, run

from tailsum_studies.vae.checkpoint import BEST

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # tensorboard's own, which the process of a command does not show
    pytest.mark.usefixtures("quick"),
]


def test_evaluate(tmp_path, whole):
    folder = shutil.copytree(whole, tmp_path / "run")
    code, said = output_of("evaluate", folder, "--samples", "7", "--device", "cpu")
    assert code == 0, said
    found = json.loads((folder / "evaluation.json").read_text())
    assert set(found) == {"step", "estimator", "states", "dev", "test", "active", "information", "baselines"}
    assert found["step"] == checkpoint(folder, BEST).facts["step"]
    assert (found["estimator"], found["states"]) == ("full", 20)
    assert 1 <= found["active"] <= 20
    scores = {"per_word", "per_sentence", "standard_error"}
    parts = {"words", "states", "entropy", "sentences", "samples", "sampling_error"}
    for part in ("dev", "test"):
        assert set(found[part]) == scores | parts
        assert (found[part]["sentences"], found[part]["samples"]) == (30, 7)
        bound = sum(found[part][name] for name in ("words", "states", "entropy"))
        assert found[part]["per_sentence"] < -bound  # the mean of a logarithm is less than that of a mean
    assert set(found["baselines"]) == {"unigram", "bigram", "lstm"}
    for name, each in found["baselines"].items():
        assert set(each) == {"dev", "test"}
        assert set(each["test"]) == scores
        assert re.search(rf"{name} .* {each['test']['per_word']:.3f} ", said)
    assert re.search(rf"structured VAE .* {found['test']['per_word']:.3f} ", said)
    assert f"{found['active']} of 20 states" in said
    assert f"They tell {found['information']['net']:.2f} of the {found['information']['of_words']:.2f} nats" in said


def test_evaluate_some(tmp_path, whole):
    """Fewer sentences, no baselines; and the text may have moved."""
    folder = shutil.copytree(whole, tmp_path / "run")
    moved = shutil.copy(json.loads((folder / "settings.json").read_text())["data"], tmp_path / "moved.txt")
    some = ("--sentences", "10", "--samples", "3", "--no-baselines", "--device", "cpu", "--data", moved)
    assert output_of("evaluate", folder, *some)[0] == 0
    found = json.loads((folder / "evaluation.json").read_text())
    assert "baselines" not in found
    assert (found["dev"]["sentences"], found["test"]["samples"]) == (10, 3)
    assert output_of("evaluate", folder, *some)[0] == 0
    assert json.loads((folder / "evaluation.json").read_text()) == found
    moved.write_text(moved.read_text() + "\nmore")
    code, said = output_of("evaluate", folder, *some)
    assert code == 1
    assert f"{moved} must be the text" in said


def test_nothing_to_evaluate(tmp_path, data):
    for name in ("evaluate", "explore"):
        code, said = output_of(name, tmp_path)
        assert code == 1
        assert f"Error: {tmp_path} must be the folder of a run" in said
        code, said = output_of(name, tmp_path / "none")
        assert code == 1
        assert "none must be the folder of a run" in said
    new_run(tmp_path / "run", data)
    code, said = output_of("evaluate", tmp_path / "run", "--device", "cpu")
    assert code == 1
    assert f"{BEST} must be a checkpoint: it does not exist. Train first" in said
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_a_damaged_best_checkpoint(tmp_path, whole, long):
    folder = shutil.copytree(whole, tmp_path / "run")
    place = folder / "checkpoints" / BEST
    for damage in (cut, flip, replace):
        damage(place, long / "checkpoints" / BEST)
        code, said = output_of("evaluate", folder, "--device", "cpu", "--samples", "1", "--no-baselines")
        assert code == 0
        assert f"Warning: {place} " in said
        assert "checkpoint must be one of this run" in said or damage is not replace
        assert json.loads((folder / "evaluation.json").read_text())["step"] == STEPS
        shutil.copy(whole / "checkpoints" / BEST, place)


@pytest.mark.slow
def test_everything(tmp_path, data):
    """Train, evaluate and explore, at one command."""
    shown = run("train", "--output", tmp_path / "run", "--samples", "5", *options(data))
    assert shown.returncode == 0, shown.stderr
    assert all(name in shown.stdout for name in ("structured VAE", "unigram", "bigram", "lstm", "one page"))
    page = Path(re.search(r"one page: (.*)", shown.stdout)[1])
    assert page.is_file()
    assert (tmp_path / "run" / "evaluation.json").is_file()
    again = run("train", "--output", tmp_path / "run", "--resume", "--samples", "5")
    assert again.returncode == 0
