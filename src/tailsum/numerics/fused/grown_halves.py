"""Half subtrees of more and more words from messages of subtrees beside their head: one launch for all widths.

The reference is in `dependencies/dependency_sweep.py`. The states of the head are independent.
"""

# pyright: reportArgumentType=false

import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import exp, finite, log_of
from tailsum.numerics.fused.kernel import Kept


@triton.jit
def _grow(sent, halves, W, N, BLOCK: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sent += b * W * W * N
    halves += b * (W + 1) * N
    tl.store(halves + k, tl.zeros((BLOCK,), tl.float32), k < N)
    tl.debug_barrier()
    for e in range(W):
        top, total = tl.full((BLOCK,), -float("inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for s in range(e + 1):
            x = tl.load(halves + s * N + k, k < N, -float("inf"))
            x += tl.load(sent + (s * W + e) * N + k, k < N, -float("inf"))
            higher = tl.maximum(top, x)
            base = finite(higher)
            total = total * exp(top - base) + exp(x - base)
            top = higher
        tl.store(halves + (e + 1) * N + k, log_of(top, total), k < N)
        tl.debug_barrier()


def forward(sent: Tensor) -> tuple[Tensor, Kept]:
    """Half subtrees `[B, W + 1, N]` of no words, one, and so on, from messages `[B, W, W, N]` of those from s to e."""
    batch, words, _, size = sent.shape
    halves = sent.new_empty(batch, words + 1, size)
    if halves.numel():
        _grow[(batch, triton.cdiv(size, 128))](sent.contiguous(), halves, words, size, BLOCK=128)
    return halves, ()
