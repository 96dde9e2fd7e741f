"""Products of tiles on tensor cores: how operands are rounded, and how tiles are added up.

Tensor cores add eight rows at a time to their accumulator, and truncate the result towards zero. So each addition to a positive
sum loses about 2^-25 of it, always in the same direction: a sum over 10,240 states in one accumulator, of three products, is too
small by 1e-4, at every step of a chain. Long sums therefore have no single accumulator. The product of each tile (32 or 64 rows)
starts from zero, small terms first, and tiles are added in ordinary float32, which rounds to nearest: the remaining error is 2e-7
at any number of states (`tests/numerics/test_long_sums.py`, by the same arithmetic on a CPU).

Triton's own `tf32x3` is such a product: it adds the accumulator at the end (its first versions did not; the test of compiled
kernels checks it). A single product in tf32 (`precision("fast")`) does carry the accumulator on.
"""

import os

import triton
import triton.language as tl
from triton.backends.nvidia.compiler import CUDAOptions

# Scores where "fast" is enough: three products in bf16, twice as fast as in tf32 and right to 2^-16, if this Triton has them. Its interpreter
# has not.
_known = "bf16x3" in CUDAOptions.allowed_dot_input_precisions and os.environ.get("TRITON_INTERPRET") != "1"
FAST_SCORES = tl.constexpr("bf16x3" if _known else "tf32x3")


@triton.jit
def score_product(x, y):
    """Scores of pairs from factors, as precise as float32.

    In tf32 the scores of the few pairs that matter most would be wrong by 1e-3, by the same amount at every step.
    """
    return tl.dot(x, y, input_precision="tf32x3")


@triton.jit
def product(x, y, PRECISION: tl.constexpr):
    """A product of tiles. For tf32 its operands are rounded first: tensor cores would truncate them, always downwards."""
    if PRECISION == "tf32":
        x, y = rounded(x), rounded(y)
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def add_product(total, x, y, PRECISION: tl.constexpr):
    """`total` plus a product of tiles, for gradients: in tf32 they are only right to 1e-3, and one accumulator is enough."""
    if PRECISION == "tf32":
        x, y = rounded(x), rounded(y)
    return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def add_split_product(total, high, low, entries, PRECISION: tl.constexpr):
    """`total` plus a product of `high + low`, which were split when they were stored, with a tile of entries.

    Three products in tf32, like `tf32x3`, which would split the left operand again for each tile.
    """
    near = rounded(entries)
    if PRECISION == "tf32":
        part = tl.dot(high, near, input_precision="tf32")
    else:
        part = tl.dot(low, near, input_precision="tf32")
        part = tl.dot(high, entries - near, part, input_precision="tf32")
        part = tl.dot(high, near, part, input_precision="tf32")
    # Triton would turn `total + part` into a product with the total as its accumulator.
    return tl.fma(part, 1.0, total)


@triton.jit
def rounded(x):
    """The nearest number in tf32."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & ~0x1FFF).to(tl.float32, bitcast=True)
