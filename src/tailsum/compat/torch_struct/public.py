"""Every name of `tailsum.compat.torch_struct`."""

from tailsum.compat.torch_struct.alignment_crf import Alignment, AlignmentCRF
from tailsum.compat.torch_struct.autoregressive import Autoregressive, AutoregressiveModel
from tailsum.compat.torch_struct.ctc import CTC
from tailsum.compat.torch_struct.dependency_crf import DependencyCRF, DepTree
from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.hmm import HMM
from tailsum.compat.torch_struct.linear_chain_crf import LinearChain, LinearChainCRF
from tailsum.compat.torch_struct.nonprojective_dependency_crf import (
    NonProjectiveDependencyCRF,
    deptree_nonproj,
    deptree_part,
)
from tailsum.compat.torch_struct.semi_markov_crf import SemiMarkov, SemiMarkovCRF
from tailsum.compat.torch_struct.semirings.base import Semiring
from tailsum.compat.torch_struct.semirings.expectation import (
    CrossEntropySemiring,
    EntropySemiring,
    KLDivergenceSemiring,
)
from tailsum.compat.torch_struct.semirings.maxima import FastMaxSemiring, KMaxSemiring, MaxSemiring, SparseMaxSemiring
from tailsum.compat.torch_struct.semirings.plain import (
    CheckpointSemiring,
    CheckpointShardSemiring,
    FastLogSemiring,
    LogSemiring,
    StdSemiring,
)
from tailsum.compat.torch_struct.semirings.sampled import (
    FastSampleSemiring,
    GumbelCRFSemiring,
    GumbelMaxSemiring,
    MultiSampledSemiring,
    SampledSemiring,
)
from tailsum.compat.torch_struct.sent_cfg import CKY, SentCFG
from tailsum.compat.torch_struct.tree_crf import CKY_CRF, TreeCRF

__all__ = [
    "CKY",
    "CKY_CRF",
    "CTC",
    "HMM",
    "Alignment",
    "AlignmentCRF",
    "Autoregressive",
    "AutoregressiveModel",
    "CheckpointSemiring",
    "CheckpointShardSemiring",
    "CrossEntropySemiring",
    "DepTree",
    "DependencyCRF",
    "EntropySemiring",
    "FastLogSemiring",
    "FastMaxSemiring",
    "FastSampleSemiring",
    "GumbelCRFSemiring",
    "GumbelMaxSemiring",
    "KLDivergenceSemiring",
    "KMaxSemiring",
    "LinearChain",
    "LinearChainCRF",
    "LogSemiring",
    "MaxSemiring",
    "MultiSampledSemiring",
    "NonProjectiveDependencyCRF",
    "SampledSemiring",
    "SemiMarkov",
    "SemiMarkovCRF",
    "Semiring",
    "SentCFG",
    "SparseMaxSemiring",
    "StdSemiring",
    "StructDistribution",
    "TreeCRF",
    "deptree_nonproj",
    "deptree_part",
]
