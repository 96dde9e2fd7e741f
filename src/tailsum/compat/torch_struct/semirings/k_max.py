"""The k largest scores, in order."""

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.compat.torch_struct.semirings.base import Make
from tailsum.compat.torch_struct.semirings.plain import LogSemiring
from tailsum.numerics.check import at_least


def KMaxSemiring(k: int) -> type[LogSemiring]:
    """The semiring of the k largest: `KMaxSemiring(3)`."""
    at_least(1, k=k)
    return type("KMaxSemiring", (_KMax,), {"k": k})


class _KMax(LogSemiring):
    k = 1

    @classmethod
    def size(cls) -> int:
        return cls.k

    @classmethod
    def convert(cls, potentials: Float[Tensor, "..."]) -> Float[Tensor, "size ..."]:
        none = torch.full_like(potentials, cls.zero)
        return torch.stack([potentials, *[none] * (cls.k - 1)])

    @classmethod
    def one_(cls, xs: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        cls.zero_(xs)[0] = cls.one
        return xs

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        return xs.movedim(dim, 1).flatten(0, 1).topk(cls.k, 0).values

    @classmethod
    def mul(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        return (a[:, None] + b).flatten(0, 1).topk(cls.k, 0).values

    @classmethod
    def of_sum(cls, make: Make, potentials: Tensor | tuple[Tensor, ...], raw: bool) -> Tensor:
        best = make(potentials).kmax(cls.k)
        return best if raw else best[0]

    @classmethod
    def of_marginals(
        cls, make: Make, potentials: Tensor | tuple[Tensor, ...], raw: bool
    ) -> Tensor | tuple[Tensor, ...]:
        model = make(potentials)
        return model.topk(cls.k) if raw else model.argmax
