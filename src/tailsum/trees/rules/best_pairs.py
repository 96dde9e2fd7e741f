"""The best pair of children for every head under rules of low rank, without a table of all rules.

`max over b, c of log sum_r exp(head[a, r] + left[b, r] + right[c, r]) + pairs[b, c]` is no product, as the maximum over
pairs does not pass the sum over ranks. But with the largest factor of any head in each rank in place of head a, the sum
is an upper bound for all heads, and costs one product. Pairs are scored exactly from the highest bound down, until no
head can gain from those that remain.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.precision import product
from tailsum.numerics.reduce import LogProduct, highest
from tailsum.numerics.table import tile_size

FIRST = 1024  # pairs that are scored for all heads, so that bounds can be compared with something


@torch.no_grad()
def best_pairs(
    pairs: Float[Tensor, "G r pair"],
    head: Float[Tensor, "#G N R"],
    left: Float[Tensor, "#G b R"],
    right: Float[Tensor, "#G c R"],
) -> Float[Tensor, "G r N"]:
    """The highest score of each head over all pairs of children, which have scores `pairs` beside the rules'."""
    found = pairs.new_full((*pairs.shape[:2], head.shape[-2]), -math.inf)
    for group, rows in enumerate(pairs):
        heads, before, after = (x[group if len(x) > 1 else 0] for x in (head, left, right))
        rank_tops = heads.amax(0)
        bounds = LogProduct(after.mT)(before + rank_tops).flatten()
        for row, own in enumerate(rows):
            found[group, row] = _Row(own, heads, before, after, rank_tops).best(own + bounds)
    return found


class _Row:
    """The search for one span: scores `own [pair]` of its pairs of children, and the factors of all states."""

    def __init__(self, own: Tensor, head: Tensor, left: Tensor, right: Tensor, rank_tops: Tensor) -> None:
        self.own, self.head, self.left, self.right = own, head, left, right
        # How far each head stays below the bound of every pair.
        self.below = (head - rank_tops).nan_to_num(-math.inf, neginf=-math.inf).amax(-1)
        self.chunk = max(FIRST, tile_size(own.device) // max(head.shape))

    def best(self, bounds: Tensor) -> Tensor:
        """The highest score of each head, `[N]`, by the bounds `[pair]` of all pairs."""
        top = bounds.topk(min(FIRST, len(bounds)))
        heads = torch.arange(len(self.head), device=self.own.device)
        found = self._scored(heads, top.indices)
        needed = (found - self.below).nan_to_num(math.inf).min()  # a pair with a lower bound can help no head
        (rest,) = torch.nonzero((bounds > needed) & (bounds > -math.inf), as_tuple=True)
        rest = rest[bounds[rest].argsort(descending=True)]
        for start in range(0, len(rest), self.chunk):
            some = rest[start : start + self.chunk]
            (heads,) = torch.nonzero(found < bounds[some[0]] + self.below, as_tuple=True)
            if not len(heads):
                break
            found[heads] = torch.maximum(found[heads], self._scored(heads, some))
        return found

    def _scored(self, heads: Tensor, some: Tensor) -> Tensor:
        """The highest score of some heads over some pairs: a product, and in log space where that underflows."""
        size = len(self.right)
        vectors = self.left[some // size] + self.right[some % size] + self.own[some][:, None]  # [pair, R]
        factors, limits = self.head[heads], torch.finfo(vectors.dtype)
        tops, shift = (x.nan_to_num(neginf=0.0) for x in (factors.amax(-1, keepdim=True), vectors.amax()))
        total = product((factors - tops).exp(), (vectors - shift).exp().mT).amax(-1)
        if (total < limits.tiny / limits.eps * len(vectors.mT)).any():
            return highest(LogProduct(vectors.mT)(factors), -1)
        return total.log() + tops[:, 0] + shift
