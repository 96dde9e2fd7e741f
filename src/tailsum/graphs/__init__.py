"""Graphs of variables and factors."""
