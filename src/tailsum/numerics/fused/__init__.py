"""Triton kernels, each with a reference in plain torch, in `numerics` or beside its caller.

Nothing here is imported unless `numerics.kernels.fused` says that kernels are used. Some files switch off rules of pyright, because
kernels are called with plain numbers for Triton's own types.
"""
