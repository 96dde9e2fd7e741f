"""A batch of configurations of sentences of different lengths."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Int
from torch import Tensor

from tailsum.chains.segments import Segments
from tailsum.dependencies.configuration import Dependencies
from tailsum.trees.configuration import Trees

Configuration = TypeVar("Configuration", Tensor, Trees, Dependencies, Segments)


def stack(configurations: Sequence[Configuration]) -> tuple[Configuration, Int[Tensor, " B"]]:
    """The configurations of several sentences in one batch, padded, and the lengths of the sentences.

    All are of one kind: `Trees`, `Dependencies`, `Segments`, or states of positions `[T]`. `batch.at(i)` is the i-th, with
    its padding.

    >>> batch, lengths = stack([torch.tensor([4, 2]), torch.tensor([1, 5, 3])])
    >>> batch.tolist(), lengths.tolist()
    ([[4, 2, -1], [1, 5, 3]], [2, 3])
    """
    items: Any = configurations
    if not items:
        raise ValueError("configurations must be at least one: got none")
    kind: Any = type(items[0])
    for i, item in enumerate(items):
        if type(item) is not kind:
            raise ValueError(f"configurations must be of one kind, {kind.__name__}: got {type(item).__name__} at {i}")
        if (item if isinstance(item, Tensor) else item[-1 if kind is Trees else 0]).dim() != 1:
            raise ValueError(f"configurations must be of one sentence each: got a batch at {i}")
    if kind is Tensor:
        return _padded(items, -1), torch.tensor([len(x) for x in items])
    fields: list[Any] = []
    for name, column in zip(kind._fields, zip(*items, strict=True), strict=True):
        present = [x for x in column if x is not None]
        if present and len(present) < len(column):
            raise ValueError(f"configurations must all have {name}, or none of them: got both")
        fields.append(_padded(present, 0 if name == "durations" else -1) if present else None)
    sizes = torch.tensor([len(item[0]) for item in items])
    batch: Any = kind(*fields)
    return batch, (sizes + 1) // 2 if kind is Trees else sizes


def _padded(tensors: Any, value: int) -> Any:
    longest = max(len(x) for x in tensors)
    return torch.stack([F.pad(x, (0, 0) * (x.dim() - 1) + (0, longest - len(x)), value=value) for x in tensors])
