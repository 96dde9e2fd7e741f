"""Independent sketches of one model, several at a time in a batch."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from tailsum.numerics.tiles import tile_size
from tailsum.sketch.model import Model, Propose
from tailsum.sketch.proposal import Custom, Lookahead, proposal_from
from tailsum.sketch.selection import Selection
from tailsum.structure.base import Structure


def sketches(
    model: Structure,
    count: int,
    selection: Selection,
    proposal: Propose | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Structure]:
    """`count` sketches of `model` in batches `[n, *batch]`, as large as memory allows.

    >>> from tailsum import LinearChain, Optimal
    >>> model = LinearChain(torch.randn(5, 300), torch.randn(300, 300))
    >>> [small.log_partition().shape for small in sketches(model, 8, Optimal(30))]
    [torch.Size([8])]
    """
    chosen = proposal_from(Lookahead() if proposal is None else proposal)
    chosen = chosen.listed(model) if isinstance(chosen, Lookahead) else chosen
    for start in range(0, count, most := _at_a_time(model, selection)):
        copies = model.in_batch((min(most, count - start), *model.batch_shape))
        yield copies.sketch(proposal=_of(model, chosen), selection=selection, generator=generator)


def _of(model: Model, proposal: Propose) -> Propose:
    """The proposal for a batch of copies of `model`; a user's function is called with the model itself."""
    if not isinstance(proposal, Custom):
        return proposal

    def propose(copies: Model) -> Tensor:
        log_q = proposal(model)
        return log_q.expand(*copies.batch_shape, *log_q.shape[len(model.batch_shape) :])

    return propose


def _at_a_time(model: Model, selection: Selection) -> int:
    """How many sketches fit into a batch: by the scores of all states and of pairs (of spans, triples) of kept ones."""
    kept = selection(torch.zeros(model.n_states, dtype=model.dtype), torch.Generator()).index.shape[-1]
    coupled = kept ** (len(model.node_shape) + 1)
    size = math.prod((*model.batch_shape, *model.node_shape, max(model.n_states, coupled)))
    return max(1, 4 * tile_size(model.device) // max(1, size))
