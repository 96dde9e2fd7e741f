"""Chains: linear chains, hidden Markov models, semi-Markov models, CTC and alignments."""
