"""Binary trees over the positions of a sentence, the configurations of tree structures, and their checks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.numerics.check import check_broadcast, check_whole
from tailsum.structure.k_best import at_index

Names = Sequence[str] | Callable[[int], str]


class Trees(NamedTuple):
    """Trees as lists of their spans, parents before children and left before right; -1 in the padding.

    A sentence of L positions has `2L-1` spans: L leaves, of one position each, and L-1 others.
    """

    spans: Int[Tensor, "*sample_batch node 2"]
    states: Int[Tensor, "*sample_batch node"]

    def at(self, index: int | tuple[int, ...] | slice | Int[Tensor, "..."]) -> "Trees":
        """Trees of a batch or of samples: `trees.at(0)`, `trees.at((2, 1))`; `trees[0]` is the field `spans`.

        >>> Trees(torch.zeros(4, 2, 3, 2).long(), torch.zeros(4, 2, 3).long()).at((3, 1)).states
        tensor([0, 0, 0])
        """
        return Trees(*at_index(self, index, self.states.dim() - 1))

    def brackets(self, words: Sequence[str] | None = None, names: Names | tuple[Names, Names] | None = None) -> str:
        """One tree as text.

        `names` of the states are a list or a function; for a grammar give a pair, of the nonterminals and of the
        preterminals (the states of spans of one position).

        >>> tree = Trees(torch.tensor([[0, 1], [0, 0], [1, 1]]), torch.tensor([7, 3, 5]))
        >>> tree.brackets(["small", "cats"])
        '(7 (3 small) (5 cats))'
        >>> tree.brackets(names=(lambda i: f"NT-{i}", lambda i: f"T-{i}"))
        '(NT-7 (T-3 0) (T-5 1))'
        """
        if self.states.dim() != 1:
            raise ValueError(f"brackets are of one tree: got {list(self.states.shape)}; choose one first, as by at(0)")
        inner, leaves = names_by_kind(names)
        length = 1 + max([-1, *self.spans[..., 1].tolist()])
        if words is not None and len(words) < length:
            raise ValueError(f"words must have one for each of {length} positions: got {len(words)}")
        text, open_until = "", list[int]()
        for (first, last), state in zip(self.spans.tolist(), self.states.tolist(), strict=True):
            if first < 0:
                continue
            text += f"{' ' if text else ''}({_name(state, leaves if first == last else inner)}"
            open_until.append(last)
            if first == last:
                text += f" {first if words is None else words[first]}"
                while open_until and open_until[-1] == last:
                    text += ")"
                    open_until.pop()
        return text


torch.serialization.add_safe_globals([Trees])  # for torch.load(.., weights_only=True)


def names_by_kind(names: Any) -> tuple[Any, Any]:
    """The names of spans of several positions and of one: a pair, unless it is a list of two names."""
    pair = isinstance(names, tuple) and len(names) == 2 and not any(isinstance(x, str) for x in names)
    return names if pair else (names, names)


def _name(state: int, names: Names | None) -> str:
    if names is None:
        return str(state)
    if callable(names):
        return names(state)
    if state >= len(names):
        raise ValueError(f"names must have one for each state, {state} among them: got {len(names)}")
    return names[state]


def tree_parts(tree: Trees, length: int, n_states: int, dtype: torch.dtype) -> Float[Tensor, "*sample_batch T T n"]:
    """The number of times that a tree uses each span and state: one or zero."""
    spans, states = tree
    used = torch.zeros(*states.shape[:-1], length * length * n_states, dtype=dtype, device=states.device)
    place = (spans[..., 0] * length + spans[..., 1]) * n_states + states
    used.scatter_add_(-1, torch.where(states >= 0, place, 0), (states >= 0).to(dtype))
    return used.unflatten(-1, (length, length, n_states))


def children(tree: Trees, length: int, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Head, left and right child of every span of a tree in rule ids, `[.., node]` each; -1 where it has no children."""
    spans, states = tree
    first, last = spans.clamp(min=0).unbind(-1)
    number = torch.where(first == last, states + n_heads, states)  # preterminals come after the nonterminals
    table = torch.full((*states.shape[:-1], length * length), -1, device=states.device)
    place = torch.where(states < 0, length * length, first * length + last)
    table = F.pad(table, (0, 1)).scatter(-1, place, number)[..., :-1].unflatten(-1, (length, length))
    position = torch.arange(length, device=states.device)
    begun = table.take_along_dim(first[..., None], -2)  # spans with the same first position, by their last position
    ended = F.pad(table[..., 1:, :], (0, 0, 0, 1), value=-1).take_along_dim(last[..., None, :], -1).mT
    makes = (begun >= 0) & (ended >= 0) & (position < last[..., None])
    split = makes.long().argmax(-1, keepdim=True)
    inner = makes.any(-1) & (states >= 0)
    left, right = (x.gather(-1, split)[..., 0] for x in (begun, ended))
    return tuple(torch.where(inner, x, -1) for x in (states, left, right))  # pyright: ignore[reportReturnType]


def check_tree(tree: Trees, lengths: Int[Tensor, "*batch"], longest: int) -> Trees:
    """The trees in a common batch; a ValueError unless each is a binary tree over its whole sentence, or empty (-1)."""
    if not isinstance(tree, Trees):
        raise ValueError(f"tree must be Trees: got {type(tree).__name__}")
    spans, states = check_whole("tree.spans", tree.spans), check_whole("tree.states", tree.states)
    nodes = 2 * longest - 1
    if spans.shape != (*states.shape, 2) or states.shape[-1:] != (nodes,):
        raise ValueError(
            f"tree must have spans [..., {nodes}, 2] and states [..., {nodes}]: "
            f"got {list(spans.shape)} and {list(states.shape)}"
        )
    shape = check_broadcast("tree", states.shape[:-1], lengths.shape, "the model's")
    spans, states = spans.expand(*shape, -1, -1), states.expand(*shape, -1)
    present = spans[..., 0] >= 0
    states = torch.where(present, states, -1)
    within = (spans[..., 0] <= spans[..., 1]) & (spans[..., 1] < lengths[..., None]) & (states >= 0)
    empty = ~present.any(-1)
    valid = (within | ~present).all(-1) & (empty | (present.sum(-1) == 2 * lengths - 1))
    if valid.all():
        once = tree_parts(Trees(spans, torch.where(present, 0, -1)), longest, 1, torch.float32)[..., 0]
        # The number of pairs of neighbouring spans that make up each span.
        splits = once @ F.pad(once[..., 1:, :], (0, 0, 0, 1))
        whole = once[..., 0, :].gather(-1, lengths.expand(shape)[..., None] - 1)[..., 0]
        made = (once <= 1) & ((splits == 1) | (once.triu(1) == 0))
        valid = empty | (made.all((-2, -1)) & (whole == 1))
    if not valid.all():
        raise ValueError("tree must be a binary tree over its whole sentence: got one that is not")
    return Trees(spans, states)
