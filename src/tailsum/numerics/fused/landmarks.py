"""Messages from selected states and from neighbours to all states. The references are `scores.message` and `sketch.neighbours`."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.scores import product, unmasked


class Near(NamedTuple):
    """Each state's partners `[N, r]`, the highest score with one `[N]`, and the exponentiated scores less it `[N, r]`."""

    partners: Tensor
    scale: Tensor
    weight: Tensor


@triton.jit
def _message_kernel(
    out, log_q, index, log_weight, value, left, right, add, also, n, k,
    index_b, value_b, out_b, add_b, also_b, log_q_b, row_l, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, J: tl.constexpr, ADD: tl.constexpr, ALSO: tl.constexpr,
):  # fmt: skip
    """`out(j) = add(j) + log sum_m exp(value(index_m) + log_weight_m + score(index_m, j))`, `log_q = out + also`."""
    b = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * J + tl.arange(0, J)
    d = tl.arange(0, SIZE)
    if SIZE > 1:
        columns = tl.load(right + j[None, :].to(tl.int64) * row_r + d[:, None], (j < n)[None, :] & (d < width)[:, None], 0.0)
    top = tl.full([J], -float("inf"), tl.float32)
    total = tl.zeros([J], tl.float32)
    for start in range(0, k, M):
        m = start + tl.arange(0, M)
        state = tl.load(index + b * index_b + m, m < k, 0)
        sent = tl.load(value + b * value_b + state, m < k, -float("inf"))
        sent += tl.load(log_weight + b * index_b + m, m < k, -float("inf"))
        if SIZE > 1:
            rows = tl.load(left + state[:, None] * row_l + d[None, :], (m < k)[:, None] & (d < width)[None, :], 0.0)
            scores = product(rows, columns, PRECISION)
        else:
            place = left + state[:, None] * row_l + j[None, :].to(tl.int64) * row_r
            scores = unmasked(tl.load(place, (m < k)[:, None] & (j < n)[None, :], -float("inf")))
        reach = sent[:, None] + scores
        new = tl.maximum(top, tl.max(reach, 0))
        finite = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(top - finite) + tl.sum(tl.exp(reach - finite[None, :]), 0)
        top = new
    found = tl.where(top == -float("inf"), top, top + tl.log(total))
    if ADD:
        found += tl.load(add + b * add_b + j, j < n, 0.0)
    tl.store(out + b * out_b + j, found, j < n)
    if ALSO:
        tl.store(log_q + b * log_q_b + j, found + tl.load(also + b * also_b + j, j < n, 0.0), j < n)


@triton.jit
def _near_kernel(
    out, sent, value, excess, highest, partners, scale, weight, n, size, out_b, sent_b, value_b,
    J: tl.constexpr,
):  # fmt: skip
    """The message to each state with the part of its neighbours exact in place of estimated."""
    b = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * J + tl.arange(0, J)
    peak = tl.load(highest + b).to(tl.float64)
    near = tl.zeros([J], tl.float64)
    for r in range(0, size):
        partner = tl.load(partners + j.to(tl.int64) * size + r, j < n, 0)
        mass = tl.load(excess + b * n + partner, j < n, 0.0)
        near += mass.to(tl.float64) * tl.load(weight + j.to(tl.int64) * size + r, j < n, 0.0).to(tl.float64)
    base = tl.load(scale + j, j < n, 0.0).to(tl.float64) + peak
    estimate = (tl.load(sent + b * sent_b + j, j < n, -float("inf")).to(tl.float64) - base).to(tl.float32)
    top = tl.maximum(estimate, 0.0)
    total = tl.exp(estimate - top).to(tl.float64) + near * tl.exp(-top).to(tl.float64)
    own = tl.exp(tl.load(value + b * value_b + j, j < n, -float("inf")) - peak.to(tl.float32) - top)
    own *= tl.load(weight + j.to(tl.int64) * size, j < n, 0.0)
    found = tl.log(tl.maximum(total, own.to(tl.float64)).to(tl.float32)).to(tl.float64) + top.to(tl.float64) + base
    tl.store(out + b * out_b + j, found.to(tl.float32), j < n)


class Sender:
    """Messages along pair scores that all steps and sequences share: a table `[N, N]` (from, to), or factors `[N, d]`."""

    def __init__(self, params: tuple[Tensor, ...]) -> None:
        self.left, self.right = (params[0], params[0]) if len(params) == 1 else tuple(p.contiguous() for p in params)
        self.size = 1 if len(params) == 1 else max(16, triton.next_power_of_2(params[0].shape[-1]))
        self.strides = (*self.left.stride(), 0) if len(params) == 1 else (self.left.stride(0), self.right.stride(0), self.left.shape[1])

    def __call__(
        self, out: Tensor, value: Tensor, index: Tensor, log_weight: Tensor,
        add: Tensor | None = None, also: Tensor | None = None, log_q: Tensor | None = None,
    ) -> None:  # fmt: skip
        """From the states `index [B, k]` of values `value [B, N]` to `out [B, N]`, and with `also` added to `log_q`."""
        batch, n = out.shape
        columns = 64 if self.size <= 64 else 32
        given = (out if add is None else add, out if also is None else also)
        _message_kernel[triton.cdiv(n, columns), batch](
            out, out if log_q is None else log_q, index, log_weight, value, self.left, self.right, *given, n, index.shape[-1],
            index.stride(0), value.stride(0), out.stride(0), given[0].stride(0), given[1].stride(0),
            0 if log_q is None else log_q.stride(0), *self.strides, SIZE=self.size, PRECISION="tf32x3", M=64 if self.size <= 64 else 32,
            J=columns, ADD=add is not None, ALSO=also is not None, num_warps=4,
        )  # fmt: skip


def join(out: Tensor, sent: Tensor, value: Tensor, excess: Tensor, highest: Tensor, near: Near) -> None:
    """`out [B, N]`, which may be `sent`, from the message by landmarks and what `Selector` left of the values."""
    batch, n = sent.shape
    _near_kernel[triton.cdiv(n, 256), batch](
        out, sent, value, excess, highest, *near, n, near.partners.shape[1], out.stride(0), sent.stride(0), value.stride(0),
        J=256, num_warps=4,
    )  # fmt: skip
