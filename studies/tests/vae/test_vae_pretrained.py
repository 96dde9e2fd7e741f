"""Training with a pretrained encoder: it stays as it is, and a run knows its own."""

import pytest
import torch
from vae_cases import output_of

from harness.stored_models import minilm_folder, store
from tailsum_studies.vae.data import Corpus
from tailsum_studies.vae.processes import Processes
from tailsum_studies.vae.run import Run
from tailsum_studies.vae.settings import Settings
from tailsum_studies.vae.train import Trainer, Watcher
from tailsum_studies.vae.train import train as fit

transformers = pytest.importorskip("transformers")


pytestmark = pytest.mark.usefixtures("no_network")


def test_training_with_real_weights(tmp_path):
    minilm = minilm_folder()
    text = tmp_path / "text.txt"
    text.write_text("The dog barked in the river.\nA cat barked loudly in a bank of money.\n" * 30)
    corpus = Corpus.read(text)
    settings = Settings(
        data=str(text), states=12, encoder=str(minilm), steps=3, batch=8, check_every=3, hidden=16, size=8
    )
    run = Run.new(tmp_path / "run", settings, corpus).write()
    trainer = Trainer(run, corpus, torch.device("cpu"), Processes())
    before = trainer.model.encoder.state_dict()["model.embeddings.word_embeddings.weight"].clone()
    assert fit(trainer, Watcher())
    torch.testing.assert_close(trainer.model.encoder.state_dict()["model.embeddings.word_embeddings.weight"], before)
    assert (tmp_path / "run" / "checkpoints" / "best.safetensors").stat().st_size < 1e6  # without the frozen encoder
    again = run.model()
    with torch.no_grad():
        weight = next(iter(trainer.model.encoder.model.parameters()))
        weight[0, 0] += 1e-3
    with pytest.raises(ValueError, match=r"must be the encoder that .* was trained with: it has changed since"):
        run.put(run.best(), trainer.model)
    weight.data[0, 0] = before[0, 0]
    for name, value in again.state_dict().items():
        assert torch.equal(value, trainer.model.state_dict()[name]), name


def test_a_folder_from_elsewhere(tmp_path, monkeypatch, unchecked):
    """A run knows its encoder's folder wherever it is evaluated, and refuses other weights; long sentences are found first."""
    store(tmp_path, "bert")
    folder, text = tmp_path / "bert", tmp_path / "text.txt"
    text.write_text("the dog saw a cat\n" * 30)
    small = [
        "--device",
        "cpu",
        "--states",
        "3",
        "--steps",
        "1",
        "--batch",
        "4",
        "--hidden",
        "4",
        "--state-size",
        "2",
        "--no-report",
    ]
    begin = ["train", "--data", str(text), "--encoder", folder.name, *small]
    monkeypatch.chdir(tmp_path)
    code, said = output_of(*begin, "--output", "run")
    assert code == 0, said
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    evaluate = ["evaluate", "../run", "--no-baselines", "--samples", "2", "--device", "cpu"]
    code, said = output_of(*evaluate)
    assert code == 0, said
    model = transformers.AutoModel.from_pretrained(folder)
    with torch.no_grad():
        next(iter(model.parameters()))[0, 0] += 1e-3
    model.save_pretrained(folder)
    code, said = output_of(*evaluate)
    assert code == 1
    assert f"Error: {folder} must be the encoder" in said

    text.write_text("the dog saw a cat\n" * 30 + "dog " * 99 + "\n")
    monkeypatch.chdir(tmp_path)
    code, said = output_of(*begin, "--longest", "100", "--output", "other")
    assert code == 1
    assert "sub-words in a sentence, which is the model's limit" in said
    assert not (tmp_path / "other").exists()
