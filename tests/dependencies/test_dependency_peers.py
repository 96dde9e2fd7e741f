"""The same dependency trees in other libraries."""

import math

import pytest
import torch
from torch.nn.functional import pad

import tailsum as ts
from harness.peers import (
    CLOSE,
    FORBIDDEN,
    QUIET,
    SINGLE,
    agree,
    allow,
    best_score,
    draw,
    given,
    gradient,
    roots,
    seeds,
    some_forbidden,
    two_seeds,
)

pytestmark = QUIET


@two_seeds
@some_forbidden
@roots
@pytest.mark.parametrize("labels", [None, 2])
def test_projective(torch_struct, seed, forbid, multiroot, labels):
    # Indices are the same, head before child and roots on the diagonal. torch-struct's default is multiroot=True, kept
    # on a class that all its trees share: no two with different roots can be used side by side. Its potentials must
    # require gradients, or it writes into a view of a leaf. It has no divergences of these trees.
    arc = draw(seed, 4, 6, 6, *((labels,) if labels else ()), forbid=forbid)
    lengths = torch.tensor([6, 4, 2, 1])
    allow(arc[:, 0])  # the first word as the head of all others
    ours = ts.DependencyTree(arc, lengths, multiroot=multiroot, labelled=labels is not None)
    potentials = given(arc).requires_grad_()
    theirs = torch_struct.DependencyCRF(potentials, lengths=lengths, multiroot=multiroot)
    agree(ours.log_partition(), theirs.partition)
    agree(ours.marginals(), theirs.marginals)
    agree(best_score(ours), theirs.max)
    agree(ours.parts(ours.argmax()), theirs.argmax)
    agree(ours.entropy(), theirs.entropy)
    if forbid:
        return
    arc.requires_grad_()
    ours = ts.DependencyTree(arc, lengths, multiroot=multiroot, labelled=labels is not None)
    agree(*gradient(ours.entropy(), arc), *gradient(theirs.entropy, potentials))


def rooted(arc):
    """supar's scores `[batch, child, head]`, with word 0 as the head of roots, from `arc [batch, head, child]`."""
    scores = pad(given(arc).mT, (1, 0, 1, 0))
    scores[:, 1:, 0] = given(arc).diagonal(0, 1, 2)
    return scores


def unrooted(marginals):
    """Marginals of arcs, roots on the diagonal, from supar's."""
    return marginals[:, 1:, 1:].mT + torch.diag_embed(marginals[:, 1:, 0])


def heads_of(theirs, lengths):
    """Our numbers of heads from those of supar, where word 0 is the root."""
    heads = theirs.argmax[:, 1:]
    word = torch.arange(heads.shape[1])
    return torch.where(word < lengths[:, None], torch.where(heads == 0, word, heads - 1), -1)


@seeds
@roots
@some_forbidden
@pytest.mark.parametrize("projective", [False, True])
def test_dependency_supar(supar, seed, multiroot, forbid, projective):
    arc, lengths = draw(seed, 4, 6, 6, forbid=forbid), torch.tensor([6, 4, 2, 1])
    allow(arc[:, 0])
    how = CLOSE if projective else SINGLE  # MatrixTree gives its log-partition in single precision

    def peer(scores):
        kind = supar.DependencyCRF if projective else supar.MatrixTree
        return kind(rooted(scores), lengths, multiroot)

    def own(scores):
        return ts.DependencyTree(scores, lengths, projective=projective, multiroot=multiroot)

    ours, theirs = own(arc), peer(arc)
    agree(ours.log_partition(), theirs.log_partition, **how)
    agree(ours.marginals(), unrooted(theirs.marginals))
    agree(ours.entropy(), theirs.entropy, **how)
    agree(ours.kl(own(arc * 0.5)), theirs.kl(peer(arc * 0.5)), **how)
    theirs = peer(arc)  # its argmax writes into the scores
    agree(best_score(ours), theirs.max)
    assert torch.equal(ours.argmax().heads, heads_of(theirs, lengths))


