"""The loss and the decoding of a CRF in the subset of Python that TorchScript compiles, so that a CRF can be scripted or traced.

TorchScript cannot compile `LinearChain`. These are plain log-space steps, exact, with tables of pairs for each sequence at
each step. Nodes are `[T, B, N]`; masks may have holes. Docstrings give the shapes, as TorchScript reads the types.
"""

import functools
import math
import warnings
from typing import Any

import torch
from torch import Tensor

# Scores of the first tag [N], of pairs (from, to) [N, N], and of the last tag [N].
Tables = tuple[Tensor, Tensor, Tensor]


def log_likelihood(
    emissions: Tensor, tags: Tensor, mask: Tensor | None, reduction: str, batch_first: bool, tables: Tables
) -> Tensor:
    """`CRF.forward`; minus infinity where no path agrees with the tags."""
    if reduction not in ("none", "sum", "mean", "token_mean"):
        raise ValueError(f"reduction must be one of none, sum, mean, token_mean: got {reduction}")
    nodes, inside = positions(emissions, mask, batch_first, tables)
    agreeing = agreement(tags.transpose(0, 1) if batch_first else tags, nodes, inside)
    known = nodes.masked_fill(~agreeing, -math.inf)
    sums = all_paths(torch.cat((known, nodes), 1), torch.cat((inside, inside), 1), tables)
    score, total = sums.chunk(2)
    log_prob = torch.where(score == -math.inf, score, score - total)
    if reduction == "none":
        return log_prob
    if reduction == "mean":
        return log_prob.mean()
    return log_prob.sum() / inside.sum() if reduction == "token_mean" else log_prob.sum()


def best_paths(emissions: Tensor, mask: Tensor | None, batch_first: bool, tables: Tables) -> list[list[int]]:
    """`CRF.decode`."""
    nodes, inside = positions(emissions, mask, batch_first, tables)
    start, pairs, end = tables
    score, begun, same = start + nodes[0], inside[0], torch.arange(nodes.shape[2], device=nodes.device)
    came: list[Tensor] = []
    for t in range(1, nodes.shape[0]):
        best, before = (score[:, :, None] + pairs).max(1)
        follows, here = begun[:, None], inside[t][:, None]
        score = torch.where(here, torch.where(follows, best, start) + nodes[t], score)
        came.append(torch.where(here & follows, before, same))
        begun = begun | inside[t]
    highest, tag = (score + end).max(1)
    path = [tag]
    for i in range(len(came)):
        path.append(came[len(came) - 1 - i].gather(1, path[i][:, None])[:, 0])
    tags = torch.stack(path).flip(0).masked_fill(highest == -math.inf, -1)
    paths: list[list[int]] = []
    for b in range(tags.shape[1]):
        row: list[int] = tags[:, b][inside[:, b]].tolist()
        paths.append(row)
    return paths


def only(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """The scores, or minus infinity where not allowed."""
    return scores if allowed is None else scores.masked_fill(~allowed, -math.inf)


def positions(emissions: Tensor, mask: Tensor | None, batch_first: bool, tables: Tables) -> tuple[Tensor, Tensor]:
    """Nodes `[T, B, N]`, zero where masked, and the mask `[T, B]`."""
    num_tags = tables[0].shape[0]
    if not emissions.is_floating_point() or emissions.dim() != 3 or emissions.shape[2] != num_tags:
        raise ValueError(
            f"emissions must have three dimensions, the last num_tags = {num_tags}, and be floating-point: got {emissions.shape}"
        )
    length = emissions.shape[1] if batch_first else emissions.shape[0]
    if length == 0:
        raise ValueError(f"emissions must have at least one position: got {emissions.shape}")
    if mask is None:
        mask = torch.ones(emissions.shape[:2], dtype=torch.bool, device=emissions.device)
    if mask.dim() != 2 or mask.shape[0] != emissions.shape[0] or mask.shape[1] != emissions.shape[1]:
        raise ValueError(f"mask must be as the first two dimensions of emissions {emissions.shape}: got {mask.shape}")
    if mask.is_floating_point():
        raise ValueError("mask must be boolean or integers")
    inside = (mask != 0).transpose(0, 1) if batch_first else mask != 0
    if not bool(inside.any(0).all()):
        raise ValueError("mask must leave at least one position of each sequence")
    nodes = emissions.transpose(0, 1) if batch_first else emissions
    if nodes.dtype == torch.half or nodes.dtype == torch.bfloat16:  # noqa: PLR1714  (TorchScript)
        nodes = nodes.float()
    nodes = nodes.masked_fill(~inside[:, :, None], 0.0)
    if bool(torch.isnan(nodes).any()) or bool((nodes == math.inf).any()):
        raise ValueError("emissions must not hold NaN or +inf (-inf forbids)")
    return nodes, inside


def agreement(tags: Tensor, nodes: Tensor, inside: Tensor) -> Tensor:
    """Which tags `[T, B, N]` each position may have: the known one, all of them where it is -1, or a set."""
    length, batch, num_tags = nodes.shape
    dims = 3 if tags.dtype == torch.bool else 2
    if (
        tags.dim() != dims
        or tags.shape[0] != length
        or tags.shape[1] != batch
        or (dims == 3 and tags.shape[2] != num_tags)
    ):
        raise ValueError(
            f"tags must be as the first two dimensions of emissions, or boolean as all three: got {tags.shape}"
        )
    if tags.is_floating_point():
        raise ValueError("tags must be integers or boolean")
    if dims == 3:
        return tags | ~inside[:, :, None]
    if bool((inside & ((tags < -1) | (tags >= num_tags))).any()):
        raise ValueError(f"tags must lie between 0 and num_tags-1 = {num_tags - 1}, or be -1 for any tag")
    unknown = (tags == -1) | ~inside
    return (tags[:, :, None] == torch.arange(num_tags, device=tags.device)) | unknown[:, :, None]


def all_paths(nodes: Tensor, inside: Tensor, tables: Tables) -> Tensor:
    """The log-partition of each sequence `[B]`."""
    start, pairs, end = tables
    score, begun = start + nodes[0], inside[0]
    for t in range(1, nodes.shape[0]):
        before = torch.where(begun[:, None], log_sum_exp(score[:, :, None] + pairs), start)
        score = torch.where(inside[t][:, None], before + nodes[t], score)
        begun = begun | inside[t]
    return log_sum_exp((score + end)[:, :, None])[:, 0]


def log_sum_exp(x: Tensor) -> Tensor:
    """The log-sum over dimension 1, with finite gradients where all entries are minus infinity."""
    highest = x.detach().amax(1, keepdim=True)
    highest = highest.masked_fill(highest == -math.inf, 0.0)
    total = (x - highest).exp().sum(1)
    never = total == 0
    return total.masked_fill(never, 1.0).log().masked_fill(never, -math.inf) + highest[:, 0]


@functools.cache
def compiled(function: Any) -> Any:
    """The function compiled, for calls in a trace, which would otherwise freeze its loops and branches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # users of traces know that torch.jit is deprecated
        return torch.jit.script(function)
