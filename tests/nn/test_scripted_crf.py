"""The CRF in TorchScript, scripted, traced and saved: the same values and gradients as the module itself.

pytorch-crf's tests of scripting ask the same of its module: the loss with and without a mask, of a batch, under each
reduction, batch first or not, and decoding likewise.
"""

import io
import itertools
import math

import pytest
import torch
from torch import nn

import tailsum as ts
from tailsum.nn import CRF

B, T, N = 3, 5, 4
MASKS = {
    "none": None,
    "full": torch.ones(B, T).bool(),
    "padding": torch.arange(T) < torch.tensor([[5], [3], [1]]),
    "holes": torch.tensor([[0, 1, 0, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 1, 0]]),
}


def wild(crf):
    for parameter in crf.parameters():
        parameter.data = torch.randn(parameter.shape)
    return crf


def turned(crf, x):
    return x if crf.batch_first or x is None else x.transpose(0, 1)


def tags_of(kind):
    known = torch.randint(N, (B, T))
    match kind:
        case "known":
            return known
        case "partly":
            return known.masked_fill(torch.rand(B, T) < 0.5, -1)
        case "sets":
            return torch.rand(B, T, N) < 0.4 + 0.6 * nn.functional.one_hot(known, N)


def same(crf, other, mask, tags, reductions=("none", "sum", "mean", "token_mean")):
    """Values of the loss and its gradients."""
    emissions = torch.randn(B, T, crf.num_tags)
    for reduction in reductions:
        values, gradients = [], []
        for module in (crf, other):
            leaf = emissions.clone().requires_grad_()
            value = module(turned(crf, leaf), turned(crf, tags), turned(crf, mask), reduction)
            values.append(value.detach())
            inputs = (leaf, *crf.parameters())
            gradients.append(torch.autograd.grad(value.square().sum(), inputs))
        torch.testing.assert_close(*values, rtol=1e-5, atol=1e-5)
        for x, y in zip(*gradients, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["known", "partly", "sets"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_scripted_losses_and_paths(mask, batch_first, kind):
    crf = wild(CRF(N, batch_first=batch_first))
    scripted = torch.jit.script(crf)
    same(crf, scripted, mask, tags_of(kind))
    for _ in range(5):
        emissions, given = turned(crf, torch.randn(B, T, N)), turned(crf, mask)
        assert scripted.decode(emissions, given) == crf.decode(emissions, given)
    if mask is None:
        assert scripted.decode(emissions) == crf.decode(emissions)
        ours, theirs = (module(emissions, turned(crf, torch.ones(B, T).long())) for module in (crf, scripted))
        torch.testing.assert_close(ours, theirs)


def test_scripted_schemes_and_ranks():
    bio = wild(CRF.for_scheme("BIO", ["X"], batch_first=True))
    scripted = torch.jit.script(bio)
    same(bio, scripted, MASKS["holes"], torch.full((B, T), -1))
    same(bio, scripted, MASKS["padding"], torch.tensor([[0, 1, 2, 2, 0]] * B))
    emissions = 5 * torch.randn(50, T, 3)
    assert scripted.decode(emissions) == bio.decode(emissions)
    assert scripted(emissions[:1], torch.tensor([[2, 2, 0, 0, 0]])) == -math.inf  # where the module itself says why
    emissions[3] = -math.inf
    assert scripted.decode(emissions) == bio.decode(emissions)
    assert scripted.decode(emissions)[3] == [-1] * T
    ranked = wild(CRF(N, batch_first=True, rank=2))
    same(ranked, torch.jit.script(ranked), None, tags_of("known"))


def test_forbidden_scores_leave_no_nan():
    crf, emissions = wild(CRF(N, batch_first=True)), torch.randn(B, T, N)
    emissions[0], emissions[1, 2, 1:] = -math.inf, -math.inf
    emissions[2, 3:] = math.nan
    leaf = emissions.requires_grad_()
    found = torch.jit.script(crf)(leaf, torch.zeros(B, T).long(), MASKS["padding"][[0, 0, 1]], "none")
    assert found[0] == -math.inf
    assert found[1:].isfinite().all()
    found[1:].sum().backward()
    assert leaf.grad.isfinite().all()
    half = torch.jit.script(crf)(torch.randn(B, T, N).half(), torch.zeros(B, T).long())
    assert half.dtype == torch.float32


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores, self.crf = nn.Linear(6, N), CRF(N)

    def forward(self, words: torch.Tensor, tags: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return -self.crf(self.scores(words), tags, mask, "mean")


class Decoder(Tagger):
    def forward(self, words: torch.Tensor) -> list[list[int]]:
        return self.crf.decode(self.scores(words))


def saved(module):
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def test_a_scripted_tagger_is_saved():
    tagger, decoder = Tagger(), Decoder()
    loaded, again = (saved(torch.jit.script(module)) for module in (tagger, decoder))
    words, tags, mask = torch.randn(7, 2, 6), torch.randint(N, (7, 2)), torch.ones(7, 2).bool()
    torch.testing.assert_close(loaded(words, tags, mask), tagger(words, tags, mask))
    assert again(words) == decoder(words)
    assert type(tagger.crf) is CRF
    assert tagger.crf.entropy(tagger.scores(words)).shape == (2,)  # the module itself is as it was


@pytest.mark.usefixtures("unchecked")  # in a trace, sizes are tensors
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", ["known", "partly"])
def test_a_trace_depends_on_no_values(mask, kind):
    """Traced with one mask and kind of tags, called with others, and with other shapes."""
    tagger = wild(Tagger())
    first = torch.randn(T, B, 6), tags_of(kind).T, MASKS["full" if mask == "none" else mask].T
    traced = saved(torch.jit.trace(tagger, first))
    for other, tags in itertools.product(("full", "padding", "holes"), ("known", "partly")):
        given = torch.randn(T, B, 6), tags_of(tags).T, MASKS[other].T
        torch.testing.assert_close(traced(*given), tagger(*given))
    longer = torch.randn(9, 2, 6), torch.randint(-1, N, (9, 2)), torch.arange(9)[:, None] < torch.tensor([9, 4])
    torch.testing.assert_close(traced(*longer), tagger(*longer))
    gradients = [torch.autograd.grad(m(*longer), tuple(m.parameters())) for m in (traced, tagger)]
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("unchecked")  # in a trace, sizes are tensors
def test_a_trace_of_the_module_itself():
    crf = wild(CRF(N))
    traced = torch.jit.trace(crf, (torch.randn(T, B, N), tags_of("known").T))
    given = torch.randn(T, B, N), tags_of("partly").T
    torch.testing.assert_close(traced(*given), crf(*given))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.usefixtures("unchecked")  # in a trace, sizes are tensors
def test_what_a_trace_would_freeze_is_an_error():
    emissions, message = torch.randn(T, B, N), "torch.jit.trace takes only the loss of a CRF without kept"
    crf = CRF(N)
    runs = [lambda x, name=name: getattr(crf, name)(x) for name in ("decode", "entropy", "marginals", "chain")]
    for run in (*runs, lambda x: crf.k_best(x, 2)):
        with pytest.raises(ValueError, match=message):
            torch.jit.trace(run, emissions, check_trace=False)
    kept, tags = CRF(N, kept=2), tags_of("known").T
    with pytest.raises(ValueError, match=message):
        torch.jit.trace(lambda x: kept(x, tags), emissions, check_trace=False)
    states = torch.randn(N, 8)
    with pytest.raises(ValueError, match=message):
        torch.jit.trace(lambda x: crf(ts.Factored(x, states), tags), torch.randn(T, B, 8), check_trace=False)


def test_bad_input_of_a_scripted_module():
    scripted, nodes, tags = torch.jit.script(CRF(N, batch_first=True)), torch.randn(B, T, N), torch.zeros(B, T).long()
    off = torch.ones(B, T).bool()
    off[1] = False
    for message, run in {
        "emissions must have three dimensions, the last num_tags = 4": lambda: scripted(nodes[0], tags),
        "emissions must have three dimensions.*got .*3, 5, 3": lambda: scripted.decode(nodes[..., :3]),
        "emissions must have at least one position": lambda: scripted.decode(nodes[:, :0]),
        "and be floating-point": lambda: scripted(nodes.long(), tags),
        "emissions must not hold NaN": lambda: scripted(nodes * math.nan, tags),
        "tags must be as the first two dimensions": lambda: scripted(nodes, tags[:, 1:]),
        "or boolean as all three": lambda: scripted(nodes, tags.bool()),
        "tags must be integers or boolean": lambda: scripted(nodes, tags.float()),
        "tags must lie between 0 and num_tags-1 = 3": lambda: scripted(nodes, tags + 4),
        "or be -1 for any tag": lambda: scripted(nodes, tags - 100),
        "mask must leave at least one position of each sequence": lambda: scripted(nodes, tags, off),
        "mask must be as the first two dimensions": lambda: scripted(nodes, tags, off[:, 1:]),
        "mask must be boolean or integers": lambda: scripted(nodes, tags, off.float()),
        "reduction must be one of none, sum, mean, token_mean: got max": lambda: scripted(nodes, tags, None, "max"),
        "a scripted CRF searches among all tags: kept must be None": lambda: scripted.decode(nodes, None, 2),
        "a CRF with kept is not scripted": lambda: torch.jit.script(CRF(N, kept=2))(nodes, tags),
    }.items():
        with pytest.raises(torch.jit.Error, match=message):
            run()
