"""A dependency parser as the last layer of a network: biaffine scores of arcs and labels, on `DependencyTree`.

Heads are positions of words, `0 .. T-1`, and a root is its own head; `Dependencies.from_conll` converts other numbers.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tailsum.dependencies.configuration import Dependencies, are_trees
from tailsum.dependencies.dependency_tree import DependencyTree
from tailsum.nn.biaffine import Biaffine
from tailsum.nn.reduction import Reduction, check_reduction, reduced
from tailsum.numerics.check import check_whole

Lengths = Int[Tensor, " B"] | Sequence[int] | None


class DependencyParser(nn.Module):
    """A distribution over the dependency trees of a sentence, from a vector `[B, T, size]` for each word.

    Trees are `projective` or any trees, with one root or several (`multiroot`); with `n_labels`, every arc has a label.

    >>> parser = DependencyParser(size=16, n_labels=4)
    >>> encoded, heads, labels = torch.randn(1, 3, 16), torch.tensor([[1, 1, 1]]), torch.tensor([[0, 3, 2]])
    >>> loss = parser.loss(encoded, heads, labels)
    >>> parser.decode(encoded).heads.shape
    torch.Size([1, 3])
    """

    def __init__(
        self,
        size: int,
        n_labels: int | None = None,
        hidden: int = 128,
        label_hidden: int = 64,
        projective: bool = True,
        multiroot: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.size, self.n_labels, self.projective, self.multiroot = size, n_labels, projective, multiroot
        self.arcs = Biaffine(size, hidden, 1, dropout)
        self.roots = nn.Linear(size, 1)
        self.labels = None if n_labels is None else Biaffine(size, label_hidden, n_labels, dropout)

    def forward(self, encoded: Float[Tensor, "B T size"], lengths: Lengths = None) -> DependencyTree:
        """The distribution over the trees of each sentence."""
        arcs = self.arcs(encoded)[..., 0]  # (head, child)
        root = torch.eye(arcs.shape[1], dtype=torch.bool, device=arcs.device)
        arcs = torch.where(root, self.roots(encoded), arcs)
        if self.labels is not None:
            arcs = arcs[..., None] + self.labels(encoded)
        return DependencyTree(arcs, lengths, self.projective, self.multiroot, labelled=self.labels is not None)

    def loss(
        self,
        encoded: Float[Tensor, "B T size"],
        heads: Int[Tensor, "B T"],
        labels: Int[Tensor, "B T"] | None = None,
        lengths: Lengths = None,
        reduction: Reduction = "mean",
    ) -> Float[Tensor, "..."]:
        """Minus the log-likelihood of the tree of each sentence ("none"), its "sum", "mean" or "token_mean".

        Heads and labels of -1 were not annotated: the likelihood then sums over all trees that agree with the others.
        """
        check_reduction(reduction)
        model = self(encoded, lengths)
        gold = self._checked(model, heads, labels)
        if all(bool((x >= 0).all()) for x in gold):
            trees, crossing = are_trees(gold[0], model.sequence_lengths(), self.multiroot)
            self._check_possible(trees & ~crossing if self.projective else trees)
            log_likelihood = model.log_prob(Dependencies(*gold))
        else:
            log_likelihood = self._agreeing(model, *gold).log_partition() - model.log_partition()
            self._check_possible(log_likelihood > -math.inf)
        return reduced(-log_likelihood, reduction, model.sequence_lengths())

    @torch.no_grad()
    def decode(self, encoded: Float[Tensor, "B T size"], lengths: Lengths = None) -> Dependencies:
        """The best tree of each sentence; -1 in the padding."""
        return self(encoded, lengths).argmax()

    @torch.no_grad()
    def mbr(self, encoded: Float[Tensor, "B T size"], lengths: Lengths = None) -> Dependencies:
        """The tree of each sentence with the highest expected number of right arcs and labels."""
        return self(encoded, lengths).mbr()

    def _checked(self, model: DependencyTree, heads: Tensor, labels: Tensor | None) -> list[Tensor]:
        """Heads, and labels if the parser has them; zero in the padding."""
        if (labels is None) != (self.n_labels is None):
            raise ValueError(f"labels must {'not ' * (self.n_labels is None)}be given, as n_labels is {self.n_labels}")
        inside, checked = model.inside(), list[Tensor]()
        for name, x, most in (("heads", heads, inside.shape[1]), ("labels", labels, self.n_labels)):
            if x is None or most is None:
                continue
            ids = check_whole(name, x)
            if ids.shape != inside.shape:
                raise ValueError(f"{name} must be {list(inside.shape)}: got {list(ids.shape)}")
            checked.append(ids := torch.where(inside, ids, 0))
            if bool((wrong := (ids < -1) | (ids >= most)).any()):
                raise ValueError(
                    f"{name} must lie between 0 and {most - 1}, or be -1 for any: got {ids[wrong][0].item()}"
                )
        return checked

    def _check_possible(self, possible: Bool[Tensor, " B"]) -> None:
        if not bool(possible.all()):
            kind = f"{'projective ' * self.projective}tree with {'at least ' * self.multiroot}one root"
            row = (~possible).nonzero()[0].item()
            raise ValueError(f"heads must leave a {kind} for each sentence: got none for sentence {row}")

    def _agreeing(self, model: DependencyTree, heads: Tensor, labels: Tensor | None = None) -> DependencyTree:
        """The same scores, without the arcs and labels that disagree with the annotation."""
        place = torch.arange(heads.shape[1], device=heads.device)
        other = (heads[:, None, :] != place[:, None]) & (heads[:, None, :] != -1)  # [B, head, child]
        if labels is not None:
            kind = torch.arange(model.arc.shape[-1], device=heads.device)
            other = other[..., None] | ((labels[..., None] != kind) & (labels[..., None] != -1))[:, None]
        arcs = model.arc.masked_fill(other, -math.inf)
        return DependencyTree(arcs, model.lengths, self.projective, self.multiroot, labelled=model.labelled)
