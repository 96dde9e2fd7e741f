"""A linear-chain CRF as the last layer of a tagger, with the interface of pytorch-crf, on `LinearChain`.

Emissions are `[T, B, num_tags]`, or `[B, T, num_tags]` with `batch_first`; tags and masks have the same order. A mask may
have holes: masked positions are not part of the chain, and their neighbours follow each other. The start scores apply to
the first unmasked position, and the end scores to the last.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from tailsum.chains.linear_chain import LinearChain
from tailsum.nn.packing import Packing, packing_of
from tailsum.nn.reduction import Reduction, check_reduction, reduced
from tailsum.nn.schemes import allowed_by, scheme_tags
from tailsum.nn.scripted import Tables, best_paths, compiled, log_likelihood, only
from tailsum.nn.tags import check_follow, checked_tags, tag_sets
from tailsum.numerics.check import at_least, check_floating, check_scores, shape_or_type
from tailsum.scores.arguments import as_nodes
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.model import Propose
from tailsum.sketch.selection import TopK

Emissions = Float[Tensor, "_ _ num_tags"] | Factored
Tags = Int[Tensor, "_ _"] | Bool[Tensor, "_ _ num_tags"]
Mask = Shaped[Tensor, "_ _"] | None

LOWEST = -1e29  # lower scores of paths are those of masks


class CRF(nn.Module):
    """A conditional random field over tags, with learned scores of neighbouring tags, of the first tag and of the last.

    `allowed [num_tags, num_tags]` (from, to), `allowed_start` and `allowed_end [num_tags]` are the possible transitions: all
    others have probability zero, in the loss and in decoding. `CRF.for_scheme` sets them for a tagging scheme such as BIO.

    With `rank`, the scores of pairs are products of two embeddings of that size, in place of a table of all pairs. With
    `kept`, sums in the loss run over that many weighted tags at each position, chosen anew by `proposal` (see `sketch`).

    >>> crf = CRF(5, batch_first=True)
    >>> emissions, tags = torch.randn(2, 7, 5), torch.randint(5, (2, 7))
    >>> loss = -crf(emissions, tags)
    >>> [len(path) for path in crf.decode(emissions)]
    [7, 7]
    """

    # TorchScript reads these types, and the comments that begin with "type:", in place of shapes.
    allowed: Tensor | None
    allowed_start: Tensor | None
    allowed_end: Tensor | None
    __jit_unused_properties__: ClassVar[list[str]] = ["transition"]

    def __init__(
        self,
        num_tags: int,
        batch_first: bool = False,
        *,
        allowed: Bool[Tensor, "num_tags num_tags"] | None = None,
        allowed_start: Bool[Tensor, " num_tags"] | None = None,
        allowed_end: Bool[Tensor, " num_tags"] | None = None,
        rank: int | None = None,
        kept: int | None = None,
        proposal: Propose | None = None,
    ) -> None:
        super().__init__()
        at_least(1, num_tags=num_tags, **{k: v for k, v in {"rank": rank, "kept": kept}.items() if v is not None})
        if rank is not None and allowed is not None:
            raise ValueError("allowed needs a table of transitions, and rank has none: give one of the two")
        self.num_tags, self.batch_first, self.rank = num_tags, batch_first, rank
        self.kept, self.proposal = kept, proposal
        self.tags: list[str] | None = None
        self.scheme: str | None = None
        self.start_transitions = nn.Parameter(torch.empty(num_tags))
        self.end_transitions = nn.Parameter(torch.empty(num_tags))
        if rank is None:
            self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        else:
            self.from_embeddings = nn.Parameter(torch.empty(num_tags, rank))
            self.to_embeddings = nn.Parameter(torch.empty(num_tags, rank))
        tables = {"allowed": allowed, "allowed_start": allowed_start, "allowed_end": allowed_end}
        for name, table in tables.items():
            _check_allowed(name, table, num_tags)
            self.register_buffer(name, table, persistent=False)  # a state dict has the same keys as pytorch-crf's
        self.reset_parameters()

    @classmethod
    def for_scheme(
        cls,
        scheme: str,
        labels: Sequence[str] | None = None,
        *,
        tags: Sequence[str] | None = None,
        batch_first: bool = False,
    ) -> "CRF":
        """A CRF whose tags follow a scheme: IO, BIO (IOB2), IOBES (BIOES), BILOU or BMES.

        Give the `labels` of segments, for the tags O and then the prefixes of each label; or all `tags`, in any order.
        `crf.tags` are their names.

        >>> CRF.for_scheme("BIO", ["PER", "LOC"]).tags
        ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
        """
        if labels is not None and tags is None:
            names = scheme_tags(scheme, labels)
        elif tags is not None and labels is None:
            names = list(tags)
        else:
            got = "none of them" if tags is None else "both"
            raise ValueError(
                f"either labels (the names of segments) or tags (the names of all tags) must be given: got {got}"
            )
        start, pairs, end = allowed_by(scheme, names)
        crf = cls(len(names), batch_first, allowed=pairs, allowed_start=start, allowed_end=end)
        crf.tags, crf.scheme = names, scheme
        return crf

    def reset_parameters(self) -> None:
        """Small random scores: uniform between -0.1 and 0.1, and products of embeddings with the same variance."""
        for name, parameter in self.named_parameters():
            if name.endswith("embeddings"):
                nn.init.normal_(parameter, std=(0.01 / (3 * parameter.shape[1] ** 0.5)) ** 0.25)
            else:
                nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        scheme = None if self.scheme is None else repr(self.scheme)
        options = {"batch_first": self.batch_first or None, "scheme": scheme, "rank": self.rank, "kept": self.kept}
        return ", ".join([f"num_tags={self.num_tags}", *(f"{k}={v}" for k, v in options.items() if v is not None)])

    @property
    def transition(self) -> Potential:
        """The scores of pairs of neighbouring tags; minus infinity where they are forbidden."""
        if self.rank is not None:
            return Factored(self.from_embeddings, self.to_embeddings)
        return Dense(only(self.transitions, self.allowed))

    # The distribution, and the methods of pytorch-crf.

    def chain(self, emissions: Emissions, mask: Mask = None) -> LinearChain:
        """The distribution over the tags of each sequence.

        Its batch comes first, and where the mask has holes, position i is the i-th unmasked one.
        """
        return self._packed(emissions, mask)[0]

    def forward(
        self, emissions: Emissions, tags: Tags, mask: Mask = None, reduction: Reduction = "sum"
    ) -> Float[Tensor, "..."]:
        """The log-likelihood of the tags of each sequence ("none"), or its "sum", "mean" or "token_mean".

        Tags may be partly known: -1 is a tag that was not annotated, and a boolean tensor holds the set of tags that each
        position may have. The likelihood is then that of all paths that agree. Tags at masked positions are ignored.
        """
        # type: (Tensor, Tensor, Optional[Tensor], str) -> Tensor
        if torch.jit.is_scripting():  # pyright: ignore[reportPrivateImportUsage]
            if self.kept is not None:
                raise ValueError("a CRF with kept is not scripted: make one without, and load the same parameters")
            return log_likelihood(emissions, tags, mask, reduction, self.batch_first, self._tables())  # pyright: ignore[reportArgumentType]
        return self._forward(emissions, tags, mask, reduction)

    @torch.jit.unused
    def _forward(self, emissions: Emissions, tags: Tags, mask: Mask, reduction: Reduction) -> Float[Tensor, "..."]:
        if torch.jit.is_tracing() and isinstance(emissions, Tensor) and self.kept is None:  # pyright: ignore[reportPrivateImportUsage]
            return compiled(log_likelihood)(emissions, tags, mask, reduction, self.batch_first, self._tables())
        check_reduction(reduction)
        chain, packing = self._packed(emissions, mask)
        tags = self._batch_first(checked_tags(tags, _checked_shape(emissions, self.num_tags), self.num_tags))
        log_prob = self._log_prob(chain, packing.pack(tags))
        return reduced(log_prob, reduction, tags.shape[:2].numel() if packing.lengths is None else packing.lengths)

    @torch.jit.export
    def decode(self, emissions: Emissions, mask: Mask = None, kept: int | None = None) -> list[list[int]]:
        """The best tags of each sequence, at the unmasked positions; -1 throughout where no path is possible.

        With `kept`, the search is among that many promising tags at each position: for thousands of tags.
        """
        # type: (Tensor, Optional[Tensor], Optional[int]) -> List[List[int]]
        if torch.jit.is_scripting():  # pyright: ignore[reportPrivateImportUsage]
            if kept is not None:
                raise ValueError("a scripted CRF searches among all tags: kept must be None")
            return best_paths(emissions, mask, self.batch_first, self._tables())  # pyright: ignore[reportArgumentType]
        return self._decode(emissions, mask, kept)

    @torch.jit.unused
    @torch.no_grad()
    def _decode(self, emissions: Emissions, mask: Mask, kept: int | None) -> list[list[int]]:
        chain = self.chain(emissions, mask)
        if kept is not None:
            chain = chain.sketch(proposal=self.proposal, selection=TopK(kept))
        return _cut(chain.argmax(), chain)

    # Methods that pytorch-crf lacks.

    @torch.no_grad()
    def k_best(self, emissions: Emissions, k: int, mask: Mask = None) -> list[list[tuple[list[int], float]]]:
        """The k best paths of each sequence, best first, each with its log-probability; fewer where fewer exist.

        >>> crf = CRF(3, batch_first=True)
        >>> [(best, _), (second, _)] = crf.k_best(torch.randn(1, 4, 3), k=2)[0]
        >>> best != second
        True
        """
        chain = self.chain(emissions, mask)
        paths, scores = chain.topk(k)
        scores = (scores - chain.log_partition()).tolist()
        best: list[list[tuple[list[int], float]]] = [[] for _ in range(chain.batch_shape.numel())]
        for paths_of_rank, scores_of_rank in zip(paths, scores, strict=True):
            for row, path, score in zip(best, _cut(paths_of_rank, chain), scores_of_rank, strict=True):
                if score > -math.inf:
                    row.append((path, score))
        return best

    def marginals(self, emissions: Emissions, mask: Mask = None) -> Float[Tensor, "_ _ num_tags"]:
        """The probability of each tag at each position, in the order of the emissions; zero where masked."""
        chain, packing = self._packed(emissions, mask)
        return self._batch_first(packing.unpack(chain.marginals()))

    def entropy(self, emissions: Emissions, mask: Mask = None) -> Float[Tensor, " B"]:
        """The entropy of the tags of each sequence, in nats."""
        return self.chain(emissions, mask).entropy()

    # From arguments to a chain.

    def _packed(self, emissions: Emissions, mask: Mask) -> tuple[LinearChain, Packing]:
        """The chain, batch first and without holes, with start and end scores."""
        if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            raise ValueError(
                "torch.jit.trace takes only the loss of a CRF without kept, with a tensor of emissions: other results would "
                "depend on the values in the trace. For decode, use torch.jit.script"
            )
        shape = _checked_shape(emissions, self.num_tags)
        if shape[self.batch_first] == 0:
            raise ValueError(f"emissions must have at least one position: got {[*shape, self.num_tags]}")
        if mask is not None and (not isinstance(mask, Tensor) or mask.shape != shape):
            raise ValueError(
                f"mask must be {list(shape)}, as the first two dimensions of emissions: got {shape_or_type(mask)}"
            )
        packing = packing_of(mask if mask is None else self._batch_first(mask))
        if isinstance(emissions, Tensor):
            nodes = self._bordered(packing.pack(self._batch_first(emissions)), packing.lengths)
        else:
            nodes = self._with_ends(packing.pack(self._batch_first(emissions.left)), emissions.right, packing)
        try:
            return LinearChain(nodes, self.transition, packing.lengths), packing
        except ValueError:
            if isinstance(
                emissions, Tensor
            ):  # which of them it is, in the order of the user; masked scores may be anything
                counted = emissions if mask is None else emissions.detach().masked_fill((mask == 0)[..., None], 0.0)
                check_scores("emissions", counted)
            raise

    def _bordered(self, nodes: Float[Tensor, "B T N"], lengths: Int[Tensor, " B"] | None) -> Float[Tensor, "B T N"]:
        """Scores with those of the first and last tags added."""
        start = only(self.start_transitions, self.allowed_start)
        end = only(self.end_transitions, self.allowed_end)
        dtype, length = torch.promote_types(nodes.dtype, start.dtype), nodes.shape[1]
        if lengths is None and length > 1:
            border = torch.cat((start[None], start.new_zeros(length - 2, len(start)), end[None]))
        else:
            position = torch.arange(length, device=nodes.device)[:, None]
            at_end = position == length - 1 if lengths is None else position == lengths[:, None, None] - 1
            border = torch.where(position == 0, start, 0.0) + torch.where(at_end, end, 0.0)
        return nodes.to(dtype) + border.to(dtype)

    def _tables(self) -> Tables:
        """The scores of first tags, of pairs and of last tags, for `nn.scripted`."""
        pairs = self.transitions if self.rank is None else self.from_embeddings @ self.to_embeddings.mT
        return (
            only(self.start_transitions, self.allowed_start),
            only(pairs, self.allowed),
            only(self.end_transitions, self.allowed_end),
        )

    def _with_ends(self, context: Tensor, states: Tensor, packing: Packing) -> Factored:
        """Factored emissions with start and end scores, as two more numbers in each vector."""
        if self.allowed_start is not None or self.allowed_end is not None:
            raise ValueError("allowed_start and allowed_end need emissions as a tensor: got Factored")
        position = torch.arange(context.shape[1], device=context.device)
        last = context.shape[1] - 1 if packing.lengths is None else packing.lengths[:, None] - 1
        ends = torch.stack(torch.broadcast_tensors(position == 0, position == last), -1).expand(*context.shape[:2], 2)
        scores = torch.stack((self.start_transitions, self.end_transitions), -1).to(states.dtype)
        return Factored(torch.cat((context, ends.to(context.dtype)), -1), torch.cat((states, scores), -1))

    def _batch_first(self, x: Tensor) -> Tensor:
        """From the order of the user's tensors to batch first, or back."""
        return x if self.batch_first else x.transpose(0, 1)

    def _sketched(self, chain: LinearChain) -> LinearChain:
        """The chain that the sums of the loss run over."""
        if self.kept is None or self.kept >= self.num_tags:
            return chain
        return chain.sketch(self.kept, proposal=self.proposal)

    def _log_prob(self, chain: LinearChain, tags: Tensor) -> Float[Tensor, " B"]:
        """The log-likelihood of the tags of each sequence, or of all paths through sets of tags."""
        inside = None if chain.lengths is None else chain.inside()
        sets = tag_sets(tags, inside, self.num_tags)
        if sets is None and self.kept is None:
            found = chain.log_prob_in_one_launch(tags)
            if found is not None and (not found.numel() or found.detach().amin().item() >= LOWEST):
                return found
        inside = chain.inside()
        if sets is None:
            known = tags if chain.lengths is None else torch.where(inside, tags, 0)
            score, small = chain.score_of(known), self._sketched(chain)
            if not score.numel() or bool(score.detach().amin() >= LOWEST):
                return score - small.log_partition()
            check_follow(tags, inside, self.allowed_start, self.allowed, self.allowed_end, self.tags)
            return small.log_prob(torch.where(inside, tags, -1))
        nodes = chain.node_scores().masked_fill(~sets & inside[..., None], -math.inf)
        agreeing = self._sketched(LinearChain(nodes, self.transition, chain.lengths)).log_partition()
        if bool((agreeing == -math.inf).any()):
            row = (agreeing == -math.inf).nonzero()[0].item()
            raise ValueError(
                f"tags must leave at least one possible path for each sequence: got none for sequence {row}"
            )
        return agreeing - self._sketched(chain).log_partition()


