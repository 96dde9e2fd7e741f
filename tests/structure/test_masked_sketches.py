"""Sketches where much is forbidden or masked: exact messages make them keep important states, and no replicate is empty."""

import math

import pytest
import torch

import tailsum as ts
from harness.statistics import off

inf = math.inf


def masked(generator, *shape, mask, share, scale=1.0):
    scores = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    return scores.masked_fill(torch.rand(shape, generator=generator) < share, mask)


def ratios(model, k, count=400):
    """Replicates of Z, divided by Z."""
    small = model.expand((count,)).sketch(k, generator=torch.Generator().manual_seed(0))
    return (small.log_partition() - model.log_partition()).double().exp()


@pytest.mark.parametrize("mask", [-1e4, -1e9])
def test_paths_that_break_a_mask_early_and_late_count_alike(mask):
    """The message from later positions shows that a mask has to be broken; a guess in its place would be wrong."""
    nodes = torch.zeros(3, 2, dtype=torch.float64)
    nodes[0, 1] = nodes[2, 0] = mask
    stay = torch.zeros(2, 2, dtype=torch.float64).masked_fill(~torch.eye(2, dtype=torch.bool), -inf)
    chain = ts.LinearChain(nodes, stay)
    torch.testing.assert_close(chain.log_partition().item(), mask + math.log(2))
    draws = ratios(chain, 1)
    torch.testing.assert_close(draws, torch.ones_like(draws))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mask", [-1e4, -inf])
def test_chains_without_many_states_have_no_empty_sketch(seed, mask):
    generator = torch.Generator().manual_seed(seed)
    nodes = masked(generator, 5, 7, mask=mask, share=0.5)
    nodes[:, 0] = -1.0  # one path is free
    pairs = masked(generator, 4, 7, 7, mask=mask, share=0.5)
    pairs[:, 0, 0] = 0.0
    draws = ratios(ts.LinearChain(nodes, pairs), 2)
    assert (draws > 0.1).all()
    assert off(ts.LinearChain(nodes, pairs).expand((400,)).sketch(2), ts.LinearChain(nodes, pairs)) < 4.5


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("mask", [-1e4, -1e9, -inf])
def test_grammars_in_float32(seed, mask):
    """A state of a span that only masked rules make has an inside sum of -1e9, and no outside sum makes up for it."""
    generator = torch.Generator().manual_seed(seed)
    rule = masked(generator, 6, 11, 11, mask=mask, share=0.8, scale=3.0).float()
    words = masked(generator, 6, 5, mask=mask, share=0.5, scale=3.0).float()
    grammar = ts.PCFG(torch.randn(6, generator=generator), rule, words)
    whole = grammar.log_partition()
    if not whole > -1e3:
        pytest.skip("no tree is possible")
    draws = ratios(grammar, 3)
    assert (draws > 0.01).all()
    assert (draws.mean() - 1.0).abs() < 4.5 * draws.std() / 20 + 1e-4


@pytest.mark.parametrize("seed", range(20, 28))
@pytest.mark.parametrize("mask", [-1e4, -inf])
def test_forests_with_a_table_for_each_edge(seed, mask):
    generator = torch.Generator().manual_seed(seed)
    nodes = masked(generator, 5, 7, mask=mask, share=0.3)
    pairs = masked(generator, 4, 7, 7, mask=mask, share=0.6)
    forest = ts.PairwiseGraph(nodes, [(0, 1), (0, 2), (2, 3), (2, 4)], pairs)
    if not forest.log_partition() > -1e3:
        pytest.skip("no configuration is possible")
    draws = ratios(forest, 2)
    assert (draws > 0.01).all()
    assert (draws.mean() - 1.0).abs() < 4.5 * draws.std() / 20 + 1e-9
