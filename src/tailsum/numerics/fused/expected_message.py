"""Messages from K states of each sequence to all N, with the mean scores of their paths, by factors of the pair scores.

`left [B, K, d]` are the factors of the K states, `right [B or 1, N, d]` of all. The reference is `chains/expected_message.py`.
With `w(k, j)` the shares of the K states in the mass that state j receives, the gradient in the score of a pair is
`w (of_mass_j + of_mean_j (1 + carried_k + score - mean_j))`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp, finite
from tailsum.numerics.fused.kernel import Kept
from tailsum.numerics.fused.products import product, score_product
from tailsum.numerics.fused.scores import before_hopper, factor_columns, factor_rows, padded

TILE = {"J": 64, "K": 64, "num_warps": 4, "num_stages": 2}
OLDER_TILE = {
    "J": 32,
    "K": 32,
    "num_warps": 4,
    "num_stages": 2,
}  # for older GPUs than Hopper, where the other one spills


@triton.jit
def _send(left, right, value, carried, out, n, k, group, width, SIZE: tl.constexpr, J: tl.constexpr, K: tl.constexpr):
    """`out[0] = log sum_k exp(value_k + score)`, and `out[1]`, the mean of `carried_k + score`, for J states."""
    b, batch = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    j = tl.program_id(0) * J + tl.arange(0, J)
    columns = factor_rows(right + b * group, j, n, width, width, SIZE)
    top = tl.full([J], -float("inf"), tl.float32)
    total, mean = tl.zeros([J], tl.float32), tl.zeros([J], tl.float32)
    for start in range(0, k, K):
        i = start + tl.arange(0, K)
        scores = score_product(columns, factor_columns(left + b * k * width, i, k, width, width, SIZE))
        x = scores + tl.load(value + b * k + i, i < k, -float("inf"))[None, :]
        higher = tl.maximum(top, tl.max(x, 1))
        shift = finite(higher)
        weight, scale = exp(x - shift[:, None]), exp(top - shift)
        worth = scores + tl.load(carried + b * k + i, i < k, 0.0)[None, :]
        total = total * scale + tl.sum(weight, 1)
        mean = mean * scale + tl.sum(weight * worth, 1)
        top = higher
    some = total > 0
    place = b * n + j
    tl.store(out + place, tl.where(some, finite(top) + tl.log(total), -float("inf")), j < n)
    tl.store(out + batch * n + place, mean / tl.where(some, total, 1.0), j < n)


@triton.jit
def _pair_slopes(scores, value, carried, mass, mean, of_mass, of_mean):
    """The shares of pairs, and the gradients in the values of their first states."""
    share = exp(scores + value - tl.where(mass == -float("inf"), float("inf"), mass))
    return share, share * (of_mass + of_mean * (carried + scores - mean))


@triton.jit
def _to_senders(
    left, right, value, carried, out, grad, of_left, of_value, of_carried, n, k, group, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, J: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Gradients in what K states send."""
    b, batch = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    i, d = tl.program_id(0) * K + tl.arange(0, K), tl.arange(0, SIZE)
    rows = factor_rows(left + b * k * width, i, k, width, width, SIZE)
    sent = tl.load(value + b * k + i, i < k, -float("inf"))[:, None]
    brought = tl.load(carried + b * k + i, i < k, 0.0)[:, None]
    to_left = tl.zeros([K, SIZE], tl.float32)
    to_value, to_carried = tl.zeros([K], tl.float32), tl.zeros([K], tl.float32)
    for start in range(0, n, J):
        j = start + tl.arange(0, J)
        place, second = b * n + j, (batch + b) * n + j
        scores = score_product(rows, factor_columns(right + b * group, j, n, width, width, SIZE))
        mass = tl.load(out + place, j < n, -float("inf"))[None, :]
        mean = tl.load(out + second, j < n, 0.0)[None, :]
        of_mass = tl.load(grad + place, j < n, 0.0)[None, :]
        of_mean = tl.load(grad + second, j < n, 0.0)[None, :]
        share, slope = _pair_slopes(scores, sent, brought, mass, mean, of_mass, of_mean)
        direct = share * of_mean
        to_value += tl.sum(slope, 1)
        to_carried += tl.sum(direct, 1)
        to_left += product(slope + direct, factor_rows(right + b * group, j, n, width, width, SIZE), PRECISION)
    within = (i < k)[:, None] & (d < width)[None, :]
    tl.store(of_left + (b * k + i[:, None]) * width + d[None, :], to_left, within)
    tl.store(of_value + b * k + i, to_value, i < k)
    tl.store(of_carried + b * k + i, to_carried, i < k)


