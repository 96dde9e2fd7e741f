"""Words as numbers: the two special words of a vocabulary, and a check of batches of numbers."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tailsum.numerics.check import as_whole
from tailsum.structure.check import check_lengths

UNKNOWN = "<unk>"
END = "<end>"


def checked_inside(
    words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | Sequence[int], n_words: int
) -> Bool[Tensor, "B T"]:
    """Which positions are not padding; a ValueError if words or lengths are out of range."""
    lengths = as_whole("lengths", lengths, words.device)
    if words.dim() != 2 or lengths.shape != words.shape[:1] or not words.numel():
        got = f"{list(words.shape)} and {list(lengths.shape)}"
        raise ValueError(f"words must be [B, T] and lengths [B], with at least one sentence: got {got}")
    check_lengths(lengths, words.shape[1])
    inside = torch.arange(words.shape[1], device=words.device) < lengths[:, None]
    if len(wrong := words[inside & ((words < 0) | (words >= n_words))]):
        raise ValueError(f"words must lie between 0 and V-1 = {n_words - 1}: got {wrong[0].item()}")
    return inside
