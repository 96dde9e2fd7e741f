"""Inside and outside sums of all subtrees of dependency trees with states: three launches a width, up and down.

The reference is `dependencies/inside_outside.py`, whose items and squares these are. Between the kernels stands one product: of the
states of all heads of a subtree with the scores to the states of all words outside it.
"""

# Kernels are called with plain numbers for Triton's own types.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused import subtree_steps as steps
from tailsum.numerics.fused.chart import FLOOR
from tailsum.numerics.fused.exponential import exp
from tailsum.numerics.fused.subtree_steps import log_of_sum
from tailsum.numerics.precision import product


@triton.jit
def _grow(sent, found, W, N, BLOCK: tl.constexpr):
    """Halves of more and more words; the states of the head are independent."""
    b = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sent += b * W * W * N
    found += b * (W + 1) * N
    tl.store(found + k, tl.zeros((BLOCK,), tl.float32), k < N)
    tl.debug_barrier()
    for e in range(W):
        top, total = tl.full((BLOCK,), -float("inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for s in range(e + 1):
            x = tl.load(found + s * N + k, k < N, -float("inf"))
            x += tl.load(sent + (s * W + e) * N + k, k < N, -float("inf"))
            higher = tl.maximum(top, x)
            base = tl.where(higher == -float("inf"), 0.0, higher)
            total = total * exp(top - base) + exp(x - base)
            top = higher
        tl.store(found + (e + 1) * N + k, log_of_sum(top, total), k < N)
        tl.debug_barrier()


def grown_halves(sent: Tensor) -> Tensor:
    """Half subtrees `[B, W + 1, N]` of no words, one, and so on, from messages `[B, W, W, N]` of those from s to e."""
    batch, words, _, size = sent.shape
    found = sent.new_empty(batch, words + 1, size)
    _grow[(batch, triton.cdiv(size, 128))](sent.contiguous(), found, words, size, BLOCK=128)
    return found


@dataclass
class Squares:
    """The items of all spans, minus infinity where there is none, from scores `nodes [B, T, K]` and `[G, T K, T K]`."""

    nodes: Tensor
    scores: Tensor  # of a child and its state with a head and its state

    def __post_init__(self) -> None:
        self.nodes = self.nodes.contiguous()
        self.batch, self.length, self.size = self.nodes.shape
        full = lambda *more: self.nodes.new_full((self.batch, self.length, self.length, *more, self.size), -torch.inf)  # noqa: E731
        self.left, self.right, self.of_left, self.of_right = (full() for _ in range(4))
        self.trees, self.sent, self.outside, self.above = (full(self.length) for _ in range(4))
        for half in (self.left, self.right):
            half.diagonal(dim1=1, dim2=2).zero_()
        top = self.scores.amax(-2)
        self.tops = torch.where(top > -torch.inf, top, 0.0).contiguous()
        self.table = (self.scores - self.tops[:, None]).exp_()
        self.low = torch.zeros(1, dtype=torch.int32, device=self.nodes.device)
        self.zeros = torch.zeros_like(self.tops[0])

    def _product(self, rows: Tensor, table: Tensor) -> Tensor:
        return product(rows.view(len(table), -1, rows.shape[-1]), table).view(rows.shape)

    def _work(self, width: int) -> tuple[int, Tensor, Tensor, dict[str, Any]]:
        spans = self.batch * (self.length - width + 1)
        rows, peaks = self.nodes.new_empty(spans, self.length * self.size), self.nodes.new_empty(spans)
        return spans, rows, peaks, {"S": 16, "KB": triton.next_power_of_2(self.size)}

    def fill(self) -> None:
        """Inside sums, from the smallest spans on."""
        for width in range(1, self.length + 1):
            spans, rows, peaks, tile = self._work(width)
            items = (self.nodes, self.left, self.right, self.trees, self.sent)
            sizes = (self.length, self.size, width)
            steps.fill[(spans,)](*items, self.zeros, rows, peaks, *sizes, **tile)
            if width < self.length:
                totals = self._product(rows, self.table)
                more = (*sizes, spans // len(self.table), FLOOR)
                steps.send[(spans, self.length)](totals, peaks, self.tops, self.sent, self.low, *more, KB=tile["KB"])

    def pass_down(self, root: Tensor, free: Tensor) -> None:
        """Outside sums, from the whole on; `root [B, T]` and `free [B, T, T]` are those of subtrees under a root."""
        root, free = root.contiguous(), free.contiguous()
        for width in range(self.length, 0, -1):
            spans, rows, peaks, tile = self._work(width)
            sizes = (self.length, self.size, width)
            halves = (self.left, self.right, self.of_left, self.of_right)
            given = (*halves, self.outside, self.tops, rows, peaks, *sizes, spans // len(self.table))
            steps.from_heads[(spans,)](*given, **tile)
            totals = self._product(rows, self.table.mT) if width < self.length else rows
            given = (totals, peaks, self.nodes, root, free, self.left, self.right, self.sent, self.above)
            steps.to_halves[(spans,)](*given, self.of_left, self.of_right, self.low, *sizes, FLOOR, **tile)
