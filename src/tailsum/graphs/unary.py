"""Unary and pairwise scores given as lists: variables may have different numbers of states."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.numerics.check import check_broadcast, check_device, check_scores
from tailsum.numerics.tensors import working_type
from tailsum.scores.potential import Dense


def padded_unary(unary: Sequence[Any]) -> tuple[Tensor, list[int]]:
    """A list of unary scores as one tensor, padded with minus infinity, and the number of states of each variable."""
    if not unary:
        raise ValueError("unary must have at least one variable: got an empty list")
    rows = [as_scores(f"unary[{v}]", row) for v, row in enumerate(unary)]
    for v, row in enumerate(rows):
        if row.dim() < 1 or not row.shape[-1]:
            raise ValueError(f"unary[{v}] must be [*batch, N_v] with at least one state: got {list(row.shape)}")
    sizes = [row.shape[-1] for row in rows]
    return _stacked("unary", rows, (max(sizes),), -math.inf), sizes


def padded_tables(tables: Any, edges: Tensor, sizes: list[int], dtype: torch.dtype) -> Dense:
    """A list of tables of edges as one potential, padded with zeros: the padding of unary scores forbids these states.

    `dtype` is for the empty potential of no edges.
    """
    if not isinstance(tables, list | tuple):
        raise ValueError(f"pairwise must be a tensor, a potential or a list of tables: got {type(tables).__name__}")
    if len(tables) != len(edges):
        raise ValueError(f"pairwise must have one table for each of the {len(edges)} edges: got {len(tables)}")
    most = max(sizes)
    if not tables:
        return Dense(torch.zeros(0, most, most, dtype=dtype, device=edges.device))
    rows = [as_scores(f"pairwise[{e}]", x) for e, x in enumerate(tables)]
    for e, (row, (u, v)) in enumerate(zip(rows, edges.tolist(), strict=True)):
        shape = [sizes[u], sizes[v]]
        if list(row.shape[-2:]) != shape:
            raise ValueError(
                f"pairwise[{e}] must be of {shape} states, as the variables {[u, v]} have: got {list(row.shape)}"
            )
    return Dense(_stacked("pairwise", rows, (most, most), 0.0))


def _stacked(name: str, rows: list[Tensor], size: tuple[int, ...], value: float) -> Tensor:
    """Scores `[*batch, ..]` padded to `[*batch, *size]` and stacked in a new dimension before the states."""
    dtype = working_type(*rows)

    def padded(x: Tensor) -> Tensor:
        missing = [n for most, has in zip(size[::-1], x.shape[::-1], strict=False) for n in (0, most - has)]
        return F.pad(x.to(dtype), missing, value=value)

    batch = rows[0].shape[: -len(size)]
    for i, row in enumerate(rows):
        check_device(f"{name}[{i}]", row, rows[0].device)
        batch = check_broadcast(f"{name}[{i}]", row.shape[: -len(size)], batch, "that of the others,")
    return torch.stack([padded(row).expand(*batch, *size) for row in rows], len(batch))


def as_scores(name: str, x: Any) -> Tensor:
    """Scores from a tensor, an array or lists of numbers; integer arrays and lists get torch's default type."""
    try:
        tensor = x if isinstance(x, Tensor) else torch.as_tensor(x if isinstance(x, np.ndarray) else np.asarray(x))
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be a tensor of scores: got {x!r}") from None
    if isinstance(x, list | tuple) or (isinstance(x, np.ndarray) and x.dtype.kind in "iu"):
        tensor = tensor.to(torch.get_default_dtype())
    check_scores(name, tensor)
    return tensor
