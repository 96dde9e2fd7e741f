"""The best non-projective dependency trees (Chu-Liu-Edmonds, as Tarjan has it), one program for each sentence.

The reference is `_best_rows` in `dependencies/arborescence.py`. Nodes are the n words and then the cycles, each contracted to one node. What
is known of them is in registers, `[D]` by node; the gains of the heads of a cycle are in memory, `[C]` by head (the root first).
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailsum.numerics.fused.kernel import Kept


@triton.jit
def _at(values, index, place):
    """One of the values."""
    return tl.sum(tl.where(index == place, values, 0), 0)


@triton.jit
def _gains(arcs, gains, node, h, n, T):
    """The scores of the heads of a node over its chosen ones inside."""
    place = tl.where(h == 0, node * (T + 1), (h - 1) * T + node)
    of_word = tl.load(arcs + place, (h <= tl.where(node < n, n, -1)) & (h != node + 1), -float("inf")).to(tl.float64)
    of_cycle = tl.load(gains + (node - n) * (T + 1) + h, h <= tl.where(node < n, -1, n), -float("inf"))
    return tl.where(node < n, of_word, of_cycle)


@triton.jit
def _best(arcs, lengths, gains, words, heads, T, MULTIROOT: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    """Fill `heads [B, T]`; `gains` and `words` (the child of each head), `[B, T, T + 1]`, are of the cycles."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    arcs += b * T * T
    gains += b * T * (T + 1)
    words += b * T * (T + 1)
    h, d = tl.arange(0, C), tl.arange(0, D)
    owner = h - 1  # the outermost node of each word, -1 for the root
    path, place = d * 0, d * 0  # the nodes followed, those of settled words first, and one more than the place of each
    row, child, cycle = (
        d * 0,
        d * 0,
        d * 0 - 1,
    )  # of each node: the head and its child, and the cycle that it is part of
    score = tl.zeros((D,), tl.float64)  # of that head
    count, settled, depth, word, node = n, n * 0, n * 0, n * 0, n * 0
    possible = n > 0
    while word < n:
        gain = _gains(arcs, gains, node, h, n, T)
        best = tl.max(gain, 0)
        pick = tl.argmax(gain, 0)
        if not MULTIROOT:  # the root only where there is no other head
            other = tl.where(h > 0, gain, -float("inf"))
            highest = tl.max(other, 0)
            pick = tl.where(highest > -float("inf"), tl.argmax(other, 0), 0)
            best = tl.where(highest > -float("inf"), highest, best)
        name = tl.load(words + (node - n) * (T + 1) + pick, node >= n, 0)
        row = tl.where(d == node, pick, row)
        child = tl.where(d == node, tl.where(node < n, node, name), child)
        score = tl.where(d == node, best, score)
        path = tl.where(d == depth, node, path)
        depth += 1
        place = tl.where(d == node, depth, place)
        following = _at(owner, h, pick)
        met = _at(place, d, following)
        if best == -float("inf"):
            possible = n < 0
            word = n
        elif (pick == 0) | ((met > 0) & (met <= settled)):
            settled = depth
            while (word < n) & (_at(place, d, node) > 0):
                word += 1
                node = _at(owner, h, word + 1)
        elif met == 0:
            node = following
        else:
            most, which, inside = tl.full((C,), -float("inf"), tl.float64), h * 0, h < 0
            for step in range(met - 1, depth):
                part = _at(path, d, step)
                more = _gains(arcs, gains, part, h, n, T) - _at(score, d, part)
                own = tl.load(words + (part - n) * (T + 1) + h, h <= tl.where(part < n, -1, n), 0)
                which = tl.where(more > most, tl.where(part < n, part, own), which)
                most = tl.maximum(most, more)
                inside = inside | (owner == part)
                cycle = tl.where(d == part, count, cycle)
            owner = tl.where(inside, count, owner)
            tl.store(gains + (count - n) * (T + 1) + h, tl.where(inside, -float("inf"), most), h <= n)
            tl.store(words + (count - n) * (T + 1) + h, which, h <= n)
            depth = met - 1
            node = count
            count += 1
            tl.debug_barrier()
    # An arc into a cycle replaces those of the nodes that it enters: outer cycles first.
    entered = d * 0
    node = tl.where(possible, count - 1, -1)
    while node >= 0:
        if _at(entered, d, node) == 0:
            head = _at(row, d, node)
            inner = _at(child, d, node)
            while inner != node:
                row = tl.where(d == inner, head, row)
                entered = tl.where(d == inner, 1, entered)
                inner = _at(cycle, d, inner)
        node -= 1
    roots = tl.sum(((d < n) & (row == 0)).to(tl.int32), 0)
    if not MULTIROOT:
        possible = possible & (roots == 1)
    head = tl.where(row == 0, d, row - 1)
    tl.store(heads + b * T + d, tl.where((d < n) & possible, head, -1).to(tl.int64), d < T)


def forward(arcs: Tensor, *, lengths: Tensor, multiroot: bool) -> tuple[Tensor, Kept]:
    """The heads `[B, T]` of the best tree of each sentence, from scores `arcs [B, T, T]` (head, child; roots on the diagonal)."""
    batch, length, _ = arcs.shape
    heads = torch.empty(batch, length, dtype=torch.long, device=arcs.device)
    if batch:
        columns = max(32, triton.next_power_of_2(length + 1))
        gains = torch.empty(batch, length, length + 1, dtype=torch.float64, device=arcs.device)
        arguments = arcs.contiguous(), lengths, gains, torch.empty_like(gains, dtype=torch.int32), heads, length
        how = {"MULTIROOT": multiroot, "C": columns, "D": 2 * columns, "num_warps": max(1, columns // 256)}
        _best[(batch,)](*arguments, **how)
    return heads, ()
