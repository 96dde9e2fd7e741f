"""The same input in other libraries: segmentations, trees, grammars and dependencies.

Numbers are double precision throughout, so that libraries agree far below 1e-5; only supar's MatrixTree rounds its
log-partition to single precision. Where a score is minus infinity, torch-struct's and supar's charts have NaN for
marginals or entropies (infinity less infinity): they get FORBIDDEN in its place, whose exponential is zero.
"""

import importlib
import importlib.util
import math
import sys
import types

import pytest
import torch
from torch.nn.functional import pad

import tailsum as ts

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*does not define `arg_constraints`"),  # torch-struct's distributions
    pytest.mark.filterwarnings("ignore:Using a non-tuple sequence"),  # supar pads so
]

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SINGLE = {"rtol": 1e-5, "atol": 1e-5}
FORBIDDEN = -1e4

seeds = pytest.mark.parametrize("seed", range(3))
two_seeds = pytest.mark.parametrize("seed", range(2))  # where the peer is slow
some_forbidden = pytest.mark.parametrize("forbid", [False, True])
roots = pytest.mark.parametrize("multiroot", [False, True])


@pytest.fixture(scope="module")
def torch_struct():
    return pytest.importorskip("torch_struct")


@pytest.fixture(scope="module")
def nonprojective():
    return pytest.importorskip("torch_struct.deptree")


@pytest.fixture(scope="module")
def supar():
    """`supar.structs`, without what `import supar` runs: its parsers, which want transformers, stanza, nltk and dill.

    The structures need nothing but torch and two small modules of supar.utils.
    """
    spec = importlib.util.find_spec("supar")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(
            "supar is not installed (pip install --no-deps supar: its structures need none of its requirements)"
        )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("supar", "supar.utils"):
            package = types.ModuleType(name)
            inner = name.split(".")[1:]
            package.__path__ = ["/".join([place, *inner]) for place in spec.submodule_search_locations]
            patch.setitem(sys.modules, name, package)
        yield importlib.import_module("supar.structs")


def draw(seed, *shape, forbid=False, scale=1.0):
    """Scores; with `forbid`, some of them minus infinity."""
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    if forbid:
        scores[torch.rand(shape, generator=generator) < 0.2] = -math.inf
    return scores


def allow(*parts):
    """Keep scores that some configuration of every length needs: peers have no sums over nothing."""
    for scores in parts:
        scores.clamp_(min=-5.0)


def given(scores):
    """A peer's own copy, which it may write to and ask gradients of, without infinities."""
    return scores.detach().clamp(min=FORBIDDEN).clone()


def agree(ours, theirs, **how):
    torch.testing.assert_close(ours.detach(), theirs.detach().to(ours.dtype), **(how or CLOSE))


def best_score(model):
    return model.score(model.argmax())


def gradient(value, *inputs):
    """Of a sum in which no two elements of the batch count alike."""
    weight = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype)
    return torch.autograd.grad((weight * value).sum(), inputs, retain_graph=True)


# Segmentations.


def semi_markov_edges(segment, transition):
    """torch-struct's edges `[batch, start, duration, to, from]` between boundaries 0 .. T; duration 0 is never used.

    Its states stand at boundaries, one more than there are segments. Here the state at a segment's end is the
    segment's own, and the one at its start is that of the segment before; the first boundary must have state 0, or all
    segmentations would be counted once for each of its states.
    """
    batch, length, longest, size = segment.shape
    edges = torch.full((batch, length, longest + 1, size, size), FORBIDDEN, dtype=segment.dtype)
    before = transition.mT.expand(length - 1, size, size)  # [boundary, to, from]
    edges[:, 1:, 1:] = segment[:, 1:, :, :, None] + before[:, None]
    edges[:, 0, 1:, :, 0] = segment[:, 0]
    return edges.clamp(min=FORBIDDEN)


