"""Exponentials, and log sums with a running maximum, within a kernel."""

import triton
import triton.language as tl


@triton.jit
def exp(x):
    """`e^x` in float32, zero below `2^-126`: a product and one instruction. `tl.exp`, which keeps smaller numbers, takes five."""
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def finite(x):
    """Zero in place of minus infinity."""
    return tl.where(x == -float("inf"), 0.0, x)


@triton.jit
def add_exp(top, total, scores, AXIS: tl.constexpr):
    """A running maximum and the sum of exponentials relative to it, with the `scores` along AXIS added."""
    higher = tl.maximum(top, tl.max(scores, AXIS))
    base = finite(higher)
    return higher, total * exp(top - base) + tl.sum(exp(scores - tl.expand_dims(base, AXIS)), AXIS)


@triton.jit
def log_of(top, total):
    """The logarithm of a sum from its running maximum and its exponentials; minus infinity if the sum is empty."""
    return tl.where(total > 0, tl.log(tl.where(total > 0, total, 1.0)) + top, -float("inf"))
