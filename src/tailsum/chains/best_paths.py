"""The best paths of a chain (maxima in place of sums). Nothing here records gradients.

An offset that all states of a position share is subtracted at each step, so that it costs no digits along the chain: the
messages rank paths, they do not score them. Finite masks count as minus infinity.

Shapes are as in `Table`: node scores `[T, B, N]`, pair scores `[G, S, N, N]` or their factors. Paths are `[k, B, T]`, -1
after the last position of a sequence, and throughout where there is no path.
"""

import math

import numpy as np
import torch
from torch import Tensor

from tailsum.chains.fused_messages import suits_log_steps
from tailsum.numerics.kernels import fused
from tailsum.numerics.precision import product
from tailsum.numerics.stream import Parts, in_tiles
from tailsum.numerics.tensors import finite, unmasked
from tailsum.numerics.tiles import block_scores, fits_budget, tile_rows, tile_size, transposed
from tailsum.scores.potential import Potential


@torch.no_grad()
def best_paths(node: Tensor, pairs: Potential, last: Tensor, k: int) -> Tensor:
    """The k best paths of each sequence, best first, to its last position `last [B]`; fewer if N^T is less than k."""
    params = pairs.tensors
    node = unmasked(node)
    node = node - finite(node.amax(-1, keepdim=True))
    if k == 1 and node.numel() and pairs.for_kernels is not None and fused(node, *params):
        return _fused_best_path(node, pairs, last)
    steps = _Steps(params)
    return _best_path(node, steps, last) if k == 1 else _ranked_paths(node, steps, last, k)


def _fused_best_path(node: Tensor, scores: Potential, last: Tensor) -> Tensor:
    from tailsum.numerics.fused.log_steps import enter  # noqa: PLC0415
    from tailsum.numerics.fused.paths import best_messages, walk  # noqa: PLC0415
    from tailsum.numerics.fused.scores import Pairs  # noqa: PLC0415

    scores = scores.unmasked()
    pairs = Pairs(scores.tensors)
    if suits_log_steps(node.shape[1], node.shape[2], scores):
        best = enter(node.transpose(0, 1), pairs, last, maximum=True).alpha
    else:
        best = best_messages(node, pairs)
    possible = (best[last, torch.arange(len(last), device=last.device)] > -math.inf).any(-1)
    return torch.where(possible[:, None], walk(best, pairs, last), -1)


