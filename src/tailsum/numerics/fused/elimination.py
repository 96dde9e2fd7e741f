"""Sums over non-projective dependency trees: words eliminated one by one in one launch, one program for each sentence.

The reference is `dependencies/arborescence.py`. Scores of arcs `[B, T, T]` (head, child; roots on the diagonal) are float32, the sums
float64. The log weights of n words are a matrix `[n + 1, n]` by head (the root first) and child. The matrices of all n are kept one
after another, n descending, for the backward pass.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.exponential import finite, log_of
from tailsum.numerics.fused.kernel import Kept


@triton.jit
def before(n):
    """How many numbers the matrices of 1 to n words have together."""
    return n * (n + 1) * (n + 2) // 3  # fits 32 bits for all sentences that kernels take


@triton.jit
def entering_scores(matrix, n, MULTIROOT: tl.constexpr, C: tl.constexpr):
    """The scores of the heads of the last of n words, root first, and the log of their sum.

    With one root only the last word attaches to it, and the first row has no other use.
    """
    h = tl.arange(0, C)
    there = (h < n) if MULTIROOT else ((h < n) & ((h > 0) | (h == n - 1)))
    into = tl.load(matrix + h * n + n - 1, there, -float("inf"))
    top = finite(tl.max(into, 0))
    return into, log_of(top, tl.sum(tl.exp(into - top), 0))


@triton.jit
def _places(order, h, c, words, T):
    """Where the scores of rows of heads `h` (the root first) and children `c` are, in order of elimination, and whether there are any."""
    head = tl.load(order + h - 1, (h > 0) & (h <= words), 0)[:, None]
    child = tl.load(order + c, c < words, 0)[None, :]
    rooted = (h == 0)[:, None]
    inside = (h <= words)[:, None] & (c < words)[None, :]
    return tl.where(rooted, child, head) * T + child, inside & (rooted | (head != child))


@triton.jit
def _parts(matrix, out, h, c, n):
    """The weights of rows of heads without the last word, and through it, over the larger of the two, whose log is first; last, where there are any."""
    inside = (h < n)[:, None] & (c < n - 1)[None, :]
    into = tl.load(matrix + h * n + n - 1, h < n, -float("inf"))
    direct = tl.load(matrix + h[:, None] * n + c[None, :], inside, -float("inf"))
    through = into[:, None] + out[None, :]
    high = finite(tl.maximum(direct, through))
    return high, tl.exp(direct - high), tl.exp(through - high), inside


@triton.jit
def _eliminate(arcs, lengths, order, matrices, total, T, MULTIROOT: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Fill `matrices [B, size]`, and `total [B]` with the log of the sum over all trees."""
    b = tl.program_id(0).to(tl.int64)
    size = before(T)
    matrices += b * size
    arcs += b * T * T
    order += b * T
    words = tl.load(lengths + b).to(tl.int32)
    c = tl.arange(0, C)
    matrix = matrices + size - before(words)
    for start in range(0, words + 1, R):
        h = start + tl.arange(0, R)
        place, there = _places(order, h, c, words, T)
        tile = tl.load(arcs + place, there, -float("inf")).to(tl.float64)
        tl.store(matrix + h[:, None] * words + c[None, :], tile, (h <= words)[:, None] & (c < words)[None, :])
    tl.debug_barrier()
    log_z = tl.full((), 0.0, tl.float64)
    for step in range(words):
        n = words - step
        matrix, smaller = matrices + size - before(n), matrices + size - before(n - 1)
        _, enter = entering_scores(matrix, n, MULTIROOT, C)
        log_z += enter
        out = tl.load(matrix + n * n + c, c < n - 1, -float("inf")) - finite(enter)
        for start in range(0, n, R):
            h = start + tl.arange(0, R)
            high, one, other, inside = _parts(matrix, out, h, c, n)
            tl.store(smaller + h[:, None] * (n - 1) + c[None, :], log_of(high, one + other), inside)
        tl.debug_barrier()
    tl.store(total + b, log_z)


