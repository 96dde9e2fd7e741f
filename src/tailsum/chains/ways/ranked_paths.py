"""The k best paths of a chain, step by step, with back-pointers. Chosen for more than one path."""

import math

import torch
from torch import Tensor

from tailsum.chains.ways.best_steps import PairSteps, less_highest
from tailsum.numerics.stream import Parts, in_tiles
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import tile_rows
from tailsum.scores.potential import Potential


def ranked_paths(node: Tensor, pairs: Potential, last: Tensor, k: int) -> Tensor:
    """The k best paths `[k, B, T]`; arguments as of `best_paths`.

    A back-pointer is, for each state and rank, the state and rank at the previous position, as one number.
    """
    node, steps = less_highest(node), PairSteps(pairs)
    length, batch, n = node.shape
    ends = set(last.tolist())
    best, pointers = node[0, :, :, None], list[Tensor]()
    final = torch.zeros(batch, min(k, n**length), dtype=torch.long, device=node.device)
    value = torch.full_like(final, -math.inf, dtype=node.dtype)
    ranks = [1]  # how many paths into each state are kept at each position, no more than there are
    for t in range(length):
        if t > 0:
            ranks.append(min(k, n * ranks[-1]))
            best, pointer = _enter_ranked(best, steps, t - 1, ranks[-1])
            best = best + node[t, :, :, None]
            best = best - finite(best.amax((-2, -1), keepdim=True))
            pointers.append(pointer)
        if t in ends:
            top = best.flatten(1).topk(min(k, n * ranks[-1]))
            here, width = (last == t)[:, None], top.indices.shape[-1]
            final[:, :width] = torch.where(here, top.indices, final[:, :width])
            value[:, :width] = torch.where(here, top.values, value[:, :width])
    exists, pick = value > -math.inf, final
    paths = pick.new_full((*pick.shape, length), -1)
    for t in range(length - 1, -1, -1):
        if t + 1 < length:
            before = pointers[t].flatten(1).gather(1, pick).long()
            pick = torch.where((t < last)[:, None], before, pick)
        here = exists & (t <= last)[:, None]
        paths[..., t] = torch.where(here, pick // ranks[t], -1)
    return paths.movedim(1, 0)


def _enter_ranked(best: Tensor, steps: PairSteps, t: int, k: int) -> tuple[Tensor, Tensor]:
    """The k best paths into each state one step later, `[B, N, k]`, and the state and rank that each comes from.

    They come from the k states with the best single path, so only the paths of these are compared.
    """
    batch, n, ranks = best.shape
    grouped = best.reshape(steps.groups, batch // max(1, steps.groups), n, ranks)
    first, width = grouped[..., 0].contiguous(), min(k, n)

    def tile(start: int, stop: int) -> Parts:
        scores = steps.rows(t, start, stop)[:, None]  # [G, 1, to, from]
        origin = (scores + first[:, :, None]).topk(width).indices  # [G, B/G, to, width]
        shape = (*origin.shape[:-1], n)
        ranked = grouped[:, :, None].expand(*shape, ranks).gather(-2, origin[..., None].expand(*origin.shape, ranks))
        ranked = (ranked + scores.expand(shape).gather(-1, origin)[..., None]).flatten(-2)
        top = ranked.topk(k)
        pointer = origin.gather(-1, top.indices // ranks) * ranks + top.indices % ranks
        return Parts((top.values, pointer.int()))

    tiles = in_tiles(tile, steps.n_to, tile_rows(batch * max(n, width * ranks), best.device))
    values, pointers = (x.reshape(batch, steps.n_to, k) for x in tiles.rows)
    return values, pointers
