"""Sequences that do not fit in memory: the same numbers from chunks, one at a time."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.hmm.core import MarkovModel
from tailsum.hmm.moves import Moves
from tailsum.hmm.online import Online
from tailsum.hmm.sequences import Data, Sequences, chunk
from tailsum.numerics.tensors import finite


def smoothed_chunks(model: MarkovModel, chunks: Sequence[Data]) -> Iterator[tuple[int, Float[Tensor, "B L n"]]]:
    """The number of each chunk and the probability of each state at its positions, given all chunks; the last chunk first.

    `chunks[i]` is called for twice, and may read from a disk. One chunk is held at a time, and a few numbers for each of the others.
    """
    moves, starts, online = Moves(model.transition), list[Tensor](), None
    for i in range(len(chunks)):
        given = chunk(model.emission, chunks[i])
        if online is None:
            online = Online(model, (len(given.data),))
        starts.append(online.log_predict(1 if i else 0))
        online.extend(given.data)
    later: Tensor | None = None  # log of what the later chunks say of the last state of this one, but for a constant
    for i in range(len(chunks) - 1, -1, -1):
        with torch.no_grad():
            marginals, said = _smoothed(model, chunk(model.emission, chunks[i]), starts[i], later)
            later = moves.back(said)
        yield i, marginals


def _smoothed(model: MarkovModel, given: Sequences, start: Tensor, later: Tensor | None) -> tuple[Tensor, Tensor]:
    """The marginals of a chunk, and the log of what it and all later ones say of its first state, but for a constant."""
    chain, _ = model.chain_and_rows(given, start)
    if later is not None:
        nodes = chain.node_scores().clone()
        nodes[:, -1] += later
        chain = type(chain)(nodes, chain.transition)
    marginals = chain.marginals()
    value = marginals[:, 0].log() - finite(start)
    return marginals, value - finite(value.amax(-1, keepdim=True))


def streamed_log_likelihood(model: MarkovModel, chunks: Iterable[Data]) -> Float[Tensor, " B"]:
    """The log-likelihoods of sequences that come in chunks, `[B]` in float64."""
    online: Online | None = None
    for part in chunks:
        given = chunk(model.emission, part)
        if online is None:
            online = Online(model, (len(given.data),))
        online.extend(given.data)
    if online is None:
        raise ValueError("chunks must hold at least one chunk: got none")
    return online.log_likelihood
