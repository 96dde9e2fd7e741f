"""Random numbers within kernels."""

import triton
import triton.language as tl


@triton.jit
def gumbel(seed, place):
    """Gumbel noise, from the seed and the number of the place that it is for: the highest of perturbed logits is a sample."""
    uniform = tl.rand(seed, place) + 2.3e-10
    # Below, the logarithm of a number near one has no digits left.
    wait = tl.where(uniform < 1e-3, uniform * (1 + 0.5 * uniform), -tl.log(1 - uniform))
    return -tl.log(wait)
