"""A model from settings, and which of its tensors are learned."""

import pytest
import torch

from tailsum.nn import CRFInference, Decoder, Estimator, PretrainedEncoder, StructuredVAE
from tailsum_studies.text import Vocabulary
from tailsum_studies.vae.build import build, learned, load
from tailsum_studies.vae.settings import Settings

VOCABULARY = Vocabulary(("<unk>", "<end>", "a"))


def built(**given):
    return build(Settings(**{"states": 4, "size": 8, "state_size": 3, "hidden": 5, "longest": 5, **given}), VOCABULARY)


@pytest.mark.parametrize("encoder", ["lstm", "transformer"])
def test_a_model_follows_from_its_seed(encoder):
    before = torch.get_rng_state()
    first = built(encoder=encoder)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    again, other = built(encoder=encoder), built(encoder=encoder, seed=1)
    assert set(first.state_dict()) == set(learned(first)) == set(learned(other))
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.inference.states, other.inference.states)
    assert not torch.equal(first.decoder.words.weight, other.decoder.words.weight)
    sentence = torch.tensor([[2, 2, 2, 2, 2, 1]])  # the longest, and "<end>"
    assert first.elbo(sentence, torch.tensor([6]), Estimator("tailsum", 99)).total.isfinite().all()


def test_learned_tensors_are_put_into_another_model():
    first, other = built(seed=0), built(seed=1)
    load(other, {name: value.clone() for name, value in learned(first).items()})
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    with pytest.raises(ValueError, match="it holds others"):
        load(built(states=5), learned(first))
    with pytest.raises(ValueError, match="it holds others"):
        load(built(encoder="transformer"), learned(first))
    some = learned(first)
    some.popitem()
    with pytest.raises(ValueError, match="it holds others"):
        load(other, some)


def pretrained(frozen, seed):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 9, "bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2Model(transformers.GPT2Config(vocab_size=7, **sizes))
    encoder = PretrainedEncoder(model, [[0], [1, 2], [3]], frozen=frozen)
    return StructuredVAE(encoder, CRFInference(8, 4, 3), Decoder(3, 4, 8, 3, 5))


def test_a_frozen_pretrained_encoder_is_not_learned():
    first, other = pretrained(True, 0), pretrained(True, 1)
    assert {name.split(".")[0] for name in learned(first)} == {"inference", "decoder"}
    assert set(learned(first)) == {name for name, weight in first.named_parameters() if weight.requires_grad}
    theirs = {name: value.clone() for name, value in other.encoder.state_dict().items()}
    load(other, {name: value.clone() for name, value in learned(first).items()})
    for name, value in learned(first).items():
        assert torch.equal(other.state_dict()[name], value)
    for name, value in other.encoder.state_dict().items():
        assert torch.equal(theirs[name], value)
    with pytest.raises(ValueError, match="it holds others"):
        load(other, first.state_dict())


def test_a_pretrained_encoder_that_learns_is_learned():
    first, other = pretrained(False, 0), pretrained(False, 1)
    assert set(learned(first)) == set(first.state_dict())
    load(other, learned(first))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    with pytest.raises(ValueError, match="it holds others"):
        load(other, learned(pretrained(True, 0)))
