"""Paths back through maps from each state to the one before it, in blocks of time that run side by side.

All blocks are followed at once, each from a guess of the state after it. Paths from other states soon meet, so a block whose
guess was wrong is followed again only until it meets its own path. K blocks of L steps of B sequences are *lanes*, B K of them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.integer[Any]]
Origin = Callable[
    [int, States, States], States
]  # from a step, states after it, and their lanes to the states before it
CHECKED = 8  # paths are compared after so many steps


def follow(origin: Origin, steps: int, guess: States, final: States, moves: States) -> States:
    """The states `[B, K, L]` before each step, from the states `final [B]` after the last block.

    `guess [B, K]` are states after each block. `moves [B, K]` are the numbers of steps that count: in the others, the state
    stays.
    """
    ended = np.append(moves[:, 1:] == 0, np.ones_like(final[:, None], bool), 1)  # blocks after which no step counts
    ends = np.where(ended, final[:, None], guess)
    paths, states, given = np.empty((steps, moves.size), np.intp), ends.ravel(), moves.ravel()
    lanes, least = np.arange(moves.size), int(given.min(initial=steps))
    for t in range(steps - 1, -1, -1):
        came = origin(t, states, lanes)
        paths[t] = states = came if t < least else np.where(t < given, came, states)
    while True:
        # A block ends where the next one begins.
        found = np.append(paths[0].reshape(moves.shape)[:, 1:], final[:, None], 1)
        wrong = np.flatnonzero(found != ends)
        if not len(wrong):
            return paths.T.reshape(*moves.shape, steps)
        ends = found
        _correct(origin, paths, ends.ravel()[wrong], wrong, given)


def _correct(origin: Origin, paths: States, states: States, lanes: States, moves: States) -> None:
    """Fill in the paths `[L, B K]` of some lanes from other ends, until they are what they were."""
    for t in range(len(paths) - 1, -1, -1):
        states = np.where(t < moves[lanes], origin(t, states, lanes), states)
        if t % CHECKED == 0:
            apart = states != paths[t, lanes]
            lanes, states = lanes[apart], states[apart]
            if not len(lanes):
                return
        paths[t, lanes] = states
