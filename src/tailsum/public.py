"""Every public name of the package, `tailsum.NAME`. This module, and torch with it, is loaded on first use."""

from tailsum.chains.alignment import Alignment
from tailsum.chains.ctc import CTC
from tailsum.chains.durations import Durations
from tailsum.chains.hmm import HMM
from tailsum.chains.lattice import Lattice
from tailsum.chains.linear_chain import LinearChain
from tailsum.chains.refine import Refined
from tailsum.chains.segment_pairs import ByDuration
from tailsum.chains.segments import Segments
from tailsum.chains.semi_markov import SemiMarkov
from tailsum.dependencies.configuration import Dependencies, RelaxedDependencies
from tailsum.dependencies.dependency_tree import DependencyTree
from tailsum.graphs.factor_graph import FactorGraph
from tailsum.graphs.graph import Graph
from tailsum.graphs.monitor import Convergence, ConvergenceWarning
from tailsum.graphs.pairwise_graph import PairwiseGraph, grid_edges
from tailsum.graphs.uai import read_uai
from tailsum.numerics.kernels import kernels, precision
from tailsum.numerics.memory import PeakMemory
from tailsum.numerics.tiles import table_budget
from tailsum.operator import Operator
from tailsum.scores.banded import Banded
from tailsum.scores.factored import Factored
from tailsum.scores.gated import Gated
from tailsum.scores.kronecker import Kronecker
from tailsum.scores.low_rank import LowRank
from tailsum.scores.monarch import Monarch
from tailsum.scores.potential import Dense, Potential
from tailsum.scores.scored import Scored
from tailsum.scores.sparse import Sparse
from tailsum.sketch.model import Propose
from tailsum.sketch.neighbours import Neighbours
from tailsum.sketch.proposal import Global, Local, LocalGlobal, Lookahead, Proposal, Uniform
from tailsum.sketch.selection import Optimal, Selection, Subset, TopAndSample, TopK, inclusion_probability
from tailsum.structure.base import Structure
from tailsum.structure.check_sketch import SketchWarning, check_sketch
from tailsum.structure.distinct import Distinct
from tailsum.structure.estimate import Estimate, estimate
from tailsum.structure.k_best import Best
from tailsum.structure.relaxed import RelaxedSample
from tailsum.trees.configuration import Trees
from tailsum.trees.pcfg import PCFG
from tailsum.trees.rules.dense import DenseRule
from tailsum.trees.rules.factored import FactoredRule
from tailsum.trees.rules.low_rank import LowRankRule
from tailsum.trees.rules.rule import Rule
from tailsum.trees.rules.scored import ScoredRule
from tailsum.trees.span_tree import SpanTree

__all__ = [
    "CTC",
    "HMM",
    "PCFG",
    "Alignment",
    "Banded",
    "Best",
    "ByDuration",
    "Convergence",
    "ConvergenceWarning",
    "Dense",
    "DenseRule",
    "Dependencies",
    "DependencyTree",
    "Distinct",
    "Durations",
    "Estimate",
    "FactorGraph",
    "Factored",
    "FactoredRule",
    "Gated",
    "Global",
    "Graph",
    "Kronecker",
    "Lattice",
    "LinearChain",
    "Local",
    "LocalGlobal",
    "Lookahead",
    "LowRank",
    "LowRankRule",
    "Monarch",
    "Neighbours",
    "Operator",
    "Optimal",
    "PairwiseGraph",
    "PeakMemory",
    "Potential",
    "Proposal",
    "Propose",
    "Refined",
    "RelaxedDependencies",
    "RelaxedSample",
    "Rule",
    "Scored",
    "ScoredRule",
    "Segments",
    "Selection",
    "SemiMarkov",
    "SketchWarning",
    "SpanTree",
    "Sparse",
    "Structure",
    "Subset",
    "TopAndSample",
    "TopK",
    "Trees",
    "Uniform",
    "check_sketch",
    "estimate",
    "grid_edges",
    "inclusion_probability",
    "kernels",
    "precision",
    "read_uai",
    "table_budget",
]
