"""The base of all cases: a small random instance of a structure, with its truth.

The parameters of a model are its *leaves*, float64 tensors of finite numbers. `case.model()` forbids some of their
entries, puts NaN wherever padding stands, and builds the model; `case.truths()` enumerates every sentence from the same
leaves, written out as tables. Whoever inherits from `Case` and stands in `registry.CASES` inherits all tests of
`tests/structure`.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from random import Random
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from harness.truth import Truth, Weighted, total

Row = list[int]
Kind = dict[str, Any]


class Counted(NamedTuple):
    """A model whose configurations all score zero, and how many there are."""

    model: Any
    count: int
    has_states: bool = True


class Case(ABC):
    """An instance of a structure: `fields` are the shapes of what makes up a configuration, one row of `F` numbers.

    `small` names the instances that are enumerated and differentiated, `few` those of them for costly checks. `large`
    names the instances with more states, for estimates; one that `small` knows by the same name is of the same form.
    """

    name: ClassVar[str]
    small: ClassVar[dict[str, Kind]]
    few: ClassVar[tuple[str, ...]]
    large: ClassVar[dict[str, Kind]] = {}
    embedded: ClassVar[tuple[str, ...]] = ()  # of `large`, those whose states have embeddings
    examples: ClassVar[dict[str, int]] = {"operations": 45, "divergences": 15, "scores": 15}  # of random instances
    replicates: ClassVar[int] = 10_000  # of sketches, for estimates to scatter little enough
    landmarks: ClassVar[int] = 16  # of Lookahead, fewer than make it exact
    shortest: ClassVar[int] = 1  # the length of the shortest sentence that has a configuration
    has_lengths: ClassVar[bool] = True
    mask = -math.inf  # the score of what is forbidden; changed, a finite number
    relaxes_jointly: ClassVar[bool] = True  # whether a relaxed sample is a mixture of configurations

    def __init__(
        self, batch: tuple[int, ...], length: int, *, lengths: list[int] | None = None, forbidden: float = 0.0,
        scale: float = 1.0, seed: int = 0, **kind: Any,
    ):  # fmt: skip
        self.kind = {
            "batch": batch, "length": length, "lengths": lengths, "forbidden": forbidden, "scale": scale, "seed": seed,
            **kind,
        }  # fmt: skip
        self.batch, self.length, self.size = batch, length, math.prod(batch)
        # What has no batch dimensions of its own gets them from the lengths.
        given = [length] * self.size if lengths is None and kind.get("shared") else lengths
        self.given = None if given is None else torch.tensor(given).reshape(batch)
        self.lengths = [length] * self.size if lengths is None else lengths
        self.generator = torch.Generator().manual_seed(seed)
        self.forbidden, self.scale = forbidden, scale
        self.leaves: list[Tensor] = []
        self.banned: list[Tensor] = []
        self.factors: list[bool] = []
        self.seen: list[bool] = []
        self.padding: list[Tensor | None] = []
        self.draw(**kind)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(**{self.kind})"

    def sibling(self, **changed: Any) -> Self:
        """Another random model over the same configurations."""
        return type(self)(**{**self.kind, **changed})

    # Instances.

    @classmethod
    @abstractmethod
    def sizes(cls, r: Random) -> Kind:
        """A random kind, small enough to be enumerated, and its length."""

    @classmethod
    def random(cls, r: Random) -> Self:
        size, batch = cls.sizes(r), r.choice([(), (1,), (3,), (2, 2)])
        lengths = [r.randint(1, size["length"]) for _ in range(math.prod(batch))]
        return cls(
            batch=batch,
            lengths=lengths if r.random() < 0.6 else None,
            shared=r.random() < 0.3,
            forbidden=r.choice([0.0, 0.15, 0.4]),
            scale=r.choice([0.1, 1.0, 5.0]),
            seed=r.randint(0, 2**32),
            **size,
        )

    def another(self, r: Random) -> Self:
        """A second model over the same configurations, with scores of any other kind."""
        return self.sibling(seed=r.randint(0, 2**32), forbidden=r.choice([0.0, 0.1]), **self.changes(r))

    def changes(self, r: Random) -> Kind:
        """What may differ between two models over the same configurations."""
        return {}

    @classmethod
    @abstractmethod
    def counted(cls, length: int) -> Iterator[Counted]:
        """Models of this length, in various sizes."""

    def many(self, count: int) -> Any:
        """The model, `count` times in a batch."""
        which, dims = self.carrier
        leaves = list(self.leaves)
        missing = len(self.batch) + dims - leaves[which].dim()
        leaf = leaves[which].reshape(*[1] * missing, *leaves[which].shape)
        leaves[which] = leaf.expand(count, *leaf.shape)
        return self.model(*leaves)

    @property
    def carrier(self) -> tuple[int, int]:
        """The leaf that can carry the batch for all others, and how many dimensions it has without it."""
        return 0, self.leaves[0].dim() - len(self.batch)

    def couple_only(self) -> Self:
        """Forbid nothing but what couples nodes: the leaves from the first coupling one on."""
        for banned in self.banned[: self.coupling]:
            banned.fill_(False)
        return self

    @property
    def coupling(self) -> int:
        """Which leaf is the first that couples nodes; zero where none does, so that all may be forbidden."""
        return 1

    # What leaves are made of.

    def leaf(self, *shape: int, finite: bool = False, used: Tensor | None = None, seen: bool = True) -> None:
        """One more leaf, some of its entries forbidden; what no sentence has `used` is NaN to the model.

        Not `seen` is what the model gets through a function alone, which is evaluated in the precision of the leaf.
        """
        self.leaves.append(torch.randn(*shape, generator=self.generator, dtype=torch.float64) * self.scale)
        banned = torch.rand(shape, generator=self.generator) < self.forbidden
        self.banned.append(banned & (not finite))
        self.factors.append(finite)
        self.seen.append(seen)
        self.padding.append(None if used is None else used.long().sum_to_size(shape) == 0)

    def marked(self, *leaves: Tensor) -> list[Tensor]:
        """The leaves with `mask` where an entry is forbidden, without NaN."""
        return [
            x.masked_fill(banned, self.mask) if banned.any() else x
            for x, banned in zip(leaves or self.leaves, self.banned, strict=True)
        ]

    def model(self, *leaves: Tensor) -> Any:
        marked = zip(self.marked(*leaves), self.padding, strict=True)
        return self.build(*(x if padding is None else x.masked_fill(padding, math.nan) for x, padding in marked))

    def inside(self) -> Tensor:
        """Which positions are not padding, `[*batch, T]`."""
        return (torch.arange(self.length) < torch.tensor(self.lengths)[:, None]).reshape(*self.batch, self.length)

    def of_batch(self, x: Tensor, *shape: int) -> Tensor:
        """A table `[*#batch, ...]` written out for all sentences, `[B, *shape]`."""
        return x.expand(*self.batch, *shape).reshape(self.size, *shape)

    @abstractmethod
    def draw(self, **kind: Any) -> None:
        """Draw all leaves."""

    @abstractmethod
    def build(self, *leaves: Tensor) -> Any:
        """The model."""

    @abstractmethod
    def truth(self, b: int, leaves: list[Tensor]) -> Truth:
        """All configurations of sentence b."""

    @functools.cached_property
    def whole_truths(self) -> list[Truth]:
        return [self.truth(b, self.marked()) for b in range(self.size)]

    def truths(self, model: Any = None, *leaves: Tensor) -> list[Weighted]:
        """Of the whole model, or of a restricted one by the states that it keeps and their weights.

        From other leaves, if given, with gradients in them.
        """
        truths = [self.truth(b, self.marked(*leaves)) for b in range(self.size)] if leaves else self.whole_truths
        if model is None or model.kept is None:
            return [Weighted(truth, torch.zeros_like(truth.scores)) for truth in truths]
        each = model.log_weight.double().exp()
        weight = torch.zeros(*each.shape[:-1], model.whole.n_states).double().scatter_add(-1, model.states, each)
        weight = weight.log().reshape(self.size, *weight.shape[len(self.batch) :])
        return [Weighted(truth, total(weight[b], self.nodes(truth))) for b, truth in enumerate(truths)]

    # Configurations.

    @abstractmethod
    def nodes(self, truth: Truth) -> list[list[tuple[int, ...]]]:
        """For every configuration the nodes and their states."""

    fields: dict[str, tuple[int, ...]]
    tuple_type: Any = None  # None where a configuration is a tensor of states

    @abstractmethod
    def row(self, configuration: tuple) -> Row:
        """A configuration of the truth as the library writes it, its fields one after the other."""

    @abstractmethod
    def configuration(self, row: Row, length: int) -> tuple:
        """The reverse of `row`, as far as possible, for a sentence of this length."""

    @property
    def none(self) -> Row:
        """No configuration."""
        return [-1] * self.width

    @property
    def width(self) -> int:
        return sum(map(math.prod, self.fields.values()))

    def rows(self, configurations: Any) -> Tensor:
        """What the library gives, `[*sample, *batch]` of it, as rows `[S, B, F]`."""
        plain = isinstance(configurations, Tensor)
        named = {"states": configurations} if plain else configurations._asdict()
        given = {name: x for name, x in named.items() if x is not None}
        assert given.keys() == self.fields.keys()
        found = [x.reshape(-1, self.size, math.prod(self.fields[name])) for name, x in given.items()]
        assert all(x.shape[x.dim() - len(self.fields[name]) :] == self.fields[name] for name, x in given.items())
        return torch.cat(found, -1)

    def read(self, row: Tensor, b: int) -> tuple | None:
        """The configuration of sentence b in a row; None for none. Fails unless the row is written as it should be."""
        numbers = row.tolist()
        if numbers == self.none:
            return None
        found = self.configuration(numbers, self.lengths[b])
        assert self.row(found) == numbers
        return found

    def written(self, rows: list[list[Row]]) -> Any:
        """Rows `[S][B]` as the library takes them, `[S, *batch]`."""
        table = torch.tensor(rows).reshape(len(rows), *self.batch, self.width)
        parts = table.split([math.prod(shape) for shape in self.fields.values()], -1)
        named = zip(self.fields.items(), parts, strict=True)
        found = {name: x.reshape(*x.shape[:-1], *shape) for (name, shape), x in named}
        return found["states"] if self.tuple_type is None else self.tuple_type(**found)

    def flat(self, value: Tensor) -> Tensor:
        """Values `[*batch, ...]` as `[B, ...]`."""
        return value.reshape(self.size, *value.shape[len(self.batch) :])

    def marginals(self, model: Any) -> Tensor:
        """The model's marginals over all states, in the shape of the truth's parts, `[B, T, ...]`."""
        return self.flat(model.scatter(model.marginals()))

    def weights(self, model: Any, sample: Any) -> list[Tensor]:
        """The weights of a relaxed sample over all states, `[*sample, *batch, ...]`."""
        return [model.scatter(sample.weights)]

    def used(self, truth: Weighted) -> list[Tensor]:
        """What each configuration uses of every table that relaxed samples weight, `[C, *part]` within the sentence."""
        return [truth.parts]

    def other_marginals(self, model: Any) -> list[Tensor]:
        """What else the library has marginals of, as it gives them."""
        return []

    def more(self, model: Any, truths: list[Weighted]) -> list[tuple[Tensor, Tensor]]:
        """Further results and what they should be."""
        return []

    def state_marginals(self, model: Any) -> Tensor:
        """The marginals that `scatter` takes, those of states."""
        return model.marginals()

    def expected_sums(self, model: Any) -> list[Tensor]:
        """Marginals over all states, `[*batch, ...]`: times Z they are unbiased."""
        return [model.scatter(self.state_marginals(model))]

    def fewest_states(self, model: Any) -> int:
        """How many states the node with the fewest has."""
        return model.n_states

    def state_chances(self, model: Any) -> Tensor:
        """The chance of every state of every node, `[*batch, *node, n]`."""
        return self.state_marginals(model)

    @abstractmethod
    def block(self, b: int) -> None:
        """Forbid something that every configuration of sentence b has."""

    @property
    def can_block(self) -> bool:
        """Whether scores that are given as such can forbid every configuration of one sentence."""
        return True

    def shift(self, offset: float) -> None:
        """Add the same to all scores that are given as such."""
        self.leaves = [x if given else x + offset for x, given in zip(self.leaves, self.factors, strict=True)]

    def within(self, length: int) -> tuple[slice, ...]:
        """The part of the marginals that is not padding."""
        return (slice(length),)

    @property
    def has_states(self) -> bool:
        return True


def pad(row: Row, length: int, value: int = -1) -> Row:
    return row + [value] * (length - len(row))
