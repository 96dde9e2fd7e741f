"""Scores of a grammar's binary rules, head -> left right: as a table, as low-rank or trilinear factors, or as a function.

Heads are nonterminals `0 .. N-1`. Children are nonterminals or preterminals, numbered together: nonterminal i is child i,
preterminal p is child `N + p`. A rule stands for scores `[*lead, N, N+P, N+P]` (head, left, right); `lead` broadcasts
against the batch.

Inside a model the leading dimensions are one, `[G, ...]`: G is 1 where all sentences share the rules and B where each has
its own. A model of all states sums its chart by `chart`; a restricted one has states of its own at every span, and so do
its rules: see `span_rule.py`.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.check import check_device, check_scores
from tailsum.kernels.reduce import LogProduct, Reduce, log_sum_exp
from tailsum.kernels.spans import fill_chart
from tailsum.kernels.stream import Parts, streamed
from tailsum.kernels.table import fits_budget, tile_size
from tailsum.potential import Dense, Factored, Potential, Scores, finite, scaled, take

Kind = tuple[bool, bool]  # whether the left and the right child are leaves (preterminals)
Role = Literal["head", "left", "right"]


class Rule(Scores):
    """Scores of rules over all states."""

    n_heads: int
    n_children: int

    @property
    @abstractmethod
    def lead(self) -> torch.Size:
        """What the scores vary with, beside the three states."""

    @abstractmethod
    def block(self) -> Float[Tensor, "*lead N C C"]:
        """The whole table."""

    @abstractmethod
    def at(self, head: Int[Tensor, "G m"], left: Int[Tensor, "G m"], right: Int[Tensor, "G m"]) -> Float[Tensor, "G m"]:
        """Scores of single rules."""

    @abstractmethod
    def between(
        self, head: Int[Tensor, "G *lead a"], left: Int[Tensor, "G *lead b"], right: Int[Tensor, "G *lead c"]
    ) -> Float[Tensor, "G *lead a b c"]:
        """Scores of all given heads with all given left and right children."""

    @abstractmethod
    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        """Scores from m pairs of two of a rule's states, in the order of the rule, to all states `rest` in the third."""

    @abstractmethod
    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        """All rules of one head, of sentence `batch`, for each row."""

    @abstractmethod
    def contract(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        """For each head, the sum (or maximum) over pairs of children of their score and the rule's."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> "Rule": ...

    def children(self, leaf: bool) -> slice:
        """The numbers of the children that are leaves, or of those that are not."""
        return slice(self.n_heads, self.n_children) if leaf else slice(0, self.n_heads)

    def chart(self, spans: list[Tensor], reduce: Reduce) -> list[Tensor]:
        """The inside chart over scores `[B, n, S]` of the spans of each width: leaves first.

        The splits of a span are merged by a product before the rules are contracted: T^3 N^2 + T^2 N^3.
        """
        n_leaves = self.n_children - self.n_heads

        def combine(width: int, left: list[Tensor], right: list[Tensor]) -> Tensor:
            found = []
            for kind, sizes in _splits(width):
                before = torch.stack([left[size - 1] for size in sizes], -1)
                after = torch.stack([right[size - 1] for size in sizes], -2)
                merged = LogProduct(after, reduce)(before).flatten(-2)  # [B, n, left right]
                rows = merged if len(merged) == math.prod(self.lead) else merged.flatten(0, 1)[None]
                found.append(self.contract(rows, kind, reduce).reshape(*merged.shape[:2], -1))
            return spans[width - 1][..., : self.n_heads] + reduce(torch.stack(found), 0)

        return fill_chart(spans[0][..., :n_leaves], combine)

    def scaled(self, factor: Float[Tensor, ""] | float) -> "Rule":
        return DenseRule(scaled(self.block(), factor))

    def plus(self, other: "Rule") -> "Rule":
        return DenseRule(self.block() + other.block())

    def finite(self) -> "Rule":
        return DenseRule(finite(self.block()))

    def forbidden(self, dtype: torch.dtype) -> "Rule":
        return DenseRule((self.block() == -math.inf).to(dtype))

    def centred(self) -> "Rule":
        """The same rules but for a constant: every tree of a sentence has the same number of them."""
        return self

    @staticmethod
    def table(scores: Tensor) -> "DenseRule":
        """Rules with the given table of scores."""
        return DenseRule(scores)


def _splits(width: int) -> list[tuple[Kind, list[int]]]:
    """The sizes of the left child, sorted by which of the two children are leaves."""
    kinds: dict[Kind, list[int]] = {}
    for size in range(1, width):
        kinds.setdefault((size == 1, width - size == 1), []).append(size)
    return list(kinds.items())


class DenseRule(Rule):
    """A table of scores `[*lead, N, N+P, N+P]` (head, left, right)."""

    def __init__(self, scores: Float[Tensor, "*lead N C C"]) -> None:
        self.scores = scores
        self.n_heads, self.n_children = scores.shape[-3:-1]
        self._products: dict[tuple[Kind, Reduce], LogProduct] = {}

    @property
    def lead(self) -> torch.Size:
        return self.scores.shape[:-3]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.scores,)

    def map(self, change: Callable[[Tensor], Tensor]) -> "DenseRule":
        return DenseRule(change(self.scores))

    def block(self) -> Float[Tensor, "*lead N C C"]:
        return self.scores

    def at(self, head: Int[Tensor, "G m"], left: Int[Tensor, "G m"], right: Int[Tensor, "G m"]) -> Float[Tensor, "G m"]:
        flat = (head * self.n_children + left) * self.n_children + right
        return take(self.scores.flatten(-3)[..., None], flat)[..., 0]

    def between(
        self, head: Int[Tensor, "G *lead a"], left: Int[Tensor, "G *lead b"], right: Int[Tensor, "G *lead c"]
    ) -> Float[Tensor, "G *lead a b c"]:
        triples = (head[..., :, None, None], left[..., None, :, None], right[..., None, None, :])
        shape = torch.broadcast_shapes(*(x.shape for x in triples))
        return self.at(*(x.expand(shape).reshape(len(head), -1) for x in triples)).reshape(shape)

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        order = {"head": (1, 2, 0), "left": (0, 2, 1), "right": (0, 1, 2)}[role]
        table = self.scores.movedim([-3 + i for i in order], [-3, -2, -1])[..., rest]
        rows = first * table.shape[-2] + second
        return Dense(take(table.flatten(-3, -2), rows))

    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        return self.scores[batch if len(self.scores) > 1 else torch.zeros_like(batch), head]

    def contract(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        if (kind, reduce) not in self._products:
            part = self.scores[..., self.children(kind[0]), self.children(kind[1])]
            self._products[kind, reduce] = LogProduct(part.flatten(-2).mT, reduce)
        return self._products[kind, reduce](pairs)

    def centred(self) -> "DenseRule":
        return DenseRule(self.scores - finite(self.scores.detach().amax((-3, -2, -1), keepdim=True)))

    def bound(self) -> float:
        return finite(self.scores).abs().max().item()


class FactorRule(Rule):
    """Rules scored from a vector for each head, each left and each right child: `[*lead, N, d]`, `[*lead, N+P, d]` twice.

    A sketch needs no more than the vectors of the states it keeps. Exact sums need the table of all rules; where it does
    not fit `table_budget`, they build it a few heads at a time, once for each width of spans.
    """

    def __init__(
        self,
        head: Float[Tensor, "*#lead N d"],
        left: Float[Tensor, "*#lead C d"],
        right: Float[Tensor, "*#lead C d"],
    ) -> None:
        if min(head.dim(), left.dim(), right.dim()) < 2 or left.shape[-2] != right.shape[-2]:
            raise ValueError(
                "head, left and right must be [*lead, N, d], [*lead, N+P, d] and [*lead, N+P, d]: "
                f"got {list(head.shape)}, {list(left.shape)} and {list(right.shape)}"
            )
        if not head.shape[-1] == left.shape[-1] == right.shape[-1]:
            raise ValueError(
                "head, left and right must have the same last dimension: "
                f"got {list(head.shape)}, {list(left.shape)} and {list(right.shape)}"
            )
        self.head, self.left, self.right = head, left, right
        self.n_heads, self.n_children = head.shape[-2], left.shape[-2]
        self._table: DenseRule | None = None
        self.factor: Tensor | None = None  # what every score is multiplied by, if anything

    @staticmethod
    @abstractmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        """Scores of all given heads with all given left and right children."""

    @property
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes(*(x.shape[:-2] for x in (self.head, self.left, self.right)))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.head, self.left, self.right

    def map(self, change: Callable[[Tensor], Tensor]) -> "FactorRule":
        return self._times(self.factor, *map(change, self.tensors))

    def _times(self, factor: Tensor | None, *tensors: Tensor) -> "FactorRule":
        other = type(self)(*(tensors or self.tensors))
        other.factor = factor
        return other

    def scaled(self, factor: Float[Tensor, ""] | float) -> "FactorRule":
        factor = torch.as_tensor(factor, dtype=self.head.dtype, device=self.head.device)
        return self._times(factor if self.factor is None else self.factor * factor)

    def block(self) -> Float[Tensor, "*lead N C C"]:
        return self._scores(self.factor, *self.tensors)

    def _scores(self, factor: Tensor | None, *tensors: Tensor) -> Tensor:
        plain = self.scores(*tensors)
        return plain if factor is None else scaled(plain, factor)

    def at(self, head: Int[Tensor, "G m"], left: Int[Tensor, "G m"], right: Int[Tensor, "G m"]) -> Float[Tensor, "G m"]:
        vectors = (take(x, i)[..., None, :] for x, i in zip(self.tensors, (head, left, right), strict=True))
        return self._scores(self.factor, *vectors)[..., 0, 0, 0]

    def between(
        self, head: Int[Tensor, "G *lead a"], left: Int[Tensor, "G *lead b"], right: Int[Tensor, "G *lead c"]
    ) -> Float[Tensor, "G *lead a b c"]:
        def vectors(x: Tensor, index: Tensor) -> Tensor:
            return take(x, index.flatten(1)).unflatten(1, index.shape[1:])

        given = zip(self.tensors, (head, left, right), strict=True)
        return self._scores(self.factor, *(vectors(x, index) for x, index in given))

    def rows(self, batch: Int[Tensor, " r"], head: Int[Tensor, " r"]) -> Float[Tensor, "r C C"]:
        one, left, right = (x[batch if len(x) > 1 else torch.zeros_like(batch)] for x in self.tensors)
        return self._scores(self.factor, one.take_along_dim(head[:, None, None], 1), left, right)[:, 0]

    def _fits(self) -> bool:
        """Whether the table, its exponentials and, if recorded, their gradients fit the budget for tables."""
        copies = 4 if torch.is_grad_enabled() else 2
        entries = math.prod(self.lead) * self.n_heads * self.n_children**2
        return fits_budget(copies * entries * self.head.element_size())

    def contract(self, pairs: Float[Tensor, "G r pair"], kind: Kind, reduce: Reduce) -> Float[Tensor, "G r N"]:
        if self._table is None and self._fits():
            self._table = DenseRule(self.block())
        if self._table is not None:
            return self._table.contract(pairs, kind, reduce)
        left, right = (x[..., self.children(leaf), :] for x, leaf in zip(self.tensors[1:], kind, strict=True))

        def tile(parts: Parts) -> Parts:
            (head,), (pairs, left, right, *factor) = parts
            table = self._scores(factor[0] if factor else None, head, left, right)
            return Parts((LogProduct(table.flatten(-2).mT, reduce)(pairs).mT,))

        whole = (pairs, left, right) if self.factor is None else (pairs, left, right, self.factor)
        chunk = max(1, 4 * tile_size(pairs.device) // max(1, left.shape[-2] * right.shape[-2]))
        return streamed(tile, Parts((self.head,), whole), chunk, 1).rows[0].mT


class FactoredRule(FactorRule):
    """Rules scored from embeddings: `score(a -> b c) = sum_d head[a, d] left[b, d] right[c, d]`.

    >>> N, P, d = 20, 30, 8
    >>> rule = FactoredRule(torch.randn(N, d), torch.randn(N + P, d), torch.randn(N + P, d))
    >>> rule.block().shape
    torch.Size([20, 50, 50])
    """

    @staticmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        pairs = head[..., :, None, :] * left[..., None, :, :]
        return (pairs.flatten(-3, -2) @ right.mT).unflatten(-2, pairs.shape[-3:-1])

    def finite(self) -> "FactoredRule":
        return self

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        one, other, third = {
            "head": (self.left, self.right, self.head),
            "left": (self.head, self.right, self.left),
            "right": (self.head, self.left, self.right),
        }[role]
        return Factored(take(one, first) * take(other, second), third[..., rest, :])

    def bound(self) -> float:
        return math.prod(x.norm(dim=-1).max().item() for x in self.tensors)


class LowRankRule(FactorRule):
    """Rules of low rank: `exp score(a -> b c) = sum_r exp(head[a, r] + left[b, r] + right[c, r])`.

    The factors are logarithms, normalised or not: for a normalised grammar `head` sums to one over ranks, `left` and
    `right` over children. Exact sums and samples cost T^3 R + T^2 N R, and never build the table. `argmax`, `entropy` and
    divergences are of trees and states (a rank is no part of a tree), so they build the table, a few heads at a time.

    >>> N, P, R = 20, 30, 8
    >>> rule = LowRankRule(
    ...     torch.randn(N, R).log_softmax(-1), torch.randn(N + P, R).log_softmax(0), torch.randn(N + P, R).log_softmax(0)
    ... )
    >>> bool(torch.allclose(rule.block().exp().sum((-2, -1)), torch.ones(N)))
    True
    """

    @staticmethod
    def scores(
        head: Float[Tensor, "*#lead a d"], left: Float[Tensor, "*#lead b d"], right: Float[Tensor, "*#lead c d"]
    ) -> Float[Tensor, "*lead a b c"]:
        pairs = (left[..., :, None, :] + right[..., None, :, :]).flatten(-3, -2)
        return LogProduct(pairs.mT)(head).unflatten(-1, (left.shape[-2], right.shape[-2]))

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        raise NotImplementedError("states meet in ranks: nothing needs pairs of them")

    def chart(self, spans: list[Tensor], reduce: Reduce) -> list[Tensor]:
        if reduce is not log_sum_exp or self.factor is not None:
            return super().chart(spans, reduce)
        to_rank = {
            leaf: [LogProduct(x[..., self.children(leaf), :]) for x in (self.left, self.right)]
            for leaf in (True, False)
        }
        from_rank = LogProduct(self.head.mT)
        return rank_chart(
            spans[0][..., : self.n_children - self.n_heads],
            lambda width, entry: [self._rows(product, entry) for product in to_rank[width == 1]],
            lambda width, ranks: spans[width - 1][..., : self.n_heads] + self._rows(from_rank, ranks),
        )

    def _rows(self, product: LogProduct, entry: Tensor) -> Tensor:
        """A product with entries `[B, n, ..]` of a chart."""
        if len(entry) == math.prod(self.lead):
            return product(entry)
        return product(entry.flatten(0, 1)[None])[0].unflatten(0, entry.shape[:2])

    def bound(self) -> float:
        return sum(finite(x).abs().max().item() for x in self.tensors) + math.log(self.head.shape[-1])


def rank_chart(
    leaves: Tensor,
    to_ranks: Callable[[int, Tensor], Sequence[Tensor]],
    from_ranks: Callable[[int, Tensor], Tensor],
) -> list[Tensor]:
    """An inside chart whose children meet in ranks: `to_ranks(width, entry)` as left and as right child, `[B, n, R]`."""
    chart, ranks = [leaves], [to_ranks(1, leaves)]
    length = leaves.shape[1]
    for width in range(2, length + 1):
        count = length - width + 1
        ways = [
            ranks[size - 1][0][:, :count] + ranks[width - size - 1][1][:, size : size + count]
            for size in range(1, width)
        ]
        chart.append(from_ranks(width, log_sum_exp(torch.stack(ways), 0)))
        if width < length:
            ranks.append(to_ranks(width, chart[-1]))
    return chart


class ScoredRule:
    """Rules scored by any differentiable function of three index tensors, for instance a network over embeddings.

    `function(head, left, right)` gets tensors of state numbers that broadcast together (heads `0 .. N-1`, children
    `0 .. N+P-1`) and gives one score for each triple. Exact inference evaluates all of them; a sketch those of the states
    it keeps.

    >>> states = torch.randn(50, 8)
    >>> rule = ScoredRule(lambda a, b, c: -(states[a] - states[b] * states[c]).square().sum(-1), 20, 30)
    >>> rule.block().shape
    torch.Size([20, 50, 50])
    """

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor], n_heads: int, n_leaves: int) -> None:
        if n_heads < 1 or n_leaves < 1:
            raise ValueError(f"n_heads and n_leaves must be at least 1: got {n_heads} and {n_leaves}")
        self.function, self.n_heads, self.n_children = function, n_heads, n_heads + n_leaves
        self.dtype: torch.dtype | None = None  # what the function gives, unless a model asked for another

    def to(self, dtype: torch.dtype) -> "ScoredRule":
        """The rule with scores of the given type."""
        other = copy.copy(self)
        other.dtype = dtype
        return other

    def block(self, device: torch.device | None = None) -> Float[Tensor, "N C C"]:
        """The whole table."""
        heads, children = (torch.arange(n, device=device) for n in (self.n_heads, self.n_children))
        return self.between(heads, children, children)

    def between(
        self, head: Int[Tensor, "*lead a"], left: Int[Tensor, "*lead b"], right: Int[Tensor, "*lead c"]
    ) -> Float[Tensor, "*lead a b c"]:
        """Scores of all given heads with all given left and right children."""
        return self.at(head[..., :, None, None], left[..., None, :, None], right[..., None, None, :])

    def fan(self, role: Role, first: Int[Tensor, "G m"], second: Int[Tensor, "G m"], rest: slice) -> Potential:
        """Scores from m pairs of two of a rule's states, in the order of the rule, to all states `rest` in the third."""
        third = torch.arange(self.n_children, device=first.device)[rest]
        given = [first[..., None], second[..., None]]
        given.insert({"head": 0, "left": 1, "right": 2}[role], third)
        return Dense(self.at(*given))

    def children(self, leaf: bool) -> slice:
        """The numbers of the children that are leaves, or of those that are not."""
        return slice(self.n_heads, self.n_children) if leaf else slice(0, self.n_heads)

    def at(
        self, head: Int[Tensor, "*#shape"], left: Int[Tensor, "*#shape"], right: Int[Tensor, "*#shape"]
    ) -> Float[Tensor, "*shape"]:
        """Scores of triples of states, checked."""
        scores = self.function(head, left, right)
        wanted = torch.broadcast_shapes(head.shape, left.shape, right.shape)
        if not scores.is_floating_point() or scores.shape != wanted:
            raise ValueError(
                f"function must give one floating-point score for each triple, {list(wanted)}: "
                f"got {scores.dtype} {list(scores.shape)}"
            )
        if not (scores < math.inf).all():
            raise ValueError("function gave a score that is NaN or +inf: scores must be finite, or -inf for forbidden")
        return scores if self.dtype is None else scores.to(self.dtype)


def check_rule(
    given: Tensor | Rule | ScoredRule, n_heads: int, n_leaves: int, device: torch.device
) -> Rule | ScoredRule:
    """Rules of N nonterminals over N + P children, on the right device and of sound scores."""
    size = n_heads + n_leaves
    if isinstance(given, Tensor):
        if given.dim() < 3 or given.shape[-3:] != (n_heads, size, size):
            raise ValueError(
                f"rule must be [*batch, N, N+P, N+P] = [..., {n_heads}, {size}, {size}], as root and emission have: "
                f"got {list(given.shape)}"
            )
        given = DenseRule(given)
    if not isinstance(given, (Rule, ScoredRule)):
        raise ValueError(
            f"rule must be a tensor, a LowRankRule, a FactoredRule or a ScoredRule: got {type(given).__name__}"
        )
    if (given.n_heads, given.n_children) != (n_heads, size):
        raise ValueError(
            f"rule must have N = {n_heads} heads and N+P = {size} children, as root and emission have: "
            f"got {given.n_heads} and {given.n_children}"
        )
    for tensor in given.tensors if isinstance(given, Rule) else ():
        check_device("rule", tensor, device)
        check_scores("rule", tensor)
        if isinstance(given, FactoredRule) and not (tensor > -math.inf).all():
            raise ValueError("rule must have finite factors: got -inf")
    return given
