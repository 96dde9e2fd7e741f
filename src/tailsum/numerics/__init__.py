"""Numerics that know only torch: precision, tiles, tables, reductions, charts and fixed points."""
