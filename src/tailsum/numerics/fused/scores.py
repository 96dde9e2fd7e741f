"""Pair scores within a kernel: tiles read from a table, or made from factors in registers."""

# Kernels are called with plain numbers for Triton's own types.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false, reportAttributeAccessIssue=false

from functools import cached_property
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.products import score_product
from tailsum.numerics.kernels import ALIGNED, is_fast

ALONE = 512  # up to so many states one program takes all steps of a sequence


@triton.jit
def score_tile(left, right, i, j, n, m, row_l, column_l, row_r, width, SIZE: tl.constexpr):
    """The scores of states i [I] with states j [J]; minus infinity where i >= n or j >= m.

    SIZE is 0 where `left` points to a table, with strides `row_l` and `column_l`. Else `left` and `right` point to factors of
    `width` numbers, padded to SIZE, the states `row_l` and `row_r` apart.
    """
    inside = (i < n)[:, None] & (j < m)[None, :]
    i, j = i.to(tl.int64), j.to(tl.int64)
    if SIZE == 0:
        tile = unmasked(tl.load(left + i[:, None] * row_l + j[None, :] * column_l, inside, -float("inf")))
    else:
        d = tl.arange(0, SIZE)
        rows = tl.load(left + i[:, None] * row_l + d[None, :], (i < n)[:, None] & (d < width)[None, :], 0.0)
        columns = tl.load(right + j[None, :] * row_r + d[:, None], (j < m)[None, :] & (d < width)[:, None], 0.0)
        tile = tl.where(inside, score_product(rows, columns), -float("inf"))
    return tile


@triton.jit
def unmasked(x):
    """Minus infinity in place of finite masks, as in `numerics.tensors`."""
    return tl.where(x < -1e29, -float("inf"), x)


@triton.jit
def meet(counter, target):
    """Wait until all programs that share the counter have come here `target` times in all; then all see what each has written."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="acq_rel")
    while tl.atomic_add(counter, 0, sem="acq_rel") < target:
        pass
    tl.debug_barrier()


class Tile(NamedTuple):
    """The size of a tile of scores, and how many warps work on it."""

    rows: int
    columns: int
    warps: int


class Pairs:
    """Pair scores as kernels take them: a table `[G, S, N, M]`, or factors `[G, S, N, d]` and `[G, S, M, d]`."""

    def __init__(self, params: tuple[Tensor, ...]) -> None:
        # Kernels read factors along their last dimension.
        self.params = tuple(p.detach() if len(params) == 1 else p.detach().contiguous() for p in params)
        self.left, self.right = self.params[0], self.params[-1]
        self.groups, self.steps = self.left.shape[:2]
        self.size = 0 if len(params) == 1 else max(16, triton.next_power_of_2(self.left.shape[-1]))
        self.precision = "tf32" if is_fast() else "tf32x3"  # of the gradients of factors; scores have no choice

    @cached_property
    def centre(self) -> Tensor:
        """What is subtracted from all scores of a table, `[G, S]`: an offset that they share costs no digits."""
        if self.size:
            return self.left.new_zeros(self.groups, self.steps)
        highest = self.left.amax((-2, -1))
        return torch.where(highest > -torch.inf, highest, 0.0)

    @property
    def pointers(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.left, self.right, self.centre

    @property
    def strides(self) -> tuple[int, ...]:
        left, right = self.left.stride(), self.right.stride()
        return (*left, *right[:3], self.left.shape[-1])

    def per_group(self, batch: int) -> int:
        """How many sequences share a table."""
        return max(1, batch // max(1, self.groups))

    def tile(self, n: int) -> Tile:
        if self.size:
            return Tile(64, 64, 4) if self.size <= 64 else Tile(32, 32, 4)
        side = min(
            128 if n % ALIGNED == 0 else 64, max(16, triton.next_power_of_2(n))
        )  # larger ones spill where n is odd
        return Tile(side, side, 8 if n > 64 else 4)


def meets() -> bool:
    """Whether programs can wait for one another: in the interpreter they run one after the other."""
    return torch.cuda.is_available()


def before_hopper(device: torch.device) -> bool:
    """Whether it is a GPU older than those that tiles were measured on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0)


def at_once(device: torch.device, shared_memory: int = 0) -> int:
    """How many programs of 4 warps, with so many bytes of shared memory each, surely run at once and so can meet."""
    if not meets():
        return 0
    properties = torch.cuda.get_device_properties(device)
    # Two fit the registers of a multiprocessor, however many they use. Some memory is reserved.
    twice = 2 * (shared_memory + 4096) <= properties.shared_memory_per_multiprocessor and shared_memory
    return properties.multi_processor_count * (2 if twice else 1)
