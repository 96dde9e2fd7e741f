"""Messages along many pairs of nodes at once: products with the exponentials of their scores, in either direction.

Shapes: `x [B, F, n]` for a batch of B and F pairs; scores `[b, f, n, m]` or their factors `[b, f, n, d]` and
`[b, f, m, d]`, with b = 1 where the batch shares them and f = 1 where the pairs do. Whatever shares a table is one
product with it.
"""

import math

import torch
from torch import Tensor

from tailsum.kernels.precision import product
from tailsum.kernels.reduce import LogProduct, Reduce, log_or_never, log_sum_exp
from tailsum.kernels.stream import Parts, streamed
from tailsum.kernels.table import block_scores, fits_budget, tile_rows, tile_size, transposed


class PairProduct:
    """`log sum_i exp(x_i + score(i, j))` for every j, or the maximum in place of the sum; and the same over j for every i.

    The exponentials are kept where they fit the table budget, and serve both directions; otherwise, and where products of
    them would lose something that matters, the scores are streamed in tiles, which a backward pass computes again.
    """

    def __init__(self, params: tuple[Tensor, ...], reduce: Reduce = log_sum_exp) -> None:
        self.params: tuple[Tensor, ...] = params
        self.reduce = reduce
        self.b, self.f, self.n = params[0].shape[:3]
        self.m = params[-1].shape[-1 if len(params) == 1 else -2]
        size = self.b * self.f * self.n * self.m * params[0].element_size()
        self.table = _scaled(params) if reduce is log_sum_exp and fits_budget(size) else None

    def forth(self, x: Tensor) -> Tensor:
        """`[B, F, n]` to `[B, F, m]`."""
        return self._both_ways(x, back=False)

    def back(self, y: Tensor) -> Tensor:
        """`[B, F, m]` to `[B, F, n]`."""
        return self._both_ways(y, back=True)

    def _both_ways(self, x: Tensor, *, back: bool) -> Tensor:
        split = (self.b, x.shape[0] // self.b, self.f, x.shape[1] // self.f)
        rows = x.reshape(*split, x.shape[-1]).transpose(1, 2).flatten(2, 3)  # [b, f, all that share a table, n]
        out = None if self.table is None else self._product(*self.table, rows, back=back)
        out = self._streamed(rows, back=back) if out is None else out
        out = out.unflatten(2, (split[1], split[3])).transpose(1, 2)
        return out.reshape(*x.shape[:2], out.shape[-1])

    def _product(self, top: Tensor, table: Tensor, x: Tensor, *, back: bool) -> Tensor | None:
        """The product with the table; None if it may lack something that no rounding explains."""
        if back:
            x, table = x + top, table.mT
        peak = x.detach().amax(-1, keepdim=True)
        peak = peak.masked_fill(peak == -math.inf, 0.0)
        total = product((x - peak).exp(), table)
        limits = torch.finfo(x.dtype)
        small = total.detach() < limits.tiny / limits.eps * x.shape[-1]
        if small.any() and (small & self._reached(x, back=back)).any():
            return None
        out = log_or_never(total) + peak
        return out if back else out + top

    @torch.no_grad()
    def _reached(self, x: Tensor, *, back: bool) -> Tensor:
        """Where something arrives, however little."""
        possible = x > -math.inf
        if len(self.params) == 1:
            allowed = (self.params[0] > -math.inf).to(x.dtype)
            return product(possible.to(x.dtype), allowed.mT if back else allowed) > 0
        return possible.any(-1, keepdim=True)  # factored scores are finite

    def _streamed(self, x: Tensor, *, back: bool) -> Tensor:
        params = self.params if back else transposed(self.params)  # rows are where the messages arrive
        size = params[0].shape[-2]
        together = max(1, tile_size(x.device) // max(1, self.b * self.n * self.m))

        def tile(parts: Parts) -> Parts:
            columns, (x, *rest) = parts
            return Parts((LogProduct(block_scores((*columns, *rest)).mT, self.reduce)(x).mT,))

        pieces = []
        for start in range(0, self.f, together):
            piece, *rest = (p[:, start : start + together] for p in (params[0], x, *params[1:]))
            chunk = min(size, tile_rows(self.b * piece.shape[1] * x.shape[-1], x.device))
            pieces.append(streamed(tile, Parts((piece,), tuple(rest)), chunk, 1).rows[0].mT)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)


def _scaled(params: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The largest score of each column, and the exponentials of the scores over it."""
    if torch.is_grad_enabled() or len(params) == 1:
        scores = block_scores(params)
        top = _top(scores)
        return top, (scores - top).exp()
    left, right = params  # filled tile by tile: there is never a second table beside it
    b, f, n, m = *left.shape[:3], right.shape[2]
    top, table = left.new_empty(b, f, 1, m), left.new_empty(b, f, n, m)
    together = max(1, tile_size(left.device) // max(1, b * n * m))
    for start in range(0, f, together):
        here = slice(start, start + together)
        torch.matmul(left[:, here], right[:, here].mT, out=table[:, here])
        top[:, here] = _top(table[:, here])
        table[:, here].sub_(top[:, here]).exp_()
    return top, table


def _top(scores: Tensor) -> Tensor:
    top = scores.detach().amax(-2, keepdim=True)
    return top.masked_fill(top == -math.inf, 0.0)
