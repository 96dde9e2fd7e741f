"""Derivatives against finite differences."""

import torch
from torch.autograd import gradcheck, gradgradcheck


def check(function, leaves, twice=True):
    """Along a random direction in all leaves together; `function` gives tensors, which are added up with random weights."""
    shapes, sizes = [x.shape for x in leaves], [x.numel() for x in leaves]
    together = torch.cat([x.detach().flatten() for x in leaves]).requires_grad_()

    def run(x):
        values = function(*(part.reshape(shape) for part, shape in zip(x.split(sizes), shapes, strict=True)))
        g = torch.Generator().manual_seed(0)
        return sum((v * torch.randn(v.shape, generator=g, dtype=v.dtype)).sum() for v in values)

    how = {"fast_mode": True, "check_undefined_grad": False}
    assert gradcheck(run, together, **how)
    assert not twice or gradgradcheck(run, together, fast_mode=True)
