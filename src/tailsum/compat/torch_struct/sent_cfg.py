"""Context-free grammars: trees of a sentence, scored by terminals, rules and roots.

`rules[a, b, c]` scores nonterminal a with children b and c, which are nonterminals `0 .. NT-1` or terminals `NT .. NT+T-1`.
An event is a tuple: `terms [B, N, T]`, how often each rule is used `[B, NT, NT+T, NT+T]`, `roots [B, NT]`, and
`spans [B, N, N, NT]`, whose entry `[w, i]` is for the span of w+2 words from word i.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int, Num
from torch import Tensor

from tailsum.compat.torch_struct.distribution import StructDistribution
from tailsum.compat.torch_struct.semirings.recursion import chosen, neutral
from tailsum.compat.torch_struct.struct import (
    Lengths,
    Struct,
    added,
    check_event,
    event_score,
    inside,
    lengths_of,
    like_scores,
    without_parts,
)
from tailsum.numerics.check import check_scores
from tailsum.structure.base import Structure
from tailsum.trees.configuration import Trees, children
from tailsum.trees.pcfg import PCFG

Parts = tuple[Tensor, ...]


class CKY(Struct):
    """Trees. The short form is `[B, N, N, NT+T]`, the label of each span by first and last word; `extra` is `(NT, T)`."""

    def distribution(self, log_potentials: Parts, lengths: Lengths) -> "SentCFG":
        return SentCFG(log_potentials, lengths)

    def converted(self, potentials: Parts) -> Parts:
        return tuple(self.semiring.convert(x) for x in potentials)

    def fold(self, parts: Parts, lengths: Lengths) -> Num[Tensor, "size B"]:
        usable, positions = self.distribution(tuple(map(like_scores, parts)), lengths).within()
        terms, rules, roots = parts
        zero, _ = neutral(self.semiring, terms, 4)
        return self.recursion((torch.where(usable, terms, zero), rules, roots), positions)

    def recursion(self, parts: Parts, lengths: Int[Tensor, " B"]) -> Num[Tensor, "size B"]:
        """Symbols of spans `[size, B, N-w, NT+T]` by width: rules join all pairs of adjacent spans."""
        terms, rules, roots = parts
        heads, leaves, length = roots.shape[-1], terms.shape[-1], terms.shape[2]
        zero, _ = neutral(self.semiring, terms, 4)
        none, joins = zero.expand(*terms.shape[:3], heads + leaves), rules.flatten(-2).mT
        chart = [torch.cat((none[..., :heads], terms), -1)]
        for w in range(1, length):
            here = length - w
            left = torch.stack([chart[u][:, :, :here] for u in range(w)], -1)
            right = torch.stack([chart[w - u - 1][:, :, u + 1 :] for u in range(w)], -2)
            pairs = self.semiring.matmul(left, right).flatten(-2)
            chart.append(torch.cat((self.semiring.matmul(pairs, joins), none[:, :, :here, heads:]), -1))
        return self.semiring.dot(chosen([spans[:, :, 0, :heads] for spans in chart], lengths - 1), roots)

    def marginals(
        self, logpotentials: Any, lengths: Lengths = None, _autograd: bool = True, _raw: bool = False
    ) -> tuple[Tensor, ...]:
        """Events of four tensors, as `SentCFG` has them; `_autograd` has no effect."""
        return super().marginals(logpotentials, lengths, _raw)

    def score(self, potentials: Parts, parts: Parts, batch_dims: Any = (0,)) -> Float[Tensor, "*batch"]:
        terms, rules, roots = potentials[:3]
        total = event_score(terms, parts[0], 2) + event_score(rules, parts[1], 3)
        return total + event_score(roots, parts[2], 1)

    @staticmethod
    def to_parts(sequence: Tensor, extra: tuple[int, int], lengths: Lengths = None) -> Parts:  # pyright: ignore[reportIncompatibleMethodOverride]  (extra is needed)
        """Terminals, rules and roots of trees; the children of a span are the two spans that it is split into."""
        (heads, leaves), used = extra, sequence != 0
        if used.shape[-1] != heads + leaves:
            raise ValueError(f"sequence must be [B, N, N, {heads + leaves}], as extra says: got {list(sequence.shape)}")
        length = used.shape[-2]
        lengths = lengths_of(used[..., 0, 0].long(), lengths)
        mask = inside(length, lengths)
        used = used & (mask[..., :, None] & mask[..., None, :])[..., None]
        labels = used.float()
        whole = labels[..., 0, :, :].take_along_dim(lengths[..., None, None] - 1, -2)[..., 0, :]
        rules = labels.new_zeros(*lengths.shape, heads, heads + leaves, heads + leaves)
        for middle in range(length - 1):
            left, right = labels[..., : middle + 1, middle, :], labels[..., middle + 1, middle + 1 :, :]
            parents = labels[..., : middle + 1, middle + 1 :, :heads]
            rules = rules + torch.einsum("...ija,...ib,...jc->...abc", parents, left, right)
        terms = labels[..., heads:].diagonal(0, -3, -2).mT
        return terms, rules, whole[..., :heads]

    @staticmethod
    def from_parts(event: Parts) -> tuple[Tensor, tuple[int, int]]:
        """The label of each span, from an event of terminals, rules, roots and spans."""
        if len(event) < 4:
            raise ValueError(f"event must have terms, rules, roots and spans: got {len(event)} tensors")
        terms, spans = event[0], event[3]
        length, heads, leaves = terms.shape[-2], spans.shape[-1], terms.shape[-1]
        labels = torch.diag_embed(F.pad(terms, (heads, 0)).mT).movedim(-3, -1)
        first = torch.arange(length, device=terms.device)[:, None]
        width = first.mT - first - 1
        inner = spans[..., width.clamp(min=0), first.expand(length, length), :]
        return labels + F.pad(inner * (width >= 0)[..., None].to(inner.dtype), (0, leaves)), (heads, leaves)


class SentCFG(StructDistribution):
    """A grammar with NT nonterminals and T terminals, from `(terms [B, N, T], rules [B, NT, NT+T, NT+T], roots [B, NT])`.

    Rules are binary: a sentence of one word has no tree, and its partition is minus infinity.

    >>> zeros = torch.zeros
    >>> SentCFG((zeros(1, 4, 3), zeros(1, 2, 5, 5), zeros(1, 2))).count  # 5 trees, 2^3 nonterminals, 3^4 terminals
    tensor([3240.])
    """

    struct = CKY

    def __init__(
        self,
        log_potentials: tuple[Tensor, ...] | list[Tensor],
        lengths: Lengths = None,
        validate_args: bool | None = False,
    ) -> None:
        if not isinstance(log_potentials, tuple | list) or len(log_potentials) != 3:
            raise ValueError(f"log_potentials must be (terms, rules, roots): got {type(log_potentials).__name__}")
        terms, rules, roots = log_potentials
        leaves, heads = terms.shape[-1], roots.shape[-1]
        every, batch = heads + leaves, terms.shape[:1]
        if terms.dim() != 3 or rules.shape != (*batch, heads, every, every) or roots.shape != (*batch, heads):
            got = [list(x.shape) for x in log_potentials]
            raise ValueError(f"log_potentials must be [B, N, T], [B, NT, NT+T, NT+T] and [B, NT]: got {got}")
        self.log_potentials, self.args = (terms, rules, roots), {}
        self._begin(batch, terms.shape[1:], lengths)
        check_scores("log_potentials[0] (terms)", torch.where(self._usable(), terms.detach(), 0.0))
        check_scores("log_potentials[1] (rules)", rules)
        check_scores("log_potentials[2] (roots)", roots)

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.log_potentials

    def _build(self, scores: tuple[Tensor, ...], lengths: Lengths) -> Structure:
        terms, rules, roots = scores
        return PCFG(roots, rules, terms, lengths)

    def _event_score(self, event: Parts) -> Float[Tensor, "*sample_batch"]:
        if not isinstance(event, tuple | list) or len(event) < 3:
            raise ValueError(f"value must be an event of terms, rules and roots: got {type(event).__name__}")
        for i, (name, scores) in enumerate(zip(("terms", "rules", "roots"), self.log_potentials, strict=True)):
            check_event(f"value[{i}] ({name})", event[i], self.batch_shape, scores.shape[len(self.batch_shape) :])
        usable = self._usable()
        terms = torch.where(usable, event[0], 0)
        return without_parts(CKY().score(self.log_potentials, (terms, *event[1:3])), terms, usable, 2)

    def _marginals(self, model: Structure) -> Parts:
        assert isinstance(model, PCFG)
        spans, rules = model.span_and_rule_marginals()
        return self._of_spans(model.scatter(spans), rules)

    def _event(self, model: Structure, configuration: Trees) -> Parts:
        whole = model.whole
        assert isinstance(whole, PCFG)
        heads, every = whole.n_heads, whole.n_heads + whole.n_leaves
        head, left, right = children(configuration, self._longest(), heads)
        place, used = (head * every + left) * every + right, head >= 0
        rules = added(torch.where(used, place, 0), used.to(model.dtype), (heads, every, every))
        return self._of_spans(whole.used(configuration)[0], rules)

    def _of_spans(self, spans: Tensor, rules: Tensor) -> Parts:
        """An event from the labels of spans by first and last word, `[*batch, N, N, n]`."""
        (_, leaves), heads = self.event_shape, self.log_potentials[2].shape[-1]
        last = self._positions()[..., None, None] - 1
        inner = spans[..., :heads] * (last > 0)[..., None]
        whole = torch.arange(self._longest(), device=spans.device)[:, None] == last
        roots = (inner[..., 0, :, :] * whole).sum(-2)
        return spans[..., :leaves].diagonal(0, -3, -2).mT, rules, roots, _by_width(inner)

    def _expanded(self, shape: torch.Size) -> dict[str, Any]:
        return {
            "log_potentials": tuple(x.expand(*shape, *x.shape[len(self.batch_shape) :]) for x in self.log_potentials)
        }


def _by_width(spans: Tensor) -> Tensor:
    """Spans of two words and more by width and first word, `[.., w, i, nt]` for w+2 words, from `[.., first, last, nt]`."""
    length = spans.shape[-2]
    first = torch.arange(length, device=spans.device)
    last = first + first[:, None] + 1
    inside = (last < length)[..., None]
    return torch.where(inside, spans[..., first.expand(length, length), last.clamp(max=length - 1), :], 0)
