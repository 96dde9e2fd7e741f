"""New tensors without given values, full of what no kernel may leave behind."""

import math

import torch


def poison(monkeypatch) -> None:
    """Within a test, fill them with NaN, so that what a kernel does not write shows."""
    fill_empty(monkeypatch.setattr, lambda x: x.fill_(math.nan if x.is_floating_point() else -12345))


def fill_empty(replace, fill) -> None:
    """By `replace(owner, name, value)` have all of them filled."""
    for owner, name in ((torch, "empty_like"), (torch, "empty"), (torch.Tensor, "new_empty")):
        plain = getattr(owner, name)
        replace(owner, name, lambda *a, plain=plain, **k: fill(plain(*a, **k)))
