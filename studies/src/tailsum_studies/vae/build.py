"""A model from settings."""

import hashlib

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tailsum.nn import CRFInference, Decoder, LSTMEncoder, PretrainedEncoder, StructuredVAE, TransformerEncoder
from tailsum_studies.text import Vocabulary
from tailsum_studies.vae.seeds import mixed, seeded
from tailsum_studies.vae.settings import Settings


def build(settings: Settings, vocabulary: Vocabulary) -> StructuredVAE:
    """A model before training, the same for the same seed; the caller's random state is left alone."""
    with seeded(mixed(settings.seed), torch.device("cpu")):
        encoder = encoder_of(settings, vocabulary)
        inference = CRFInference(encoder.size, settings.states, settings.state_size, settings.spread)
        decoder = Decoder(
            len(vocabulary), settings.states, settings.size, settings.state_size, settings.hidden, settings.dropout
        )
        return StructuredVAE(encoder, inference, decoder)


@torch.no_grad()
def start_from(classes: Int[Tensor, " V"], words: nn.Embedding, inference: CRFInference, certainty: float) -> None:
    """Give each word an embedding by which the posterior's score of its class is `certainty`, and of others about zero."""
    states, read = inference.states, inference.read.weight
    wanted = states * (certainty / states.square().sum(-1, keepdim=True))
    words.weight.mul_(0.1).add_(wanted[classes] @ torch.linalg.pinv(read).mT)


def encoder_of(settings: Settings, vocabulary: Vocabulary) -> LSTMEncoder | TransformerEncoder | PretrainedEncoder:
    """One of our own, or a pretrained one from a folder or a hub."""
    match settings.encoder:
        case "lstm":
            return LSTMEncoder(len(vocabulary), settings.size, settings.dropout)
        case "transformer":
            return TransformerEncoder(len(vocabulary), settings.size, settings.longest + 1, dropout=settings.dropout)
        case name:
            return PretrainedEncoder.load(name, vocabulary.words, settings.frozen)


def learned(model: StructuredVAE) -> dict[str, Tensor]:
    """The tensors of a model that training changes: not those of a frozen pretrained encoder, which has its own files."""
    frozen = _is_frozen(model.encoder)
    return {name: x for name, x in model.state_dict().items() if not (frozen and name.startswith("encoder."))}


def frozen_digest(model: StructuredVAE) -> str | None:
    """What tells the tensors of a frozen encoder from others; None if a model has none."""
    if not _is_frozen(model.encoder):
        return None
    found = hashlib.sha256()
    for name, value in model.encoder.state_dict().items():
        found.update(f"encoder.{name}".encode() + value.cpu().numpy().tobytes())
    return found.hexdigest()


def _is_frozen(encoder: nn.Module) -> bool:
    return isinstance(encoder, PretrainedEncoder) and encoder.frozen


def load(model: StructuredVAE, tensors: dict[str, Tensor]) -> None:
    """Put learned tensors into a model; a ValueError if they are not those of such a model."""
    wanted = learned(model)
    if set(wanted) != set(tensors) or any(wanted[name].shape != tensors[name].shape for name in wanted):
        raise ValueError("the checkpoint must hold the tensors of a model with these settings: it holds others")
    model.load_state_dict(tensors, strict=False)
