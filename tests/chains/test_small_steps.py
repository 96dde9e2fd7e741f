"""Steps with few numbers take a shorter way: to the same values and derivatives as the long one."""

import math

import pytest
import torch

import tailsum as ts
from tailsum.chains import scan
from tailsum.chains.small_steps import small_forward
from tailsum.numerics import table


def scores(kind, length=6, batch=3, n=4):
    node, pairs = torch.randn(batch, length, n), torch.randn(n, n)
    match kind:
        case "steps of their own":
            pairs = torch.randn(length - 1, n, n)
        case "wide":
            node, pairs = 40 * node, 40 * pairs
        case "forbidden":
            pairs[torch.rand(n, n) < 0.4] = -math.inf
            node[:, 2, 1] = -math.inf
        case "offset":
            node, pairs = node - 1e4, pairs + 300.0
        case "impossible":
            node[0, 3] = -math.inf
    return [x.double().requires_grad_() for x in (node, pairs)]


def answers(node, pairs, lengths):
    chain = ts.LinearChain(node, pairs, lengths)
    total, entropy = chain.log_partition(), chain.entropy()
    possible = total > -math.inf
    gradients = torch.autograd.grad(total[possible].sum() + entropy[possible].sum(), (node, pairs))
    return total, entropy, chain.marginals(), chain.argmax(), *gradients


@pytest.mark.parametrize("kind", ["plain", "steps of their own", "wide", "forbidden", "offset", "impossible"])
def test_both_ways_agree(kind, monkeypatch):
    given, lengths = scores(kind), torch.tensor([6, 4, 1])
    short = answers(*given, lengths)
    monkeypatch.setattr(table, "SMALL", 0)
    monkeypatch.setattr("tailsum.chains.best_paths.tile_size", lambda _: 0)
    for one, other in zip(short, answers(*given, lengths), strict=True):
        torch.testing.assert_close(one, other)


def test_only_a_narrow_range_is_taken():
    def found(node, pairs):
        made = table.Table((pairs[None, None],))
        return small_forward(node, node.amax(-1), made)

    node, pairs = torch.randn(5, 2, 3), torch.randn(3, 3)
    assert found(node, pairs) is not None
    apart = torch.full((3, 3), -70.0)
    apart.fill_diagonal_(0.0)
    best = torch.tensor([[0.0, -60.0, -60.0], [-60.0, 0.0, -60.0]])[:, None]  # the best states are far apart
    assert found(best, apart) is None
    log_mass, _, total = scan._forward_steps(node, node.amax(-1), table.Table((pairs[None, None],)), None)
    torch.testing.assert_close(found(node, pairs)[0], log_mass)
    torch.testing.assert_close(found(node, pairs)[2], total)
