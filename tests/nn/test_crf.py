"""The CRF layer, against enumeration and pytorch-crf."""

import itertools
import math

import pytest
import torch

import tailsum as ts
from tailsum.formats.schemes import SCHEMES
from tailsum.nn import CRF
from tailsum.nn.schemes import allowed_by, scheme_tags

B, T, N = 3, 4, 3


def wild(crf):
    """Parameters as after training, in float64."""
    generator = torch.Generator().manual_seed(1)
    for parameter in crf.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return crf


def emissions(batch=B, length=T, n=N):
    return torch.randn(batch, length, n, dtype=torch.float64)


def path_scores(crf, nodes):
    """Every path over the positions of one sequence `[L, N]`, and its score; forbidden ones are left out."""
    start, end = crf.start_transitions, crf.end_transitions
    pairs = crf.transition.block()
    found = {}
    for path in itertools.product(range(crf.num_tags), repeat=len(nodes)):
        score = start[path[0]] + end[path[-1]] + sum(nodes[t, tag] for t, tag in enumerate(path))
        score = score + sum(pairs[a, b] for a, b in itertools.pairwise(path))
        barred = [crf.allowed_start is not None and not crf.allowed_start[path[0]]]
        barred.append(crf.allowed_end is not None and not crf.allowed_end[path[-1]])
        if not any(barred) and score > -math.inf:
            found[path] = score
    return found


def log_sum(scores):
    return torch.logsumexp(torch.stack(list(scores)), 0)


MASKS = {
    "none": None,
    "padding": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool(),
    "holes": torch.tensor([[0, 1, 0, 1], [1, 0, 1, 1], [0, 0, 0, 1]]).bool(),
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_everything_equals_enumeration(mask, batch_first):
    crf, nodes = wild(CRF(N, batch_first=batch_first)), emissions()
    tags = torch.randint(N, (B, T))
    inside = torch.ones(B, T).bool() if mask is None else mask
    sets = torch.rand(B, T, N) < 0.5
    sets.scatter_(-1, tags[..., None], True)
    turn = (lambda x: x) if batch_first else (lambda x: None if x is None else x.transpose(0, 1))
    given = turn(nodes), None if mask is None else turn(mask)
    found = crf(given[0], turn(tags), given[1], reduction="none")
    partial = crf(given[0], turn(sets), given[1], reduction="none")
    marginals, entropy = turn(crf.marginals(*given)), crf.entropy(*given)
    paths, ranked = crf.decode(*given), crf.k_best(given[0], 3, given[1])
    for b in range(B):
        here = inside[b]
        scores = path_scores(crf, nodes[b, here])
        total = log_sum(scores.values())
        torch.testing.assert_close(found[b], scores[tuple(tags[b, here].tolist())] - total)
        allowed = sets[b, here]
        agree = [s for path, s in scores.items() if all(allowed[t, tag] for t, tag in enumerate(path))]
        torch.testing.assert_close(partial[b], log_sum(agree) - total)
        chances = {path: (s - total).exp() for path, s in scores.items()}
        expected = torch.zeros(int(here.sum()), N, dtype=torch.float64)
        for path, chance in chances.items():
            expected[torch.arange(len(path)), list(path)] += chance
        torch.testing.assert_close(marginals[b, here], expected)
        assert (marginals[b, ~here] == 0).all()
        torch.testing.assert_close(entropy[b], -sum(p * p.log() for p in chances.values()))
        best = sorted(scores, key=scores.get, reverse=True)
        assert paths[b] == list(best[0])
        assert [path for path, _ in ranked[b]] == [list(path) for path in best[:3]]
        assert [p for _, p in ranked[b]] == pytest.approx([(scores[path] - total).item() for path in best[:3]])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "token_mean"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_pytorch_crf(reduction, batch_first, masked):
    torchcrf = pytest.importorskip("torchcrf")
    theirs = torchcrf.CRF(5, batch_first=batch_first)
    ours = CRF(5, batch_first=batch_first)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    shape = (4, 7) if batch_first else (7, 4)
    nodes, tags = torch.randn(*shape, 5), torch.randint(5, shape)
    mask = torch.arange(7) < torch.tensor([7, 3, 1, 5])[:, None]
    mask = mask if batch_first else mask.T
    mask = mask if masked else torch.ones_like(mask)
    values, gradients = [], []
    for crf, given in ((ours, mask if masked else None), (theirs, mask)):
        leaf = nodes.clone().requires_grad_()
        value = crf(leaf, tags, mask=given, reduction=reduction)
        crf.zero_grad()
        value.mean().backward()
        values.append(value.detach())
        gradients.append([leaf.grad, *(x.grad for x in crf.parameters())])
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-5)
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert ours.decode(nodes, mask) == theirs.decode(nodes, mask)


