"""CTC, alignments and lattices by kernels: the same results as in plain torch, on every operation that uses them."""

import pytest
import torch
from torch import Tensor

import tailsum as ts
from harness.interpreter import with_fast_numbers

pytest.importorskip("triton")

TARGETS = torch.tensor([[1, 1, 2], [3, 2, 1]])
ARCS = torch.tensor([[0, 0, 1, 1, 2, 0, 3], [1, 2, 2, 3, 3, 3, 4]])


def ctc(scores: Tensor) -> ts.CTC:
    return ts.CTC(scores, TARGETS, [6, 4], [3, 2])


def alignment(scores: Tensor) -> ts.Alignment:
    return ts.Alignment(scores, scores[:, :, 0], scores[:, 0], [4, 3], [2, 4])


def lattice(scores: Tensor) -> ts.Lattice:
    return ts.Lattice(ARCS, scores)


def lattices(scores: Tensor) -> ts.Lattice:
    return ts.Lattice(torch.stack((ARCS, torch.where(ARCS == 4, -1, ARCS).where(ARCS.amax(0) < 4, -1))), scores)


MODELS = {
    "ctc": (ctc, (2, 6, 4)),
    "alignment": (alignment, (2, 4, 4)),
    "lattice": (lattice, (2, 7)),
    "lattices": (lattices, (2, 7)),
}


def asked(name: str, use: str, forbidden: float) -> list[Tensor]:
    build, shape = MODELS[name]
    torch.manual_seed(1)
    scores = torch.randn(shape).masked_fill(torch.rand(shape) < forbidden, -torch.inf).requires_grad_()
    with ts.kernels(use):
        model = build(scores)
        total = model.log_partition()
        finite = total.masked_fill(total == -torch.inf, 0.0)
        (slope,) = torch.autograd.grad((finite * torch.tensor([1.0, 2.0])).sum(), scores)
        found = [total.detach(), slope, build(scores.detach()).marginals(), model.argmax(), model.max().detach()]
        sample = model.sample((3,))
        assert (model.score(sample) > -torch.inf).equal((total > -torch.inf).expand(3, 2))
    return found


@pytest.mark.parametrize("forbidden", [pytest.param(0.0, marks=pytest.mark.slow), 0.2])
@pytest.mark.parametrize("name", MODELS)
def test_kernels_change_nothing(name, forbidden, monkeypatch):
    with_fast_numbers(monkeypatch)
    for ours, truth in zip(asked(name, "always", forbidden), asked(name, "never", forbidden), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-6, atol=1e-6)


def test_graphs_made_inside_a_transform():
    scores = torch.randn(7)
    with ts.kernels("always"):
        inside = torch.func.grad(lambda x: ts.Lattice(ARCS, x).log_partition())(scores)
    torch.testing.assert_close(inside, ts.Lattice(ARCS, scores).marginals())
