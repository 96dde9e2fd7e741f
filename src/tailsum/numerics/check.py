"""Checks of numbers and tensors from users; each raises a ValueError that names the argument and its value."""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tailsum.numerics.transforms import some, values_of


def at_least(least: int, **named: int) -> None:
    """Checks that each named value is a whole number of at least `least`."""
    for name, value in named.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}: got {value}")


def check_choice(name: str, value: object, *choices: str) -> None:
    """Checks for one of some strings."""
    if value not in choices:
        *others, last = (f'"{choice}"' for choice in choices)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}: got {value!r}")


def check_sample_shape(sample_shape: Sequence[int]) -> None:
    """Checks that the sizes are whole numbers of at least zero."""
    if not isinstance(sample_shape, Sequence) or isinstance(sample_shape, str):
        raise ValueError(f"sample_shape must be a tuple of sizes, such as (3,): got {sample_shape!r}")
    at_least(0, **{f"sample_shape[{i}]": size for i, size in enumerate(sample_shape)})


def check_temperature(temperature: float | Tensor) -> None:
    """Checks for a number above zero."""
    if not isinstance(temperature, int | float | Tensor):
        raise ValueError(f"temperature must be a number (the samples' shape is sample_shape): got {temperature!r}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0: got {temperature}")


def check_tensor(name: str, value: object) -> None:
    """Checks for a tensor that is not sparse."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor: got {type(value).__name__}")
    if value.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, as .to_dense() gives: got one of layout {value.layout}")


def check_floating(name: str, tensor: Tensor) -> None:
    """Checks for a tensor of floating-point numbers."""
    check_tensor(name, tensor)
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be floating-point: got {tensor.dtype}")


def check_scores(name: str, tensor: Tensor) -> None:
    """Checks for floating-point scores without NaN or +inf."""
    check_floating(name, tensor)
    if not are_scores(tensor):
        place = first_index(~(values_of(tensor) < math.inf))
        raise ValueError(f"{name} must not hold NaN or +inf (-inf forbids): got one at {place}")


def are_scores(*tensors: Tensor) -> bool:
    """Whether scores are floating-point without NaN or +inf, either of which the maximum would show; all on one device."""
    if not all(x.is_floating_point() for x in tensors):
        return False
    highest = [values_of(x).detach().amax() for x in tensors if x.numel()]
    return not highest or functools.reduce(torch.maximum, highest).item() < math.inf


def below_infinity(tensor: Tensor) -> Tensor:
    """Whether there is no NaN and no +inf, either of which the maximum would show: one truth value, on the device of the tensor."""
    values = tensor.detach()
    return values.amax() < math.inf if values.numel() else values.new_ones((), dtype=torch.bool)


def check_whole(name: str, tensor: Tensor) -> Tensor:
    """Checks for integers, and returns them as int64."""
    check_tensor(name, tensor)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must be integers: got {tensor.dtype}")
    return tensor.long()


def as_whole(name: str, value: object, device: torch.device) -> Tensor:
    """Integers from a tensor or lists, as int64; usable in backward passes even if made in inference mode."""
    try:
        with torch.inference_mode(False):
            tensor = torch.as_tensor(value, device=device).clone()
    except (TypeError, ValueError, RuntimeError):
        got = repr(value) if isinstance(value, list | tuple) else type(value).__name__
        raise ValueError(f"{name} must be integers, in a tensor or lists of equal length: got {got}") from None
    return check_whole(name, tensor)


def check_in_range(name: str, states: Tensor, n_states: int) -> None:
    """Checks for state ids between 0 and N-1, or -1 for padding."""
    if some((states < -1) | (states >= n_states)):
        raise ValueError(f"{name} must lie between 0 and N-1 = {n_states - 1}: got one outside")


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Checks that the tensor is on the same device as the rest."""
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device}, where the other scores are: got {tensor.device}")


def check_broadcast(name: str, shape: torch.Size, other: torch.Size, other_name: str) -> torch.Size:
    """Checks that two batch shapes match, and returns their broadcast."""
    if shape == other or not shape:  # torch's function is slow
        return other
    try:
        return torch.broadcast_shapes(shape, other)
    except RuntimeError:
        raise ValueError(
            f"{name} has batch shape {list(shape)}, which does not match {other_name} {list(other)}"
        ) from None


def shape_or_type(value: object) -> list[int] | str:
    """For the text of an error: the shape of a tensor, or the type of anything else."""
    return list(value.shape) if isinstance(value, Tensor) else type(value).__name__


def first_index(bad: Tensor) -> list[int]:
    """The index of the first true entry."""
    return bad.nonzero()[0].tolist()
