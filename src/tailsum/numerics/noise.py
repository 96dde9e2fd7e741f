"""Gumbel noise: the argmax of perturbed logits is a sample of their softmax."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Choose = Callable[[Tensor], Tensor]  # from logits `[R, n]` to one index per row


def gumbel(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """`logits` with independent Gumbel noise added."""
    waiting = torch.empty_like(logits, memory_format=torch.contiguous_format).exponential_(generator=generator)
    return logits - waiting.clamp_(min=torch.finfo(logits.dtype).tiny).log_()


def most_likely(logits: Tensor) -> Tensor:
    """The index of the highest logit in each row."""
    return logits.argmax(-1)


@dataclass(frozen=True)
class drawn_by:  # noqa: N801  (called like the function `most_likely`)
    """Draws one index per row, in proportion to the exponentials of its logits."""

    generator: torch.Generator | None

    def __call__(self, logits: Tensor) -> Tensor:
        return gumbel(logits, self.generator).argmax(-1)


def seed_from(generator: torch.Generator | None) -> int:
    """A seed for the random numbers of a kernel, drawn from the generator, or from torch's default one."""
    device = torch.device("cpu") if generator is None else generator.device
    return int(torch.randint(1, 1 << 31, (), generator=generator, device=device))
