"""New tensors without given values, full of what no kernel may leave behind."""

import math

import torch


def poison(monkeypatch) -> None:
    """Within a test, fill them with NaN, so that what a kernel does not write shows."""
    for name in ("empty_like", "empty"):
        plain = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, plain=plain, **k: _spoiled(plain(*a, **k)))
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: _spoiled(new_empty(*a, **k)))


def _spoiled(x):
    return x.fill_(math.nan if x.is_floating_point() else -12345)
