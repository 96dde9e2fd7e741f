"""The base of dynamic programs such as `LinearChain(semiring)`, and helpers for events, labels and lengths."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from tailsum.compat.torch_struct.semirings.base import Semiring
from tailsum.compat.torch_struct.semirings.plain import LogSemiring
from tailsum.compat.torch_struct.semirings.recursion import neutral
from tailsum.numerics.check import as_whole
from tailsum.numerics.tensors import unmasked, working_type

Lengths = Int[Tensor, "*batch"] | Sequence[int] | None


class Struct(ABC):
    """A structure under a semiring, which says what `sum` and `marginals` compute."""

    def __init__(self, semiring: type[Semiring] = LogSemiring) -> None:
        self.semiring = semiring

    @abstractmethod
    def distribution(self, log_potentials: Any, lengths: Lengths) -> Any:
        """The distribution over this structure's configurations."""

    def recursion(self, parts: Any, lengths: Int[Tensor, " batch"]) -> Num[Tensor, "size batch"]:
        """The sum over all configurations in the semiring's arithmetic, from `parts [size, batch, ..]`, zero in the padding."""
        raise NotImplementedError(f"{type(self).__name__} has no recursion for a {self.semiring.__name__}")

    def sum(self, logpotentials: Any, lengths: Lengths = None, _raw: bool = False) -> Num[Tensor, "*size_batch"]:
        """The semiring's sum over all configurations, such as the log-partition or the best score."""
        return self.semiring.of_sum(self, logpotentials, lengths, _raw)

    def marginals(self, logpotentials: Any, lengths: Lengths = None, _raw: bool = False) -> Any:
        """Marginals, the best event or a random one, by the semiring; `_raw` keeps the semiring's first dimension."""
        return self.semiring.of_marginals(self, logpotentials, lengths, _raw)

    def logpartition(
        self, log_potentials: Any, lengths: Lengths = None, force_grad: bool = False
    ) -> tuple[Num[Tensor, "size batch"], list[Any]]:
        """The sum with the semiring's first dimension, and the log-potentials in a list."""
        return self.sum(log_potentials, lengths, _raw=True), [log_potentials]

    def converted(self, potentials: Any) -> Any:
        """Potentials as numbers of the semiring."""
        return self.semiring.convert(potentials)

    def fold(self, parts: Any, lengths: Lengths) -> Num[Tensor, "size batch"]:
        """The sum over all configurations, from numbers of the semiring."""
        usable, positions = self.distribution(like_scores(parts), lengths).within()
        zero, _ = neutral(self.semiring, parts, parts.dim())
        return self.recursion(torch.where(usable, parts, zero), positions)

    def score(self, potentials: Any, parts: Any, batch_dims: Sequence[int] = (0,)) -> Float[Tensor, "*batch"]:
        """The sum of the potentials of the used parts."""
        return event_score(potentials, parts, max(potentials.dim(), parts.dim()) - len(batch_dims))

    @staticmethod
    def to_parts(sequence: Any, extra: Any = None, lengths: Lengths = None) -> Any:
        """An event from its short form; by default, the event itself."""
        return sequence

    @staticmethod
    def from_parts(event: Any) -> tuple[Any, Any]:
        """The short form of an event, and the argument `extra` of `to_parts`."""
        return event, None


def like_scores(parts: Num[Tensor, "size ..."]) -> Float[Tensor, "..."]:
    """Zero scores of the shape of a semiring's numbers, which take no memory."""
    return torch.zeros((), device=parts.device).expand(parts.shape[1:])


def event_score(potentials: Float[Tensor, "..."], parts: Tensor, dims: int) -> Float[Tensor, "..."]:
    """The sum over the last `dims` dimensions of potentials times parts; unused parts count nothing, even at `-inf`."""
    dtype = working_type(potentials)
    parts, scores = parts.to(dtype), potentials.to(dtype)
    used = torch.where(parts == 0, 0.0, scores) * parts
    return unmasked(used.flatten(used.dim() - dims).sum(-1, dtype=torch.float64).to(dtype))


def without_parts(score: Tensor, used: Tensor, usable: Tensor, dims: int) -> Float[Tensor, "..."]:
    """The score, or minus infinity where no usable part is used: zeros are no configuration."""
    none = (used == 0).flatten(used.dim() - dims).all(-1) & usable.flatten(usable.dim() - dims).any(-1)
    return score.masked_fill(none, -math.inf)


def check_event(name: str, event: object, batch: torch.Size, parts: torch.Size) -> None:
    """Check an event `[.., *batch, *parts]`; its batch dimensions may be missing or of size one."""
    shape = event.shape if isinstance(event, Tensor) else None
    if shape is not None and shape[max(0, len(shape) - len(parts)) :] == parts:
        lead = shape[: len(shape) - len(parts)][-len(batch) :] if batch else torch.Size()
        if all(a in (1, b) for a, b in zip(reversed(lead), reversed(batch), strict=False)):
            return
    expected = ", ".join(["..", *map(str, (*batch, *parts))])
    raise ValueError(
        f"{name} must be an event [{expected}]: got {type(event).__name__ if shape is None else list(shape)}"
    )


def lengths_of(sequence: Int[Tensor, "*batch N"], lengths: Lengths) -> Int[Tensor, "*batch"]:
    """The lengths as a tensor; by default, all positions of `sequence`."""
    if lengths is None:
        return torch.full(sequence.shape[:-1], sequence.shape[-1], device=sequence.device)
    return as_whole("lengths", lengths, sequence.device)


def check_labels(name: str, labels: Tensor, least: int, most: int) -> None:
    """Check that labels lie between `least` and `most`."""
    wrong = (labels < least) | (labels > most)
    if wrong.any():
        raise ValueError(f"{name} must lie between {least} and {most}: got {labels[wrong][0].item()}")


def inside(longest: int, lengths: Int[Tensor, "*batch"]) -> Bool[Tensor, "*batch N"]:
    """Which positions are not padding."""
    return torch.arange(longest, device=lengths.device) < lengths[..., None]


def one_hot(sequence: Int[Tensor, "*batch N"], size: int, lengths: Lengths) -> Int[Tensor, "*batch N size"]:
    """One-hot labels, zero in the padding."""
    mask = inside(sequence.shape[-1], lengths_of(sequence, lengths))
    sequence = torch.where(mask, sequence, 0)
    check_labels("sequence", sequence, 0, size - 1)
    return F.one_hot(sequence, size) * mask[..., None]


def added(place: Int[Tensor, "*lead n"], values: Num[Tensor, "*lead n"], sizes: Sequence[int]) -> Num[Tensor, "..."]:
    """Zeros `[*lead, *sizes]` with values added at flat indices."""
    total = values.new_zeros(*place.shape[:-1], math.prod(sizes))
    return total.scatter_add_(-1, place, values).unflatten(-1, tuple(sizes))


def over_all_states(
    pairs: Float[Tensor, "*lead K K"], early: Int[Tensor, "*#lead K"], late: Int[Tensor, "*#lead K"], size: int
) -> Float[Tensor, "*lead size size"]:
    """Values of pairs of kept states among all states, by the ids of the early and late ones."""
    place = (early[..., :, None] * size + late[..., None, :]).flatten(-2)
    return added(place, pairs.flatten(-2), (size, size))
