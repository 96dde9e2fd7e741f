"""The best paths of a chain (maxima in place of sums). Nothing here records gradients.

An offset that all states of a position share is subtracted at each step, so that it costs no digits along the chain: the
messages rank paths, they do not score them. Finite masks count as minus infinity.

Shapes are as in `Table`: node scores `[T, B, N]`, pair scores `[G, S, N, N]` or their factors. Paths are `[k, B, T]`, -1
after the last position of a sequence, and throughout where there is no path.
"""

import math

import torch
from torch import Tensor

from tailsum.chains.fused_messages import suits_log_steps
from tailsum.chains.ways.packed_paths import packed_path
from tailsum.numerics.kernels import fused
from tailsum.numerics.reduce import highest
from tailsum.numerics.stream import Parts, in_tiles
from tailsum.numerics.tensors import finite, unmasked
from tailsum.numerics.tiles import tile_rows
from tailsum.scores.potential import Potential
from tailsum.scores.products import grouped


@torch.no_grad()
def best_paths(node: Tensor, pairs: Potential, last: Tensor, k: int) -> Tensor:
    """The k best paths of each sequence, best first, to its last position `last [B]`; fewer if N^T is less than k.

    `node [B, T, N]` are the scores of states, and `pairs` a flat potential.
    """
    pairs = pairs.unmasked()
    in_kernel = k == 1 and bool(node.numel()) and pairs.for_kernels is not None and fused(node, *pairs.tensors)
    packed = packed_path(node, pairs, last) if k == 1 and not in_kernel else None
    if packed is not None:
        return packed[None]
    node = unmasked(node.transpose(0, 1)).contiguous()
    node = node - finite(node.amax(-1, keepdim=True))
    if in_kernel:
        return _fused_best_path(node, pairs, last)
    steps = _Steps(pairs)
    return _best_path(node, steps, last) if k == 1 else _ranked_paths(node, steps, last, k)


def _fused_best_path(node: Tensor, scores: Potential, last: Tensor) -> Tensor:
    from tailsum.numerics.fused.log_steps import enter  # noqa: PLC0415
    from tailsum.numerics.fused.paths import best_messages, walk  # noqa: PLC0415
    from tailsum.numerics.fused.scores import Pairs  # noqa: PLC0415

    pairs = Pairs(scores.tensors)
    if suits_log_steps(node.shape[1], node.shape[2], scores):
        best = enter(node.transpose(0, 1), pairs, last, maximum=True).alpha
    else:
        best = best_messages(node, pairs)
    possible = (best[last, torch.arange(len(last), device=last.device)] > -math.inf).any(-1)
    return torch.where(possible[:, None], walk(best, pairs, last), -1)


class _Steps:
    """The scores of pairs at each step, less a number for each table that is near its highest score."""

    def __init__(self, pairs: Potential) -> None:
        self.pairs, (self.groups, self.count), self.n_to = pairs, pairs.lead, pairs.n_to
        self._made, self._now = -1, pairs
        self._less: Tensor | None = None  # [G], where there was no room for another table

    def _at(self, t: int) -> tuple[Potential, Tensor | None]:
        """The scores `[G, N, N]` of step t, and what is still to be subtracted from them."""
        step = min(t, self.count - 1)
        if step != self._made:
            given = self.pairs.at_step(step)
            self._now, self._made, common = given.centred(), step, given.common_part()
            self._less = common if self._now is given and bool(common.any()) else None
        return self._now, self._less

    def enter(self, best: Tensor, t: int) -> Tensor:
        """The best path into each state one step later, without the node scores: `[B, N]` from `[B, N]`."""
        pairs, less = self._at(t)
        return pairs.into(grouped(best, self.groups), highest, less).reshape(len(best), self.n_to)

    def rows(self, t: int, start: int, stop: int) -> Tensor:
        """Scores of the transitions of step t into the states `start .. stop-1`: `[G, to, from]`."""
        pairs, less = self._at(t)
        scores = pairs.columns(start, stop).block().mT
        return scores if less is None else scores - less[:, None, None]

    def into(self, t: int, state: Tensor) -> Tensor:
        """Scores of the transitions of step t into `state [B]`: `[B, from]`."""
        pairs, less = self._at(t)
        scores = pairs.block(None, grouped(state[:, None], self.groups)[..., 0])
        scores = scores if less is None else scores - less[:, None, None]
        return scores.mT.reshape(len(state), scores.shape[-2])


def _best_path(node: Tensor, steps: _Steps, last: Tensor) -> Tensor:
    """Without back-pointers, which cost more than the maxima: following a path back takes one column a step."""
    best = _messages(node, steps)
    ending = best[last, torch.arange(len(last), device=last.device)]
    inside = torch.arange(len(node), device=last.device) <= last[:, None]
    possible = inside & (ending > -math.inf).any(-1, keepdim=True)
    return torch.where(possible, _walk(best, steps, last, ending.argmax(-1)), -1)[None]


def _walk(best: Tensor, steps: _Steps, last: Tensor, final: Tensor) -> Tensor:
    """Paths `[B, T]` back from the states `final [B]` at the positions `last`; states after these mean nothing."""
    states = [final]
    for t in range(len(best) - 2, -1, -1):
        before = (best[t] + steps.into(t, states[-1])).argmax(-1)
        states.append(torch.where(t < last, before, final))
    return torch.stack(states[::-1], -1)


def _messages(node: Tensor, steps: _Steps) -> Tensor:
    """The score of the best path into each state, less the highest of its position: `[T, B, N]`."""
    best = torch.empty_like(node)
    for t in range(len(node)):
        entering = steps.enter(best[t - 1], t - 1) if t > 0 else 0.0
        torch.add(node[t], entering, out=best[t])
        best[t] -= finite(best[t].amax(-1, keepdim=True))
    return best


def _ranked_paths(node: Tensor, steps: _Steps, last: Tensor, k: int) -> Tensor:
    """With back-pointers: for each state and rank, the state and rank at the previous position, as one number."""
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


def _enter_ranked(best: Tensor, steps: _Steps, t: int, k: int) -> tuple[Tensor, Tensor]:
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
