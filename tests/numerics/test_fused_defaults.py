"""Kernels under another default dtype of torch: their work tensors name their dtype."""

import pytest
import torch

from tailsum import PCFG, LinearChain, Lookahead, kernels

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter: the logarithm of zero

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Models whose kernels use work tensors.
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
        leaves = [x.clone().requires_grad_() for x in inputs]
        model = make(*leaves)
        values = [model.log_partition(), model.entropy()]
        return [*values, *torch.autograd.grad(sum(x.sum() for x in values), leaves, materialize_grads=True)]

    with kernels("always"):
        expected = results()
        torch.set_default_dtype(torch.float64)
        try:
            values = results()
        finally:
            torch.set_default_dtype(torch.float32)
    for x, y in zip(values, expected, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y)
