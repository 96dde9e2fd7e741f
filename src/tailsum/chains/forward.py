"""Forward messages of a chain, by the first of the planner's ways that is accurate for the range of its scores."""

import math

import torch
from torch import Tensor

from tailsum.chains import plan, small_chains
from tailsum.chains.messages import Forward, Summed, normalised
from tailsum.chains.ways import log_kernels
from tailsum.chains.ways.gauge import in_another_gauge
from tailsum.chains.ways.log_steps import log_space_scan
from tailsum.chains.ways.products import by_products
from tailsum.numerics.fused.kernel import Kernel
from tailsum.numerics.kernels import fused
from tailsum.numerics.tensors import unmasked
from tailsum.scores.potential import Dense, Potential


def summed(node: Tensor, pairs: Potential, last: Tensor) -> Summed | None:
    """The forward recursion by products without underflow; None if that needs log space.

    `node [T, B, N]` are scores, `pairs` a flat potential, and `last [B]` the last position of each sequence.
    """
    for way in plan.sums(node, pairs, last):
        if way == "products":
            result = by_products(node, pairs, last)
        else:
            sum_up = by_products if way == "products in float64" else in_another_gauge
            result = sum_up(node.double(), pairs.to(torch.float64), last)
        if result is not None:
            return result
    return None


def forward_messages(node: Tensor, pairs: Potential, last: Tensor) -> Forward:
    """Forward messages from scores `node [T, B, N]` and a flat potential; `last [B]` is each last position.

    They are in float64 if their states are so far apart that float32 has no digits for what decides between them, as where
    every path breaks a finite mask.
    """
    if len(node) == 1:
        return normalised(node, pairs)
    if plan.takes_log_kernels(node.shape[1], len(node), node.shape[2], pairs):
        node = node.transpose(0, 1)
        return Forward(*chain_messages(node, *log_kernels.params_of(node, pairs), last=last))
    result = summed(node, pairs, last)
    if result is None:
        return log_space_scan(node.double(), pairs.to(torch.float64))
    messages = result.all_messages()
    return messages if result.left_out is not None else Forward(messages.log_mass.to(node.dtype), messages.offset)


def log_partition(node: Tensor, pairs: Potential, last: Tensor) -> Tensor:
    """Log-partition `[B]` in float64, from scores `node [B, T, N]`; other arguments as of `forward_messages`."""
    batch, length, n = node.shape
    if plan.takes_small_kernels(batch, length, n, pairs) and fused(node):
        return small_log_sum(node, pairs.tabled().scores[:, 0], last=last)
    if length > 1 and plan.takes_log_kernels(batch, length, n, pairs):
        return chain_log_sum(node, *log_kernels.params_of(node, pairs), last=last)
    return forward_messages(node.transpose(0, 1).contiguous(), pairs, last).log_sum(pairs, last)


def _log_sum(node: Tensor, *params: Tensor, last: Tensor) -> Tensor:
    return log_partition(node, log_kernels.pairs_of(params), last)


def _messages(node: Tensor, *params: Tensor, last: Tensor) -> Forward:
    return forward_messages(node.transpose(0, 1), log_kernels.pairs_of(params), last)


def _small_log_sum(
    node: Tensor,
    table: Tensor,
    *,
    last: Tensor | None = None,
    exact: bool = False,  # noqa: ARG001  (what the launches are told)
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    scores = unmasked(small_chains.cleaned(node, last))
    return log_partition(scores, Dense(table[:, None]).unmasked(), small_chains.last_positions(node, last)).to(dtype)


def _small_log_prob(
    node: Tensor, table: Tensor, *, path: Tensor, last: Tensor | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    path = path if last is None else torch.where(small_chains.inside(path, last), path, 0)
    tables = table.double().repeat_interleave(len(path) // len(table), 0)
    pairs = tables[torch.arange(len(path), device=path.device)[:, None], path[:, :-1], path[:, 1:]]
    states = node.double().gather(-1, path[..., None])[..., 0]
    if last is not None:
        inside = small_chains.inside(path, last)
        states, pairs = torch.where(inside, states, 0.0), torch.where(inside[:, 1:], pairs, 0.0)
    score = unmasked(states).sum(-1) + unmasked(pairs).sum(-1)
    impossible = score == -math.inf
    return (score - _small_log_sum(node, table, last=last)).masked_fill(impossible, -math.inf).to(dtype)


_of_logs = log_kernels.example, log_kernels.SIZES, log_kernels.LARGE
chain_log_sum = Kernel("log_chains", _log_sum, *_of_logs)
chain_messages = Kernel("log_messages", _messages, *_of_logs)
small_log_sum = Kernel("small_chains", _small_log_sum, small_chains.example, *small_chains.sized())
small_log_prob = Kernel("small_chains", _small_log_prob, small_chains.example, *small_chains.sized(path=1))
