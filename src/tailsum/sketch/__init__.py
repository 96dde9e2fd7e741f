"""Sketches: a proposal says how much each state of a node matters, a selection keeps some of the states."""
