"""A model from settings."""

import hashlib

import torch
from torch import nn

from tailsum.apps.text import Vocabulary
from tailsum.apps.vae.seeds import mixed, seeded
from tailsum.apps.vae.settings import Settings
from tailsum.nn.decoder import Decoder
from tailsum.nn.encoder import LSTMEncoder, TransformerEncoder
from tailsum.nn.inference import CRFInference
from tailsum.nn.pretrained import PretrainedEncoder
from tailsum.nn.structured_vae import StructuredVAE


def build(settings: Settings, vocabulary: Vocabulary) -> StructuredVAE:
    """A model before training, the same for the same seed; the caller's random state is left alone."""
    with seeded(mixed(settings.seed), torch.device("cpu")):
        encoder = encoder_of(settings, vocabulary)
        inference = CRFInference(encoder.size, settings.states, settings.state_size, settings.spread)
        decoder = Decoder(
            len(vocabulary), settings.states, settings.size, settings.state_size, settings.hidden, settings.dropout
        )
        return StructuredVAE(encoder, inference, decoder)


def encoder_of(settings: Settings, vocabulary: Vocabulary) -> LSTMEncoder | TransformerEncoder | PretrainedEncoder:
    """One of our own, or a pretrained one from a folder or a hub."""
    match settings.encoder:
        case "lstm":
            return LSTMEncoder(len(vocabulary), settings.size, settings.dropout)
        case "transformer":
            return TransformerEncoder(len(vocabulary), settings.size, settings.longest + 1, dropout=settings.dropout)
        case name:
            return PretrainedEncoder.load(name, vocabulary.words, settings.frozen)


def learned(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a model that training changes: not those of a frozen pretrained encoder, which has its own files."""
    frozen = _frozen(model)
    return {name: value for name, value in model.state_dict().items() if not name.startswith(frozen)}


def frozen_digest(model: nn.Module) -> str | None:
    """What tells frozen tensors from others; None if a model has none."""
    frozen, found = _frozen(model), hashlib.sha256()
    if not frozen:
        return None
    for name, value in model.state_dict().items():
        if name.startswith(frozen):
            found.update(name.encode() + value.cpu().numpy().tobytes())
    return found.hexdigest()


def _frozen(model: nn.Module) -> tuple[str, ...]:
    """What the names of frozen tensors start with."""
    modules = model.named_modules()
    return tuple(f"{name}." for name, module in modules if isinstance(module, PretrainedEncoder) and module.frozen)


def load(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Put learned tensors into a model; a ValueError if they are not those of such a model."""
    wanted = learned(model)
    if set(wanted) != set(tensors) or any(wanted[name].shape != tensors[name].shape for name in wanted):
        raise ValueError("the checkpoint must hold the tensors of a model with these settings: it holds others")
    model.load_state_dict(tensors, strict=False)