@seeds
@some_forbidden
@roots
@pytest.mark.parametrize("labels", [None, 2])
def test_nonprojective(nonprojective, seed, forbid, multiroot, labels):
    # torch-struct adds 1e-5 to the weight of every arc, also of those in the padding, unless its functions are told not
    # to. It has neither labels, argmax nor entropy of these trees.
    arc = draw(seed, 4, 6, 6, *((labels,) if labels else ()), forbid=forbid)
    allow(arc[:, 0])
    lengths = torch.tensor([6, 4, 2, 1])
    ours = ts.DependencyTree(arc, lengths, projective=False, multiroot=multiroot, labelled=labels is not None)
    marginals = ours.marginals()
    if labels:
        arc, marginals = arc.logsumexp(-1), marginals.sum(-1)
    agree(ours.log_partition(), nonprojective.deptree_part(arc, multiroot, lengths, eps=0.0))
    agree(marginals, nonprojective.deptree_nonproj(arc, multiroot, lengths, eps=0.0))


@seeds
@roots
def test_nonprojective_distribution(torch_struct, seed, multiroot):
    # As users call it: without padding, its 1e-5 is a change of the scores. Its marginals are those of the changed
    # scores, less the part of each arc that was added.
    arc, little = draw(seed, 4, 6, 6), 1e-5
    theirs = torch_struct.NonProjectiveDependencyCRF(given(arc), multiroot=multiroot)
    changed = torch.where(torch.eye(6, dtype=torch.bool), arc, (arc.exp() + little).log())
    ours = ts.DependencyTree(changed, projective=False, multiroot=multiroot)
    agree(ours.log_partition(), theirs.partition)
    agree(ours.marginals() * (arc - changed).exp(), theirs.marginals)
    plain = ts.DependencyTree(arc, projective=False, multiroot=multiroot)
    agree(plain.log_partition(), theirs.partition, rtol=0, atol=1e-3)
    agree(plain.marginals(), theirs.marginals, rtol=0, atol=1e-3)


def graphs(networkx, arc, multiroot, weight):
    """The graphs to find trees in, with word -1 as the head of roots: one graph, or one for each choice of a single root."""
    words = range(len(arc))
    result = []
    for only in (None,) if multiroot else words:
        graph = networkx.DiGraph()
        graph.add_nodes_from([-1, *words])
        for head in words:
            for child in words:
                root = head == child
                if arc[head, child] > -math.inf and not (root and only not in (None, child)):
                    graph.add_edge(-1 if root else head, child, weight=weight(arc[head, child].item()))
        result.append(graph)
    return result


@pytest.mark.parametrize("seed", range(6))
@some_forbidden
@roots
def test_nonprojective_networkx(seed, forbid, multiroot):
    networkx = pytest.importorskip("networkx")
    lengths = [6, 4, 2, 1]
    arc = draw(seed, 4, 6, 6, forbid=forbid, scale=2.0)
    allow(arc[:, 0])
    ours = ts.DependencyTree(arc, lengths, projective=False, multiroot=multiroot)
    for b, length in enumerate(lengths):
        inner = arc[b, :length, :length]
        best, total = -math.inf, 0.0
        for graph in graphs(networkx, inner, multiroot, float):
            try:
                best = max(best, networkx.maximum_spanning_arborescence(graph).size("weight"))
            except networkx.NetworkXException:  # this word cannot be the only root
                continue
        for graph in graphs(networkx, inner, multiroot, math.exp):
            total += networkx.number_of_spanning_trees(graph, root=-1, weight="weight")
        agree(best_score(ours)[b], torch.tensor(best, dtype=torch.float64))
        agree(ours.log_partition()[b], torch.tensor(total, dtype=torch.float64).log())


