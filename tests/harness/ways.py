"""A few kinds of each structure, as a sketch with random states and weights where they have states: it has the whole too."""

from harness.registry import FEW, STATEFUL

ONE_WAY = [(name, "restricted" if name in STATEFUL else "whole") for name in FEW]
