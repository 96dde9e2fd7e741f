"""Exponentials within a kernel."""

# Kernels are called with plain numbers for Triton's own types.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false, reportAttributeAccessIssue=false

import triton
import triton.language as tl


@triton.jit
def exp(x):
    """`e^x` in float32, zero below `2^-126`: a product and one instruction. `tl.exp`, which keeps smaller numbers, takes five."""
    return tl.exp2(x * 1.4426950408889634)
