# pyright: strict
"""What a user may write in strict mode: basedpyright sees the types of everything public, as `make test` checks.

It runs too (`test_packaging.py`).
"""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import assert_type

import tailsum as ts
from tailsum import HMM, LinearChain, nn, plot
from tailsum.distributed import ShardedChain
from tailsum.nn import CRFInference


def log_partition(model: ts.Structure[Any, Any]) -> Tensor:
    """Of any structure."""
    return model.log_partition()


def chains() -> None:
    """Operations of a chain and of its sketch."""
    states, context = torch.randn(30, 8), torch.randn(2, 5, 8)
    chain = ts.LinearChain(ts.Factored(context, states), ts.Factored(states, states), lengths=[5, 3])
    assert_type(chain, LinearChain)
    assert_type(log_partition(chain), Tensor)
    assert_type(chain.marginals(), Tensor)
    assert_type(chain.argmax(), Tensor)
    assert_type(chain.sample((3,)), Tensor)
    assert_type(chain.topk(3).scores, Tensor)
    small = chain.sketch(20, generator=torch.Generator())
    assert_type(small, LinearChain)
    assert_type(small.rsample(temperature=0.5), ts.RelaxedSample)
    assert_type(small.rsample().mix(states), Tensor)
    assert_type(ts.estimate(chain, log_partition, k=20, replicates=2, check=False), ts.Estimate)
    with ts.kernels("never"), ts.PeakMemory() as memory:
        assert_type(chain.kl(chain), Tensor)
    assert_type(memory.peak, int)


def other_structures() -> None:
    """What they give are configurations of their own."""
    assert_type(ts.DependencyTree(torch.randn(2, 4, 4)).argmax(), ts.Dependencies)
    assert_type(ts.SpanTree(torch.randn(2, 4, 4, 3)).argmax(), ts.Trees)
    assert_type(ts.SemiMarkov(torch.randn(2, 5, 3, 4), torch.randn(4, 4)).argmax(), ts.Segments)
    words = torch.zeros(2, 5, dtype=torch.long)
    initial, transition, emission = (torch.randn(shape).log_softmax(-1) for shape in ((4,), (4, 4), (4, 6)))
    assert_type(HMM(initial, transition, emission, words).entropy(), Tensor)
    assert_type(ts.PairwiseGraph(torch.randn(2, 4, 3), ts.grid_edges(2, 2), torch.randn(3, 3)).entropy(), Tensor)
    assert_type(ts.PCFG(torch.randn(3), torch.randn(3, 7, 7), torch.randn(2, 5, 4)).entropy(), Tensor)


def rooms() -> None:
    """Packages of their own are there by `tailsum.NAME` too."""
    assert_type(ts.nn.CRFInference, type[CRFInference])
    assert_type(nn.CRFInference, type[CRFInference])
    assert_type(ts.distributed.ShardedChain, type[ShardedChain])
    assert_type(plot.chain([0, 1, 2]).get_title(), str)
    assert_type(plot.state_colour(3), str)
    assert_type(ts.__version__, str)
