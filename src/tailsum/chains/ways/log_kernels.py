"""Log-partition and messages by kernels in log space, for chains that `small_chains` does not take.

In float32, so not where all paths break a mask such as -1e9: there the kernels leave it to the reference.
"""

import torch
from torch import Tensor

from tailsum.chains import plan
from tailsum.chains.messages import Forward
from tailsum.numerics.fused.kernel import Example, Kernel
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Dense, Potential


def fused_log_partition(node: Tensor, pairs: Potential, last: Tensor) -> Tensor:
    """Log Z `[B]` in float64 from scores `node [B, T, N]` and a flat potential; `last [B]` is each last position."""
    return chain_log_sum(node, *_tabled(node, pairs).tensors, last=last)


def fused_messages(node: Tensor, pairs: Potential, last: Tensor) -> Forward:
    """Forward messages; arguments as of `fused_log_partition`."""
    return Forward(*chain_messages(node, *_tabled(node, pairs).tensors, last=last))


def _tabled(node: Tensor, pairs: Potential) -> Potential:
    """With few states, a table in place of factors, for the batch or for each step of each sequence.

    One product makes them all, whereas each step of a kernel would have to wait for its scores.
    """
    batch, _, n = node.shape
    if pairs.lead[0] == batch:
        return pairs.within(4) if n <= plan.ALONE else pairs
    return pairs.tabled()


def _pairs(params: tuple[Tensor, ...]) -> Potential:
    return Dense(*params) if len(params) == 1 else Factored(*params)


def _log_sum(node: Tensor, *params: Tensor, last: Tensor) -> Tensor:
    from tailsum.chains.forward import log_partition  # noqa: PLC0415  (which imports this file)

    return log_partition(node, _pairs(params), last)


def _messages(node: Tensor, *params: Tensor, last: Tensor) -> Forward:
    from tailsum.chains.forward import forward_messages  # noqa: PLC0415

    return forward_messages(node.transpose(0, 1), _pairs(params), last)


def _example(batch: int, length: int, n: int, groups: int = 1, steps: int = 1) -> Example:
    last = torch.full((batch,), length - 1)
    return Example((torch.randn(batch, length, n), torch.randn(groups, steps, n, n)), {"last": last})


_SIZES = (
    {"batch": 4, "length": 4, "n": 5},
    {"batch": 2, "length": 3, "n": 19, "groups": 2, "steps": 2},
)
_LARGE = {"batch": 32, "length": 100, "n": 512}

chain_log_sum = Kernel("log_chains", _log_sum, _example, _SIZES, _LARGE)
chain_messages = Kernel("log_messages", _messages, _example, _SIZES, _LARGE)
