"""Scores of a grammar's binary rules."""
