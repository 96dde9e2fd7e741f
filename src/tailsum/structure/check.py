"""Checks of users' arguments. Each raises a ValueError that names the argument, its value and what it should be."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from tailsum.numerics.check import (
    are_scores,
    as_whole,
    check_broadcast,
    check_in_range,
    check_scores,
    check_tensor,
    check_whole,
    shape_or_type,
)
from tailsum.numerics.transforms import some, values_of
from tailsum.scores.arguments import as_nodes, as_potential
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.selection import Subset


def check_potential(name: str, potential: Potential) -> None:
    """Checks that every tensor of a potential is valid."""
    potential.check(name)


def node_potential(name: str, scores: Tensor | Factored, form: str, allowed: str = "a tensor or Factored") -> Potential:
    """Scores of the states of single nodes, from a tensor or factors, as a potential from one state to N."""
    if isinstance(scores, Tensor):
        check_tensor(name, scores)
        if scores.dim() < 2:
            raise ValueError(f"{name} must be {form}: got {list(scores.shape)}")
        return Dense(scores.unsqueeze(-2))
    nodes = as_nodes(scores)
    if nodes is None:
        raise ValueError(f"{name} must be {allowed}: got {type(scores).__name__}")
    return nodes


def check_nodes(name: str, nodes: Potential) -> None:
    """`check_potential` for scores of single nodes; errors give places in the tensor that the user gave."""
    nodes.as_given().check(name)


def check_nodes_and_pairs(nodes: tuple[str, Potential], pairs: tuple[str, Potential]) -> None:
    """Both checks, with one look at the device if there is nothing wrong; potentials by their names."""
    both = nodes[1], pairs[1]
    plain = all(type(x).check is Potential.check for x in both) and pairs[1].device == nodes[1].device
    if not (plain and are_scores(*(x for potential in both for x in potential.tensors))):
        check_nodes(*nodes)
        check_potential(*pairs)


def check_lengths(lengths: Tensor, longest: int, name: str = "lengths", least: int = 1) -> None:
    """Checks for lengths between `least` and the number of positions."""
    wrong = (lengths < least) | (lengths > longest)
    if some(wrong):
        first = values_of(lengths)[values_of(wrong)][0].item()
        raise ValueError(f"{name} must lie between {least} and {longest}, the number of positions: got {first}")


def checked_lengths(
    lengths: Tensor | Sequence[int] | None,
    batch: torch.Size,
    longest: int,
    device: torch.device,
    name: str = "lengths",
    least: int = 1,
) -> tuple[torch.Size, Tensor | None]:
    """The joint batch shape of scores and lengths, and the lengths expanded to it, if given."""
    if lengths is None:
        return batch, None
    lengths = as_whole(name, lengths, device)
    check_lengths(lengths, longest, name, least)
    shape = check_broadcast(name, lengths.shape, batch, "that of the scores,")
    return shape, lengths.expand(shape)


def check_states(
    states: Tensor, inside: Tensor, node: torch.Size, n_states: int, letter: str = "T"
) -> Int[Tensor, "*sample_batch_node"]:
    """States of nodes within range, or -1 throughout; set to -1 in the padding (outside `inside [*batch, T]`)."""
    states, batch = check_whole("states", states), inside.shape[:-1]
    if states.shape[states.dim() - len(node) :] != node:
        sizes = f"{letter}] with {letter} = {node[0]}" if len(node) == 1 else f"{', '.join(map(str, node))}]"
        raise ValueError(f"states must be [..., {sizes}: got {list(states.shape)}")
    shape = check_broadcast("states", states.shape[: -len(node)], batch, "the model's")
    dims = tuple(range(-len(node), 0))
    inside = inside.reshape(*inside.shape, *(1,) * (len(node) - 1))
    states = torch.where(inside, states.expand(*shape, *node), -1)
    check_in_range("states", states, n_states)
    gaps = (states < 0) & inside & (states >= 0).any(dims, keepdim=True)
    if letter and some(gaps):
        raise ValueError(f"states must lie between 0 and N-1 = {n_states - 1}: got one outside")
    return states


def check_lead(
    name: str,
    scores: Tensor | Potential,
    n_states: int,
    last: tuple[int, ...],
    device: torch.device,
    like: str,
    what: str = "steps",
) -> Potential:
    """The scores as a potential between N and N states, its last leading dimension (if any) 1 or one of `last`."""
    pairs = as_potential(scores)
    if pairs is None:
        raise ValueError(
            f"{name} must be a potential or a tensor [N, N] or [*batch, {last[-1]}, N, N]: got {shape_or_type(scores)}"
        )
    if pairs.node_sizes != (n_states, n_states):
        raise ValueError(
            f"{name} must join {n_states} states with {n_states}, as {like} has: got {pairs.n_from} with {pairs.n_to}"
        )
    if pairs.lead and pairs.lead[-1] not in (1, *last):
        raise ValueError(f"{name} must have 1 or {last[-1]} {what} in dimension -3: got {pairs.lead[-1]}")
    pairs.check_tensors(name, device)
    return pairs.on(device)


def check_subset(subset: Subset, batch: torch.Size, node: torch.Size, n_states: int, name: str = "subset") -> None:
    """Checks for an index and log weights of one shape that broadcasts to `[*batch, *node, K]`, with states in range."""
    if not isinstance(subset, Subset):
        raise ValueError(f"{name} must be a Subset: got {type(subset).__name__}")
    index, log_weight = subset.index, subset.log_weight
    check_tensor(f"{name}.index", index)
    check_tensor(f"{name}.log_weight", log_weight)
    lead = index.shape[:-1]
    fits = index.dim() > len(node) and index.shape == log_weight.shape and index.shape[-1] > 0
    fits = fits and lead[len(lead) - len(node) :] == node and broadcasts_to(lead, (*batch, *node))
    whole = not index.is_floating_point() and index.dtype != torch.bool
    if not fits or not whole:
        raise ValueError(
            f"{name} must have an integer index and a log_weight of one shape, {[*batch, *node, 'K']}: "
            f"got {index.dtype} {list(index.shape)} and {list(log_weight.shape)}"
        )
    if some((index < 0) | (index >= n_states)):
        raise ValueError(f"{name}.index must lie between 0 and N-1 = {n_states - 1}: got one outside")
    check_scores(f"{name}.log_weight", log_weight)


def broadcasts_to(shape: Sequence[int], larger: Sequence[int]) -> bool:
    """Whether tensors of one shape broadcast to another."""
    return len(shape) <= len(larger) and all(a in (1, b) for a, b in zip(shape[::-1], larger[::-1], strict=False))
