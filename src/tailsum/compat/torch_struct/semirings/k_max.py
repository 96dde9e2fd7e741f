"""The k largest scores, in order."""

from typing import Any

import torch
from jaxtyping import Float, Num
from torch import Tensor

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
    def sum(cls, xs: Num[Tensor, "size ..."], dim: int = -1) -> Num[Tensor, "size ..."]:
        return cls.sparse_sum(xs, dim)[0]

    @classmethod
    def sparse_sum(cls, xs: Num[Tensor, "size ..."], dim: int = -1) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The k largest, and where they come from: which of the k numbers, and the place in `dim`."""
        best = xs.movedim(dim, 0).flatten(0, 1).topk(cls.k, 0)
        return best.values, (best.indices % cls.k, best.indices // cls.k)

    @classmethod
    def mul(cls, a: Float[Tensor, "size ..."], b: Float[Tensor, "size ..."]) -> Float[Tensor, "size ..."]:
        return (a[:, None] + b).flatten(0, 1).topk(cls.k, 0).values

    @classmethod
    def of_sum(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Tensor:
        best = struct.distribution(potentials, lengths).kmax(cls.k)
        return best if raw else best[0]

    @classmethod
    def of_marginals(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Any:
        model = struct.distribution(potentials, lengths)
        return model.topk(cls.k) if raw else model.argmax
