"""Connectionist temporal classification: labellings of frames that collapse to a target."""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.chains import ctc
from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.struct import Lengths, Struct, check_labels, lengths_of
from tailsum.numerics.tensors import unmasked
from tailsum.structure.base import Structure


class FrameLabels(Struct):
    """Labellings. Their short form is the label of each frame, `[B, T]`; `extra` is the number of labels."""

    def distribution(self, log_potentials: Tensor, lengths: Lengths) -> Any:
        raise NotImplementedError(
            "the targets of a CTC are not in its log_potentials: use CTC(log_potentials, targets)"
        )

    @staticmethod
    def to_parts(sequence: Int[Tensor, "*batch T"], extra: int, lengths: Lengths = None) -> Int[Tensor, "*batch T V"]:  # pyright: ignore[reportIncompatibleMethodOverride]  (extra is needed)
        """One-hot labels, zero in the padding."""
        inside = torch.arange(sequence.shape[-1], device=sequence.device) < lengths_of(sequence, lengths)[..., None]
        sequence = torch.where(inside, sequence, 0)
        check_labels("sequence", sequence, 0, extra - 1)
        return F.one_hot(sequence, extra) * inside[..., None]

    @staticmethod
    def from_parts(event: Float[Tensor, "*batch T V"] | Int[Tensor, "*batch T V"]) -> tuple[Tensor, int]:
        """The label of each frame, -1 in the padding, and the number of labels."""
        used = event != 0
        return torch.where(used.any(-1), used.long().argmax(-1), -1), event.shape[-1]


class CTC(StructDistribution):
    """The labellings `[B, T, V]` of T frames that collapse to `targets [B, S]`; `-partition` is the CTC loss.

    torch-struct 0.5 has no such class, only a notebook that writes it as an alignment.

    >>> CTC(torch.zeros(1, 3, 4), torch.tensor([[1, 2]])).count  # 112, 122, 012, 102, 120
    tensor([5.])
    """

    struct = FrameLabels
    form, part_dims = "[B, T, V]", 2

    def __init__(
        self, log_potentials: Float[Tensor, "batch T V"], targets: Int[Tensor, "batch S"], lengths: Lengths = None,
        target_lengths: Lengths = None, blank: int = 0, validate_args: bool | None = False,
    ) -> None:  # fmt: skip
        self.targets, self.target_lengths, self.blank = targets, target_lengths, blank
        super().__init__(log_potentials, lengths)
        self._build(tuple(x.detach() for x in self._scores()), lengths)  # for the errors

    def _longest(self) -> int:
        return self.event_shape[0]

    def _usable(self) -> Bool[Tensor, "*batch T 1"]:
        frame = torch.arange(self._longest(), device=self.log_potentials.device)
        return (frame < self._positions()[..., None])[..., None]

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        return ctc.CTC(scores[0], self.targets, lengths, self.target_lengths, self.blank)

    def _count(self) -> Float[Tensor, "*batch"]:
        (scores,) = self._scores()  # logarithms are summed: right to 14 digits
        free = torch.where(unmasked(scores.detach()) == -math.inf, -math.inf, 0.0).double()
        return self._build((free,), self.lengths).log_partition().exp().round().to(scores.dtype)
