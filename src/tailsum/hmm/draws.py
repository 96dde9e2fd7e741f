"""Random numbers from a generator on any device."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def normal(
    shape: tuple[int, ...], like: Float[Tensor, "..."], generator: torch.Generator | None
) -> Float[Tensor, "..."]:
    """Standard normal numbers in the dtype and on the device of a tensor."""
    device = like.device if generator is None else generator.device
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


def even(shape: tuple[int, ...], like: Float[Tensor, "..."], generator: torch.Generator | None) -> Float[Tensor, "..."]:
    """Numbers between zero and one in the dtype and on the device of a tensor."""
    device = like.device if generator is None else generator.device
    return torch.rand(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


def exponential(
    shape: tuple[int, ...], like: Float[Tensor, "..."], generator: torch.Generator | None
) -> Float[Tensor, "..."]:
    """Waiting times with mean one in the dtype and on the device of a tensor."""
    device = like.device if generator is None else generator.device
    return torch.empty(shape, dtype=like.dtype, device=device).exponential_(generator=generator).to(like.device)


def choice(
    weights: Float[Tensor, "*rows n"], size: int, generator: torch.Generator | None
) -> Int[Tensor, "*rows size"]:
    """`size` indices from each row, drawn with replacement in proportion to its weights."""
    device = weights.device if generator is None else generator.device
    return torch.multinomial(weights.to(device), size, replacement=True, generator=generator).to(weights.device)


def some_rows(n: int, size: int, generator: torch.Generator | None) -> Int[Tensor, " size"]:
    """`size` numbers below n, with replacement."""
    return torch.randint(n, (size,), generator=generator, device=None if generator is None else generator.device)
