"""Encoders: what they make of a sentence is its own. And modules that do not fit, or are given bad sentences."""

import pytest
import torch
from hypothesis import given, settings
from nn_cases import N_WORDS, SHAPES, close, decoder_of, wild, with_gradients, words_of

from tailsum.nn.decoder import Decoder, as_sample
from tailsum.nn.encoder import LSTMEncoder, TransformerEncoder
from tailsum.nn.estimator import Estimator
from tailsum.nn.inference import CRFInference
from tailsum.nn.structured_vae import StructuredVAE

ENCODERS = {
    "lstm": lambda: LSTMEncoder(N_WORDS, 4),
    "transformer": lambda: TransformerEncoder(N_WORDS, 8, longest=6),
}


@pytest.mark.parametrize("kind", ENCODERS)
@given(lengths=SHAPES["lengths"], seed=SHAPES["seed"])
@settings(max_examples=15)
def test_padding_and_others_in_the_batch_change_nothing_for_an_encoder(kind, lengths, seed):
    encoder, length = wild(ENCODERS[kind](), seed), torch.tensor(lengths)
    inside = torch.arange(5) < length[:, None]
    words = words_of(lengths, seed, 5)
    spoilt = torch.where(inside, words, words_of(lengths, seed + 1, 5))
    factor = torch.randn(len(lengths), 5, encoder.size).double() * inside[..., None]
    results = []
    for y in (words, spoilt):
        read = encoder(y, length)
        assert read.shape == (len(lengths), 5, encoder.size)
        assert read.isfinite().all()
        results.append([read[inside], *with_gradients(encoder, factor * read)])
    alone, gradients = list[torch.Tensor](), [torch.zeros_like(x) for x in encoder.parameters()]
    for b, row in enumerate(lengths):
        read = encoder(words[b : b + 1, :row], length[b : b + 1])
        alone.append(read[0])
        each = with_gradients(encoder, factor[b : b + 1, :row] * read)
        gradients = [a + b for a, b in zip(gradients, each, strict=True)]
    for found in (*results[1:], [torch.cat(alone), *gradients]):
        for a, b in zip(results[0], found, strict=True):
            close(a, b)
    encoder.eval()  # another path through torch
    with torch.no_grad():
        close(encoder(spoilt, length)[inside], results[0][0])


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_word_is_known_by_all_of_its_sentence(kind):
    encoder = wild(ENCODERS[kind]())
    read = encoder(torch.tensor([[2, 0, 0, 1], [1, 0, 0, 1], [2, 0, 0, 2]]), torch.tensor([4, 4, 4]))
    assert (read[1:, 1:3] - read[0, 1:3]).abs().amax(-1).min() > 1e-6
    assert (read[0, 1] - read[0, 2]).abs().max() > 1e-6  # and by its place


def test_models_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="must have equally many states: got 3 and 4"):
        StructuredVAE(LSTMEncoder(N_WORDS, 4), CRFInference(4, 3, 3), decoder_of(4))


def test_bad_encoders_and_sentences_are_named():
    with pytest.raises(ValueError, match=r"size must be even.* 5"):
        LSTMEncoder(N_WORDS, 5)
    with pytest.raises(ValueError, match=r"at most 3 .* got 4"):
        TransformerEncoder(N_WORDS, 8, longest=3)(torch.zeros(1, 4).long(), torch.tensor([2]))
    for size in (5, 6):
        with pytest.raises(ValueError, match=f"size.* {size}"):
            TransformerEncoder(N_WORDS, size)


@pytest.mark.parametrize(
    "bad", [{"method": "sum"}, {"kept": 1}, {"landmarks": 0}, {"probes": 0}, {"drawn": 0}, {"drawn": 5}, {"drawn": 1.5}]
)
def test_an_estimator_names_bad_arguments(bad, unchecked):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Estimator(**{"method": "rdp", "kept": 4, **bad})


def careless_model():
    return StructuredVAE(LSTMEncoder(20, 8), CRFInference(8, 30, 4), Decoder(20, 30, 8, 4, 8))


@pytest.mark.parametrize(
    ("words", "lengths", "message"),
    [
        (torch.ones(0, 5, dtype=torch.long), [], "at least one sentence"),
        (torch.ones(2, 5, dtype=torch.long), [5, 0], "lengths"),
        (torch.ones(2, 5, dtype=torch.long), [6, 1], "lengths"),
        (torch.full((2, 5), 20), [5, 1], "words must lie between 0 and V-1 = 19"),
    ],
)
@pytest.mark.parametrize("part", ["encoder", "transformer", "decoder"])
def test_bad_sentences_are_named(words, lengths, message, part, unchecked):
    lengths, model = torch.tensor(lengths, dtype=torch.long), careless_model()
    call = {
        "encoder": lambda: model.encoder(words, lengths),
        "transformer": lambda: TransformerEncoder(20, 8)(words, lengths),
        "decoder": lambda: model.decoder(words, lengths, as_sample(torch.zeros_like(words))),
    }[part]
    with pytest.raises(ValueError, match=message):
        call()


def test_vectors_of_another_size_are_named(unchecked):
    with pytest.raises(ValueError, match=r"encoded must be \[B, T, 8\]: got \[2, 3, 9\]"):
        careless_model().inference(torch.randn(2, 3, 9))


def test_half_precision():
    words, lengths = torch.randint(1, 20, (3, 5)), torch.tensor([5, 1, 3])
    model = careless_model()
    exact = model.weigh(words, lengths, Estimator("full", 2), 400).bound
    found = model.bfloat16().weigh(words, lengths, Estimator("full", 2), 400).bound
    torch.testing.assert_close(found.total.float(), exact.total, rtol=0.05, atol=0.5)
