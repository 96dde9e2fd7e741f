"""Messages from landmarks and neighbours to all states. The references are `scores.message` and `sketch.neighbours`."""

# pyright: reportCallIssue=false, reportPossiblyUnboundVariable=false

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp
from tailsum.numerics.fused.products import product
from tailsum.numerics.fused.scores import Pairs, factor_rows, meets, unmasked


class Near(NamedTuple):
    """Each state's partners `[r, N]`, its highest score with a partner `[N]`, and `exp(score - highest)` `[r, N]`."""

    partners: Tensor
    scale: Tensor
    weight: Tensor


class Excess(NamedTuple):
    """The `excess [B, N]` of a `Selector`, and the highest value of each row."""

    rest: Tensor
    highest: Tensor


@triton.jit(do_not_specialize=["t"])
def _message_kernel(
    out, log_q, index, log_weight, value, left, right, add, also, partners, scale, weight, rest, highest, lengths,
    t, n, k, partners_n, index_b, value_b, out_b, add_b, also_b, log_q_b, row_l, row_r, width,
    SIZE: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, J: tl.constexpr, ADD: tl.constexpr, ALSO: tl.constexpr,
    NEAR: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """`out(j) = add(j) + log sum_m exp(value(index_m) + log_weight_m + score(index_m, j))`, `log_q = out + also`.

    With NEAR, the part of each state's neighbours is exact instead of estimated. With RAGGED, the padding gets zero.
    """
    b = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * J + tl.arange(0, J)
    d = tl.arange(0, SIZE)
    # States j are rows of the tiles, so that sums over the landmarks stay within a few threads.
    if SIZE > 1:
        columns = factor_rows(right, j, n, row_r, width, SIZE)
        if PRECISION == "bf16":
            columns = columns.to(tl.bfloat16)
    top = tl.full([J], -float("inf"), tl.float32)
    total = tl.zeros([J], tl.float32)
    for start in range(0, k, M):
        m = start + tl.arange(0, M)
        state = tl.load(index + b * index_b + m, m < k, 0)
        sent = tl.load(value + b * value_b + state, m < k, -float("inf"))
        sent += tl.load(log_weight + b * index_b + m, m < k, -float("inf"))
        if SIZE > 1:
            rows = tl.load(left + state[None, :] * row_l + d[:, None], (m < k)[None, :] & (d < width)[:, None], 0.0)
            if PRECISION == "bf16":
                scores = tl.dot(columns, rows.to(tl.bfloat16))
            else:
                scores = product(columns, rows, PRECISION)
        else:
            place = left + state[None, :] * row_l + j[:, None].to(tl.int64) * row_r
            scores = unmasked(tl.load(place, (m < k)[None, :] & (j < n)[:, None], -float("inf")))
        reach = sent[None, :] + scores
        new = tl.maximum(top, tl.max(reach, 1))
        finite = tl.where(new == -float("inf"), 0.0, new)
        total = total * exp(top - finite) + tl.sum(exp(reach - finite[:, None]), 1)
        top = new
    message = tl.where(top == -float("inf"), top, top + tl.log(total))
    if NEAR:
        peak = tl.load(highest + b).to(tl.float64)
        near = tl.zeros([J], tl.float64)
        for r in range(partners_n):
            partner = tl.load(partners + r * n + j, j < n, 0)
            mass = tl.load(rest + b * n + partner, j < n, 0.0)
            near += mass.to(tl.float64) * tl.load(weight + r * n + j, j < n, 0.0).to(tl.float64)
        base = tl.load(scale + j, j < n, 0.0).to(tl.float64) + peak
        estimate = (message.to(tl.float64) - base).to(tl.float32)
        most = tl.maximum(estimate, 0.0)
        mixed = exp(estimate - most).to(tl.float64) + near * exp(-most).to(tl.float64)
        own = exp(tl.load(value + b * value_b + j, j < n, -float("inf")) - peak.to(tl.float32) - most)
        own *= tl.load(weight + j, j < n, 0.0)
        mixed = tl.maximum(mixed, own.to(tl.float64)).to(tl.float32)
        message = (tl.log(mixed).to(tl.float64) + most.to(tl.float64) + base).to(tl.float32)
    if RAGGED:
        message = tl.where(t < tl.load(lengths + b), message, 0.0)
    if ADD:
        message += tl.load(add + b * add_b + j, j < n, 0.0)
    tl.store(out + b * out_b + j, message, j < n)
    if ALSO:
        tl.store(log_q + b * log_q_b + j, message + tl.load(also + b * also_b + j, j < n, 0.0), j < n)


class Sender:
    """Messages along pair scores that all steps and sequences share: a table `[N, N]` (from, to), or factors `[N, d]`.

    With `near`, scores are as precise as float32, because the landmarks' estimate of the neighbours' part is subtracted again.
    Without, bf16 is enough (tf32 in the interpreter, which has no bf16).
    """

    def __init__(self, params: tuple[Tensor, ...], near: Near | None = None, lengths: Tensor | None = None) -> None:
        self.near, self.lengths = near, lengths
        pairs = Pairs(tuple(p[None, None] for p in params))
        self.left, self.right, size = pairs.left[0, 0], pairs.right[0, 0], max(1, pairs.size)
        steps = (self.left.stride(1), 0) if size == 1 else (self.right.stride(0), self.left.shape[1])
        self.strides = (self.left.stride(0), *steps)
        rows, columns = (64, 128) if size == 64 else (64, 64) if size < 64 else (32, 32)
        precision = "tf32x3" if near is not None else "bf16" if meets() else "tf32"
        self.options = {"SIZE": size, "PRECISION": precision, "M": rows, "J": columns}

    def __call__(
        self, out: Tensor, value: Tensor, index: Tensor, log_weight: Tensor, excess: Excess | None = None, t: int = 0,
        add: Tensor | None = None, also: Tensor | None = None, log_q: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Send from the states `index [B, k]` of values `value [B, N]` to `out [B, N]`, and with `also` added to `log_q`.

        Both are zero where t lies in the padding.
        """
        batch, n = out.shape
        more, further, both = (out if x is None else x for x in (add, also, log_q))
        near = (out, out, out) if self.near is None else self.near
        rest = (out, out) if excess is None else excess
        _message_kernel[triton.cdiv(n, self.options["J"]), batch](
            out, both, index, log_weight, value, self.left, self.right, more, further, *near, *rest,
            index if self.lengths is None else self.lengths, t, n, index.shape[-1], len(near[0]), index.stride(0), value.stride(0),
            out.stride(0), more.stride(0), further.stride(0), both.stride(0), *self.strides, **self.options,
            ADD=add is not None, ALSO=also is not None, NEAR=excess is not None, RAGGED=self.lengths is not None, num_warps=4,
        )  # fmt: skip
