"""Sums, maxima and choices over pairs of rows within kernels, as every chart without states needs them.

The chart of a sentence is kept twice, `[T, T]` by first and last position and transposed, so that the left parts of a span
and its right parts are both contiguous. Pointers are tensors `[I]`, one for each of I rows.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

from tailsum.numerics.fused.exponential import add_exp, exp, finite, log_of


@triton.jit
def log_sum_of_rows(a, b, valid, count, K: tl.constexpr, MAX: tl.constexpr = False):
    """`log sum_k exp(a[k] + b[k])` over k < count: the running maximum and sum, `[I]` each; with MAX the maximum alone matters."""
    top = tl.where(valid, -float("inf"), -float("inf"))
    total = tl.where(valid, 0.0, 0.0)
    for start in range(0, count, K):
        k = start + tl.arange(0, K)
        inside = valid[:, None] & (k < count)[None, :]
        x = tl.load(a[:, None] + k[None, :], inside, -float("inf"))
        y = tl.load(b[:, None] + k[None, :], inside, -float("inf"))
        top, total = with_more(top, total, x + y, MAX)
    return top, total


@triton.jit
def with_more(top, total, scores, MAX: tl.constexpr):
    """The running maximum and sum `[I]` with `scores [I, k]` added."""
    if MAX:
        top = tl.maximum(top, tl.max(scores, 1))
    else:
        top, total = add_exp(top, total, scores, 1)
    return top, total


@triton.jit
def reduced(top, total, MAX: tl.constexpr):
    """The log of a sum, or the maximum."""
    return top if MAX else log_of(top, total)


@triton.jit
def change_of_rows(a, b, da, db, top, valid, count, K: tl.constexpr):
    """The derivative of `sum_k exp(a[k] + b[k] - top)` over k < count, `top` held, as rows change by `da` and `db`, `[I]`."""
    change = tl.where(valid, 0.0, 0.0)
    for start in range(0, count, K):
        k = start + tl.arange(0, K)
        inside = valid[:, None] & (k < count)[None, :]
        x = tl.load(a[:, None] + k[None, :], inside, -float("inf"))
        y = tl.load(b[:, None] + k[None, :], inside, -float("inf"))
        dx = tl.load(da[:, None] + k[None, :], inside, 0.0) + tl.load(db[:, None] + k[None, :], inside, 0.0)
        change += tl.sum(exp(x + y - finite(top)[:, None]) * dx, 1)
    return change


@triton.jit
def change_of_shares(grad, dgrad, whole, dwhole, b, db, a, da, low, high, K: tl.constexpr):
    """The derivative of `shares_of_rows(grad, whole, b, a, low, high)` as each changes by the one named after it."""
    total = tl.where(a == 0.0, 0.0, 0.0)
    for start in range(0, tl.max(high - low, 0), K):
        k = low[:, None] + start + tl.arange(0, K)[None, :]
        inside = k < high[:, None]
        x = a[:, None] + tl.load(b[:, None] + k, inside, -float("inf"))
        change = da[:, None] + tl.load(db[:, None] + k, inside, 0.0) - tl.load(dwhole[:, None] + k, inside, 0.0)
        g = tl.load(dgrad[:, None] + k, inside, 0.0) + tl.load(grad[:, None] + k, inside, 0.0) * change
        total += tl.sum(share(g, x, tl.load(whole[:, None] + k, inside, -float("inf"))), 1)
    return total


@triton.jit
def choice_of_rows(a, b, low, high, seed, place, SAMPLE: tl.constexpr, K: tl.constexpr):
    """The k in low <= k < high of the largest `a[k] + b[k]`, the first of several, from two pointers; `low` if all are forbidden.

    With SAMPLE, one drawn in proportion to the exponentials; `place` numbers its random numbers.
    """
    highest, best = -float("inf"), low
    for start in range(low, high, K):
        k = start + tl.arange(0, K)
        x = tl.load(a + k, k < high, -float("inf")) + tl.load(b + k, k < high, -float("inf"))
        if SAMPLE:
            x += gumbel(seed, place + k)
        top = tl.max(x, 0)
        best = tl.where(top > highest, start + tl.argmax(x, 0), best)
        highest = tl.maximum(highest, top)
    return best


@triton.jit
def gumbel(seed, place):
    """Standard Gumbel noise: the argmax of scores with it is a draw in proportion to their exponentials; always finite."""
    uniform = tl.rand(seed, place)
    wait = tl.where(
        uniform < 1e-3, uniform * (1 + 0.5 * uniform) + 2.3e-10, -tl.log(1 - tl.minimum(uniform, 0.9999999))
    )
    return -tl.log(wait)


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
    return {"I": 16, "K": 32, "num_warps": 4} if length <= 32 else {"I": 32, "K": 64, "num_warps": 8}
