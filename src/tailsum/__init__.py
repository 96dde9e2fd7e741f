"""Structured inference with very many latent states: exact where that is affordable, randomized where it is not."""

from tailsum.chain import LinearChain, Paths
from tailsum.dependency import Dependencies, DependencyTree, RelaxedDependencies
from tailsum.factor_graph import FactorGraph
from tailsum.factor_rule import FactoredRule, LowRankRule
from tailsum.graph import Convergence, Graph
from tailsum.graph_solver import ConvergenceWarning
from tailsum.hmm import HMM
from tailsum.kbest import Best
from tailsum.kernels.table import table_budget
from tailsum.pairwise_graph import PairwiseGraph, grid_edges
from tailsum.pcfg import PCFG
from tailsum.potential import Dense, Factored, Potential, Scored
from tailsum.propose import Global, Local, LocalGlobal, Lookahead, Proposal, Uniform
from tailsum.refine import Refined
from tailsum.rule import DenseRule, Rule
from tailsum.scored_rule import ScoredRule
from tailsum.select import Optimal, Selection, Subset, TopAndSample, TopK
from tailsum.semimarkov import Segments, SemiMarkov
from tailsum.span_tree import SpanTree
from tailsum.structure import RelaxedSample, Structure
from tailsum.tree import Trees
from tailsum.uai import read_uai

__all__ = [
    "HMM",
    "PCFG",
    "Best",
    "Convergence",
    "ConvergenceWarning",
    "Dense",
    "DenseRule",
    "Dependencies",
    "DependencyTree",
    "FactorGraph",
    "Factored",
    "FactoredRule",
    "Global",
    "Graph",
    "LinearChain",
    "Local",
    "LocalGlobal",
    "Lookahead",
    "LowRankRule",
    "Optimal",
    "PairwiseGraph",
    "Paths",
    "Potential",
    "Proposal",
    "Refined",
    "RelaxedDependencies",
    "RelaxedSample",
    "Rule",
    "Scored",
    "ScoredRule",
    "Segments",
    "Selection",
    "SemiMarkov",
    "SpanTree",
    "Structure",
    "Subset",
    "TopAndSample",
    "TopK",
    "Trees",
    "Uniform",
    "grid_edges",
    "read_uai",
    "table_budget",
]
