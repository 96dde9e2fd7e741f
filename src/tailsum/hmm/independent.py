"""Observations of several parts, each with an emission of its own."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from tailsum.hmm.clusters import clusters_of, nearest_centre
from tailsum.hmm.emission import Emission, Statistics


class Independent(Emission):
    """Each state has an emission for every part of an observation; the parts are independent, given the state.

    `data [*batch, T, D]` hold the parts side by side, as floating-point numbers: one column for a symbol, a count or a boolean,
    d for a vector. NaN is missing, in each part on its own; whole numbers such as symbols may be negative instead.

    >>> from tailsum.hmm import Categorical, Gaussian, Independent
    >>> emission = Independent(Gaussian(2), Categorical(5)).of(3)
    >>> emission(torch.tensor([[0.3, -1.2, 4.0], [0.1, 0.7, torch.nan]])).shape
    torch.Size([2, 3])
    """

    event_dim = 1

    def __init__(self, *emissions: Emission) -> None:
        super().__init__()
        if not emissions or any(part.event_dim > 1 for part in emissions):
            raise ValueError(f"emissions must be of numbers or vectors, one or more: got {len(emissions)}")
        self.parts = nn.ModuleList(emissions)
        self.lags = max(part.lags for part in emissions)

    def make(self, n_states: int) -> None:
        self.sizes, self.n_statistics = list[int](), list[int]()
        for part in self._parts():
            one = part.of(n_states).example()
            self.sizes.append(one[0].numel())
            try:
                found = part.statistics(part.blank(one), one.new_zeros(1, n_states, dtype=torch.get_default_dtype()))
            except NotImplementedError:  # learned by gradients
                found = ()
            self.n_statistics.append(len(found))

    def checked(self, data: Shaped[Tensor, "*batch T d"]) -> Float[Tensor, "*batch T d"]:
        if data.shape[-1] != sum(self.sizes):
            raise ValueError(f"data must have {sum(self.sizes)} columns, {self.sizes}: got {list(data.shape)}")
        data = data.to(next(self.parameters()))
        for (part, x), own in zip(self._split(data), data.split(self.sizes, -1), strict=True):
            if not x.is_floating_point() and bool(((own != own.floor()) & ~own.isnan()).any()):
                raise ValueError(f"data of {type(part).__name__} must be whole numbers: got one that is not")
            part.checked(x)
        return data

    def missing(self, data: Float[Tensor, "*batch T d"]) -> Bool[Tensor, "*batch T"]:
        return torch.stack([part.missing(x) for part, x in self._split(data)]).all(0)

    def forward(self, data: Float[Tensor, "*batch T d"]) -> Float[Tensor, "*batch T n"]:
        return torch.stack([part(x) for part, x in self._split(data)]).sum(0)

    def example(self) -> Float[Tensor, "1 d"]:
        return self._joined([part.example() for part in self._parts()])

    def statistics(self, data: Float[Tensor, "*batch T d"], weight: Float[Tensor, "*batch T n"]) -> Statistics:
        return tuple(found for part, x in self._split(data) for found in part.statistics(x, weight))

    def maximise(self, statistics: Statistics) -> None:
        given = iter(statistics)
        for part, n in zip(self._parts(), self.n_statistics, strict=True):
            part.maximise(tuple(next(given) for _ in range(n)))

    def log_prior(self) -> Float[Tensor, ""]:
        return torch.stack([part.log_prior() for part in self._parts()]).sum()

    def start(self, data: Float[Tensor, "rows d"], generator: torch.Generator | None) -> None:
        """Each part from its own data; then those of floating-point numbers by clusters of all of these together."""
        if not len(data):
            return
        for part, x in self._split(data):
            part.start(x[~part.missing(x)], generator)
        together = [
            (part, x)
            for (part, x), n in zip(self._split(data), self.n_statistics, strict=True)
            if n and x.is_floating_point()
        ]
        if not together:
            return
        joint = torch.cat([x.reshape(len(x), -1) for _, x in together], -1).double()
        joint = torch.where(joint.isnan(), joint.nanmean(0).nan_to_num(), joint)
        scale = joint.std(0, correction=0)
        joint = joint / torch.where(scale > 0, scale, 1.0)
        nearest = nearest_centre(joint, clusters_of(joint, self.n_states, generator).centres)
        weight = 0.9 * nn.functional.one_hot(nearest, self.n_states).to(data) + 0.1 / self.n_states
        for part, x in together:
            part.maximise(part.statistics(x, weight))

    def draw(
        self,
        states: Int[Tensor, "*shape"],
        generator: torch.Generator | None = None,
        past: Float[Tensor, "*shape lags d"] | None = None,
    ) -> Float[Tensor, "*shape d"]:
        before = [None] * len(self.sizes) if past is None else [x for _, x in self._split(past)]
        drawn = list[Tensor]()
        for part, given in zip(self._parts(), before, strict=True):
            latest = None
            if given is not None and part.lags:
                times = torch.arange(max(0, given.shape[states.dim()] - part.lags), given.shape[states.dim()])
                latest = given.index_select(states.dim(), times.to(given.device))
            drawn.append(part.draw(states, generator, latest))
        return self._joined(drawn)

    @property
    def n_free(self) -> int:
        return sum(part.n_free for part in self._parts())

    def _parts(self) -> list[Emission]:
        return [part for part in self.parts if isinstance(part, Emission)]

    def _split(self, data: Tensor) -> list[tuple[Emission, Tensor]]:
        """Each part with its own data, in its own form."""
        found = list[tuple[Emission, Tensor]]()
        for part, columns in zip(self._parts(), data.split(self.sizes, -1), strict=True):
            x = columns.squeeze(-1) if part.event_dim == 0 else columns
            whole = not part.example().is_floating_point()
            found.append((part, torch.where(x.isnan(), -1.0, x).long() if whole else x))
        return found

    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Parts side by side; missing whole numbers become NaN."""
        like = next(self.parameters())
        columns = list[Tensor]()
        for part, x in zip(self._parts(), parts, strict=True):
            whole = not x.is_floating_point() and x.dtype != torch.bool
            own = (torch.where(x < 0, torch.nan, x) if whole else x).to(like)
            columns.append(own if part.event_dim else own[..., None])
        return torch.cat(columns, -1)
