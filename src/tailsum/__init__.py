"""Structured inference with very many latent states: exact where that is affordable, randomized where it is not."""

from tailsum.chain import LinearChain, Paths
from tailsum.hmm import HMM
from tailsum.kernels.table import table_budget
from tailsum.potential import Dense, Factored, Potential, Scored
from tailsum.propose import Global, Local, LocalGlobal, Lookahead, Proposal, Uniform
from tailsum.select import Optimal, Selection, Subset, TopAndSample, TopK
from tailsum.structure import RelaxedSample, Structure

__all__ = [
    "HMM",
    "Dense",
    "Factored",
    "Global",
    "LinearChain",
    "Local",
    "LocalGlobal",
    "Lookahead",
    "Optimal",
    "Paths",
    "Potential",
    "Proposal",
    "RelaxedSample",
    "Scored",
    "Selection",
    "Structure",
    "Subset",
    "TopAndSample",
    "TopK",
    "Uniform",
    "table_budget",
]
