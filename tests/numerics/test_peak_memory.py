"""The peak memory of tensors."""

import torch

from tailsum.numerics.memory import PeakMemory


def test_counting():
    with PeakMemory() as memory:
        a = torch.zeros(1000)
        b = a.view(10, 100)  # no memory of its own
        c = b + 1
        d = c * 2
        del a, b
    assert (memory.peak, memory.now, memory.largest) == (12000, 8000, 4000)
    assert d.shape == (10, 100)
