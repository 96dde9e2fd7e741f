"""Kernels under another default type of torch: what they work in is made with a type of its own."""

import pytest
import torch

from tailsum import PCFG, LinearChain, Lookahead, kernels

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter: the logarithm of zero

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Of which kernels work in tensors of their own.
MODELS = {
    "sketch": (
        lambda e, t: LinearChain(e, t).sketch(3, proposal=Lookahead(4, 1, neighbours=2), generator=seeded()),
        [(1, 3, 9), (9, 9)],
    ),
    "grammar": (PCFG, [(2,), (2, 3, 3), (1, 3, 1)]),
}


def seeded():
    return torch.Generator(DEVICE).manual_seed(0)


@pytest.mark.parametrize("name", MODELS)
def test_the_default_type_changes_nothing(name):
    make, shapes = MODELS[name]
    inputs = [torch.randn(shape).to(DEVICE) for shape in shapes]

    def results():
        given = [x.clone().requires_grad_() for x in inputs]
        model = make(*given)
        found = [model.log_partition(), model.entropy()]
        return [*found, *torch.autograd.grad(sum(x.sum() for x in found), given, materialize_grads=True)]

    with kernels("always"):
        expected = results()
        torch.set_default_dtype(torch.float64)
        try:
            found = results()
        finally:
            torch.set_default_dtype(torch.float32)
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y)
