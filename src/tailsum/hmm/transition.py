"""How a hidden Markov model moves from state to state: tables and structured potentials with parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from tailsum.hmm.dirichlet import Prior, drawn_rows, noisy_rows
from tailsum.numerics.check import at_least, check_floating
from tailsum.numerics.reduce import log_sum_exp
from tailsum.numerics.tensors import finite
from tailsum.scores.banded import Banded
from tailsum.scores.factored import Factored
from tailsum.scores.potential import Dense, Potential


class Transition(nn.Module):
    """Scores of moves between N states; the base class. The model turns them into probabilities: each row is normalised.

    A subclass gives a potential by `forward(inputs)`, where `inputs [*batch, T, ..]` are what the user gave with the data, if
    anything. To be fitted by EM it also has `maximise`.
    """

    takes_inputs = False

    def forward(self, inputs: Shaped[Tensor, "*batch_T_features"] | None = None) -> Potential:
        raise NotImplementedError

    def maximise(self, counts: Sequence[Tensor]) -> None:
        """The parameters under which moves with these expected counts are most likely, one for each tensor of the potential."""
        raise NotImplementedError(f"{type(self).__name__} has no M-step: fit it with method='gradient'")

    def start(self, generator: torch.Generator | None) -> None:
        """Parameters to begin a fit with. Here, those that there are."""

    def log_prior(self) -> Float[Tensor, ""]:
        """The log-density of the parameters under the priors, up to a constant."""
        return torch.zeros((), device=next(self.parameters()).device)

    @property
    def n_free(self) -> int:
        """How many numbers the parameters hold that are free."""
        return sum(x.numel() for x in self.parameters() if x.requires_grad)


class Entries(Transition):
    """A potential with one tensor, each of whose entries is the logarithm of a probability but for its row's normaliser.

    `potential` is a `Dense`, `Banded` or `Sparse` that says which moves there are and where to start; minus infinity stays. In an
    M-step the entries become the expected counts, plus `prior` less one, plus `sticky` for staying. `tied [N]` gives the row
    of each state: states with the same number share their probabilities (of a table).
    """

    allowed: Tensor

    def __init__(
        self, potential: Potential, *, prior: Prior = 1.0, sticky: float = 0.0, tied: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        if len(potential.tensors) != 1 or potential.lead:
            raise ValueError(
                f"potential must be a Dense, Banded or Sparse shared by all steps: got {type(potential).__name__}"
            )
        if potential.n_from != potential.n_to:
            raise ValueError(f"potential must be square: got {potential.n_from} by {potential.n_to}")
        self._form, self.n_states, self.prior, self.sticky = potential.map(torch.detach), potential.n_to, prior, sticky
        self.entries = nn.Parameter(potential.tensors[0].detach().clone())
        self.register_buffer("allowed", self.entries.detach() > -torch.inf)
        self._tied = None if tied is None else _groups(tied, potential)
        if bool((row_normaliser(self()) == -torch.inf).any()):
            raise ValueError("potential must allow a move from each state: got a row of minus infinity")

    def forward(self, inputs: Shaped[Tensor, "*batch_T_features"] | None = None) -> Potential:
        return self._with(self.entries if self._tied is None else self.entries[self._tied.int().argmax(-1)])

    def maximise(self, counts: Sequence[Tensor]) -> None:
        counted = (counts[0] + self._added()).clamp(min=0.0).masked_fill(~self.allowed, 0.0)
        if self._tied is not None:
            counted = self._tied.to(counted) @ counted
        fresh = counted.log()
        seen = row_normaliser(self._with(fresh)) > -torch.inf
        kept = self._of_rows(seen.to(fresh)) == 0  # rows without counts stay as they are
        self.entries.data = torch.where(kept, self.entries.detach(), fresh.to(self.entries.dtype))

    def start(self, generator: torch.Generator | None) -> None:
        fresh = noisy_rows(self.entries, self.allowed, generator)
        self.entries.data = fresh if self._tied is None else fresh[self._tied.int().argmax(-1)]

    def log_prior(self) -> Float[Tensor, ""]:
        potential = self()
        (entries,) = potential.tensors
        rows = self._of_rows(finite(row_normaliser(potential)))
        return (self._added() * (entries - rows).masked_fill(entries == -torch.inf, 0.0)).sum()

    @property
    def n_free(self) -> int:
        used = self.allowed & (self._of_rows(self.entries.new_ones(self.n_states)) > 0)
        if self._tied is None:
            return int(used.sum()) - self.n_states
        first = self._tied.int().argmax(-1).unique()
        return int(used[first].sum()) - len(first)

    def _with(self, entries: Tensor) -> Potential:
        return self._form.on(entries.device).with_tensors([entries])

    def _added(self) -> Tensor:
        """What the priors add to the count of each entry."""
        added = self.entries.new_zeros(()) + (self.prior - 1.0)
        return added + self.sticky * self._staying() if self.sticky else added

    def _staying(self) -> Tensor:
        """One at the entries of moves from a state to itself, else zero."""
        states = torch.arange(self.n_states, device=self.entries.device)
        return self._slope(lambda potential: potential.at(states, states).sum())

    def _of_rows(self, values: Float[Tensor, " n"]) -> Tensor:
        """The value of its row for each entry; zero for entries that are not used."""
        return self._slope(lambda potential: (values.detach() * row_normaliser(potential).exp()).sum())

    def _slope(self, function: Callable[[Potential], Tensor]) -> Tensor:
        """The gradient of a function in the entries, where these are zero."""
        with torch.enable_grad():
            zeros = torch.zeros_like(self.entries, requires_grad=True)
            return torch.autograd.grad(function(self._with(zeros)), zeros)[0]


class Scores(Transition):
    """Scores of moves from a function of parameters: `Factored` by embeddings, `LowRank`, `Kronecker`, `Monarch`, or a network.

    `make` is a module that gives a table of scores or a potential. With `takes_inputs` it is called with the inputs of the model,
    `[*batch, T, ..]`, and its scores of step t, from position t to the next one, have the leading dimensions `[*batch, T-1]`.
    Learned by gradients.

    >>> from tailsum.hmm import Embedded
    >>> Scores(Embedded(1_000, 16))().n_to
    1000
    """

    def __init__(self, make: nn.Module, *, takes_inputs: bool = False) -> None:
        super().__init__()
        self.make, self.takes_inputs = make, takes_inputs

    def forward(self, inputs: Shaped[Tensor, "*batch_T_features"] | None = None) -> Potential:
        made = self.make(inputs) if self.takes_inputs else self.make()
        return Dense(made) if isinstance(made, Tensor) else made


class Embedded(nn.Module):
    """`Factored` scores of moves: products of two embeddings of each state, of the state left and of the state entered."""

    def __init__(self, n_states: int, size: int, scale: float = 1.0) -> None:
        super().__init__()
        at_least(1, n_states=n_states, size=size)
        self.left = nn.Parameter(torch.randn(n_states, size) * (scale / size**0.5))
        self.right = nn.Parameter(torch.randn(n_states, size))

    def forward(self) -> Factored:
        return Factored(self.left, self.right)


def full(
    n_states: int,
    logits: Float[Tensor, "n n"] | None = None,
    *,
    probabilities: Float[Tensor, "n n"] | None = None,
    **priors: Any,
) -> Entries:
    """A table of all moves, from logits (minus infinity for never), probabilities, or at random. `priors` as of `Entries`.

    >>> full(2, probabilities=torch.tensor([[0.9, 0.1], [0.0, 1.0]]), sticky=2.0)().block().exp().detach()
    tensor([[0.9000, 0.1000],
            [0.0000, 1.0000]])
    """
    if probabilities is not None:
        if logits is not None:
            raise ValueError("probabilities must be None where logits are given")
        check_floating("probabilities", probabilities)
        if not bool((probabilities >= 0).all()):
            raise ValueError(f"probabilities must not be below 0: got {probabilities.min().item()}")
        logits = probabilities.log()
    return Entries(Dense(drawn_rows((n_states, n_states), logits, "transition")), **priors)


def left_to_right(n_states: int, skips: int = 0, **priors: Any) -> Entries:
    """Moves to the same state, to the next one, and past up to `skips` states. Nothing leaves the last state.

    >>> left_to_right(3)().block().exp().detach()
    tensor([[1., 1., 0.],
            [0., 1., 1.],
            [0., 0., 1.]])
    """
    at_least(1, n_states=n_states)
    at_least(0, skips=skips)
    width = min(skips + 1, max(1, n_states - 1))
    scores = torch.full((2 * width + 1, n_states), -torch.inf)
    scores[width:] = 0.0
    return Entries(Banded(scores), **priors)


def row_normaliser(potential: Potential) -> Float[Tensor, "*lead n"]:
    """`log sum_j exp(score(i, j))` of each state i, without a table of all pairs; differentiable."""
    back = potential.transposed()
    zeros = potential.tensors[0].new_zeros(*potential.lead, 1, potential.n_to)
    return back.operator().into(zeros, log_sum_exp)[..., 0, :]


def _groups(tied: Sequence[int], potential: Potential) -> Tensor:
    """`[N, N]`: whether two states share their row."""
    groups = torch.as_tensor(tied)
    table = potential.tensors[0].shape == (potential.n_from, potential.n_to) and potential.for_kernels is not None
    if groups.shape != (potential.n_from,) or not table:
        raise ValueError(f"tied must be one number for each of {potential.n_from} states, of a table: got {list(tied)}")
    return groups == groups[:, None]
