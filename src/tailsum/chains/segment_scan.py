"""Messages along a semi-Markov model: the reduction over all segments before the start of a segment.

`entering[t, i]` reduces the scores of all segmentations of the positions before t, with the transition into a segment of
state i that starts at t. At each boundary a window holds the last D of them, `window[d-1] = entering[t-d]`:

    entering[t, j] = reduce over d, i of window[d-1, i] + segment[t-d, d-1, i] + transition[t-1, i, j]

Messages are float64; only differences from the largest at a boundary are rounded to the precision of the scores, so that
float32 loses no digits over the length. Tensors are split into boundaries once: a slice at each boundary would make the
backward pass add up a gradient of the whole tensor each time.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tailsum.chains.segment_scores import SegmentScores
from tailsum.numerics.reduce import LogProduct, Reduce, log_sum_exp
from tailsum.numerics.stream import Parts, streamed
from tailsum.numerics.tensors import finite
from tailsum.numerics.tiles import fits_budget
from tailsum.scores.potential import Potential

_KEPT = 1 << 25  # entries of all windows that a backward pass may keep; more are recomputed
_CHUNK = 1 << 22  # entries of the windows that are recomputed together
_TABLES = 3  # tables of pairs that exist at the same time: scores, their exponentials and the gradient of these

Enter = Callable[[Tensor], Tensor]  # from scores of endings `[*batch, D, n]` to messages `[*batch, n]`


def entering(segments: SegmentScores, pairs: Potential, batch: torch.Size, reduce: Reduce) -> Tensor:
    """The messages `[T, *batch, n]` in float64, from scores of the batch's shape."""
    return _Scan(segments, pairs, reduce)(batch)


def reduced(scores: Tensor, dtype: torch.dtype, reduce: Reduce) -> Tensor:
    """The reduction of float64 `scores [R, D, n]` of endings, computed in `dtype` relative to the largest: `[R]`."""
    relative, top = _relative(scores, dtype)
    return reduce(relative.flatten(-2), -1).double() + top[..., 0, 0]


def _relative(scores: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    top = finite(scores.detach().amax((-2, -1), keepdim=True))
    return (scores - top).to(dtype), top


class _Scan:
    """The recursion. Its tensors are `moving`, with the T-1 inner boundaries first, or the same at all boundaries."""

    def __init__(self, segments: SegmentScores, pairs: Potential, reduce: Reduce) -> None:
        self.segments, self.pairs, self.reduce = segments, pairs, reduce
        self.length, self.size = segments.length, segments.n_states
        self.longest = min(segments.longest, self.length)
        self.tensors: list[Tensor] = []
        self.moving: list[bool] = []
        for tensor, moving in segments.by_boundary():
            self._add(tensor, moving)
        self.of_segments = len(self.tensors)  # how many of the tensors are not of the pairs
        self.dtype, self.device = self.tensors[0].dtype, self.tensors[0].device
        for x in pairs.tensors if self.length > 1 else ():
            if x.dim() == 2:
                self._add(x, False)
            else:  # [*batch, boundaries or 1, D or 1, n, n or d]
                steps = x.movedim(-4, 0)
                self._add(steps if len(steps) > 1 else steps[0], len(steps) > 1)
        self.recording = torch.is_grad_enabled() and any(x.requires_grad for x in self.tensors)
        # A graph keeps the tables of all boundaries.
        tables = pairs.lead if self.recording else (*pairs.lead[:-2], *pairs.lead[-1:])
        self.kept = fits_budget(_TABLES * math.prod(tables) * self.size**2 * self.dtype.itemsize)

    def _add(self, tensor: Tensor, moving: bool) -> None:
        self.tensors.append(tensor)
        self.moving.append(moving)

    def __call__(self, batch: torch.Size) -> Tensor:
        first = torch.zeros(*batch, 1, self.size, dtype=torch.float64, device=self.device)
        if self.length == 1:
            return first.movedim(-2, 0)
        window = F.pad(first, (0, 0, 0, self.longest - 1), value=-math.inf)
        if self.reduce is log_sum_exp and self.recording and self.length * window.numel() > _KEPT:
            messages = self._recomputed(window)
        else:
            messages = self._run(window, self.tensors)[1]
        return torch.cat((first.movedim(-2, 0), messages))

    def _recomputed(self, window: Tensor) -> Tensor:
        """The messages from the second on. Backward passes of every order keep one window for each chunk."""

        def tile(parts: Parts) -> Parts:
            window, messages = self._run(parts.rows[0], parts.whole)
            return Parts((window,), (messages,))

        chunk = max(math.isqrt(self.length), _CHUNK // window.numel())
        pieces = [x.split(chunk) if moves else () for x, moves in zip(self.tensors, self.moving, strict=True)]
        messages: list[Tensor] = []
        for k in range(max(map(len, pieces))):
            tensors = tuple(p[k] if p else x for p, x in zip(pieces, self.tensors, strict=True))
            (window,), (piece,) = streamed(tile, Parts((window,), tensors), self.longest, 1)
            messages.append(piece)
        return torch.cat(messages)

    def _run(self, window: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The window after some boundaries, and the messages at each of them."""
        cut, count = (
            [x.unbind() if moves else x for x, moves in zip(tensors, self.moving, strict=True)],
            self.of_segments,
        )
        shared = None if any(self.moving[count:]) else self._enter(tensors[count:])
        messages: list[Tensor] = []
        for step in range(len(cut[0])):
            here = [x if isinstance(x, Tensor) else x[step] for x in cut]
            enter = shared or self._enter(here[count:])
            window, endings = self.segments.ending(window, here[:count])
            relative, top = _relative(endings, self.dtype)
            messages.append(enter(relative).double() + top[..., 0])
            window = torch.cat((messages[-1][..., None, :], window[..., :-1, :]), -2)
        return window, torch.stack(messages)

    def _enter(self, tensors: Sequence[Tensor]) -> Enter:
        """The transition at a boundary."""
        reduce = self.reduce
        pairs = self.pairs.with_tensors(tensors).operator()  # [n, n] or [*batch, D or 1, n, n]
        pairs = pairs.map(lambda x: x[..., : self.longest, :, :] if x.dim() > 2 else x)
        if not pairs.lead:
            shared = self._product(pairs)
            return lambda scores: shared(reduce(scores, -2).reshape(-1, self.size)).reshape(
                *scores.shape[:-2], self.size
            )
        if pairs.lead[-1] == 1:
            of_sequence = self._product(pairs.map(lambda x: x[..., 0, :, :] if x.dim() > 2 else x))
            return lambda scores: of_sequence(reduce(scores, -2)[..., None, :])[..., 0, :]
        if self.kept and pairs.by_parts:
            of_duration = LogProduct(pairs.block().flatten(-3, -2), reduce)
            return lambda scores: of_duration(scores.flatten(-2)[..., None, :])[..., 0, :]
        by_duration = self._product(pairs)
        return lambda scores: reduce(by_duration(scores[..., None, :])[..., 0, :], -2)

    def _product(self, pairs: Potential) -> Callable[[Tensor], Tensor]:
        if self.kept and pairs.by_parts:
            return LogProduct(pairs.block(), self.reduce)
        return lambda x: pairs.log_product(x, self.reduce)
