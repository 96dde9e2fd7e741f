"""Sums over pairs of rows within kernels, as every chart without states needs them.

The chart of a sentence is kept twice, `[T, T]` by first and last position and transposed, so that the left parts of a span
and its right parts are both contiguous. Pointers are tensors `[I]`, one for each of I rows.
"""

# pyright: reportArgumentType=false

import triton
import triton.language as tl

from tailsum.numerics.fused.exponential import add_exp, exp


@triton.jit
def log_sum_of_rows(a, b, valid, count, K: tl.constexpr):
    """`log sum_k exp(a[k] + b[k])` over k < count: the running maximum and sum, `[I]` each."""
    top = tl.where(valid, -float("inf"), -float("inf"))
    total = tl.where(valid, 0.0, 0.0)
    for start in range(0, count, K):
        k = start + tl.arange(0, K)
        inside = valid[:, None] & (k < count)[None, :]
        x = tl.load(a[:, None] + k[None, :], inside, -float("inf"))
        y = tl.load(b[:, None] + k[None, :], inside, -float("inf"))
        top, total = add_exp(top, total, x + y, 1)
    return top, total


@triton.jit
def share(grad, x, whole):
    """The part `grad exp(x - whole)` of a gradient, where x is a term of the log sum `whole`; zero where x is minus infinity."""
    possible = x > -float("inf")
    return tl.where(possible, grad * exp(tl.where(possible, x, 0.0) - tl.where(possible, whole, 0.0)), 0.0)


@triton.jit
def shares_of_rows(grad, whole, b, a, low, high, K: tl.constexpr):
    """`sum_k grad[k] exp(a + b[k] - whole[k])` over low <= k < high, `[I]`: zero where something is minus infinity.

    `a + b` is among the terms of the log sum `whole`, so that no exponent is positive except by rounding.
    """
    total = tl.where(a == 0.0, 0.0, 0.0)
    for start in range(0, tl.max(high - low, 0), K):
        k = low[:, None] + start + tl.arange(0, K)[None, :]
        inside = k < high[:, None]
        g = tl.load(grad[:, None] + k, inside, 0.0)
        w = tl.load(whole[:, None] + k, inside, -float("inf"))
        x = a[:, None] + tl.load(b[:, None] + k, inside, -float("inf"))
        total += tl.sum(share(g, x, w), 1)
    return total


def tiles(length: int) -> dict[str, int]:
    """The launch options of charts of sentences of this length."""
    return {"I": 16 if length <= 64 else 32, "K": 32 if length <= 32 else 64, "num_warps": 4}
