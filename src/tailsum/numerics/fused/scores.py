"""Pair scores within a kernel (tiles read from a table, or made from factors), and programs that wait for one another."""

from functools import cached_property

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.products import score_product
from tailsum.numerics.kernels import ALIGNED, is_fast

ALONE = 512  # up to this many states one program takes all steps of a sequence


@triton.jit
def score_tile(left, right, i, j, n, m, row_l, column_l, row_r, width, SIZE: tl.constexpr):
    """The scores of states i [I] with states j [J]; minus infinity where i >= n or j >= m.

    SIZE is 0 if `left` points to a table with strides `row_l` and `column_l`. Otherwise `left` and `right` point to factors of
    `width` numbers, padded to SIZE, with strides `row_l` and `row_r` between states.
    """
    inside = (i < n)[:, None] & (j < m)[None, :]
    i, j = i.to(tl.int64), j.to(tl.int64)
    if SIZE == 0:
        tile = unmasked(tl.load(left + i[:, None] * row_l + j[None, :] * column_l, inside, -float("inf")))
    else:
        rows, columns = factor_rows(left, i, n, row_l, width, SIZE), factor_columns(right, j, m, row_r, width, SIZE)
        tile = tl.where(inside, score_product(rows, columns), -float("inf"))
    return tile


@triton.jit
def factor_rows(factors, i, n, row, width, SIZE: tl.constexpr):
    """The factors [I, SIZE] of states i; zero where i >= n."""
    d = tl.arange(0, SIZE)
    return tl.load(factors + i[:, None].to(tl.int64) * row + d[None, :], (i < n)[:, None] & (d < width)[None, :], 0.0)


@triton.jit
def factor_columns(factors, j, m, row, width, SIZE: tl.constexpr):
    """The factors [SIZE, J] of states j; zero where j >= m."""
    d = tl.arange(0, SIZE)
    return tl.load(factors + j[None, :].to(tl.int64) * row + d[:, None], (j < m)[None, :] & (d < width)[:, None], 0.0)


def padded(factors: Tensor) -> int:
    """The size of factors within tiles, SIZE."""
    return max(16, triton.next_power_of_2(factors.shape[-1]))


@triton.jit
def unmasked(x):
    """Minus infinity in place of finite masks, as in `numerics.tensors`."""
    return tl.where(x < -1e29, -float("inf"), x)


@triton.jit
def meet(counter, target, MEET: tl.constexpr):
    """Wait until the programs that share the counter have come here `target` times in all; then each sees what others wrote.

    Without MEET a program works alone, and only its threads wait for one another.
    """
    tl.debug_barrier()
    if MEET:
        tl.atomic_add(counter, 1, sem="acq_rel")
        while tl.atomic_add(counter, 0, sem="acq_rel") < target:
            pass
        tl.debug_barrier()


class Pairs:
    """Pair scores as kernels take them: a table `[G, S, N, M]`, or factors `[G, S, N, d]` and `[G, S, M, d]`."""

    def __init__(self, params: tuple[Tensor, ...]) -> None:
        left, *other = (p.detach() for p in params)
        self.left, self.right, self.size = left, left, 0  # a table
        if other:  # factors, which kernels read along their last dimension
            self.left, self.right, self.size = left.contiguous(), other[0].contiguous(), padded(left)
        self.groups, self.steps = left.shape[:2]
        self.precision = "tf32" if is_fast() else "tf32x3"  # of the gradients of factors; scores are always precise

    @cached_property
    def centre(self) -> Tensor:
        """The number `[G, S]` subtracted from all scores of a table, so that a common offset costs no digits."""
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

    def tile(self, n: int) -> dict[str, int]:
        """The size of a tile of scores, and how many warps work on it."""
        if self.size:
            side = 64 if self.size <= 64 else 32
            return {"I": side, "J": side, "num_warps": 4}
        largest = 128 if n % ALIGNED == 0 else 64  # of odd sizes, larger tiles spill
        side = min(largest, max(16, triton.next_power_of_2(n)))
        return {"I": side, "J": side, "num_warps": 8 if n > 64 else 4}


def meets() -> bool:
    """Whether programs can wait for one another; in the interpreter they run one after the other."""
    return torch.cuda.is_available()


def before_hopper(device: torch.device) -> bool:
    """Whether it is an older GPU than those on which tiles were measured."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0)


def at_once(device: torch.device, shared_memory: int = 0) -> int:
    """How many programs of 4 warps, with this many bytes of shared memory each, are sure to run at once, so that they can meet."""
    if not meets():
        return 0
    properties = torch.cuda.get_device_properties(device)
    # Two programs fit the registers of a multiprocessor however many they use. Some memory is reserved.
    twice = 2 * (shared_memory + 4096) <= properties.shared_memory_per_multiprocessor and shared_memory
    return properties.multi_processor_count * (2 if twice else 1)
