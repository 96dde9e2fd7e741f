"""The ways to sum over the paths of a chain, one in each file; `chains/plan.py` chooses."""
