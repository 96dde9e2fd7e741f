"""Lattices: errors, CTC and alignments built by hand, torch's CTC loss, long and wide ones, derivatives of every order."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import tailsum as ts
from harness.agree import close
from harness.misuse import fails
from tailsum.chains import topology

DIAMOND = torch.tensor([[0, 0, 1, 2, 0, 3], [1, 2, 3, 3, 3, 4]])
ZEROS = torch.zeros(6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"arcs": [[0, 1, 2], [1, 2, 1]], "scores": torch.zeros(3)}, "arcs must form no cycle: got one that leads to node 1"),
        ({"arcs": [[0, 1], [1, 1]], "scores": torch.zeros(2)}, "arcs must form no cycle: got one that leads to node 1"),
        ({"arcs": [[0, 2], [1, 3]], "scores": torch.zeros(2)}, "lead from node 0 to the last node, 3: got none that do"),
        ({"n_nodes": 7}, "arcs must lead from node 0 to the last node, 6: got none that do"),
        ({"n_nodes": 4}, r"arcs must lie between 0 and n_nodes-1, .*: got 4 at \[1, 5\]"),
        ({"n_nodes": 1, "arcs": [[0], [0]], "scores": torch.zeros(1)}, "n_nodes must be at least 2, .*: got 1"),
        ({"arcs": [[0, -1], [1, 0]], "scores": torch.zeros(2)}, r"or be -1 in both rows: got -1 at \[0, 1\]"),
        ({"arcs": [[0, -2], [1, -2]], "scores": torch.zeros(2)}, r"or be -1 in both rows: got -2 at \[0, 1\]"),
        ({"arcs": DIAMOND[0]}, r"arcs must be \[2, E\] or \[\*batch, 2, E\], .*: got \[6\] and \[6\]"),
        ({"scores": torch.zeros(5)}, r"arcs must be \[2, E\] .*: got \[2, 6\] and \[5\]"),
        ({"arcs": DIAMOND[:, :0], "scores": torch.zeros(0)}, "E at least 1"),
        ({"arcs": DIAMOND.float()}, "arcs must be integers: got torch.float32"),
        ({"arcs": [[0, 1], [1]]}, "arcs must be integers, in a tensor or lists of equal length"),
        ({"arcs": DIAMOND.to("meta")}, "arcs must be on cpu, where scores are: got meta"),
        ({"scores": ZEROS.long()}, "scores must be floating-point: got torch.int64"),
        ({"scores": [0.0] * 6}, "scores must be a tensor: got list"),
        ({"scores": ZEROS.index_fill(0, torch.tensor(2), math.nan)}, r"scores must not hold NaN or \+inf .*: got one at \[2\]"),
        ({"labels": [1, 2]}, r"labels must be \[E\] or \[\*batch, E\], E = 6: got \[2\]"),
        ({"labels": ZEROS}, "labels must be integers: got torch.float32"),
        ({"arcs": DIAMOND.expand(3, 2, 6), "scores": torch.zeros(2, 6)}, "arcs has batch shape .3., which does not match"),
        ({"n_nodes": [5, 5, 5], "scores": torch.zeros(2, 6)}, "n_nodes has batch shape .3., which does not match"),
        ({"n_nodes": 5.0}, "n_nodes must be integers: got torch.float32"),
    ],
)  # fmt: skip
def test_errors(given, words):
    arguments = {"arcs": DIAMOND, "scores": ZEROS, **given}
    fails(lambda: ts.Lattice(**arguments), words)


def test_errors_say_which_graph():
    good, cyclic = [[0, 1], [1, 2]], [[0, 1], [1, 0]]
    fails(lambda: ts.Lattice(torch.tensor([good, cyclic]), torch.zeros(2, 2), 3), "no cycle: got one of graph 1")
    short = [[0, -1], [1, -1]]
    fails(lambda: ts.Lattice(torch.tensor([good, short]), torch.zeros(2, 2), 3), "got none that do of graph 1")


def test_paths_and_labels():
    lattice = ts.Lattice(DIAMOND, torch.tensor([1.0, 2, 3, 4, 5, 6]), labels=[10, 11, 12, 13, 14, 15])
    best = lattice.argmax()
    assert best.tolist() == [1, 3, 5]
    assert lattice.labels_of(best).tolist() == [11, 13, 15]
    assert lattice.labels_of(torch.tensor([[4, 5, -1]])).tolist() == [[14, 15, -1]]
    assert repr(lattice) == "Lattice(batch=[], L=3, E=6)"
    fails(lambda: ts.Lattice(DIAMOND, ZEROS).labels_of(best), "labels must be given")
    fails(lambda: lattice.score(torch.tensor([0, 2])), "states must be .*: got .2.")
    fails(lambda: lattice.score(torch.tensor([0, 2, 6])), "states must lie between 0 and N-1 = 5: got one outside")
    own = torch.stack((DIAMOND, DIAMOND.flip(-1)))
    both = ts.Lattice(own, torch.zeros(2, 6), labels=torch.arange(12).view(2, 6))
    assert both[1].labels_of(torch.tensor([0, 1, -1])).tolist() == both.labels_of(torch.tensor([0, 1, -1]))[1].tolist()


@pytest.mark.parametrize(
    "path", [[0, 2, -1], [0, 5, -1], [2, 0, 5], [2, 5, -1], [0, 3, 5], [-1, 4, 5], [4, -1, 5], [4, 5, 5], [-1, -1, -1]]
)
def test_what_is_no_path_scores_minus_infinity(path):
    lattice = ts.Lattice(DIAMOND, ZEROS)
    assert lattice.score(torch.tensor(path)) == -math.inf
    assert lattice.score(torch.tensor([[0, 2, 5], path])).tolist() == [0.0, -math.inf]


def test_impossible_lattices_and_nodes_that_lead_nowhere():
    # Node 5 is not reached, and from 2, 4 and 3 there is no way on.
    arcs = torch.tensor([[0, 0, 1, 5, 2, 4], [1, 2, 6, 6, 4, 3]])
    scores = torch.tensor([1.0, 50.0, 2.0, 3.0, 4.0, 5.0]).requires_grad_()
    lattice = ts.Lattice(arcs, scores)
    assert lattice.event_shape == (2,)
    assert lattice.log_partition() == 3.0
    assert lattice.marginals().tolist() == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    never = ts.Lattice(arcs, scores.masked_fill(torch.arange(6) == 2, -math.inf))
    for value in (never.log_partition(), never.entropy()):
        (grad,) = torch.autograd.grad(value, scores, retain_graph=True)
        assert value == -math.inf
        assert torch.equal(grad, torch.zeros(6))
    assert never.argmax().tolist() == never.sample().tolist() == never.mbr().tolist() == [-1, -1]


# CTC and alignments by hand.


def ctc_by_hand(log_probs: Tensor, target: list[int]) -> tuple[ts.Lattice, Tensor]:
    """The lattice of frames and places of the target, and the place in `log_probs` that each arc scores, or -1."""
    frames, size = log_probs.shape
    places = [0]
    for label in target:
        places += [label, 0]
    node = lambda t, p: 0 if t < 0 else 1 + t * len(places) + p  # noqa: E731
    end, rows = 1 + frames * len(places), []
    for t, (p, label) in itertools.product(range(frames), enumerate(places)):
        skips = [p - 2] if label and p > 1 and places[p - 2] != label else []
        sources = [before for before in (p, p - 1, *skips) if before >= 0 and (t or before == 0)]
        rows += [(node(t - 1, before), node(t, p), t * size + label) for before in sources]
    rows += [(node(frames - 1, p), end, -1) for p in range(max(0, len(places) - 2), len(places))]
    tails, heads, used = torch.tensor(rows).T
    scores = torch.where(used < 0, 0.0, log_probs.flatten()[used.clamp(min=0)])
    return ts.Lattice(torch.stack((tails, heads)), scores, end + 1), used


@pytest.mark.parametrize("target", [[], [1], [1, 1], [1, 2, 1], [2, 2, 2]])
def test_ctc_by_hand(target):
    torch.manual_seed(0)
    log_probs = torch.randn(5, 3).double().requires_grad_()
    ctc, (lattice, used) = ts.CTC(log_probs, torch.tensor(target, dtype=torch.long)), ctc_by_hand(log_probs, target)
    close(lattice.log_partition(), ctc.log_partition())
    close(lattice.entropy(), ctc.entropy())
    (ours,), (theirs,) = (torch.autograd.grad(x.log_partition(), log_probs, create_graph=True) for x in (lattice, ctc))
    close(ours, theirs)
    (ours,), (theirs,) = (torch.autograd.grad(x.sin().sum(), log_probs) for x in (ours, theirs))
    close(ours, theirs)
    assert (used[lattice.argmax()[:5]] % 3).tolist() == ctc.argmax().tolist()


def test_alignment_by_hand():
    torch.manual_seed(0)
    n, m = 3, 4
    match, delete, insert = (torch.randn(*shape).double() for shape in ((n, m), (n, m + 1), (n + 1, m)))
    cell = lambda i, j: i * (m + 1) + j  # noqa: E731
    arcs, scores = [], []
    for i, j in itertools.product(range(n + 1), range(m + 1)):
        for a, b, table in ((1, 1, match), (1, 0, delete), (0, 1, insert)):
            if i >= a and j >= b:
                arcs.append((cell(i - a, j - b), cell(i, j)))
                scores.append(table[i - a, j - b])
    lattice, alignment = ts.Lattice(torch.tensor(arcs).T, torch.stack(scores)), ts.Alignment(match, delete, insert)
    close(lattice.log_partition(), alignment.log_partition())
    close(lattice.entropy(), alignment.entropy())
    close(lattice.topk(9).scores, alignment.topk(9).scores)


def test_the_loss_of_torch():
    torch.manual_seed(0)
    log_probs = torch.randn(4, 60, 7).log_softmax(-1).requires_grad_()
    targets, lengths, counts = (
        torch.randint(1, 7, (4, 20)),
        torch.tensor([60, 50, 41, 60]),
        torch.tensor([20, 1, 15, 0]),
    )
    ours = -ts.CTC(log_probs, targets, lengths, counts).log_partition()
    theirs = F.ctc_loss(log_probs.transpose(0, 1), targets, lengths, counts, reduction="none")
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    logits = torch.randn(4, 60, 7).double().requires_grad_()
    ours = -ts.CTC(logits.log_softmax(-1), targets, lengths, counts).log_partition().sum()
    theirs = F.ctc_loss(logits.log_softmax(-1).transpose(0, 1), targets, lengths, counts, reduction="sum")
    (a,), (b,) = (torch.autograd.grad(x, logits) for x in (ours, theirs))
    close(a, b)


# Long lattices.


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_ten_thousand_levels_keep_their_digits(offset):
    torch.manual_seed(0)
    length, line = 10_000, torch.arange(10_000).repeat(3)
    scores = (3 * torch.randn(3, length) + offset).requires_grad_()
    lattice = ts.Lattice(torch.stack((line, line + 1)), scores.flatten())
    chance = scores.detach().double().softmax(0)
    log_z = scores.detach().double().logsumexp(0).sum()
    assert abs(lattice.log_partition().double() - log_z) < 1e-7 * log_z.abs() + 1e-3
    assert (lattice.marginals().view(3, length) - chance).abs().max() < 1e-6
    entropy = -(chance * chance.log()).sum()
    assert abs(lattice.entropy() - entropy) < 2e-6 * (entropy + log_z)
    (grad,) = torch.autograd.grad(lattice.entropy(), scores)
    slope = -chance * (chance.log() + -(chance * chance.log()).sum(0))
    assert (grad - slope).abs().max() < 1e-5
    assert lattice.argmax().tolist() == (scores.argmax(0) * length + torch.arange(length)).tolist()


def test_finite_masks_keep_digits():
    """Where every path breaks a mask of -1e9, in float32."""
    scores = torch.randn(6).double()
    masked = scores.float() - torch.tensor([1e9, 1e9, 0.0, 0.0, 1e9, 0.0])
    lattice, truth = ts.Lattice(DIAMOND, masked), ts.Lattice(DIAMOND, masked.double())
    torch.testing.assert_close(lattice.marginals().double(), truth.marginals(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lattice.entropy().double(), truth.entropy(), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_long_targets():
    torch.manual_seed(0)
    log_probs = torch.randn(1, 3_000, 20).log_softmax(-1).requires_grad_()
    targets = torch.randint(1, 20, (1, 1_000))
    loss = -ts.CTC(log_probs, targets).log_partition().sum()
    theirs = F.ctc_loss(log_probs.double().transpose(0, 1), targets, [3_000], [1_000], reduction="sum")
    assert abs(loss - theirs) < 1e-6 * theirs
    (grad,) = torch.autograd.grad(loss, log_probs)
    assert (grad.sum(-1) + 1).abs().max() < 1e-5


# Wide and ragged ones.


def random_lattice(generator: torch.Generator, n: int, size: int, reach: int) -> Tensor:
    """Arcs forth, by at most `reach` nodes, between nodes in any order; many of them enter one node."""
    tails = torch.randint(n - 1, (size,), generator=generator)
    heads = tails + 1 + torch.randint(reach, (size,), generator=generator)
    heads[: size // 3] = n // 2  # in a level with others that few arcs enter
    tails[: size // 3] = torch.randint(n // 2, (size // 3,), generator=generator)
    path = torch.stack((torch.arange(n - 1), torch.arange(1, n)))[:, :: reach // 2]
    path = torch.cat((path[:1], F.pad(path[0, 1:], (0, 1), value=n - 1)[None]))
    between = 1 + torch.randperm(n - 2, generator=generator)
    name = torch.cat((torch.zeros(1, dtype=torch.long), between, torch.tensor([n - 1])))
    return name[torch.cat((torch.stack((tails, heads.clamp(max=n - 1))), path), 1)]


def by_autograd(arcs: Tensor, scores: Tensor, n: int) -> Tensor:
    """The log-partition by one node after the other, each after those before it."""
    left, done = {node: int((arcs[1] == node).sum()) for node in range(n)}, {}
    ready = [node for node in left if not left[node]]
    while ready:
        node = ready.pop()
        into = (arcs[1] == node).nonzero()[:, 0].tolist()
        ways = [done[int(arcs[0, e])] + scores[e] for e in into if done[int(arcs[0, e])] is not None]
        done[node] = scores.new_zeros(()) if node == 0 else torch.stack(ways).logsumexp(0) if ways else None
        for head in arcs[1, arcs[0] == node].tolist():
            left[head] -= 1
            if not left[head]:
                ready.append(head)
    return done[n - 1]


def test_a_large_lattice_in_a_batch():
    generator = torch.Generator().manual_seed(0)
    arcs = random_lattice(generator, 40, 150, 12)
    scores = torch.randn(3, arcs.shape[1], generator=generator).double().requires_grad_()
    lattice = ts.Lattice(arcs, scores, 40)
    truth = torch.stack([by_autograd(arcs, row, 40) for row in scores])
    close(lattice.log_partition(), truth)
    (marginals,) = torch.autograd.grad(truth.sum(), scores, create_graph=True)
    close(lattice.marginals(), marginals)
    close(lattice.entropy(), truth - (marginals * scores).sum(-1))
    (ours,), (theirs,) = (torch.autograd.grad(x.pow(3).sum(), scores) for x in (lattice.marginals(), marginals))
    close(ours, theirs)


def test_nodes_that_many_arcs_enter_stand_apart():
    n = 102
    arcs = torch.cat((torch.stack((torch.zeros(100).long(), torch.arange(1, 101))),
                      torch.stack((torch.arange(1, 101), torch.full((100,), 101)))), 1)  # fmt: skip
    parallel = torch.cat((torch.tensor([[0], [1]]).expand(2, 200), arcs), 1)
    graph = topology.topology(parallel, torch.tensor(n))
    assert (
        len(graph.slots) < 2 * parallel.shape[1]
    )  # in rows as long as the longest of the level there were 20,000 more
    lattice = ts.Lattice(parallel, torch.zeros(400).double())
    close(lattice.log_partition(), torch.tensor(300.0).double().log())


def test_graphs_of_their_own_and_copies():
    generator = torch.Generator().manual_seed(0)
    graphs, sizes = [random_lattice(generator, n, 2 * n, 6) for n in (12, 9, 20)], [12, 9, 20]
    width = max(x.shape[1] for x in graphs)
    arcs = torch.stack([F.pad(x, (0, width - x.shape[1]), value=-1) for x in graphs])
    scores = torch.randn(3, width, generator=generator).double()
    batch = ts.Lattice(arcs, scores.masked_fill(arcs[:, 0] < 0, math.nan), sizes)
    for b, (graph, n) in enumerate(zip(graphs, sizes, strict=True)):
        one = ts.Lattice(graph, scores[b, : graph.shape[1]], n)
        for other in (batch[b], batch.expand((2, 3))[1, b], batch.double()[b]):
            close(other.log_partition(), one.log_partition())
            close(other.marginals()[: graph.shape[1]], one.marginals())
            path = one.argmax()
            assert other.argmax()[: len(path)].tolist() == path.tolist()
    close(batch.expand((2, 3)).entropy(), batch.entropy().expand(2, 3))
    assert batch.to(torch.float32).log_partition().dtype == torch.float32


def test_other_scores():
    lattice = ts.Lattice(DIAMOND, torch.randn(6), labels=list(range(6)))
    scores = torch.randn(4, 6).double().requires_grad_()
    other, fresh = lattice.with_scores(scores), ts.Lattice(DIAMOND, scores)
    assert other._topology is lattice._topology
    close(other.log_partition(), fresh.log_partition())
    close(torch.autograd.grad(other.entropy().sum(), scores)[0], torch.autograd.grad(fresh.entropy().sum(), scores)[0])
    own = ts.Lattice(DIAMOND.expand(2, 2, 6), torch.zeros(6))
    assert own.with_scores(torch.zeros(1, 6)).log_partition().shape == (2,)
    fails(
        lambda: own.with_scores(torch.zeros(3, 6)),
        "scores has batch shape .3., which does not match that of the graphs",
    )
    fails(lambda: own.with_scores(torch.zeros(3, 2, 6)), r"scores must have a batch shape within \[2\]: got \[3, 2\]")
    fails(lambda: lattice.with_scores(torch.zeros(5)), r"scores must be \[\*batch, E\], E = 6: got \[5\]")
    fails(lambda: lattice.with_scores(torch.full((6,), math.nan)), "scores must not hold NaN")


def test_half_precision_is_computed_in_float32():
    lattice = ts.Lattice(DIAMOND, torch.randn(6).half())
    assert lattice.log_partition().dtype == torch.float32


@pytest.mark.parametrize("own", [False, True])
def test_empty_batches(own):
    scores = torch.zeros(0, 6, requires_grad=True)
    lattice = ts.Lattice(DIAMOND.expand(0, 2, 6) if own else DIAMOND, scores, torch.zeros(0).long() if own else None)
    assert lattice.log_partition().shape == lattice.entropy().shape == (0,)
    assert lattice.marginals().shape == lattice.rsample().weights.shape == (0, 6)
    length = lattice.event_shape[0]
    assert lattice.argmax().shape == lattice.mbr().shape == (0, length)
    assert lattice.sample((2,)).shape == (2, 0, length)
    assert lattice.topk(2).scores.shape == (2, 0)
    assert torch.autograd.grad(lattice.entropy().sum(), scores)[0].shape == (0, 6)


def test_mbr_counts_arcs():
    scores = torch.tensor([0.0, 0.1, 0.0, 0.0, 0.4, 0.0])
    lattice = ts.Lattice(DIAMOND, scores)
    assert lattice.argmax().tolist() == [4, 5, -1]
    expected = {path: lattice.marginals()[list(path)].sum() for path in ((0, 2, 5), (1, 3, 5), (4, 5))}
    assert tuple(e for e in lattice.mbr().tolist() if e >= 0) == max(expected, key=lambda path: expected[path])


def test_derivatives_of_every_order():
    torch.manual_seed(0)
    scores = torch.randn(6).double().requires_grad_()
    scores.data[0] = -math.inf
    free = torch.randn(6).double().requires_grad_()
    frames = torch.randn(3, 3).double().requires_grad_()

    def lattice(x: Tensor) -> Tensor:
        model = ts.Lattice(DIAMOND, x)
        return model.log_partition() ** 2 + model.marginals().sin().sum() + model.entropy() ** 3

    def ctc(x: Tensor) -> Tensor:
        model = ts.CTC(x, torch.tensor([1]))
        return model.log_partition() ** 2 + model.marginals().sin().sum() + model.entropy() ** 3

    for function, x in ((lattice, free), (ctc, frames)):
        assert torch.autograd.gradcheck(function, x)
        assert torch.autograd.gradgradcheck(function, x)
        slope = lambda x, of=function: torch.autograd.grad(of(x), x, create_graph=True)[0].sin().sum()  # noqa: E731
        assert torch.autograd.gradgradcheck(slope, x)
    (grad,) = torch.autograd.grad(lattice(scores), scores, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), scores)
    assert grad.isfinite().all()
    assert second.isfinite().all()