def test_the_same_start_as_pytorch_crf():
    torchcrf = pytest.importorskip("torchcrf")
    torch.manual_seed(3)
    theirs = torchcrf.CRF(6)
    torch.manual_seed(3)
    ours = CRF(6)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_unknown_tags_are_sets_of_all_tags():
    crf, nodes = wild(CRF(N, batch_first=True)), emissions()
    tags = torch.tensor([[0, -1, 2, -1], [-1, -1, -1, -1], [1, 1, 1, 1]])
    sets = torch.nn.functional.one_hot(tags.clamp(min=0), N).bool() | (tags < 0)[..., None]
    torch.testing.assert_close(crf(nodes, tags, reduction="none"), crf(nodes, sets, reduction="none"))
    assert crf(nodes, tags, reduction="none")[1].abs() < 1e-9  # nothing is known
    torch.testing.assert_close(crf(nodes, tags, reduction="none")[2], crf(nodes[2:], tags[2:]))


def test_gradients():
    crf, nodes = wild(CRF(N, batch_first=True)), emissions().requires_grad_()
    mask, tags = MASKS["holes"], torch.tensor([[0, 1, 2, 1], [-1, 9, 0, 2], [7, 7, -100, 1]])
    assert torch.autograd.gradcheck(lambda x, *_: crf(x, tags, mask), (nodes, *crf.parameters()))
    (gradient,) = torch.autograd.grad(crf(nodes, tags, mask), nodes)
    assert (gradient[~mask] == 0).all()


# Schemes.


def segments(path, tags, scheme):
    """The segments that a path marks; None if it is not well-formed. Reads tags one by one, as no rule above does."""
    rules, open_label, found = SCHEMES[scheme], None, []
    for tag in path:
        role, _, label = tags[tag].partition("-")
        starts = role in rules.opens or role == "O"
        if open_label is not None and (starts or label != open_label[0]):
            if not open_label[1]:
                return None
            found.append(open_label[0])
            open_label = None
        if role == "O":
            continue
        if open_label is None and not starts:
            return None
        over, goes_on = role in rules.closes, role in rules.lasts
        open_label = (label, over)
        if over and not goes_on:
            found.append(label)
            open_label = None
    return None if open_label is not None and not open_label[1] else found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_allow_what_can_be_read(scheme):
    crf = wild(CRF.for_scheme(scheme, ["X", "Y"], batch_first=True))
    length = 3
    every = list(itertools.product(range(crf.num_tags), repeat=length))
    valid = {path for path in every if segments(path, crf.tags, scheme) is not None}
    nodes = emissions(1, length, crf.num_tags)
    scores = path_scores(crf, nodes[0])
    assert set(scores) == valid
    # Segmentations of n positions, f(n) = f(n-1) + 2 sum_d f(n-d): each is written in one way, except by IO.
    assert len(valid) == (27 if scheme == "IO" else 41)
    total = log_sum(scores.values())
    for path in list(valid)[::7]:
        torch.testing.assert_close(crf(nodes, torch.tensor([path])), scores[path] - total)
    many = crf.decode(5 * emissions(200, length, crf.num_tags))
    assert {tuple(path) for path in many} <= valid
    assert {tuple(path) for path in crf.chain(nodes).sample((300,))[:, 0].tolist()} <= valid


@pytest.mark.parametrize("scheme", SCHEMES)
def test_formats_read_what_a_scheme_allows(scheme):
    """Strict reading accepts the paths that the CRF allows, and no other."""
    tags = scheme_tags(scheme, ["X", "Y"])
    start, pairs, end = allowed_by(scheme, tags)
    for path in itertools.product(range(len(tags)), repeat=3):
        allowed = start[path[0]] & end[path[-1]] & all(pairs[a, b] for a, b in itertools.pairwise(path))
        names = [tags[i] for i in path]
        try:
            spans = ts.formats.tags_to_spans(names, scheme)
        except ValueError:
            assert not allowed, names
        else:
            assert allowed, names
            assert ts.formats.spans_to_tags(spans, 3, scheme) == names


def test_tags_in_an_order_of_their_own():
    tags = ["I-A", "O", "B-A"]
    crf = CRF.for_scheme("BIO", tags=tags)
    assert crf.tags == tags
    assert crf.allowed.tolist() == [[True, True, True], [False, True, True], [True, True, True]]
    assert crf.allowed_start.tolist() == [False, True, True]
    assert crf.allowed_end.tolist() == [True, True, True]


