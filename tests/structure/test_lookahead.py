"""Where local scores mislead: Lookahead comes close on peaked models of several structures."""

import math

import pytest
import torch

import tailsum as ts

SIZE = 32


def inner(words, states):
    return words @ states.T / math.sqrt(SIZE)


def hard_segments(g, replicates):
    left, right = torch.randn(2, 200, 16, generator=g).double()
    leaf = (torch.randn(10, 4, 16, generator=g).double() @ left.T * 0.5).requires_grad_()
    return ts.SemiMarkov(leaf.expand(replicates, -1, -1, -1), ts.Factored(left * 0.75, right)), leaf


def hard_grammar(g, replicates):
    """60 nonterminals and 60 preterminals, scored from Gaussian embeddings; rules of deviation 1.5, emissions of 3."""
    head = torch.randn(60, SIZE, generator=g).double() * (1.5 / math.sqrt(SIZE))
    left, right = torch.randn(2, 120, SIZE, generator=g).double()
    root = inner(*(torch.randn(n, SIZE, generator=g).double() for n in (1, 60)))[0]
    words = torch.randn(6, SIZE, generator=g).double() * 3.0
    leaf = inner(words, left[60:]).requires_grad_()
    return ts.PCFG(root, ts.FactoredRule(head, left, right), leaf.expand(replicates, -1, -1)), leaf


def hard_dependencies(g, replicates):
    """200 states, scored from Gaussian embeddings; transitions of deviation 1, words of 3."""
    left, right = torch.randn(2, 200, SIZE, generator=g).double()
    words = torch.randn(8, SIZE, generator=g).double() * 3.0
    arc = torch.randn(8, 8, generator=g).double()
    leaf, pairs = inner(words, left).requires_grad_(), ts.Factored(left / math.sqrt(SIZE), right)
    return ts.DependencyTree(arc, node=leaf.expand(replicates, -1, -1), transition=pairs), leaf


HARD = {"segments": (hard_segments, 64), "pcfg": (hard_grammar, 16), "dependencies": (hard_dependencies, 16)}


@pytest.mark.parametrize("name", HARD)
def test_lookahead_comes_close_where_local_scores_mislead(name, generator):
    """The error of log Z in nats on three peaked models, with as many states; and the direction of the gradient."""
    make, landmarks = HARD[name]
    errors, cosines = {"local": [], "lookahead": []}, []
    for seed in range(3):
        model, leaf = make(torch.Generator().manual_seed(seed), 8)
        exact = model.log_partition()
        truth = torch.autograd.grad(exact[0], leaf, retain_graph=True)[0]
        for kind, proposal in (("local", ts.Local()), ("lookahead", ts.Lookahead(landmarks))):
            result = model.sketch(10, proposal=proposal, generator=generator).log_partition()
            errors[kind].append((result - exact).detach())
        gradient = torch.autograd.grad(result.mean(), leaf)[0]
        cosines.append(torch.cosine_similarity(gradient.flatten(), truth.flatten(), 0).item())
    local, lookahead = (torch.stack(errors[kind]).square().mean().sqrt() for kind in ("local", "lookahead"))
    assert lookahead < local / 3
    assert min(cosines) > 0.9
