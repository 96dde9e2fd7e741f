"""Numerics on plain tensors: precision, tiles, tables, reductions, charts and fixed points."""