@triton.jit
def _to_receivers(
    left, right, value, carried, out, grad, of_right, batch, first, each, n, k, group, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, J: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Gradients in the factors of J states, from `each` sequences that share them; `first` is one or zero."""
    table, d = tl.program_id(1).to(tl.int64), tl.arange(0, SIZE)
    j = tl.program_id(0) * J + tl.arange(0, J)
    columns = factor_rows(right + table * group, j, n, width, width, SIZE)
    to_right = tl.zeros([J, SIZE], tl.float32)
    for b in range(table * first, table * first + each):
        place, second = b * n + j, (batch + b) * n + j
        mass = tl.load(out + place, j < n, -float("inf"))[:, None]
        mean = tl.load(out + second, j < n, 0.0)[:, None]
        of_mass = tl.load(grad + place, j < n, 0.0)[:, None]
        of_mean = tl.load(grad + second, j < n, 0.0)[:, None]
        for start in range(0, k, K):
            i = start + tl.arange(0, K)
            scores = score_product(columns, factor_columns(left + b * k * width, i, k, width, width, SIZE))
            sent = tl.load(value + b * k + i, i < k, -float("inf"))[None, :]
            brought = tl.load(carried + b * k + i, i < k, 0.0)[None, :]
            share, slope = _pair_slopes(scores, sent, brought, mass, mean, of_mass, of_mean)
            rows = factor_rows(left + b * k * width, i, k, width, width, SIZE)
            to_right += product(slope + share * of_mean, rows, PRECISION)
    within = (j < n)[:, None] & (d < width)[None, :]
    tl.store(of_right + (table * n + j[:, None]) * width + d[None, :], to_right, within)


def forward(left: Tensor, right: Tensor, value: Tensor, carried: Tensor) -> tuple[Tensor, Kept]:
    """Log masses and means, `[2, B, N]`."""
    given = tuple(x.contiguous() for x in (left, right, value, carried))
    (batch, k, width), n = left.shape, right.shape[1]
    out, tile = value.new_empty(2, batch, n), _tile(value)
    if out.numel():
        _send[triton.cdiv(n, tile["J"]), batch](*given, out, n, k, _group(right), width, SIZE=padded(left), **tile)
    return out, (*given, out)


def backward(kept: Kept, grad: Tensor, wanted: Sequence[bool]) -> Sequence[Tensor | None]:
    """The gradients in the factors, the values and the means that are sent."""
    left, right, value, carried, out = kept
    (batch, k, width), (groups, n, _), grad = left.shape, right.shape, grad.contiguous()
    tile = _tile(value)
    how = {"SIZE": padded(left), "PRECISION": "tf32x3", **tile}
    to_left, to_value, to_carried = (torch.zeros_like(x) for x in (left, value, carried))
    if out.numel() and k and (wanted[0] or wanted[2] or wanted[3]):
        _to_senders[triton.cdiv(k, tile["K"]), batch](
            left, right, value, carried, out, grad, to_left, to_value, to_carried, n, k, _group(right), width, **how
        )
    to_right = torch.zeros_like(right) if wanted[1] else None
    if to_right is not None and out.numel():
        alone = groups == batch
        _to_receivers[triton.cdiv(n, tile["J"]), groups](
            left, right, value, carried, out, grad, to_right, batch, int(alone), 1 if alone else batch, n, k,
            n * width, width, **how,
        )  # fmt: skip
    return to_left, to_right, to_value, to_carried


def _tile(like: Tensor) -> dict[str, int]:
    return OLDER_TILE if before_hopper(like.device) else TILE


def _group(right: Tensor) -> int:
    """The distance between the factors of one sequence and those of the next, which may be the same."""
    return 0 if len(right) == 1 else right[0].numel()
