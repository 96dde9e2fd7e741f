"""Sums over the arcs of a graph, as products with torch's sparse matrices.

Weights are `[*lead, E]`, for E arcs from n to m nodes; messages are `[*lead, R, n]` and `[*lead, R, m]`, R rows for each of the
tables. Derivatives of every order are sums of the same two kinds.
"""

import functools
import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.numerics.precision import full_precision, product


class Arcs:
    """Arcs in the order of `keys [E]`: of the node `to` that they lead to, and of `from` among these, as `to * n + from`."""

    def __init__(self, keys: Tensor, n_from: int, n_to: int) -> None:
        self.keys, self.n_from, self.n_to = keys, n_from, n_to
        ends = torch.arange(n_to + 1, device=keys.device) * n_from
        few = max(n_from, n_to, len(keys)) < 1 << 31
        whole = torch.int32 if few else torch.int64  # a product on a CPU would convert larger numbers each time
        self._starts = torch.searchsorted(keys, ends).to(whole)  # where the arcs to each node begin
        self._columns = (keys % n_from).to(whole)

    @functools.cached_property
    def index(self) -> Tensor:
        """The nodes (from, to) of each arc, `[2, E]`."""
        with torch.inference_mode(False):  # index tensors are saved for backward passes
            return torch.stack((self.keys % self.n_from, self.keys // self.n_from))

    @functools.cached_property
    def turned(self) -> "tuple[Arcs, Tensor]":
        """The arcs from and to exchanged, and the places of these among the own ones."""
        with torch.inference_mode(False):
            keys, order = (self.keys % self.n_from * self.n_to + self.keys // self.n_from).sort()
            return Arcs(keys, self.n_to, self.n_from), order

    def push(self, weights: Tensor, x: Tensor) -> Tensor:
        """`sum_e weights[e] x[.., from(e)]` for the arcs e to each node: `[*lead, R, m]`."""
        return _Push.apply(self, weights, x)

    def meet(self, x: Tensor, y: Tensor) -> Tensor:
        """`sum_r x[r, from(e)] y[r, to(e)]` for each arc e: `[*lead, E]`."""
        return _Meet.apply(self, x, y)

    def pull(self, weights: Tensor, y: Tensor) -> Tensor:
        """`push` against the direction of the arcs."""
        arcs, order = self.turned
        return arcs.push(weights.index_select(-1, order), y)

    def matrix(self, weights: Tensor) -> Tensor:
        """The tables of all weights along the diagonal of one sparse matrix, to times from."""
        tables, arcs = weights.shape[:-1].numel(), weights.shape[-1]
        starts, columns = self._starts, self._columns
        if tables > 1:
            shift = torch.arange(tables, device=starts.device)[:, None]  # the sums are in int64
            columns = (columns + shift * self.n_from).flatten()
            starts = F.pad((starts[:-1] + shift * arcs).flatten(), (0, 1), value=tables * arcs)
        with warnings.catch_warnings():  # that sparse matrices of torch are new
            warnings.simplefilter("ignore")
            shape = tables * self.n_to, tables * self.n_from
            return torch.sparse_csr_tensor(starts, columns, weights.reshape(-1), shape, check_invariants=False)


class _Push(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, arcs: Arcs, weights: Tensor, x: Tensor) -> Tensor:
        ctx.arcs = arcs
        ctx.save_for_backward(weights, x)
        lead, rows = weights.shape[:-1], x.shape[-2]
        if not (x.numel() and weights.numel()):
            return x.new_zeros(*lead, rows, arcs.n_to)
        matrix, messages = arcs.matrix(weights), x.mT.reshape(-1, rows)
        if rows == 1:  # twice as fast on a CPU
            return torch.mv(matrix, messages[:, 0]).reshape(*lead, 1, arcs.n_to)
        sums = product(matrix, messages)
        return sums.unflatten(0, (-1, arcs.n_to)).mT.reshape(*lead, rows, arcs.n_to)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weights, x = ctx.saved_tensors
        of_weights = ctx.arcs.meet(x, grads[0]) if ctx.needs_input_grad[1] else None
        return None, of_weights, ctx.arcs.pull(weights, grads[0]) if ctx.needs_input_grad[2] else None


class _Meet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, arcs: Arcs, x: Tensor, y: Tensor) -> Tensor:
        ctx.arcs = arcs
        ctx.save_for_backward(x, y)
        weights = x.new_ones(*x.shape[:-2], len(arcs.keys))
        if not (x.numel() and weights.numel()):
            return torch.zeros_like(weights)
        rows = x.shape[-2]
        both = y.mT.reshape(-1, rows).contiguous(), x.mT.reshape(-1, rows).T
        with full_precision(x.device):
            sums = torch.sparse.sampled_addmm(arcs.matrix(weights), *both, beta=0.0)
        return sums.values().reshape(weights.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, y = ctx.saved_tensors
        of_x = ctx.arcs.pull(grads[0], y) if ctx.needs_input_grad[1] else None
        return None, of_x, ctx.arcs.push(grads[0], x) if ctx.needs_input_grad[2] else None