@two_seeds
@roots
@pytest.mark.parametrize("scale", [30.0, 100.0])
def test_nonprojective_wide(seed, multiroot, scale):
    # The determinant of the Laplacian in numbers of two thousand digits. In double precision, as torch-struct and supar
    # take it, it loses all of them on some of these scores: -inf, NaN, or wrong by as much as 21 nats.
    mpmath = pytest.importorskip("mpmath")
    arc, length = draw(seed, 5, 5, scale=scale), 5
    ours = ts.DependencyTree(arc, projective=False, multiroot=multiroot)
    with mpmath.workdps(2000):
        weight = mpmath.matrix(arc.tolist()).apply(mpmath.exp)
        laplacian = mpmath.matrix(length)
        for head in range(length):
            for child in range(length):
                if head != child:
                    laplacian[head, child] -= weight[head, child]
                    laplacian[child, child] += weight[head, child]
        for child in range(length):
            if multiroot:
                laplacian[child, child] += weight[child, child]
            else:
                laplacian[0, child] = weight[child, child]
        inverse = laplacian**-1
        expected = torch.zeros(length, length, dtype=torch.float64)
        for head in range(length):
            for child in range(length):
                # What the weight of the arc is multiplied by in the determinant: signed cofactors of its entries.
                if head == child:
                    chance = inverse[child, child if multiroot else 0]
                else:
                    chance = inverse[child, child] if multiroot or child else 0
                    chance -= inverse[child, head] if multiroot or head else 0
                expected[head, child] = float(weight[head, child] * chance)
        agree(ours.log_partition(), torch.tensor(float(mpmath.log(mpmath.det(laplacian))), dtype=torch.float64))
        agree(ours.marginals(), expected)


def dependency_grammar(arc, node, transition, multiroot):
    """Projective trees with latent states as a grammar, in which each has one derivation: (emission, rule, root).

    Its preterminals are words with states. Its nonterminals are a word with its state and with children on its right
    only (these are attached first, the nearest first), one with children on its left too, or only there; and, last,
    several roots beside one another.
    """
    batch, length, size = node.shape
    words = length * size
    right, left, several, leaf = 0, words, 2 * words, 2 * words + 1
    pair = (arc[:, :, None, :, None] + transition[:, None, :]).reshape(batch, words, words)
    top = torch.diagonal(arc, 0, 1, 2).repeat_interleave(size, -1)
    rule = torch.full((batch, leaf, leaf + words, leaf + words), FORBIDDEN, dtype=arc.dtype)
    child, root = torch.arange(words), torch.full((batch, leaf), FORBIDDEN, dtype=arc.dtype)
    head = child[:, None]
    kinds = (right, left, leaf)
    for of_child in kinds:
        for of_head in kinds:
            rule[:, left + head, of_child + child, of_head + head] = pair
            if of_head != left:
                rule[:, right + head, of_head + head, of_child + child] = pair
            rule[:, several, of_head + head, of_child + child] = top[:, :, None] + top[:, None, :]
        rule[:, several, several, of_child + child] = top
    root[:, right : right + words] = root[:, left : left + words] = top
    if multiroot:
        root[:, several] = 0.0
    own = torch.eye(length, dtype=torch.bool)[:, :, None]
    emission = torch.where(own, node[:, :, None, :], FORBIDDEN).reshape(batch, length, words)
    return emission, rule, root


@two_seeds
@roots
def test_latent_states(torch_struct, seed, multiroot):
    # No peer has words with latent states in its dependency trees: torch-struct gets them as a grammar.
    lengths = torch.tensor([4, 3, 2])  # one word has no binary rules
    shapes = (3, 4, 4), (3, 4, 2), (2, 2)
    arc, node, transition = (draw(seed + 10 * i, *shape).requires_grad_() for i, shape in enumerate(shapes))
    ours = ts.DependencyTree(arc, lengths, multiroot=multiroot, node=node, transition=transition)
    grammar = dependency_grammar(arc, node, transition, multiroot)
    theirs = torch_struct.SentCFG(grammar, lengths=lengths)
    agree(ours.log_partition(), theirs.partition)
    agree(best_score(ours), theirs.max)
    agree(ours.entropy(), theirs.entropy)
    arcs, states, pairs = torch.autograd.grad(theirs.partition.sum(), (arc, node, transition))
    agree(ours.marginals(), arcs)
    agree(ours.state_marginals(), states)
    agree(torch.autograd.grad(ours.log_partition().sum(), transition)[0], pairs)
