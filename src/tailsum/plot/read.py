"""Checks of the integers that describe one structure."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tailsum.numerics.check import check_whole

Whole: TypeAlias = Tensor | Sequence[Any]


def attribute(argument: str, value: object, name: str) -> Any:
    """The structure's attribute of this name."""
    if not hasattr(value, name):
        raise ValueError(f"{argument} must have the attribute {name}: got {type(value).__name__}")
    return getattr(value, name)


def whole(argument: str, value: Whole, shape: str = "[T]") -> list[Any]:
    """Integers of one structure, as lists."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{argument} must be integers, {shape}: got {type(value).__name__}") from None
    dimensions = shape.count(",") + 1
    if tensor.dim() != dimensions or (dimensions == 2 and tensor.shape[-1] != 2):
        raise ValueError(f"{argument} must be {shape}, {of_one_structure(tensor, dimensions)}")
    if tensor.numel() == 0:
        raise ValueError(f"{argument} must have at least one position: got {list(tensor.shape)}")
    return check_whole(argument, tensor).tolist()


def of_one_structure(tensor: Tensor, dimensions: int) -> str:
    """The end of a message about a tensor of another shape."""
    hint = " (a batch? choose one element first)" if tensor.dim() > dimensions else ""
    return f"of one structure: got {list(tensor.shape)}{hint}"


def before_padding(argument: str, numbers: list[int]) -> list[int]:
    """The numbers before the first -1; only -1 may follow it."""
    n = next((i for i, number in enumerate(numbers) if number < 0), len(numbers))
    if n == 0 or any(number != -1 for number in numbers[n:]):
        raise ValueError(f"{argument} must be at least 0, and -1 only beyond the last position: got {numbers}")
    return numbers[:n]


def alongside(argument: str, numbers: list[int], n: int, *, least: int) -> list[int]:
    """One number for each of n items, without the padding after them."""
    if len(numbers) < n or min(numbers[:n]) < least:
        raise ValueError(f"{argument} must have {n} numbers of at least {least}: got {numbers}")
    return numbers[:n]