def test_schemes_by_hand():
    tags = scheme_tags("IOBES", ["P"])
    assert tags == ["O", "B-P", "I-P", "E-P", "S-P"]
    start, pairs, end = allowed_by("IOBES", tags)
    after = {tag: {tags[j] for j in range(5) if pairs[i, j]} for i, tag in enumerate(tags)}
    assert after["O"] == after["E-P"] == after["S-P"] == {"O", "B-P", "S-P"}
    assert after["B-P"] == after["I-P"] == {"I-P", "E-P"}
    assert start.tolist() == [True, True, False, False, True]
    assert end.tolist() == [True, False, False, True, True]


def test_partial_tags_within_a_scheme():
    crf, nodes = wild(CRF.for_scheme("BIO", ["X"], batch_first=True)), emissions(1, 4)
    found = crf(nodes, torch.tensor([[-1, 2, -1, -1]]))
    scores = path_scores(crf, nodes[0])
    agree = [s for path, s in scores.items() if path[1] == 2]
    torch.testing.assert_close(found, log_sum(agree) - log_sum(scores.values()))


# Thousands of tags.


def test_a_sketch_of_all_tags_is_exact():
    crf = wild(CRF(6, batch_first=True, rank=2, kept=6))
    nodes, tags = emissions(2, 5, 6), torch.randint(6, (2, 5))
    left, right = crf.from_embeddings, crf.to_embeddings
    whole = CRF(6, batch_first=True)
    state = {"start_transitions": crf.start_transitions, "end_transitions": crf.end_transitions}
    whole.double().load_state_dict({**state, "transitions": left @ right.T})
    torch.testing.assert_close(crf(nodes, tags), whole(nodes, tags))
    assert crf.decode(nodes) == whole.decode(nodes) == crf.decode(nodes, kept=6)


def test_a_sketch_is_unbiased():
    crf = CRF(40, batch_first=True, rank=3, kept=8, proposal=ts.Lookahead(landmarks=8))
    nodes = torch.randn(1, 5, 40)
    tags = torch.randint(40, (1, 5))
    chain = crf.chain(nodes)
    many, gold = nodes.expand(400, -1, -1), tags.expand(400, -1)
    with torch.no_grad():
        # exp(score - log Z^) has the mean Z^-1: compare Z^ = exp(score - log-likelihood) with Z
        relative = (chain.score(tags) - crf(many, gold, reduction="none") - chain.log_partition()).exp()
    error = relative.std() / 400**0.5
    assert 0 < error < 0.05
    assert abs(relative.mean() - 1) < 4 * error


def test_emissions_from_embeddings():
    crf = CRF(30, batch_first=False, rank=4)
    context, tags = torch.randn(5, 2, 8), torch.randint(30, (5, 2))
    states = torch.randn(30, 8)
    mask = torch.tensor([[1, 0], [0, 1], [1, 1], [1, 0], [0, 0]]).bool()
    for given in (None, mask):
        table = crf(context @ states.T, tags, given)
        torch.testing.assert_close(crf(ts.Factored(context, states), tags, given), table)
    assert crf.decode(ts.Factored(context, states), mask) == crf.decode(context @ states.T, mask)


# Odd input.


def test_odd_shapes_and_modes():
    crf = CRF(N, batch_first=True)
    one = torch.randn(2, 1, N)
    expected = (one[:, 0] + crf.start_transitions + crf.end_transitions).log_softmax(-1)
    torch.testing.assert_close(crf(one, torch.tensor([[0], [2]]), reduction="none"), expected[[0, 1], [0, 2]])
    strided = torch.randn(N, 5, 2).permute(2, 1, 0)
    torch.testing.assert_close(crf.marginals(strided), crf.marginals(strided.contiguous()))
    for dtype in (torch.float16, torch.bfloat16):
        assert crf(strided.to(dtype), torch.zeros(2, 5).long()).dtype == torch.float32
    with torch.inference_mode():
        assert crf(strided, torch.zeros(2, 5).long()).isfinite()
    assert crf.decode(torch.randn(0, 5, N)) == []
    assert crf(torch.randn(0, 5, N), torch.zeros(0, 5).long()) == 0
    with torch.autocast("cpu"):
        assert crf(strided.bfloat16(), torch.zeros(2, 5).long()).dtype == torch.float32


def test_forbidden_emissions_leave_no_nan():
    crf, nodes = CRF(N, batch_first=True), torch.randn(1, T, N)
    nodes[0, 1, 2] = -math.inf
    nodes.requires_grad_()
    likelihood = crf(nodes, torch.tensor([[0, 1, 2, 0]]))
    likelihood.backward()
    assert likelihood.isfinite()
    assert nodes.grad.isfinite().all()
    assert crf(nodes, torch.tensor([[0, 2, 2, 0]])) == -math.inf


def test_the_repr_has_the_scheme():
    assert repr(CRF.for_scheme("BIO", ["X"], batch_first=True)) == "CRF(num_tags=3, batch_first=True, scheme='BIO')"
    assert repr(CRF(3, kept=2)) == "CRF(num_tags=3, kept=2)"


