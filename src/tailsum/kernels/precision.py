"""Inference keeps its own precision: under `torch.autocast`, products of messages would lose theirs."""

import contextlib

import torch
from torch import Tensor


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Within it, autocast is off."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` in the type of a and b."""
    with full_precision(a.device):
        return a @ b
