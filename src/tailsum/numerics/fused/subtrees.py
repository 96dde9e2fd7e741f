"""Inside and outside sums of all subtrees of dependency trees with states: three launches a width, up and down.

The reference is `dependencies/inside_outside.py`, with the same items and squares. Between the kernels is one product: the states
of all heads of a subtree times the scores with the states of all words outside it.
"""

# pyright: reportArgumentType=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused import subtree_steps as steps
from tailsum.numerics.fused.chart import FLOOR
from tailsum.numerics.fused.exponential import exp, finite, log_of
from tailsum.numerics.precision import product


@triton.jit
def _grow(sent, halves, W, N, BLOCK: tl.constexpr):
    """Halves of more and more words; the states of the head are independent."""
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


def grown_halves(sent: Tensor) -> Tensor:
    """Half subtrees `[B, W + 1, N]` of no words, one, and so on, from messages `[B, W, W, N]` of those from s to e."""
    batch, words, _, size = sent.shape
    halves = sent.new_empty(batch, words + 1, size)
    _grow[(batch, triton.cdiv(size, 128))](sent.contiguous(), halves, words, size, BLOCK=128)
    return halves


@dataclass
class Squares:
    """The items of all spans, minus infinity where there is none, from scores `nodes [B, T, K]` and `[G, T K, T K]`."""

    nodes: Tensor
    scores: Tensor  # by child and its state, then head and its state

    def __post_init__(self) -> None:
        self.nodes = self.nodes.contiguous()
        self.batch, self.length, self.size = self.nodes.shape
        half = (self.batch, self.length, self.length, self.size)
        tree = (self.batch, self.length, self.length, self.length, self.size)
        self.left, self.right, self.of_left, self.of_right = (self.nodes.new_full(half, -torch.inf) for _ in range(4))
        self.trees, self.sent, self.outside, self.above = (self.nodes.new_full(tree, -torch.inf) for _ in range(4))
        for half in (self.left, self.right):
            half.diagonal(dim1=1, dim2=2).zero_()
        top = self.scores.amax(-2)
        self.tops = torch.where(top > -torch.inf, top, 0.0).contiguous()
        self.table = (self.scores - self.tops[:, None]).exp_()
        self.low = torch.zeros(1, dtype=torch.int32, device=self.nodes.device)
        self.zeros = torch.zeros_like(self.tops[0])

    def _product(self, rows: Tensor, table: Tensor) -> Tensor:
        return product(rows.view(len(table), -1, rows.shape[-1]), table).view(rows.shape)

    def _work(self, width: int) -> tuple[int, Tensor, Tensor, dict[str, int]]:
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
        """Outside sums, from the whole sentence on; `root [B, T]` and `free [B, T, T]` are those of subtrees under a root."""
        root, free = root.contiguous(), free.contiguous()
        for width in range(self.length, 0, -1):
            spans, rows, peaks, tile = self._work(width)
            sizes = (self.length, self.size, width)
            halves, outer = (self.left, self.right), (self.of_left, self.of_right)
            work = (self.outside, self.tops, rows, peaks)
            steps.from_heads[(spans,)](*halves, *outer, *work, *sizes, spans // len(self.table), **tile)
            totals = self._product(rows, self.table.mT) if width < self.length else rows
            work = (totals, peaks, self.nodes, root, free, *halves, self.sent, self.above)
            steps.to_halves[(spans,)](*work, *outer, self.low, *sizes, FLOOR, **tile)
