"""Semirings whose gradients are random configurations."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.compat.torch_struct.semirings.base import raw_or_plain
from tailsum.compat.torch_struct.semirings.plain import LogSemiring
from tailsum.numerics.check import check_temperature
from tailsum.numerics.noise import gumbel
from tailsum.numerics.reduce import Draw, log_sum_exp

SAMPLES = 16  # written into one number by a MultiSampledSemiring


class SampledSemiring(LogSemiring):
    """Log-sums whose gradients are an exact sample, with independent noise in each row of a batch."""

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        return Draw(None)(xs, dim)

    @classmethod
    def of_marginals(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Any:
        return raw_or_plain(struct.distribution(potentials, lengths).sample(()), raw)


FastSampleSemiring = SampledSemiring  # faster in torch-struct only


class MultiSampledSemiring(LogSemiring):
    """Log-sums whose gradients are 16 exact samples, with replacement: sample j is in the bit of weight `2^(j+1)`."""

    @classmethod
    def sum(cls, xs: Float[Tensor, "size ..."], dim: int = -1) -> Float[Tensor, "size ..."]:
        return _DrawMany.apply(xs, dim)

    @classmethod
    def of_marginals(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Any:
        samples = struct.distribution(potentials, lengths).sample((SAMPLES,))
        return raw_or_plain(together(samples) if isinstance(samples, Tensor) else tuple(map(together, samples)), raw)

    @staticmethod
    def to_discrete(xs: Float[Tensor, "..."], j: int) -> Float[Tensor, "..."]:
        """Sample j, between 0 and 15, of a gradient."""
        if not 0 <= j < SAMPLES:
            raise ValueError(f"j must lie between 0 and {SAMPLES - 1}: got {j}")
        return bits(xs)[j].to(xs.dtype)


def together(samples: Float[Tensor, "samples ..."]) -> Float[Tensor, "..."]:
    """Samples of zeros and ones as the bits of one number for each part."""
    weight = 2.0 ** torch.arange(1, SAMPLES + 1, device=samples.device, dtype=samples.dtype)
    return torch.tensordot(weight, samples, 1)


def bits(xs: Float[Tensor, "..."]) -> Tensor:
    """Which of the samples use each part, `[16, ..]`; all of them where the number is odd, such as one."""
    place = torch.arange(1, SAMPLES + 1, device=xs.device).reshape(-1, *(1,) * xs.dim())
    whole = xs.long()
    return ((whole >> place) | whole) & 1


class _DrawMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.dim = dim if dim < 0 else dim - x.dim()
        return log_sum_exp(x, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        drawn = gumbel(x.expand(SAMPLES, *x.shape), None).argmax(ctx.dim, keepdim=True)
        picked = torch.zeros(SAMPLES, *x.shape, dtype=x.dtype, device=x.device).scatter(ctx.dim, drawn, 1.0)
        return together(picked * bits(grads[0]).unsqueeze(ctx.dim)), None


def GumbelMaxSemiring(temp: float) -> type[SampledSemiring]:
    """An exact sample; the temperature has no effect, as in torch-struct."""
    check_temperature(temp)
    return type("GumbelMaxSemiring", (SampledSemiring,), {})


def GumbelCRFSemiring(temp: float) -> type[SampledSemiring]:
    """An exact sample with the gradient of a relaxed one: `gumbel_crf(temp)` of a distribution."""
    check_temperature(temp)
    return type("GumbelCRFSemiring", (_GumbelCRF,), {"temp": temp})


class _GumbelCRF(SampledSemiring):
    temp = 1.0

    @classmethod
    def of_marginals(cls, struct: Any, potentials: Any, lengths: Any, raw: bool) -> Any:
        return raw_or_plain(struct.distribution(potentials, lengths).gumbel_crf(cls.temp), raw)