@triton.jit
def _change_of_entering(choices, enter, change, n, C: tl.constexpr):
    """The chances of the heads of the last word, the derivatives of their scores, and that of the log of the sum."""
    h = tl.arange(0, C)
    chances = tl.exp(choices - finite(enter))
    changes = tl.load(change + h * n + n - 1, h < n, 0.0)
    return chances, changes, tl.sum(chances * changes, 0)


@triton.jit
def _changes_of_parts(change, of_out, h, c, n, inside):
    """The derivatives of the logs of these weights."""
    of_into = tl.load(change + h * n + n - 1, h < n, 0.0)
    return tl.load(change + h[:, None] * n + c[None, :], inside, 0.0), of_into[:, None] + of_out[None, :]


@triton.jit
def _eliminate_along(
    directions, lengths, order, matrices, changes, along, T, MULTIROOT: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    """The derivatives of `matrices` and `total`, `changes` and `along`, as scores of arcs change by `directions`."""
    b = tl.program_id(0).to(tl.int64)
    size = before(T)
    matrices += b * size
    changes += b * size
    directions += b * T * T
    order += b * T
    words = tl.load(lengths + b).to(tl.int32)
    c = tl.arange(0, C)
    change = changes + size - before(words)
    for start in range(0, words + 1, R):
        h = start + tl.arange(0, R)
        place, there = _places(order, h, c, words, T)
        tile = tl.load(directions + place, there, 0.0).to(tl.float64)
        tl.store(change + h[:, None] * words + c[None, :], tile, (h <= words)[:, None] & (c < words)[None, :])
    tl.debug_barrier()
    of_total = tl.full((), 0.0, tl.float64)
    for step in range(words):
        n = words - step
        matrix, change = matrices + size - before(n), changes + size - before(n)
        choices, enter = entering_scores(matrix, n, MULTIROOT, C)
        _chances, _changes, of_enter = _change_of_entering(choices, enter, change, n, C)
        of_total += of_enter
        out = tl.load(matrix + n * n + c, c < n - 1, -float("inf")) - finite(enter)
        of_out = tl.load(change + n * n + c, c < n - 1, 0.0) - of_enter
        for start in range(0, n, R):
            h = start + tl.arange(0, R)
            _high, one, other, inside = _parts(matrix, out, h, c, n)
            both = one + other
            direct, through = _changes_of_parts(change, of_out, h, c, n, inside)
            found = (one * direct + other * through) / tl.where(both > 0, both, 1.0)
            tl.store(changes + size - before(n - 1) + h[:, None] * (n - 1) + c[None, :], found, inside)
        tl.debug_barrier()
    tl.store(along + b, of_total)


@triton.jit
def _restore(
    matrices, changes, lengths, order, total, seeds, grads, along, of_arcs, T,
    MULTIROOT: tl.constexpr, ALONG: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The gradient in the scores `of_arcs [B, T, T]` (zeros before), from the gradient in `total`, `seeds [B]`.

    In between it is by weights, in `grads [B, T + 1, T]` (zeros before). With ALONG the derivative of the gradient, from the `changes` of
    matrices; in between it is in `along`, like `grads`.
    """
    b = tl.program_id(0).to(tl.int64)
    size = before(T)
    matrices += b * size
    changes += b * size
    grads += b * (T + 1) * T
    along += b * (T + 1) * T
    of_arcs += b * T * T
    order += b * T
    seed = tl.where(tl.load(total + b) > -float("inf"), tl.load(seeds + b), 0.0).to(tl.float64)
    words = tl.load(lengths + b).to(tl.int32)
    c = tl.arange(0, C)
    for n in range(1, words + 1):
        matrix, change = matrices + size - before(n), changes + size - before(n)
        choices, enter = entering_scores(matrix, n, MULTIROOT, C)
        out = tl.load(matrix + n * n + c, c < n - 1, -float("inf")) - finite(enter)
        of_out = tl.where(c < 0, out, 0.0)
        if ALONG:
            chances, dchoices, denter = _change_of_entering(choices, enter, change, n, C)
            dout = tl.load(change + n * n + c, c < n - 1, 0.0) - denter
            dof_out = of_out
        for start in range(0, n, R):
            h = start + tl.arange(0, R)
            _high, one, other, inside = _parts(matrix, out, h, c, n)
            both = one + other
            both = tl.where(both > 0, both, 1.0)
            place = h[:, None] * T + c[None, :]
            part = tl.load(grads + place, inside, 0.0) / both
            tl.store(grads + place, part * one, inside)
            passing = part * other
            of_out += tl.sum(passing, 0)
            tl.store(grads + h * T + n - 1, tl.sum(passing, 1), h < n)
            if ALONG:
                direct, through = _changes_of_parts(change, dout, h, c, n, inside)
                turn = passing * (one / both) * (direct - through)
                part = tl.load(along + place, inside, 0.0) / both
                tl.store(along + place, part * one + turn, inside)
                passing = part * other - turn
                dof_out += tl.sum(passing, 0)
                tl.store(along + h * T + n - 1, tl.sum(passing, 1), h < n)
        tl.store(grads + n * T + c, of_out, c < n - 1)
        if ALONG:
            tl.store(along + n * T + c, dof_out, c < n - 1)
        tl.debug_barrier()
        of_enter = seed - tl.sum(of_out, 0)
        place = c * T + n - 1
        grad = tl.load(grads + place, c < n, 0.0) + of_enter * tl.exp(choices - finite(enter))
        if ALONG:
            dgrad = tl.load(along + place, c < n, 0.0)
            dgrad += chances * (of_enter * (dchoices - denter) - tl.sum(dof_out, 0))
        tl.debug_barrier()
        tl.store(grads + place, grad, c < n)
        if ALONG:
            tl.store(along + place, dgrad, c < n)
        tl.debug_barrier()
    found = along if ALONG else grads
    for start in range(0, words + 1, R):
        h = start + tl.arange(0, R)
        place, there = _places(order, h, c, words, T)
        tl.store(of_arcs + place, tl.load(found + h[:, None] * T + c[None, :], there, 0.0), there)


@triton.jit
def _order(arcs, lengths, work, order, T, R: tl.constexpr, C: tl.constexpr):
    """The order of elimination `[B, T]`, last first; `work [B, T, T]` is for the weights of arcs on the way."""
    b = tl.program_id(0).to(tl.int64)
    words = tl.load(lengths + b).to(tl.int32)
    arcs += b * T * T
    work += b * T * T
    order += b * T
    c = tl.arange(0, C)
    scores = tl.load(arcs + c * (T + 1), c < words, -float("inf")).to(tl.float64)
    best = tl.full((C,), -float("inf"), tl.float64)
    for start in range(0, words, R):
        h = start + tl.arange(0, R)
        inside = (h < words)[:, None] & (c < words)[None, :]
        place = h[:, None] * T + c[None, :]
        tile = tl.load(arcs + place, inside & (h[:, None] != c[None, :]), -float("inf")).to(tl.float64)
        best = tl.maximum(best, tl.max(tile, 0))
        tl.store(work + place, tile, inside)
    tl.debug_barrier()
    tl.store(order + c, c, (c >= words) & (c < T))
    gone = c >= words
    for step in range(words):
        # How far the best head is above the root: unbounded where the word cannot be a root, lowest where it has no head.
        margin = tl.where(scores == -float("inf"), 1e300, best - finite(scores))
        margin = tl.where(best == -float("inf"), -1e300, margin)
        word = tl.argmax(tl.where(gone, -float("inf"), margin), 0)
        tl.store(order + words - 1 - step, word)
        gone = gone | (c == word)
        divisor = finite(tl.sum(tl.where(c == word, best, 0.0), 0))
        out = tl.load(work + word * T + c, c < words, -float("inf")) - divisor
        scores = tl.maximum(scores, tl.sum(tl.where(c == word, scores, 0.0), 0) + out)
        best = tl.full((C,), -float("inf"), tl.float64)
        tl.debug_barrier()
        for start in range(0, words, R):
            h = start + tl.arange(0, R)
            inside = (h < words)[:, None] & (c < words)[None, :]
            place = work + h[:, None] * T + c[None, :]
            into = tl.load(work + h * T + word, h < words, -float("inf"))
            tile = tl.maximum(tl.load(place, inside, -float("inf")), into[:, None] + out[None, :])
            drop = gone[None, :] | (h == word)[:, None] | (h[:, None] == c[None, :])
            tile = tl.where(drop, -float("inf"), tile)
            best = tl.maximum(best, tl.max(tile, 0))
            tl.debug_barrier()
            tl.store(place, tile, inside)
        tl.debug_barrier()


def _tiles(length: int) -> dict[str, int]:
    columns = max(16, triton.next_power_of_2(length + 1))
    return {"R": max(1, 2048 // columns), "C": columns, "num_warps": 8}


def eliminated(arcs: Tensor, lengths: Tensor, multiroot: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The log of the sum over all trees `[B]`, in float64, the matrices, and the order of words `[B, T]`, last eliminated first."""
    batch, length, _ = arcs.shape
    arcs, float64 = arcs.contiguous(), {"dtype": torch.float64, "device": arcs.device}
    total, matrices = (
        torch.empty(batch, **float64),
        torch.empty(batch, length * (length + 1) * (length + 2) // 3, **float64),
    )
    order = torch.arange(length, dtype=torch.int32, device=arcs.device).repeat(batch, 1)
    if batch:
        if not multiroot:
            _order[(batch,)](arcs, lengths, torch.empty_like(arcs, **float64), order, length, **_tiles(length))
        arguments = arcs, lengths, order, matrices, total, length
        _eliminate[(batch,)](*arguments, MULTIROOT=multiroot, **_tiles(length))
    return total, matrices, order


def forward(arcs: Tensor, *, lengths: Tensor, multiroot: bool) -> tuple[Tensor, Kept]:
    """Log of the sum over all trees `[B]`."""
    total, *kept = eliminated(arcs, lengths, multiroot)
    return total.to(arcs.dtype), (total, *kept)


def backward(
    kept: Kept, grad: Tensor, _wanted: Sequence[bool], *, lengths: Tensor, multiroot: bool
) -> Sequence[Tensor | None]:
    """The gradient in the scores of arcs and roots."""
    total, matrices, order = kept
    return (_restored(matrices, matrices, order, total, grad, lengths, multiroot, along=False),)


def curve(
    kept: Kept, grad: Tensor, directions: Sequence[Tensor | None], *, lengths: Tensor, multiroot: bool
) -> tuple[list[Tensor], Tensor]:
    """The derivatives of the gradient as scores change by the direction, and of the log sum."""
    total, matrices, order = kept
    (direction,) = directions
    assert direction is not None
    changes, along = torch.empty_like(matrices), torch.empty_like(total)
    batch, length = order.shape
    if batch:
        arguments = direction.contiguous(), lengths, order, matrices, changes, along, length
        _eliminate_along[(batch,)](*arguments, MULTIROOT=multiroot, **_tiles(length))
    found = _restored(matrices, changes, order, total, grad, lengths, multiroot, along=True)
    return [found], along.masked_fill_(total == -torch.inf, 0.0).to(grad.dtype)


def _restored(
    matrices: Tensor,
    changes: Tensor,
    order: Tensor,
    total: Tensor,
    grad: Tensor,
    lengths: Tensor,
    multiroot: bool,
    along: bool,
) -> Tensor:
    """The gradient in the scores of arcs and roots, or `along` changes its derivative."""
    batch, length = order.shape
    of_arcs = grad.new_zeros(batch, length, length)
    if batch:
        work = matrices.new_zeros(2 if along else 1, batch, length + 1, length)
        arguments = matrices, changes, lengths, order, total, grad.contiguous(), work[0], work[-1], of_arcs, length
        _restore[(batch,)](*arguments, MULTIROOT=multiroot, ALONG=along, **_tiles(length))
    return of_arcs