@two_seeds
@some_forbidden
@pytest.mark.parametrize(("longest", "shared"), [(1, True), (2, False), (3, True), (6, False)])
def test_semi_markov(torch_struct, seed, forbid, longest, shared):
    # One sequence at a time: with lengths, torch-struct 0.5 has segments of more than one position only within the
    # shortest sequence of the batch (semimarkov.py: `end = torch.min(lengths) - 1`), and sums too little for others.
    lengths = [5, 3, 1]
    segment = draw(seed, 3, 5, longest, 3, forbid=forbid)
    transition = draw(seed + 10, *(() if shared else (4,)), 3, 3, forbid=forbid)
    allow(segment[:, :, 0, 0], transition[..., 0, 0])
    ours = ts.SemiMarkov(segment, transition, lengths)
    values = torch.stack([ours.log_partition(), best_score(ours), ours.entropy()], -1)
    marginals, parts = ours.marginals(), ours.parts(ours.argmax())
    for b, length in enumerate(lengths):
        step = transition if shared else transition[: length - 1]
        theirs = torch_struct.SemiMarkovCRF(semi_markov_edges(given(segment[b : b + 1, :length]), given(step)))
        agree(values[b], torch.cat([theirs.partition, theirs.max, theirs.entropy]))
        agree(marginals[b : b + 1, :length], theirs.marginals[:, :, 1:].sum(-1))
        agree(parts[b : b + 1, :length], theirs.argmax[:, :, 1:].sum(-1))
        assert not marginals[b, length:].any()
        assert not parts[b, length:].any()


@seeds
def test_semi_markov_gradient(torch_struct, seed):
    segment, transition = draw(seed, 2, 5, 3, 2).requires_grad_(), draw(seed + 10, 2, 2).requires_grad_()
    ours = ts.SemiMarkov(segment, transition)
    theirs = torch_struct.SemiMarkovCRF(semi_markov_edges(segment, transition))
    for mine, other in ((ours.log_partition(), theirs.partition), (ours.entropy(), theirs.entropy)):
        for x, y in zip(gradient(mine, segment, transition), gradient(other, segment, transition), strict=True):
            agree(x, y)


def counted_down(segment, transition, lengths):
    """A semi-Markov model as torch-struct's chain, whose states (state, positions still to come) count down.

    The pairs `[batch, T-1, to, from]` hold the scores of a segment at the step into it, those of the first one also at
    the first step; a segment that would reach into the padding is forbidden where it starts.
    """
    batch, length, longest, size = segment.shape
    within = torch.arange(length)[:, None] + torch.arange(longest) < lengths[:, None, None]
    segment = torch.where(within[..., None], segment, FORBIDDEN)
    pairs = torch.full((batch, length - 1, longest, size, longest, size), FORBIDDEN, dtype=segment.dtype)
    for state in range(size):
        for left in range(1, longest):
            pairs[:, :, left - 1, state, left, state] = 0.0
    pairs[..., 0, :] = pairs[..., 0, :].clone().fill_(0.0) + segment[:, 1:, :, :, None] + transition.mT
    first = segment[:, 0, None, None, :, :]
    pairs = torch.cat([pairs[:, :1] + first[:, None], pairs[:, 1:]], 1)
    return pairs.reshape(batch, length - 1, longest * size, longest * size)


@seeds
@pytest.mark.parametrize("longest", [2, 4])
def test_semi_markov_as_chain(torch_struct, seed, longest):
    segment, transition = draw(seed, 4, 6, longest, 3).requires_grad_(), draw(seed + 10, 3, 3).requires_grad_()
    lengths = torch.tensor([6, 5, 3, 2])  # a chain of one position has no pairs
    ours = ts.SemiMarkov(segment, transition, lengths)
    theirs = torch_struct.LinearChainCRF(counted_down(segment, transition, lengths), lengths=lengths)
    agree(ours.log_partition(), theirs.partition)
    agree(best_score(ours), theirs.max)
    agree(ours.entropy(), theirs.entropy)
    for mine, other in ((ours.log_partition(), theirs.partition), (ours.entropy(), theirs.entropy)):
        for x, y in zip(gradient(mine, segment, transition), gradient(other, segment, transition), strict=True):
            agree(x, y)
    agree(ours.marginals(), torch.autograd.grad(theirs.partition.sum(), segment)[0])


# Trees whose spans score independently.


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


# Grammars.


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


# Dependencies.


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
    ours = ts.DependencyTree(arc, lengths, multiroot=multiroot)
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
    ours = ts.DependencyTree(arc, lengths, multiroot=multiroot)
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
    """Our numbers of heads from those of supar, where word 0 stands for the root."""
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
    ours = ts.DependencyTree(arc, lengths, projective=False, multiroot=multiroot)
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
    """The graphs to find trees in, word -1 as the head of roots: one, or one for each only root."""
    words = range(len(arc))
    found = []
    for only in (None,) if multiroot else words:
        graph = networkx.DiGraph()
        graph.add_nodes_from([-1, *words])
        for head in words:
            for child in words:
                root = head == child
                if arc[head, child] > -math.inf and not (root and only not in (None, child)):
                    graph.add_edge(-1 if root else head, child, weight=weight(arc[head, child].item()))
        found.append(graph)
    return found


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
