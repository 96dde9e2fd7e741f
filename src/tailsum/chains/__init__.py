"""Chains: linear chains, hidden Markov models, semi-Markov models, lattices, CTC and alignments."""
