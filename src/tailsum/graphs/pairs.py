"""Messages along many pairs of nodes at once: products with the exponentials of their scores, in either direction.

Shapes: `x [B, F, n]` for a batch of B and F pairs; scores `[b, f, n, m]` or their factors `[b, f, n, d]` and
`[b, f, m, d]`, with b = 1 where the batch shares them and f = 1 where the pairs do. All messages that share a table are
one product with it. Messages are defined up to a constant, so the *centre* of a table, its largest score, is left out:
adding it to every entry would cost digits.
"""

import torch
from torch import Tensor

from tailsum.numerics.precision import product
from tailsum.numerics.reduce import LogProduct, Reduce, column_tops, log_product, log_sum_exp, reached
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.table import block_scores, fits_budget, tile_rows, tile_size, transposed
from tailsum.numerics.tensors import finite


class PairProduct:
    """`log sum_i exp(x_i + score(i, j)) - centre` for every j, or the maximum; and the same over j for every i.

    The exponentials are kept for both directions if they fit the table budget; `keep` overrides this. Otherwise, and
    where the product may have underflowed, the scores are streamed in tiles, which a backward pass recomputes.
    """

    def __init__(self, params: tuple[Tensor, ...], reduce: Reduce = log_sum_exp, keep: bool | None = None) -> None:
        self.params, self.reduce = params, reduce
        self.b, self.f, self.n = params[0].shape[:3]
        self.m = params[-1].shape[-1 if len(params) == 1 else -2]
        keep = fits_budget(table_size(params)) if keep is None else keep
        self.centre = _centre(params)  # [b, f, 1, 1]
        self.table = self._scaled() if reduce is log_sum_exp and keep else None

    def forth(self, x: Tensor) -> Tensor:
        """`[B, F, n]` to `[B, F, m]`."""
        return self._both_ways(x, back=False)

    def back(self, y: Tensor) -> Tensor:
        """`[B, F, m]` to `[B, F, n]`."""
        return self._both_ways(y, back=True)

    def _both_ways(self, x: Tensor, *, back: bool) -> Tensor:
        split = (self.b, x.shape[0] // max(1, self.b), self.f, x.shape[1] // max(1, self.f))
        rows = x.reshape(*split, x.shape[-1]).transpose(1, 2).flatten(2, 3)  # [b, f, messages that share a table, n]
        out = None if self.table is None else self._product(*self.table, rows, back=back)
        out = self._streamed(rows, back=back) if out is None else out
        out = out.unflatten(2, (split[1], split[3])).transpose(1, 2)
        return out.reshape(*x.shape[:2], out.shape[-1])

    def _product(self, top: Tensor, table: Tensor, x: Tensor, *, back: bool) -> Tensor | None:
        """The product with the table; None where it may have underflowed and the sum is positive."""
        if back:
            x, table = x + top, table.mT
        out, small = log_product(x, table)
        if small.any() and (small & self._reached(x, back=back)).any():
            return None
        return out if back else out + top

    def _reached(self, x: Tensor, *, back: bool) -> Tensor:
        if len(self.params) == 1:
            return reached(x, self.params[0].mT if back else self.params[0])
        return (x > -torch.inf).any(-1, keepdim=True)  # factored scores are finite

    def _streamed(self, x: Tensor, *, back: bool) -> Tensor:
        params = self.params if back else transposed(self.params)  # rows are the states that messages are sent to
        size = params[0].shape[-2]
        together = max(1, tile_size(x.device) // max(1, self.b * self.n * self.m))

        def tile(parts: Parts) -> Parts:
            columns, (x, centre, *rest) = parts
            return Parts((LogProduct(block_scores((*columns, *rest)).mT - centre, self.reduce)(x).mT,))

        pieces = []
        for start in range(0, max(1, self.f), together):
            piece, *rest = (p[:, start : start + together] for p in (params[0], x, self.centre, *params[1:]))
            chunk = min(size, tile_rows(self.b * piece.shape[1] * x.shape[-1], x.device))
            pieces.append(streamed(tile, Parts((piece,), tuple(rest)), chunk, 1).rows[0].mT)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    def _scaled(self) -> tuple[Tensor, Tensor]:
        """The largest score of each column less the centre, and the exponentials of the scores over it."""
        if torch.is_grad_enabled() or len(self.params) == 1:
            scores = block_scores(self.params)
            top = column_tops(scores)
            return top - self.centre, (scores - top).exp()
        left, right = self.params  # filled tile by tile, so that there is no second table
        top, table = left.new_empty(self.b, self.f, 1, self.m), left.new_empty(self.b, self.f, self.n, self.m)
        together = max(1, tile_size(left.device) // max(1, self.b * self.n * self.m))
        for start in range(0, self.f, together):
            here = slice(start, start + together)
            table[:, here] = product(left[:, here], right[:, here].mT)
            top[:, here] = column_tops(table[:, here])
            table[:, here].sub_(top[:, here]).exp_()
        return top - self.centre, table


def table_size(params: tuple[Tensor, ...]) -> int:
    """The bytes of the table of all scores."""
    b, f, n = params[0].shape[:3]
    return b * f * n * params[-1].shape[-1 if len(params) == 1 else -2] * params[0].element_size()


def _centre(params: tuple[Tensor, ...]) -> Tensor:
    """The largest score of each table; zero for factored scores."""
    if len(params) == 1 and params[0].numel():
        return finite(params[0].detach().amax((-2, -1), keepdim=True))
    return params[0].new_zeros(*params[0].shape[:2], 1, 1)
