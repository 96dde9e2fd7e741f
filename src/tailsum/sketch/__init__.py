"""Sketches: proposals score the states of each node, selections keep some of them."""
