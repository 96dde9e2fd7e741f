"""Derivatives within an operation, in any grad mode of its caller: recorded if the caller records."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tailsum.numerics.precision import full_precision
from tailsum.scores.base import Scores
from tailsum.structure.terms import Terms, recordable, requires_grad


@contextmanager
def differentiating(device: torch.device, *terms: tuple[Scores, ...]) -> Iterator[tuple[Any, ...]]:
    """A context in which sums of the terms can be differentiated: in full precision, in inference mode too.

    It yields whether to record the derivatives (the caller records, and some score requires a gradient), and then each of
    the terms, in tensors that autograd can keep. Compute the terms before, in the caller's mode.

    >>> from tailsum import LinearChain
    >>> chain = LinearChain(torch.zeros(4, 2), torch.zeros(2, 2))
    >>> with torch.inference_mode(), differentiating(chain.device, chain.summed()) as (recording, terms):
    ...     recording, torch.is_grad_enabled()
    (False, True)
    """
    recording = torch.is_grad_enabled() and requires_grad(*terms)
    with torch.inference_mode(False), torch.enable_grad(), full_precision(device):
        yield recording, *map(recordable, terms)


@contextmanager
def recording_as_before(device: torch.device, terms: Terms) -> Iterator[Terms]:
    """A context for operations whose derivatives are autograd functions of their own: gradients are recorded as before.

    It yields the terms, in tensors that autograd can keep.
    """
    recording = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(recording), full_precision(device):
        yield recordable(terms)
