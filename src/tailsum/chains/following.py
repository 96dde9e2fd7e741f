"""Paths back through maps from each state to the one before it, in blocks of time that run side by side.

Paths from all states at the end of a block soon meet. From there on, they are the path from any end: what comes before is
followed once, and the rest again when the ends are known. K blocks of L steps of B sequences are rows of `[N, B, K]`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsum.chains.time_blocks import SHORTEST

States = NDArray[np.integer[Any]]
Origin = Callable[[int, States], States]  # from a step and places in its row `[N, B, K]` to the states they come from
CHECKED = 16  # paths are compared after so many steps


def follow(origin: Origin, steps: int, n: int, final: States, moves: States) -> States:
    """The states `[B, K, L]` before each step, from the states `final [B]` after the last block.

    `moves [B, K]` are the numbers of steps that count: in the others, the state stays.
    """
    (batch, blocks), lanes, given = moves.shape, moves.size, moves.ravel()
    lane, paths = np.arange(lanes), np.empty((steps, lanes), np.min_scalar_type(n))

    def before(t: int, states: States) -> States:
        came = origin(t, states * lanes + lane)
        return came if t < least else np.where(t < given, came, states)

    least, ends = int(moves.min(initial=steps)), final
    if blocks > 1:
        states = np.broadcast_to(np.arange(n)[:, None], (n, lanes))
        for t in range(steps - 1, -1, -1):
            states = before(t, states)
            paths[t] = states[0]
            if t % CHECKED == 0 and len(states) > 1 and (states == states[0]).all():
                states = states[:1]
        ends = _ends(np.broadcast_to(states, (n, lanes)).reshape(n, batch, blocks), final).ravel()
    states = ends
    for t in range(steps - 1, -1, -1):
        states = before(t, states)
        if blocks > 1 and t % CHECKED == 0 and np.array_equal(states, paths[t]):
            break
        paths[t] = states
    return paths.T.reshape(batch, blocks, steps)


def _ends(maps: States, final: States) -> States:
    """The state `[B, K]` after each block, from the maps `[N, B, K]` of blocks: a chain with as many steps as blocks."""
    n, batch, count = maps.shape
    length = count if count < SHORTEST else math.ceil(math.sqrt(count))
    blocks = -(-count // length)
    padded = np.concatenate((maps, np.zeros((n, batch, blocks * length - count), np.intp)), -1)
    rows = padded.reshape(n, batch, blocks, length).transpose(3, 0, 1, 2).reshape(length, -1)
    moves = np.clip(count - length * np.arange(blocks), 0, length)
    states = follow(lambda t, at: rows[t].take(at), length, n, final, np.broadcast_to(moves, (batch, blocks)))
    return np.concatenate((states.reshape(batch, -1)[:, 1:count], final[:, None]), 1)
