"""The same trees and grammars in other libraries."""

import math

import pytest
import torch
from torch.nn.functional import pad

import tailsum as ts
from harness.peers import QUIET, agree, allow, best_score, draw, given, gradient, seeds, some_forbidden, two_seeds

pytestmark = QUIET


@seeds
@some_forbidden
def test_span_tree(torch_struct, seed, forbid):
    # Indices are the same: first position, last position, state.
    span, lengths = draw(seed, 4, 7, 7, 3, forbid=forbid), torch.tensor([7, 5, 2, 1])
    allow(span[:, 0, :, 0], span[..., 0].diagonal(0, 1, 2))  # the tree that branches to the left
    ours, theirs = ts.SpanTree(span, lengths), torch_struct.TreeCRF(given(span), lengths=lengths)
    agree(ours.log_partition(), theirs.partition)
    agree(ours.marginals(), theirs.marginals)
    agree(best_score(ours), theirs.max)
    agree(ours.parts(ours.argmax()), theirs.argmax)
    agree(ours.entropy(), theirs.entropy)
    half = span * 0.5
    other, their_other = ts.SpanTree(half, lengths), torch_struct.TreeCRF(given(half), lengths=lengths)
    agree(ours.kl(other), theirs.kl(their_other))
    agree(ours.cross_entropy(other), theirs.cross_entropy(their_other))


@seeds
def test_span_tree_gradient_and_k_best(torch_struct, seed):
    span, lengths = draw(seed, 4, 6, 6, 3).requires_grad_(), torch.tensor([6, 4, 2, 1])
    ours, theirs = ts.SpanTree(span, lengths), torch_struct.TreeCRF(span, lengths=lengths)
    agree(*gradient(ours.entropy(), span), *gradient(theirs.entropy, span))
    agree(ours.topk(3).scores, theirs.kmax(3))


@seeds
@some_forbidden
@pytest.mark.parametrize("size", [1, 3])
def test_span_tree_supar(supar, seed, forbid, size):
    # supar's spans (i, j) lie between boundaries, j excluded, and have no states: it gets their sums (or maxima).
    span, lengths = draw(seed, 4, 7, 7, size, forbid=forbid), torch.tensor([7, 5, 2, 1])
    allow(span[:, 0, :, 0], span[..., 0].diagonal(0, 1, 2))
    ours = ts.SpanTree(span, lengths)

    def peer(scores):
        return supar.ConstituencyCRF(pad(given(scores), (1, 0, 0, 1)), lengths)

    theirs, highest = peer(span.logsumexp(-1)), peer(span.amax(-1))
    agree(ours.log_partition(), theirs.log_partition)
    agree(ours.marginals().sum(-1), theirs.marginals[:, :-1, 1:])
    agree(best_score(ours), highest.max)
    for spans, expected in zip(ours.argmax().spans.tolist(), highest.argmax, strict=True):
        assert sorted([first, last + 1] for first, last in spans if first >= 0) == sorted(expected)
    if size == 1:
        agree(ours.entropy(), theirs.entropy)
        agree(ours.kl(ts.SpanTree(span * 0.5, lengths)), theirs.kl(peer(span[..., 0] * 0.5)))


def by_width(marginals, size):
    """Marginals of nonterminals by width and first position, as in torch-struct, from `[batch, first, last, n]`."""
    length = marginals.shape[1]
    table = torch.zeros(len(marginals), length, length, size, dtype=marginals.dtype)
    for width in range(2, length + 1):
        ends = marginals[..., :size].diagonal(width - 1, 1, 2).mT
        table[:, width - 2, : ends.shape[1]] = ends
    return table


def agree_on_grammar(ours, theirs, size):
    agree(ours.log_partition(), theirs.partition)
    agree(best_score(ours), theirs.max)
    agree(ours.entropy(), theirs.entropy)
    spans, trees = ours.marginals(), ours.parts(ours.argmax())
    for mine, (terms, rules, _, inner) in ((spans, theirs.marginals), (trees, theirs.argmax)):
        agree(mine.diagonal(0, 1, 2).mT[..., : ours.n_leaves], terms)
        agree(by_width(mine, size), inner)
        if mine is spans:
            agree(ours.rule_marginals(), rules)


@two_seeds
@some_forbidden
@pytest.mark.parametrize("shared", [False, True])
def test_pcfg(torch_struct, seed, forbid, shared):
    # States are numbered alike, preterminals after nonterminals; torch-struct wants rules for each sentence.
    size, leaves, lengths = 3, 4, torch.tensor([5, 4, 2])
    root, emission = draw(seed, 3, size, forbid=forbid), draw(seed + 10, 3, 5, leaves, forbid=forbid)
    rule = draw(seed + 20, *(() if shared else (3,)), size, size + leaves, size + leaves, forbid=forbid)
    allow(root[:, 0], emission[..., 0], rule[..., 0, 0, size], rule[..., 0, size, size])
    ours = ts.PCFG(root, rule, emission, lengths)
    table = rule.expand(3, -1, -1, -1)
    theirs = torch_struct.SentCFG((given(emission), given(table), given(root)), lengths=lengths)
    agree_on_grammar(ours, theirs, size)
    if not forbid and not shared:
        agree(ours.topk(3).scores[:, :2], theirs.kmax(3)[:, :2])


def test_pcfg_of_one_word(torch_struct):
    # Rules are binary: one word has no tree. torch-struct has a log-partition of about -1e5 in place of minus infinity.
    root, rule, emission = draw(0, 2, 3), draw(1, 2, 3, 7, 7), draw(2, 2, 4, 4)
    lengths = torch.tensor([4, 1])
    ours = ts.PCFG(root, rule, emission, lengths)
    theirs = torch_struct.SentCFG((given(emission), given(rule), given(root)), lengths=lengths).partition
    agree(ours.log_partition()[:1], theirs[:1])
    assert ours.log_partition()[1] == -math.inf
    assert theirs[1] < -9e4


@two_seeds
@pytest.mark.parametrize("kind", [ts.LowRankRule, ts.FactoredRule])
def test_pcfg_of_factors(torch_struct, seed, kind):
    # torch-struct has no such rules: it gets the table that they stand for.
    size, leaves, rank, lengths = 3, 4, 6, torch.tensor([5, 4, 2])
    root, emission = draw(seed, 3, size), draw(seed + 10, 3, 5, leaves)
    factors = [
        draw(seed + 20 + i, n, rank).requires_grad_() for i, n in enumerate((size, size + leaves, size + leaves))
    ]
    head, left, right = factors
    if kind is ts.LowRankRule:
        table = (head[:, None, None] + left[:, None] + right).logsumexp(-1)
    else:
        table = torch.einsum("ad,bd,cd->abc", head, left, right)
    ours = ts.PCFG(root, kind(*factors), emission, lengths)
    theirs = torch_struct.SentCFG((given(emission), given(table).expand(3, -1, -1, -1), given(root)), lengths=lengths)
    agree_on_grammar(ours, theirs, size)
    theirs = torch_struct.SentCFG((given(emission), table.expand(3, -1, -1, -1), given(root)), lengths=lengths)
    for mine, other in ((ours.log_partition(), theirs.partition), (ours.entropy(), theirs.entropy)):
        for x, y in zip(gradient(mine, *factors), gradient(other, *factors), strict=True):
            agree(x, y)
