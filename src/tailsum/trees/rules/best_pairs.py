"""The best pair of children for every head under rules of low rank, without a table of all rules.

`max over b, c of log sum_r exp(head[a, r] + left[b, r] + right[c, r]) + pairs[b, c]` is no product: the maximum over
pairs cannot be moved inside the sum over ranks. But with the largest factor of any head in each rank in place of head a,
the sum is an upper bound for all heads, and costs one product. Pairs are scored exactly from the highest bound down,
until no head can gain from the remaining pairs.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from tailsum.numerics.precision import product
from tailsum.numerics.reduce import LogProduct, highest
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import tile_size

FIRST = 512  # pairs that are scored for all heads at the start, for comparison with the bounds


@torch.no_grad()
def best_pairs(
    pairs: Float[Tensor, "G r pair"],
    head: Float[Tensor, "#G N R"],
    left: Float[Tensor, "#G b R"],
    right: Float[Tensor, "#G c R"],
) -> Float[Tensor, "G r N"]:
    """The highest score of each head over all pairs of children: the sum of their scores `pairs` and the rule's."""
    best = pairs.new_full((*pairs.shape[:2], head.shape[-2]), -math.inf)
    for group, rows in enumerate(pairs):
        search = _Search(*(x[group if len(x) > 1 else 0] for x in (head, left, right)))
        for row, scores in enumerate(rows):
            best[group, row] = search.best(scores)
    return best


class _Search:
    """The factors of all states, and those of each state divided by its largest."""

    def __init__(self, head: Tensor, left: Tensor, right: Tensor) -> None:
        self.factors = head, left, right
        self.tops = [finite(x.amax(-1)) for x in self.factors]
        self.scaled = [(x - top[:, None]).exp() for x, top in zip(self.factors, self.tops, strict=True)]
        rank_tops = head.amax(0)
        self.bounds = LogProduct(right.mT)(left + rank_tops).flatten()
        # The score of a head over a pair is at most the bound of the pair plus this number, which is not above zero.
        self.below = (head - rank_tops).nan_to_num(-math.inf, neginf=-math.inf).amax(-1)
        self.most = max(FIRST, tile_size(head.device) // max(head.shape))  # pairs that are scored at once

    def best(self, pairs: Tensor) -> Tensor:
        """The highest score of each head, `[N]`, from the scores of all pairs of children, `[pair]`."""
        bounds = pairs + self.bounds
        first = bounds.topk(min(FIRST, len(bounds))).indices
        best = self._scored(torch.arange(len(self.below), device=pairs.device), first, pairs)
        bounds[first] = -math.inf
        needed = (best - self.below).nan_to_num(math.inf).min()  # a pair with a lower bound can help no head
        (rest,) = torch.nonzero(bounds > needed, as_tuple=True)
        rest = rest[bounds[rest].argsort(descending=True)]
        start, size = 0, FIRST
        while start < len(rest):
            chosen = rest[start : start + size]
            (heads,) = torch.nonzero(best < bounds[chosen[0]] + self.below, as_tuple=True)
            if not len(heads):
                break
            best[heads] = torch.maximum(best[heads], self._scored(heads, chosen, pairs))
            start, size = start + size, min(2 * size, self.most)  # fewer heads gain from each further pair
        return best

    def _scored(self, heads: Tensor, chosen: Tensor, pairs: Tensor) -> Tensor:
        """The highest score of some heads over the chosen pairs: by a product, or in log space where that underflows."""
        head, left, right = self.scaled
        before, after = chosen // len(right), chosen % len(right)
        weights = pairs[chosen] + self.tops[1][before] + self.tops[2][after]
        shift = finite(weights.amax())
        vectors = left.index_select(0, before).mul_(right.index_select(0, after))  # [pair, R]
        vectors.mul_((weights - shift).exp_()[:, None])
        total, limits = product(head[heads], vectors.mT).amax(-1), torch.finfo(pairs.dtype)
        if (total < limits.tiny / limits.eps * head.shape[-1]).any():
            head, left, right = self.factors
            return highest(LogProduct((left[before] + right[after] + pairs[chosen, None]).mT)(head[heads]), -1)
        return total.log() + self.tops[0][heads] + shift
