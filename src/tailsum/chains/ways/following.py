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
    ends = np.where(np.append(moves[:, 1:], np.zeros_like(moves[:, :1]), 1) == 0, final[:, None], guess)
    paths = np.empty((steps, moves.size), np.intp)
    _follow(origin, paths, ends.ravel(), np.arange(moves.size), moves.ravel(), known=False)
    while True:
        found = np.append(
            paths[0].reshape(moves.shape)[:, 1:], final[:, None], 1
        )  # a block ends where the next one begins
        wrong = np.flatnonzero(found != ends)
        if not len(wrong):
            return paths.T.reshape(*moves.shape, steps)
        ends = found
        _follow(origin, paths, ends.ravel()[wrong], wrong, moves.ravel(), known=True)


def _follow(origin: Origin, paths: States, states: States, lanes: States, moves: States, *, known: bool) -> None:
    """Fill in the paths `[L, B K]` of some lanes, until they are what they were if these are `known`."""
    given = moves[lanes]
    least = int(given.min(initial=len(paths)))
    for t in range(len(paths) - 1, -1, -1):
        came = origin(t, states, lanes)
        states = came if t < least else np.where(t < given, came, states)
        if known and t % CHECKED == 0:
            apart = states != paths[t, lanes]
            lanes, states, given = lanes[apart], states[apart], given[apart]
            if not len(lanes):
                return
        paths[t, lanes] = states