def _cut(paths: Int[Tensor, "B T"], chain: LinearChain) -> list[list[int]]:
    """Lists without the padding."""
    rows: list[list[int]] = paths.tolist()
    return rows if chain.lengths is None else [row[:n] for row, n in zip(rows, chain.lengths.tolist(), strict=True)]


def _check_allowed(name: str, table: object, num_tags: int) -> None:
    shape = (num_tags,) * (2 if name == "allowed" else 1)
    if table is not None and not (isinstance(table, Tensor) and table.dtype == torch.bool and table.shape == shape):
        got = f"{table.dtype} {list(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
        raise ValueError(f"{name} must be a boolean tensor {list(shape)}: got {got}")


def _checked_shape(emissions: object, num_tags: int) -> torch.Size:
    """The first two dimensions of the emissions."""
    nodes = as_nodes(emissions)
    if nodes is not None:
        left, right = nodes.as_given().tensors
        if left.dim() != 3 or right.dim() != 2 or nodes.n_to != num_tags:
            got = f"{list(left.shape)} and {list(right.shape)}"
            raise ValueError(f"emissions must be Factored of [.., .., d] and [{num_tags}, d]: got {got}")
        return left.shape[:2]
    check_floating("emissions", emissions)  # pyright: ignore[reportArgumentType]
    assert isinstance(emissions, Tensor)
    if emissions.dim() != 3 or emissions.shape[-1] != num_tags:
        raise ValueError(
            f"emissions must have three dimensions, the last num_tags = {num_tags}: got {list(emissions.shape)}"
        )
    return emissions.shape[:2]
