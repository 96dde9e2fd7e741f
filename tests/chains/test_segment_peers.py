"""The same segmentations in other libraries."""

import pytest
import torch

import tailsum as ts
from harness.peers import (
    FORBIDDEN,
    QUIET,
    agree,
    allow,
    best_score,
    draw,
    given,
    gradient,
    seeds,
    some_forbidden,
    two_seeds,
)

pytestmark = QUIET


def semi_markov_edges(segment, transition):
    """torch-struct's edges `[batch, start, duration, to, from]` between boundaries 0 .. T; duration 0 is never used.

    Its states stand at boundaries, one more than there are segments. Here the state at a segment's end is the
    segment's own, and the one at its start is that of the segment before; the first boundary must have state 0, or all
    segmentations would be counted once for each of its states.
    """
    batch, length, longest, size = segment.shape
    edges = torch.full((batch, length, longest + 1, size, size), FORBIDDEN, dtype=segment.dtype)
    before = transition.mT.expand(length - 1, size, size)  # [boundary, to, from]
    edges[:, 1:, 1:] = segment[:, 1:, :, :, None] + before[:, None]
    edges[:, 0, 1:, :, 0] = segment[:, 0]
    return edges.clamp(min=FORBIDDEN)


@two_seeds
@some_forbidden
@pytest.mark.parametrize(("longest", "shared"), [(1, True), (2, False), (3, True), (6, False)])
def test_semi_markov(torch_struct, seed, forbid, longest, shared):
    # One sequence at a time: with lengths, torch-struct 0.5 has segments of more than one position only within the
    # shortest sequence of the batch (semimarkov.py: `end = torch.min(lengths) - 1`), and sums too little for others.
    lengths = [5, 3, 1]
    segment = draw(seed, 3, 5, longest, 3, forbid=forbid)
    transition = draw(seed + 10, *(() if shared else (4,)), 3, 3, forbid=forbid)
    allow(segment[:, :, 0, 0], transition[..., 0, 0])
    ours = ts.SemiMarkov(segment, transition, lengths)
    values = torch.stack([ours.log_partition(), best_score(ours), ours.entropy()], -1)
    marginals, parts = ours.marginals(), ours.parts(ours.argmax())
    for b, length in enumerate(lengths):
        step = transition if shared else transition[: length - 1]
        theirs = torch_struct.SemiMarkovCRF(semi_markov_edges(given(segment[b : b + 1, :length]), given(step)))
        agree(values[b], torch.cat([theirs.partition, theirs.max, theirs.entropy]))
        agree(marginals[b : b + 1, :length], theirs.marginals[:, :, 1:].sum(-1))
        agree(parts[b : b + 1, :length], theirs.argmax[:, :, 1:].sum(-1))
        assert not marginals[b, length:].any()
        assert not parts[b, length:].any()


@seeds
def test_semi_markov_gradient(torch_struct, seed):
    segment, transition = draw(seed, 2, 5, 3, 2).requires_grad_(), draw(seed + 10, 2, 2).requires_grad_()
    ours = ts.SemiMarkov(segment, transition)
    theirs = torch_struct.SemiMarkovCRF(semi_markov_edges(segment, transition))
    for mine, other in ((ours.log_partition(), theirs.partition), (ours.entropy(), theirs.entropy)):
        for x, y in zip(gradient(mine, segment, transition), gradient(other, segment, transition), strict=True):
            agree(x, y)


def counted_down(segment, transition, lengths):
    """A semi-Markov model as torch-struct's chain, whose states (state, positions still to come) count down.

    The pairs `[batch, T-1, to, from]` hold the scores of a segment at the step into it, those of the first one also at
    the first step; a segment that would reach into the padding is forbidden where it starts.
    """
    batch, length, longest, size = segment.shape
    within = torch.arange(length)[:, None] + torch.arange(longest) < lengths[:, None, None]
    segment = torch.where(within[..., None], segment, FORBIDDEN)
    pairs = torch.full((batch, length - 1, longest, size, longest, size), FORBIDDEN, dtype=segment.dtype)
    for state in range(size):
        for left in range(1, longest):
            pairs[:, :, left - 1, state, left, state] = 0.0
    pairs[..., 0, :] = pairs[..., 0, :].clone().fill_(0.0) + segment[:, 1:, :, :, None] + transition.mT
    first = segment[:, 0, None, None, :, :]
    pairs = torch.cat([pairs[:, :1] + first[:, None], pairs[:, 1:]], 1)
    return pairs.reshape(batch, length - 1, longest * size, longest * size)


@seeds
@pytest.mark.parametrize("longest", [2, 4])
def test_semi_markov_as_chain(torch_struct, seed, longest):
    segment, transition = draw(seed, 4, 6, longest, 3).requires_grad_(), draw(seed + 10, 3, 3).requires_grad_()
    lengths = torch.tensor([6, 5, 3, 2])  # a chain of one position has no pairs
    ours = ts.SemiMarkov(segment, transition, lengths)
    theirs = torch_struct.LinearChainCRF(counted_down(segment, transition, lengths), lengths=lengths)
    agree(ours.log_partition(), theirs.partition)
    agree(best_score(ours), theirs.max)
    agree(ours.entropy(), theirs.entropy)
    for mine, other in ((ours.log_partition(), theirs.partition), (ours.entropy(), theirs.entropy)):
        for x, y in zip(gradient(mine, segment, transition), gradient(other, segment, transition), strict=True):
            agree(x, y)
    agree(ours.marginals(), torch.autograd.grad(theirs.partition.sum(), segment)[0])