class _Steps:
    """The scores of pairs at each step, less the highest of each table.

    A table is copied and transposed if the copy fits the table budget; else it is read a few columns at a time.
    """

    def __init__(self, params: tuple[Tensor, ...]) -> None:
        self.params, self.count = transposed(params), params[0].shape[1]
        self._made, self._now, self._top = -1, self.params, dict[int, Tensor]()
        self.dense = len(params) == 1
        self.groups, _, self.n_to, _ = self.params[0].shape
        self.copied = self.dense and fits_budget(params[0].numel() // max(1, self.count) * params[0].element_size())
        self.shared = self.copied and params[0].shape[:2] == (1, 1)  # by all sequences and steps

    def _at(self, t: int) -> tuple[Tensor, ...]:
        """The table of step t, or its factors."""
        step = min(t, self.count - 1)
        if step != self._made:
            self._now, self._made = tuple(p[:, step] for p in self.params), step
            if self.dense:
                self._top[step] = finite(unmasked(self._now[0].amax((-2, -1))))
            if self.copied:
                # Always a copy: for a transposed table, `contiguous` would return the user's table.
                scores = unmasked(self._now[0].clone(memory_format=torch.contiguous_format))
                self._now = (scores.sub_(self._top[step][:, None, None]),)
        return self._now

    def table(self) -> Tensor:
        """The one `shared` table, `[to, from]`."""
        return self._at(0)[0][0]

    def rows(self, t: int, start: int, stop: int) -> Tensor:
        """Scores of the transitions of step t into the states `start .. stop-1`: `[G, to, from]`."""
        scores = block_scores(self._at(t), slice(start, stop))
        if self.copied or not self.dense:
            return scores
        scores = unmasked(scores.clone(memory_format=torch.contiguous_format))
        return scores.sub_(self._top[self._made][:, None, None])

    def into(self, t: int, state: Tensor) -> Tensor:
        """Scores of the transitions of step t into `state [B]`: `[B, from]`."""
        if self.shared:
            return self.table().index_select(0, state)
        step, (columns, *rest) = min(t, self.count - 1), self.params
        group = torch.arange(len(state), device=state.device) * len(columns) // max(1, len(state))
        scores = columns[group, step, state]
        if rest:
            return product(scores[:, None], rest[0][group, step].mT)[:, 0]
        return unmasked(scores) - self._top[step][group, None]


def _best_path(node: Tensor, steps: _Steps, last: Tensor) -> Tensor:
    """Without back-pointers, which cost more than the maxima: following a path back takes one column a step."""
    small = steps.shared and node[0].numel() * node.shape[-1] <= tile_size(node.device) // 4
    best = _small_messages(node, steps) if small else _messages(node, steps)
    ending = best[last, torch.arange(len(last), device=last.device)]
    walk = _small_walk if small and node.device.type == "cpu" else _walk
    inside = torch.arange(len(node), device=last.device) <= last[:, None]
    possible = inside & (ending > -math.inf).any(-1, keepdim=True)
    return torch.where(possible, walk(best, steps, last, ending.argmax(-1)), -1)[None]


def _walk(best: Tensor, steps: _Steps, last: Tensor, final: Tensor) -> Tensor:
    """Paths `[B, T]` back from the states `final [B]` at the positions `last`; states after these mean nothing."""
    states = [final]
    for t in range(len(best) - 2, -1, -1):
        before = (best[t] + steps.into(t, states[-1])).argmax(-1)
        states.append(torch.where(t < last, before, final))
    return torch.stack(states[::-1], -1)


def _small_walk(best: Tensor, steps: _Steps, last: Tensor, final: Tensor) -> Tensor:
    """`_walk` with numpy, whose calls on a few numbers take a third of the time of torch's."""
    rows, ends, stop = best.numpy(), final.numpy(), last.numpy()
    columns = steps.table().numpy() if len(rows) > 1 else rows
    paths = np.empty(rows.shape[:2], dtype=ends.dtype)
    paths[-1] = state = ends
    ending = set(stop.tolist())
    for t in range(len(rows) - 2, -1, -1):
        state = (rows[t] + columns.take(state, 0)).argmax(1)
        if t in ending:
            state = np.where(stop == t, ends, state)
        paths[t] = state
    return torch.from_numpy(paths).mT


def _messages(node: Tensor, steps: _Steps) -> Tensor:
    """The score of the best path into each state, less the highest of its position: `[T, B, N]`."""
    best = torch.empty_like(node)
    for t in range(len(node)):
        entering = _enter(best[t - 1], steps, t - 1) if t > 0 else 0.0
        torch.add(node[t], entering, out=best[t])
        best[t] -= finite(best[t].amax(-1, keepdim=True))
    return best


def _small_messages(node: Tensor, steps: _Steps) -> Tensor:
    """`_messages` up to constants, where the scores of a step fit the cache and calls take the time.

    Maxima over the first of `[from, to, B]` are twice as fast as over the last of `[B, to, from]`.
    """
    batch, n = node.shape[1:]
    best = node.transpose(1, 2).contiguous()
    table = steps.table().mT.contiguous()[..., None]
    entering, pairs = node.new_empty(n, batch), node.new_empty(n, n, batch)
    before, lowest = best[:, :, None].unbind(), torch.finfo(node.dtype).min
    for t, reach in enumerate(best.unbind()):
        if t > 0:
            torch.add(table, before[t - 1], out=pairs)
            reach.add_(torch.amax(pairs, 0, out=entering))
        if t % 8 == 7:  # messages grow slowly, as all scores are at most zero
            reach.sub_(reach.amax(0).clamp_(min=lowest))
    return best.transpose(1, 2).contiguous()


def _enter(best: Tensor, steps: _Steps, t: int) -> Tensor:
    """The best path into each state one step later, without the node scores: `[B, N]` from `[B, N]`."""
    grouped = best.reshape(steps.groups, len(best) // max(1, steps.groups), best.shape[-1])
    chunk = 4 * tile_rows(best.numel(), best.device)  # fewer, larger tiles: threads wait for each of two calls
    sums = best.new_empty(*grouped.shape[:2], min(chunk, steps.n_to), grouped.shape[-1])

    def tile(start: int, stop: int) -> Parts:
        here = sums[:, :, : stop - start]
        torch.add(steps.rows(t, start, stop)[:, None], grouped[:, :, None], out=here)
        return Parts((here.amax(-1, keepdim=True),))

    return in_tiles(tile, steps.n_to, chunk).rows[0].reshape(len(best), steps.n_to)


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
