"""Parsers as layers, against enumeration of trees."""

import itertools
import math

import pytest
import torch

import tailsum as ts
from tailsum.dependencies.configuration import are_trees
from tailsum.nn import DependencyParser, SpanParser

SIZE, T = 6, 4
LENGTHS = torch.tensor([4, 3, 1])


def encoded():
    return 3 * torch.randn(3, T, SIZE, dtype=torch.float64)


def logsumexp(scores):
    return torch.logsumexp(torch.stack(list(scores)), 0)


# Dependencies.


def all_heads(length, projective, multiroot):
    heads = torch.tensor(list(itertools.product(range(length), repeat=length)))
    trees, crossing = are_trees(heads, torch.tensor(length), multiroot)
    return [tuple(x) for x in heads[trees & ~crossing if projective else trees].tolist()]


def tree_scores(model, row, length, projective, multiroot):
    """The score of every tree, from the table of arcs, labels summed."""
    arc = model.arc[row] if not model.labelled else model.arc[row].logsumexp(-1)
    trees = all_heads(length, projective, multiroot)
    return {heads: sum(arc[h, c] for c, h in enumerate(heads)) for heads in trees}


@pytest.mark.parametrize(("projective", "multiroot"), itertools.product([True, False], repeat=2))
@pytest.mark.parametrize("n_labels", [None, 3])
def test_dependencies(projective, multiroot, n_labels):
    parser = DependencyParser(SIZE, n_labels, 5, 4, projective, multiroot).double()
    given = encoded()
    model = parser(given, LENGTHS)
    gold = model.sample()
    labels = (gold.labels,) if n_labels else (None,)
    partial = torch.where(torch.tensor([True, False, True, False]), gold.heads, -1)
    known = torch.where(torch.tensor([True, True, False, False]), gold.labels, -1) if n_labels else None
    losses = parser.loss(given, gold.heads, *labels, LENGTHS, reduction="none")
    less = parser.loss(given, partial, known, LENGTHS, reduction="none")
    best, risk = parser.decode(given, LENGTHS), parser.mbr(given, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        scores = tree_scores(model, row, length, projective, multiroot)
        total, heads = logsumexp(scores.values()), gold.heads[row, :length].tolist()
        arcs = model.arc[row]
        chosen = [arcs[h, c, gold.labels[row, c]] if n_labels else arcs[h, c] for c, h in enumerate(heads)]
        torch.testing.assert_close(losses[row], total - sum(chosen))
        agree = []
        for tree in scores:
            if all(partial[row, c] in (-1, h) for c, h in enumerate(tree)):
                score = 0.0
                for c, h in enumerate(tree):
                    if not n_labels:
                        score = score + arcs[h, c]
                    else:
                        score = score + (arcs[h, c].logsumexp(-1) if known[row, c] < 0 else arcs[h, c, known[row, c]])
                agree.append(score)
        torch.testing.assert_close(less[row], total - logsumexp(agree))
        top = arcs.amax(-1) if n_labels else arcs
        assert best.heads[row, :length].tolist() == list(
            max(scores, key=lambda tree: sum(top[h, c] for c, h in enumerate(tree)))
        )
        chance = torch.zeros(T, T, dtype=torch.float64)
        for tree, score in scores.items():
            chance[list(tree), list(range(length))] += (score - total).exp().detach()
        if n_labels:
            chance = (chance[..., None] * arcs.softmax(-1)).amax(-1)
            picked = arcs.argmax(-1)[risk.heads[row, :length], torch.arange(length)]
            assert risk.labels[row, :length].tolist() == picked.tolist()
        worth = {tree: sum(chance[h, c] for c, h in enumerate(tree)).item() for tree in scores}
        assert worth[tuple(risk.heads[row, :length].tolist())] == pytest.approx(max(worth.values()))
        assert (risk.heads[row, length:] == -1).all()


def test_gradients_of_dependencies():
    parser, given = DependencyParser(SIZE, 2, 3, 3).double(), encoded().requires_grad_()
    heads = torch.tensor([[1, 1, -1, -1], [0, 0, -1, 7], [0, 9, 9, 9]])
    labels = torch.tensor([[0, -1, 1, 0], [1, 1, -1, -5], [0, 9, 9, 9]])
    assert torch.autograd.gradcheck(lambda x: parser.loss(x, heads, labels, LENGTHS), given)
    (gradient,) = torch.autograd.grad(parser.loss(given, heads, labels, LENGTHS), given)
    assert (gradient[1, 3:] == 0).all()
    assert (gradient[2, 1:] == 0).all()


def test_the_tree_of_least_risk_without_labels():
    arc = torch.randn(T, T, 3, dtype=torch.float64)
    tree = ts.DependencyTree(arc, labelled=True)
    plain = ts.DependencyTree(arc.logsumexp(-1))
    assert torch.equal(tree.mbr(labelled=False).heads, plain.mbr().heads)
    impossible = ts.DependencyTree(torch.full((2, 3, 3), -math.inf))
    assert (impossible.mbr().heads == -1).all()
    states = ts.DependencyTree(torch.randn(T, T), node=torch.randn(T, 5), transition=torch.randn(5, 5))
    assert torch.equal(states.mbr().states, states.state_marginals().argmax(-1))


# Constituents.


def binary_trees(first, last):
    """Sets of spans."""
    if first == last:
        yield frozenset({(first, last)})
    for split in range(first, last):
        for left, right in itertools.product(binary_trees(first, split), binary_trees(split + 1, last)):
            yield frozenset({(first, last)}) | left | right


def constituent_trees(span, length):
    """The score of every binary tree with states."""
    found = {}
    for tree in binary_trees(0, length - 1):
        spans = sorted(tree)
        for states in itertools.product(range(span.shape[-1]), repeat=len(spans)):
            found[tuple(zip(spans, states, strict=True))] = sum(
                span[i, j, s] for (i, j), s in zip(spans, states, strict=True)
            )
    return found


def named(tree):
    return frozenset((i, j, s - 1) for (i, j), s in tree if s)


def test_constituents():
    parser, lengths = SpanParser(SIZE, n_labels=2, hidden=5).double(), [3, 2, 1]
    given = encoded()
    gold = [[(0, 2, 1), (1, 1, 0)], [(0, 1, 0), (0, 0, 1), (1, 1, 1)], []]
    losses = parser.loss(given, gold, lengths, reduction="none")
    span = parser(given, lengths).node_scores()
    best, risk = parser.decode(given, lengths), parser.mbr(given, lengths)
    for row, length in enumerate(lengths):
        scores = constituent_trees(span[row], length)
        total = logsumexp(scores.values())
        agree = [score for tree, score in scores.items() if named(tree) == frozenset(gold[row])]
        torch.testing.assert_close(losses[row], total - logsumexp(agree))
        assert frozenset(best[row]) == named(max(scores, key=scores.get))
        chances = {}
        for tree, score in scores.items():
            chances[named(tree)] = chances.get(named(tree), 0.0) + (score - total).exp().item()
        errors = {guess: sum(p * len(guess ^ truth) for truth, p in chances.items()) for guess in chances}
        assert errors[frozenset(risk[row])] == pytest.approx(min(errors.values()))


def test_trees_of_many_children_have_many_binary_trees():
    parser = SpanParser(SIZE, n_labels=1)
    torch.nn.init.zeros_(parser.spans.weight)
    flat = parser.loss(torch.randn(1, 5, SIZE), [[(0, 4, 0)]])
    binary = parser.loss(torch.randn(1, 5, SIZE), [[(0, 4, 0), (0, 3, 0), (0, 2, 0), (0, 1, 0)]])
    assert (binary - flat).item() == pytest.approx(math.log(14))  # Catalan's number of five leaves


def test_gradients_of_constituents():
    parser, given = SpanParser(SIZE, 2, hidden=3).double(), encoded().requires_grad_()
    gold = [[(0, 3, 1), (0, 1, 0)], [], [(0, 0, 1)]]
    assert torch.autograd.gradcheck(lambda x: parser.loss(x, gold, LENGTHS, "token_mean"), given)


def test_odd_input():
    dependencies, spans = DependencyParser(SIZE), SpanParser(SIZE, 2)
    for given in (torch.randn(0, 3, SIZE), torch.randn(2, 1, SIZE), torch.randn(SIZE, 3, 2).permute(2, 1, 0)):
        assert dependencies.decode(given).heads.shape == given.shape[:2]
        assert len(spans.decode(given)) == len(spans.mbr(given)) == len(given)
    with torch.autocast("cpu"):
        assert spans.loss(torch.randn(2, 3, SIZE), [[], []]).isfinite()
        assert dependencies.loss(torch.randn(2, 3, SIZE), torch.zeros(2, 3).long()).isfinite()


def test_bad_input(unchecked):
    plain, labelled, spans = DependencyParser(SIZE), DependencyParser(SIZE, 2), SpanParser(SIZE, 2)
    given, heads = torch.randn(1, 4, SIZE), torch.tensor([[1, 1, 1, 1]])
    for message, run in {
        r"encoded must be \[B, T, 6\]: got \[1, 4, 5\]": lambda: plain(given[..., 1:]),
        "labels must not be given": lambda: plain.loss(given, heads, heads),
        "labels must be given": lambda: labelled.loss(given, heads),
        "heads must lie between 0 and 3, or be -1 for any: got 4": lambda: plain.loss(given, heads + 3),
        "labels must lie between 0 and 1, or be -1 for any: got 2": lambda: labelled.loss(given, heads, heads + 1),
        r"heads must be \[1, 4\]: got \[1, 3\]": lambda: plain.loss(given, heads[:, 1:]),
        "a projective tree with one root for each sentence: got none for sentence 0": lambda: plain.loss(
            given, torch.tensor([[2, 3, 2, 2]])
        ),
        "got none for sentence 1": lambda: plain.loss(
            torch.cat([given, given]), torch.tensor([[-1, 1, 1, 1], [1, 0, -1, -1]])
        ),
        "reduction must be one of": lambda: spans.loss(given, [[]], reduction="all"),
        "constituents must be a list for each of 1 sentences: got 2": lambda: spans.loss(given, [[], []]),
        r"with 0 <= first <= last < 4 and label below 2 in sentence 0: got \(0, 4, 1\)": lambda: spans.loss(
            given, [[(0, 4, 1)]]
        ),
        r"sentence 0 has two for \(0, 1\)": lambda: spans.loss(given, [[(0, 1, 1), (0, 1, 0)]]),
        r"constituents must not cross: sentence 0 has \(0, 1\) and \(1, 2\)": lambda: spans.loss(
            given, [[(0, 1, 1), (1, 2, 0)]]
        ),
    }.items():
        with pytest.raises(ValueError, match=message):
            run()
