"""The k best paths of a chain (max in place of sum). Nothing here records gradients."""

import math

import torch
from torch import Tensor

from tailsum.numerics.table import block_scores, tile_rows, transposed


@torch.no_grad()
def best_messages(node: Tensor, params: tuple[Tensor, ...], k: int) -> Tensor:
    """Scores of the k best paths into each state at each step, best first: `[T, B, N, k]` from `node [T, B, N]`.

    Where fewer than k paths exist the rest are minus infinity. There are no back-pointers: a path is followed back by one
    column of the scores per step, which costs N.
    """
    best = node.new_full((*node.shape, k), -math.inf)
    best[0, :, :, 0] = node[0]
    for t in range(1, len(node)):
        step = min(t - 1, params[0].shape[1] - 1)
        best[t] = _best_step(best[t - 1], tuple(p[:, step] for p in params)) + node[t, :, :, None]
    return best


def _best_step(best: Tensor, params: tuple[Tensor, ...]) -> Tensor:
    """The k best paths into each state one step later, `[B, N, k]`, without the node scores."""
    columns, *rest = transposed(params)
    batch, n, k = best.shape
    best = best.reshape(columns.shape[0], batch // max(1, columns.shape[0]), n, k)
    first = best[..., 0].contiguous()
    entering, chunk = [], tile_rows(first.numel(), best.device)
    for start in range(0, columns.shape[-2], chunk):
        scores = block_scores((columns, *rest), slice(start, start + chunk))[:, None]  # [G, 1, to, from]
        paths = scores + first[:, :, None]  # the best path into each state, and one more step: [G, B/G, to, from]
        if k == 1:
            entering.append(paths.amax(-1, keepdim=True))
            continue
        # The k best paths come from the k states with the best single path: only these need all k of theirs.
        origin = paths.topk(min(k, n)).indices
        shape = (*origin.shape[:-1], n)
        ranked = best[:, :, None].expand(*shape, k).gather(-2, origin[..., None].expand(*origin.shape, k))
        ranked = ranked + scores.expand(shape).gather(-1, origin)[..., None]
        entering.append(ranked.flatten(-2).topk(k).values)
    return torch.cat(entering, 2).reshape(batch, columns.shape[-2], k)
