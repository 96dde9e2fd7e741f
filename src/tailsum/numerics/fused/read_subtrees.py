"""Dependency trees read from their charts, the best or drawn at random: one launch, one program for each tree.

The reference is `read_dependencies` in `dependencies/projective.py`, with the same stack of items (kind, first and last word, state
of the head): left halves, right halves, and all words up to the last under their roots.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.subtree_chart import row_tiles


@triton.jit
def _noise(seed, choice, place):
    """Gumbel noise, the same for a seed, a choice and the place of an alternative."""
    uniform = tl.rand(seed + (choice.to(tl.int64) << 32), place) + 2.3e-10
    return -tl.log(tl.where(uniform < 1e-3, uniform * (1 + 0.5 * uniform), -tl.log(1 - uniform)))


@triton.jit
def _push(stack, depth, kind, first, last, state, there):
    """Put an item on the stack if it is there."""
    item = stack + depth * 4
    tl.store(item, kind)
    tl.store(item + 1, first)
    tl.store(item + 2, last)
    tl.store(item + 3, state)
    return depth + tl.where(there, 1, 0)


@triton.jit(do_not_specialize=["seed"])
def _read(
    nodes, arcs, pairs, left, right, before, lengths, sentences, heads, states, stack, seed, T, K, group,
    OWN: tl.constexpr, MULTIROOT: tl.constexpr, DRAW: tl.constexpr, S: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    b = tl.load(sentences + row)
    n = tl.load(lengths + b).to(tl.int32)
    nodes += b * T * K
    arcs += b * T * T
    left += b * T * T * K
    right += b * T * T * K
    before += b * T
    if OWN:
        pairs += b * group * T * T * K * K
    stack += row.to(tl.int64) * (T + 3) * 4
    heads += row.to(tl.int64) * T
    states += row.to(tl.int64) * T
    depth = _push(stack, 0, 2, 0, n - 1, 0, n > 0)
    tl.debug_barrier()
    for step in range(tl.where(tl.load(before + n - 1) > -float("inf"), n, 0)):
        depth = tl.maximum(depth - 1, 0)
        kind, first = tl.load(stack + depth * 4), tl.load(stack + depth * 4 + 1)
        last, state = tl.load(stack + depth * 4 + 2), tl.load(stack + depth * 4 + 3)
        to_left, whole = kind == 0, kind == 2
        head = tl.where(to_left, last, first)
        # One child covers the words up to the bound of a left half, or from it on.
        low = tl.where(to_left | whole, first, first + 1)
        high = tl.where(to_left, last, tl.where(whole & (MULTIROOT == 0), 1, last + 1))
        top = tl.full((S, KB), -float("inf"), tl.float32)
        pick = tl.full((S, KB), 0, tl.int32)
        for bound in range(low, high):
            begin, end = tl.where(to_left, first, bound), tl.where(to_left, bound, last)
            # What remains of the item.
            rest = tl.where(to_left, left + ((end + 1) * T + last) * K, right + (first * T + begin - 1) * K) + state
            rest = tl.where(whole, before + begin - 1, rest)
            kept = tl.load(rest, (whole == 0) | (begin > 0), 0.0)
            for start in range(begin, end + 1, S):
                m = start + tl.arange(0, S)
                words = m <= end
                arc = tl.load(arcs + tl.where(whole, m, head) * T + m, words, -float("inf")) + kept
                for block in range(0, K, KB):
                    k = block + tl.arange(0, KB)
                    inside = words[:, None] & (k < K)[None, :]
                    x = tl.load(left + (begin * T + m[:, None]) * K + k[None, :], inside, -float("inf"))
                    x += tl.load(right + (m[:, None] * T + end) * K + k[None, :], inside, -float("inf"))
                    x += tl.load(nodes + m[:, None] * K + k[None, :], inside, -float("inf")) + arc[:, None]
                    table = pairs + state * K + k[None, :] + m[:, None] * 0
                    if OWN:
                        table += ((head * T + m[:, None]).to(tl.int64) * K) * K
                    x += tl.load(table, inside & (k < tl.where(whole, 0, K))[None, :], 0.0)
                    place = (bound * T + m[:, None]) * K + k[None, :]
                    if DRAW:
                        x += _noise(seed, row * T + step, place)
                    pick = tl.where(x > top, place, pick)
                    top = tl.maximum(top, x)
        highest = tl.max(tl.max(top, 1), 0)
        pick = tl.max(tl.max(tl.where(top == highest, pick, 0), 1), 0)
        bound, child, below = pick // (T * K), pick // K % T, pick % K
        tl.store(heads + child, tl.where(whole, child, head))
        tl.store(states + child, below)
        begin, end = tl.where(to_left, first, bound), tl.where(to_left, bound, last)
        rest_first, rest_last = tl.where(to_left, bound + 1, first), tl.where(to_left, last, bound - 1)
        remains = tl.where(whole, bound > 0, rest_last > rest_first)
        tl.debug_barrier()
        depth = _push(stack, depth, kind, rest_first, rest_last, state, remains)
        depth = _push(stack, depth, 0, begin, child, below, child > begin)
        depth = _push(stack, depth, 1, child, end, below, end > child)
        tl.debug_barrier()


def read_subtrees(
    scores: tuple[Tensor, Tensor, Tensor],
    chart: tuple[Tensor, Tensor, Tensor],
    lengths: Tensor,
    sentences: Tensor,
    multiroot: bool,
    seed: int | None,
) -> tuple[Tensor, Tensor]:
    """Heads and states `[R, T]` of trees of the `sentences [R]`: the best, or drawn with random numbers from a seed.

    `scores` are those of states, arcs and pairs; `chart` has the halves, and the sums of all words up to each `[B, T]`.
    """
    nodes, arcs, pairs = (x.contiguous() for x in scores)
    _, length, size = nodes.shape
    heads, states = (sentences.new_full((len(sentences), length), -1) for _ in range(2))
    stack = torch.empty(len(sentences), length + 3, 4, dtype=torch.int32, device=nodes.device)
    group = int(pairs.dim() > 2 and len(pairs) > 1)
    how = {"OWN": pairs.dim() > 2, "MULTIROOT": multiroot, "DRAW": seed is not None, **row_tiles(size)}
    if len(sentences):
        items = (nodes, arcs, pairs, *(x.contiguous() for x in chart), lengths, sentences, heads, states, stack)
        _read[(len(sentences),)](*items, seed or 0, length, size, group, **how)
    return heads, states
