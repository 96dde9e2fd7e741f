"""Bad input to potentials: a ValueError that names the argument, what it was and what was expected."""

import math

import pytest
import torch

import tailsum as ts

pytestmark = pytest.mark.usefixtures("unchecked")

NODES = torch.zeros(2, 4, 3)


def test_potentials():
    with pytest.raises(
        ValueError,
        match=r"left and right must have two or more dimensions and the same last one: got \[3, 2\] and \[3, 4\]",
    ):
        ts.Factored(torch.zeros(3, 2), torch.zeros(3, 4))
    with pytest.raises(ValueError, match="left and right must have two or more dimensions"):
        ts.Factored(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match="left and right must have leading dimensions that broadcast"):
        ts.Factored(torch.zeros(2, 3, 2), torch.zeros(4, 3, 2))
    broken = ts.LinearChain(NODES, ts.Scored(lambda i, j: (i + j) * math.nan, 3, 3))
    with pytest.raises(ValueError, match="function gave a score that is NaN"):
        broken.log_partition()
    with pytest.raises(ValueError, match="n_from and n_to must be at least 1: got 0 and 3"):
        ts.Scored(lambda i, j: i + j, 0, 3)
    chain = ts.LinearChain(NODES, ts.Scored(lambda i, j: i + j, 3, 3))
    with pytest.raises(ValueError, match=r"function must give one floating-point score for each pair, \[3, 3\]"):
        chain.log_partition()
