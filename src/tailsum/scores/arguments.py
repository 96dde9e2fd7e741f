"""Scores that a user gave, as potentials: a tensor is a table."""

from torch import Tensor

from tailsum.scores.potential import Dense, Potential


def as_potential(scores: object) -> Potential | None:
    """A user's argument as a potential, a tensor as a table; None if it is neither."""
    if isinstance(scores, Tensor) and scores.dim() > 1:
        return Dense(scores)
    return scores if isinstance(scores, Potential) else None


def as_nodes(scores: object) -> Potential | None:
    """A user's scores of single nodes in a form other than a tensor, as from one state to N; None for anything else."""
    potential = as_potential(scores)
    return None if potential is None else potential.of_nodes()