def test_what_is_masked_may_be_nan():
    crf, nodes, mask = CRF(N), torch.randn(T, 2, N), torch.ones(T, 2).bool()
    mask[2:, 1] = False
    nodes[3, 1, 2] = math.nan
    assert [len(path) for path in crf.decode(nodes, mask)] == [T, 2]


def test_k_best_of_impossible_sentences():
    crf, nodes = CRF(N), torch.randn(T, 2, N)
    assert crf.k_best(torch.full_like(nodes, -math.inf), 2) == [[], []]
    nodes[:, 1] = -math.inf
    found = crf.k_best(nodes, 2)
    assert [len(paths) for paths in found] == [2, 0]
    assert CRF(N, batch_first=True).k_best(torch.randn(0, T, N), 2) == []


def test_bad_input(unchecked):
    crf, nodes, tags = CRF(N, batch_first=True), torch.randn(B, T, N), torch.zeros(B, T).long()
    bio = CRF.for_scheme("BIO", ["X"], batch_first=True)
    late = CRF(N, batch_first=True, allowed_end=torch.tensor([False, True, True]))
    off = torch.ones(B, T).bool()
    off[1] = False
    holed = torch.zeros(T, 2, N)
    holed[3, 1, 2] = math.nan
    for message, run in {
        "emissions must have three dimensions, the last num_tags = 3: got": lambda: crf(nodes[0], tags),
        "emissions must have three dimensions, the last num_tags = 3: got .*5": lambda: crf.decode(
            torch.randn(B, T, 5)
        ),
        r"emissions must have at least one position: got \[3, 0, 3\]": lambda: crf.decode(nodes[:, :0]),
        "emissions must be floating-point": lambda: crf(nodes.long(), tags),
        "emissions must not hold NaN": lambda: crf(nodes * math.nan, tags),
        r"emissions must not hold NaN .* at \[3, 1, 2\]": lambda: CRF(N).decode(holed),
        r"got \[3, 4, 3\] of torch.int64; sets of tags must be boolean": lambda: crf(nodes, nodes.long()),
        r"tags must be \[3, 4\], as the first two": lambda: crf(nodes, tags[:, 1:]),
        r"tags must be \[3, 4, 3\] if they are boolean": lambda: crf(nodes, tags.bool()),
        "tags must be integers": lambda: crf(nodes, tags.float()),
        "tags must lie between 0 and num_tags-1 = 2, or be -1 for any tag: got 3": lambda: crf(nodes, tags + 3),
        "got -100; positions that do not count belong in the mask": lambda: crf(nodes, tags - 100),
        "mask must leave at least one position of each sequence: got none in sequence 1": lambda: crf(nodes, tags, off),
        r"mask must be \[3, 4\]": lambda: crf(nodes, tags, off[:, 1:]),
        "mask must be boolean or integers": lambda: crf(nodes, tags, off.float()),
        "reduction must be one of none, sum, mean, token_mean: got 'max'": lambda: crf(nodes, tags, reduction="max"),
        "num_tags must be a whole number of at least 1: got 0": lambda: CRF(0),
        "allowed must be a boolean tensor": lambda: CRF(N, allowed=torch.ones(N, N)),
        "allowed needs a table": lambda: CRF(N, allowed=torch.ones(N, N).bool(), rank=2),
        "scheme must be one of IO, BIO": lambda: CRF.for_scheme("XYZ", ["A"]),
        r"either labels .* or tags .* must be given: got none of them": lambda: CRF.for_scheme("BIO"),
        r"either labels .* or tags .* must be given: got both": lambda: CRF.for_scheme("BIO", ["A"], tags=["O"]),
        "tags must be O, B-LABEL, I-LABEL in the scheme BIO: got 'E-X'": lambda: CRF.for_scheme("BIO", tags=["E-X"]),
        "labels must be a list": lambda: CRF.for_scheme("BIO", "PER"),
        "got O before I-X in sequence 0, at 1": lambda: bio(nodes[:1], torch.tensor([[0, 0, 2, 2]])),
        "tags must start as allowed: got I-X in sequence 0": lambda: bio(nodes[:1], torch.tensor([[2, 2, 2, 2]])),
        "tags must end as allowed: got 0 in sequence 0": lambda: late(nodes, tags),
        "for each sequence: got none for sequence 0": lambda: crf(nodes - math.inf, torch.full((B, T), -1)),
        "at least one possible path for each sequence: got none for sequence 1": lambda: bio(
            nodes[:2], torch.tensor([[0, -1, 0, 0], [0, 2, -1, 0]])
        ),
    }.items():
        with pytest.raises(ValueError, match=message):
            run()
