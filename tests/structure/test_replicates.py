"""Replicates and what they say together."""

import torch

import tailsum as ts
from tailsum.structure.replicates import replicate


def test_combined_replicates_come_closer_than_one(generator):
    chain = ts.LinearChain(torch.randn(3, 4, 40).double(), torch.randn(40, 40).double())
    steps = []
    found = replicate(chain, 200, ts.Optimal(4), ts.Uniform(), generator, step=lambda: steps.append(1))
    assert len(steps) == 200
    assert found.log_partition.shape == found.entropy.shape == (200, 3)
    together, error = found.combined()
    assert ((together - chain.log_partition()).abs() < 5 * error).all()
    assert (error < found.log_partition.std(0)).all()
    assert found.seconds > 0
