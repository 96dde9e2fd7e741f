"""Exponentials within a kernel."""

# Triton's own types are for those who run it.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false, reportAttributeAccessIssue=false

import triton
import triton.language as tl


@triton.jit
def exp(x):
    """`e^x` in float32, zero below `2^-126`: a product and one instruction. `tl.exp` keeps smaller numbers, in five."""
    return tl.exp2(x * 1.4426950408889634)
