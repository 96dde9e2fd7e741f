"""Checks of what users give. Each raises a ValueError that names the argument and its value."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def at_least(least: int, **named: int) -> None:
    """Each named value is a whole number of at least `least`."""
    for name, value in named.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}: got {value}")


def checked_inside(words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], n_words: int) -> Bool[Tensor, "B T"]:
    """Which positions are not padding, where words and lengths are in range."""
    if words.dim() != 2 or lengths.shape != words.shape[:1] or not words.numel():
        got = f"{list(words.shape)} and {list(lengths.shape)}"
        raise ValueError(f"words must be [B, T] and lengths [B], with at least one sentence: got {got}")
    longest = words.shape[1]
    if len(wrong := lengths[(lengths < 1) | (lengths > longest)]):
        raise ValueError(f"lengths must lie between 1 and {longest}: got {wrong[0].item()}")
    inside = torch.arange(longest, device=words.device) < lengths[:, None]
    if len(wrong := words[inside & ((words < 0) | (words >= n_words))]):
        raise ValueError(f"words must lie between 0 and V-1 = {n_words - 1}: got {wrong[0].item()}")
    return inside
