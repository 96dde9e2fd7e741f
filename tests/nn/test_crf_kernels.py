"""The loss of a CRF by kernels, in Triton's interpreter, against plain torch in float64."""

import pytest
import torch

import tailsum as ts
from harness import interpreter
from tailsum.nn import CRF

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter: the logarithm of zero

B, T, N = 3, 5, 4
MASKS = {"none": None, "padding": torch.arange(T) < torch.tensor([[T], [2], [1]])}


@pytest.fixture(autouse=True, scope="module")
def _interpreted():
    if not torch.cuda.is_available():
        interpreter.install()


def asked(crf, nodes, tags, mask, use):
    """The log-likelihoods, and the gradients of a weighted sum of them."""
    nodes = nodes.to(crf.transitions).requires_grad_()
    with ts.kernels(use):
        found = crf(nodes, tags, mask, reduction="none")
        grads = torch.autograd.grad((found * torch.arange(1.0, B + 1)).sum(), [nodes, *crf.parameters()])
    return found, *grads


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("forbidden", [False, True])
def test_loss(mask, forbidden):
    allowed = ~torch.eye(N).bool() if forbidden else None
    crf = CRF(N, batch_first=True, allowed=allowed)
    nodes, tags = torch.randn(B, T, N), torch.arange(T).expand(B, T) % N
    if mask is not None:  # what is masked may be anything
        nodes, tags = nodes.masked_fill(~mask[..., None], torch.nan), tags.masked_fill(~mask, 9)
    ours = asked(crf, nodes, tags, mask, "always")
    truth = asked(crf.double(), nodes, tags, mask, "never")
    for one, other in zip(ours, truth, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_forbidden_tags_are_named():
    crf = CRF(N, batch_first=True, allowed=~torch.eye(N).bool())
    with ts.kernels("always"), pytest.raises(ValueError, match="got 1 before 1 in sequence 0, at 0"):
        crf(torch.randn(1, T, N), torch.ones(1, T, dtype=torch.long))
