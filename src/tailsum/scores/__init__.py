"""Scores of the states of nodes and of pairs of them: as a table, as factors, or as a function."""
