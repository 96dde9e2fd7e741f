"""Connectionist temporal classification: labellings of frames that collapse to a target."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.chains import ctc
from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.struct import Lengths, Struct, one_hot
from tailsum.numerics.tensors import unmasked
from tailsum.structure.base import Structure


class FrameLabels(Struct):
    """Labellings. The short form is the label of each frame, `[B, T]`; `extra` is the number of labels."""

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> Any:
        raise NotImplementedError(
            "the targets of a CTC are not in its log_potentials: use CTC(log_potentials, targets)"
        )

    @staticmethod
    def to_parts(sequence: Int[Tensor, "*batch T"], extra: int, lengths: Lengths = None) -> Int[Tensor, "*batch T V"]:  # pyright: ignore[reportIncompatibleMethodOverride]  (extra is needed)
        """One-hot labels, zero in the padding."""
        return one_hot(sequence, extra, lengths)

    @staticmethod
    def from_parts(event: Float[Tensor, "*batch T V"] | Int[Tensor, "*batch T V"]) -> tuple[Tensor, int]:
        """The label of each frame, -1 in the padding, and the number of labels."""
        used = event != 0
        return torch.where(used.any(-1), used.long().argmax(-1), -1), event.shape[-1]


class CTC(StructDistribution):
    """The labellings `[B, T, V]` of T frames that collapse to `targets [B, S]`; `-partition` is the CTC loss.

    torch-struct 0.5 has no such class, only a notebook that computes CTC as an alignment.

    >>> CTC(torch.zeros(1, 3, 4), torch.tensor([[1, 2]])).count  # 112, 122, 012, 102, 120
    tensor([5.])
    """

    struct = FrameLabels
    form = "[B, T, V]"

    def __init__(
        self, log_potentials: Float[Tensor, "batch T V"], targets: Int[Tensor, "batch S"], lengths: Lengths = None,
        target_lengths: Lengths = None, blank: int = 0, validate_args: bool | None = False,
    ) -> None:  # fmt: skip
        self.targets, self.target_lengths, self.blank = targets, target_lengths, blank
        super().__init__(log_potentials, lengths)
        self._build(tuple(x.detach() for x in self._scores()), lengths)  # checks the targets

    @staticmethod
    def _fits(event: torch.Size) -> bool:
        return len(event) == 2 and 0 not in event

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        return ctc.CTC(scores[0], self.targets, lengths, self.target_lengths, self.blank)

    def _count(self) -> Float[Tensor, "*batch"]:
        (scores,) = self._scores()  # summed as logarithms: exact to 14 digits
        free = torch.where(unmasked(scores.detach()) == -math.inf, -math.inf, 0.0).double()
        return self._build((free,), self.lengths).log_partition().exp().round().to(scores.dtype)
