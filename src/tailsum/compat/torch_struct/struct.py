"""Dynamic programs by name, `LinearChain(semiring)`: conversions of events, and the operations that a semiring names."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from tailsum.compat.torch_struct.semirings.base import Semiring
from tailsum.compat.torch_struct.semirings.plain import LogSemiring
from tailsum.compat.torch_struct.semirings.recursion import neutral
from tailsum.numerics.check import as_whole
from tailsum.numerics.tensors import unmasked, working_type

Lengths = Int[Tensor, "*batch"] | Sequence[int] | None


class Struct(ABC):
    """A structure under a semiring: `sum` and `marginals` give what the semiring stands for."""

    def __init__(self, semiring: type[Semiring] = LogSemiring) -> None:
        self.semiring = semiring

    @abstractmethod
    def distribution(self, log_potentials: Any, lengths: Lengths) -> Any:
        """The distribution over this structure's configurations."""

    def recursion(self, parts: Any, lengths: Int[Tensor, " batch"]) -> Num[Tensor, "size batch"]:
        """The sum over all configurations in the semiring's arithmetic; `parts [size, batch, ..]` are zero in the padding."""
        raise NotImplementedError(f"{type(self).__name__} has no recursion for a {self.semiring.__name__}")

    def sum(self, logpotentials: Any, lengths: Lengths = None, _raw: bool = False) -> Num[Tensor, "*size_batch"]:
        """The reduction over all configurations: the log-partition, the best score or another, by the semiring."""
        return self.semiring.of_sum(self, logpotentials, lengths, _raw)

    def marginals(self, logpotentials: Any, lengths: Lengths = None, _raw: bool = False) -> Any:
        """Marginals, the best event or a random one, by the semiring; `_raw` keeps a first dimension, even of size one."""
        return self.semiring.of_marginals(self, logpotentials, lengths, _raw)

    def logpartition(
        self, log_potentials: Any, lengths: Lengths = None, force_grad: bool = False
    ) -> tuple[Num[Tensor, "size batch"], list[Any]]:
        """The sum with the semiring's first dimension, and what it was made from."""
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
        """The sum of the potentials of the parts in use."""
        return event_score(potentials, parts, max(potentials.dim(), parts.dim()) - len(batch_dims))

    @staticmethod
    def to_parts(sequence: Any, extra: Any = None, lengths: Lengths = None) -> Any:
        """An event from its short form; here they are the same."""
        return sequence

    @staticmethod
    def from_parts(event: Any) -> tuple[Any, Any]:
        """The short form of an event, and what else `to_parts` needs."""
        return event, None


def like_scores(parts: Num[Tensor, "size ..."]) -> Float[Tensor, "..."]:
    """Scores of the shape that numbers of a semiring stand for, which take no memory."""
    return torch.zeros((), device=parts.device).expand(parts.shape[1:])


def event_score(potentials: Float[Tensor, "..."], parts: Tensor, dims: int) -> Float[Tensor, "..."]:
    """The sum over the last `dims` dimensions of potentials times parts; what is not in use counts nothing, even `-inf`."""
    dtype = working_type(potentials)
    parts, scores = parts.to(dtype), potentials.to(dtype)
    used = torch.where(parts == 0, 0.0, scores) * parts
    return unmasked(used.flatten(used.dim() - dims).sum(-1, dtype=torch.float64).to(dtype))


def without_parts(score: Tensor, used: Tensor, usable: Tensor, dims: int) -> Float[Tensor, "..."]:
    """The score, but minus infinity where none of the usable parts is in use: zeros are no configuration."""
    none = (used == 0).flatten(used.dim() - dims).all(-1) & usable.flatten(usable.dim() - dims).any(-1)
    return score.masked_fill(none, -math.inf)


def check_event(name: str, event: object, batch: torch.Size, parts: torch.Size) -> None:
    """An event `[.., *batch, *parts]`; of a batch that has size one, or is not there, too."""
    shape = event.shape if isinstance(event, Tensor) else None
    if shape is not None and shape[max(0, len(shape) - len(parts)) :] == parts:
        found = shape[: len(shape) - len(parts)][-len(batch) :] if batch else torch.Size()
        if all(a in (1, b) for a, b in zip(reversed(found), reversed(batch), strict=False)):
            return
    expected = ", ".join(["..", *map(str, (*batch, *parts))])
    raise ValueError(
        f"{name} must be an event [{expected}]: got {type(event).__name__ if shape is None else list(shape)}"
    )


def lengths_of(sequence: Int[Tensor, "*batch N"], lengths: Lengths) -> Int[Tensor, "*batch"]:
    """The lengths as a tensor; all positions of `sequence` if they are not given."""
    if lengths is None:
        return torch.full(sequence.shape[:-1], sequence.shape[-1], device=sequence.device)
    return as_whole("lengths", lengths, sequence.device)


def check_labels(name: str, labels: Tensor, least: int, most: int) -> None:
    """Labels between `least` and `most`."""
    wrong = (labels < least) | (labels > most)
    if wrong.any():
        raise ValueError(f"{name} must lie between {least} and {most}: got {labels[wrong][0].item()}")
