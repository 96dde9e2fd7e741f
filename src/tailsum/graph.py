"""Graphs of variables and factors: `score(x) = sum_v unary[v, x_v] + sum_f factor_f(x at its variables)`.

Messages between variables and factors (sum-product, or belief propagation) give log-partition, marginals and all that
follows from them. On forests they are exact. On graphs with loops they are iterated until they change no more, and the
log-partition and entropy are Bethe's approximations, the marginals the beliefs that belong to them.
"""

import inspect
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tailsum.check import check_broadcast, check_potential, check_whole, node_potential
from tailsum.graph_input import padded_unary, unary_sizes
from tailsum.graph_sweep import GraphSweep
from tailsum.kernels.factors import Factors, PairFactors, TableFactors
from tailsum.kernels.fixed_point import Iterated, Iteration, fixed_point, stationary
from tailsum.kernels.noise import gumbel
from tailsum.kernels.pairs import table_size
from tailsum.kernels.precision import full_precision
from tailsum.kernels.propagate import Gathered, Messages, Propagation, bethe, by_group, gathered, normalised, unpacked
from tailsum.kernels.reduce import Reduce, highest, log_sum_exp
from tailsum.kernels.table import fits_budget, tile_rows, transposed
from tailsum.layers import Block, Plan, plan, visits
from tailsum.potential import Dense, Factored, Potential, finite, without_common
from tailsum.select import Subset, at_least
from tailsum.structure import Structure, Terms, recordable

Params = tuple[tuple[Tensor, ...], ...]  # for each group of factors, `[b, f, ...]`


class Convergence(NamedTuple):
    """How message passing went: how many iterations, the last change of a message, and whether that is small enough."""

    iterations: Int[Tensor, "*batch"]
    change: Float[Tensor, "*batch"]
    converged: Bool[Tensor, "*batch"]


class ConvergenceWarning(RuntimeWarning):
    """Messages on a graph with loops still changed when the iterations were used up."""


class Graph(Structure[Tensor]):
    """What graphs of pairs and graphs of larger factors share: everything but the form of the factors.

    `iterations` is the most that a graph with loops gets, `damping` how much of an old message stays (0 to below 1),
    `tolerance` the change at which iteration stops, relative to the size of a message above one (the square root of the
    type's precision unless given: the log-partition is stationary in the messages, so its own error is of the order of
    the precision). `schedule` is "sweep" (layer by layer through the graph and back, exact on forests after one) or
    "flooding" (all messages at once). `gradient` is "implicit" (at the fixed point: memory does not grow with the
    iterations) or "unrolled" (through the iterations as they were made).
    """

    variables: list[Int[Tensor, "_ _"]]  # of each group of factors: [F, r]; no group is empty
    plan: Plan
    _nodes: Potential

    def _read_unary(self, unary: Any) -> tuple[Potential, list[int]]:
        """The scores of single variables, and how many states each has."""
        sizes = []
        if not isinstance(unary, Tensor | Factored):
            unary, sizes = padded_unary(unary), unary_sizes(unary)
        nodes = node_potential("unary", unary, "[*batch, V, N]")
        self.device = nodes.tensors[0].device
        self.node_shape, self.n_states = nodes.lead[-1:], nodes.n_to
        if 0 in (*self.node_shape, self.n_states):
            raise ValueError(f"unary must have at least one variable and one state: got {[*nodes.lead, nodes.n_to]}")
        check_potential("unary", nodes)
        return nodes, sizes or [self.n_states] * self.node_shape[0]

    def _configure(
        self, iterations: int, damping: float, tolerance: float | None, schedule: str, gradient: str
    ) -> None:
        at_least(1, iterations=iterations)
        if not 0 <= damping < 1:
            raise ValueError(f"damping must lie between 0 and 1, 1 excluded: got {damping}")
        if tolerance is not None and not tolerance >= 0:
            raise ValueError(f"tolerance must be at least 0: got {tolerance}")
        if schedule not in ("sweep", "flooding"):
            raise ValueError(f'schedule must be "sweep" or "flooding": got {schedule!r}')
        if gradient not in ("implicit", "unrolled"):
            raise ValueError(f'gradient must be "implicit" or "unrolled": got {gradient!r}')
        self.iterations, self.damping, self.schedule, self.gradient = iterations, damping, schedule, gradient
        self.tolerance = torch.finfo(self.dtype).eps ** 0.5 if tolerance is None else tolerance
        self.lengths = None
        self.plan = plan(self.variables, self.node_shape[0], schedule, self.device)

    def __repr__(self) -> str:
        of = "" if self.kept is None else f" of {self.whole.n_states}"
        count = sum(map(len, self.variables))
        kind = "forest" if self.is_forest else "with loops"
        return (
            f"{type(self).__name__}(batch={list(self.batch_shape)}, V={self.node_shape[0]}, "
            f"factors={count}, N={self.n_states}{of}, {kind})"
        )

    @property
    def is_forest(self) -> bool:
        """Whether the graph has no loops, so that all results are exact."""
        return self.plan.forest

    # What a kind of graph supplies.

    @abstractmethod
    def factor_scores(self) -> tuple[Any, ...]:
        """The scores of each group of factors."""

    @abstractmethod
    def extend(
        self, group: int, factors: Int[Tensor, " m"], position: int, others: Sequence[Subset | None]
    ) -> Float[Tensor, "B m N"]:
        """What factors say of all states of the variable at a position.

        Of the other variables some states `[B, m, K]` speak, with the values `log_weight`.
        """

    @abstractmethod
    def _params(self, terms: Sequence[Any]) -> Params:
        """The parameters `[b, f, ...]` of each group of factors, from their scores."""

    # What the base asks for.

    def node_scores(self) -> Float[Tensor, "*batch V n"]:
        return self._nodes.block()[..., 0, :].expand(*self.batch_shape, *self.node_shape, -1)

    def terms(self) -> Terms:
        return Dense(self.node_scores()), *self.factor_scores()

    def add_to_states(self, terms: Terms, extra: Float[Tensor, "*batch V n"]) -> Terms:
        return terms[0].plus(Dense(extra)), *terms[1:]

    def _form(self) -> tuple[object, ...]:
        return tuple(tuple(map(tuple, v.tolist())) for v in self.variables), self.whole._sizes

    @property
    @abstractmethod
    def _sizes(self) -> tuple[tuple[int, ...], ...]:
        """For each group of factors, how many states its variables have."""

    def _centred(self, terms: Terms) -> Terms:
        """Every variable has one state, and every factor one joint state."""
        nodes, *factors = cast("tuple[Dense, *tuple[Any, ...]]", terms)
        centred = [x if isinstance(x, Factored) else x.map(lambda s, x=x: without_common(s, x.arity)) for x in factors]
        return nodes.map(lambda x: without_common(x, 1)), *centred

    def _n_scores(self) -> int:
        return self.node_shape[0] + sum(map(len, self.variables))

    def sweep(self) -> GraphSweep:
        return GraphSweep(self)

    def parts(self, configuration: Int[Tensor, "*sample_batch V"]) -> Float[Tensor, "*sample_batch V n"]:
        used = F.one_hot(configuration.clamp(min=0), self.n_states).to(self.dtype)
        return torch.where((configuration >= 0)[..., None], used, 0.0)

    def _original(self, configuration: Tensor) -> Tensor:
        if self.kept is None:
            return configuration
        states = self.states.expand(*configuration.shape, -1).gather(-1, configuration.clamp(min=0)[..., None])[..., 0]
        return torch.where(configuration < 0, configuration, states)

    # Messages.

    def log_sum(self, terms: Terms) -> Float[Tensor, "*batch"]:
        solver = _Solver(self, terms, log_sum_exp)
        return solver.log_partition().to(self.dtype).reshape(self.batch_shape)

    def marginals(self) -> Float[Tensor, "*batch V n"]:
        """The belief in each state of each variable: the probability, on a forest.

        Where the messages have converged this is the gradient of the log-partition in the scores of single variables.
        """
        recording = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(recording), full_precision(self.device):
            solver = _Solver(self, recordable(self._weighted(self.terms())), log_sum_exp)
            belief = solver.gathered().all()
            total = log_sum_exp(belief, -1)
            possible = (total > -math.inf).all(-1)[..., None, None]
            belief = torch.where(possible, (belief - finite(total)[..., None]).exp(), 0.0)
        return belief.reshape(*self.batch_shape, *self.node_shape, self.n_states)

    @torch.no_grad()
    def whole_marginals(self) -> Float[Tensor, "*batch V all"]:
        """The belief in every state of the whole graph, also in those that a sketch does not keep.

        Where the belief is spread over more states than are kept, no weights on the kept ones come close to it. But the
        kept states say, by one more message along each edge, how much each state of a neighbour matters. Records no
        gradients; costs factors x N x K. The same as `marginals` of a graph that is no sketch.
        """
        if self.kept is None:
            return self.marginals()
        with full_precision(self.device):
            seen = GraphSweep(self.whole)
            seen.landmarks = self.states.reshape(-1, *self.states.shape[-2:])
            seen.cavities = self.cavities()
            belief = seen.log_q(0, None)
        total = log_sum_exp(belief, -1)
        possible = (self.log_partition() > -math.inf)[..., None, None]
        return torch.where(possible, (belief - finite(total)[..., None]).exp(), 0.0)

    @torch.no_grad()
    def convergence(self) -> Convergence:
        """How the messages of sum-product converge: iterations, last change, and whether it is within the tolerance."""
        with full_precision(self.device):
            solver = _Solver(self, self._weighted(self.terms()), log_sum_exp, warn=False)
            solver.gathered()
        count, change = (x.reshape(self.batch_shape) for x in solver.report[1:])
        return Convergence(count, change, change <= self.tolerance)

    @torch.no_grad()
    def cavities(self) -> list[list[Float[Tensor, "B F n"]]]:
        """For each group of factors and each position, what the rest of the graph says of its variable's states."""
        return _Solver(self, self._weighted(self.terms()), log_sum_exp, warn=False).cavities()

    @torch.no_grad()
    def best(self, terms: Terms) -> Int[Tensor, "*batch V"]:
        solver = _Solver(self, terms, highest)
        states = solver.decode(1, lambda logits: logits.argmax(-1))[0]
        return states.reshape(*self.batch_shape, *self.node_shape)

    @torch.no_grad()
    def sample(
        self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None
    ) -> Int[Tensor, "*sample_batch V"]:
        """Samples, in original states: exact on a forest; -1 throughout where none is possible.

        On a graph with loops they are approximate. Variables are drawn layer after layer, each given those drawn before
        it that it shares a factor with, and the messages of the others, which do not know what was drawn. Where states
        are forbidden, a draw may so run into a dead end: it is -1 throughout too.
        """
        at_least(0, **{f"sample_shape[{i}]": size for i, size in enumerate(sample_shape)})
        with full_precision(self.device):
            solver = _Solver(self, self._weighted(self.terms()), log_sum_exp)
            count, size = math.prod(sample_shape), self.batch_shape.numel() * self.node_shape[0] * self.n_states
            chunk, choose = tile_rows(size, self.device), lambda logits: gumbel(logits, generator).argmax(-1)
            found = [solver.decode(min(chunk, count - start), choose) for start in range(0, max(1, count), chunk)]
        states = torch.cat(found).reshape(*sample_shape, *self.batch_shape, *self.node_shape)
        return self._original(states)

    def score(self, configuration: Int[Tensor, "*sample_batch V"]) -> Float[Tensor, "*sample_batch"]:
        """The score of given states of all variables, in original numbers, kept or not: a sketch asks the whole graph."""
        if self.kept is not None:
            return self.whole.score(configuration)
        states = check_whole("states", configuration)
        if states.shape[-1:] != self.node_shape:
            raise ValueError(f"states must be [..., V] with V = {self.node_shape[0]}: got {list(states.shape)}")
        shape = check_broadcast("states", states.shape[:-1], self.batch_shape, "the graph's")
        states = states.expand(*shape, -1)
        none = (states == -1).all(-1)
        states = torch.where(none[..., None], 0, states)
        if ((states < 0) | (states >= self.n_states)).any():
            raise ValueError(f"states must lie between 0 and N-1 = {self.n_states - 1}: got one outside")
        total = self._nodes.block(None, states[..., None])[..., 0, 0].sum(-1) + self._factor_score(states)
        return total.masked_fill(none, -math.inf)

    @abstractmethod
    def _factor_score(self, states: Int[Tensor, "*sample_batch V"]) -> Float[Tensor, "*sample_batch"]:
        """The sum of the scores of all factors."""


class _Solver:
    """Messages on a graph under some scores, the batch flattened, and what is read from them."""

    def __init__(self, graph: Graph, terms: Sequence[Any], reduce: Reduce, *, warn: bool = True) -> None:
        self.graph, self.reduce, self.warn = graph, reduce, warn
        unary = cast("Dense", terms[0]).scores
        unary = unary.reshape(graph.batch_shape.numel(), *unary.shape[-2:])
        highest = finite(unary.detach().amax(-1, keepdim=True))
        unary, self.offset = unary - highest, highest.double().sum((-2, -1))
        self.n, self.plan, self.variables = unary.shape[-1], graph.plan, graph.variables
        groups = graph._params(terms[1:])
        self.counts = [len(params) for params in groups]
        self.params = (unary, *(p for params in groups for p in params))
        self.hard = self._hard(unary.detach(), groups)
        none = unary.detach().new_zeros(len(unary))
        self.report = Iterated(none[:, None], none.long(), none)

    def _hard(self, unary: Tensor, groups: Sequence[Sequence[Tensor]]) -> bool:
        """Whether a message may forbid a state: sums and differences of messages then need more care."""
        return bool((unary == -math.inf).all(-1).any()) or any(
            bool((params[0] == -math.inf).any()) or _known(params) != {self.n} for params in groups
        )

    def _split(self, params: Sequence[Tensor]) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        unary, *rest = params
        pieces = iter(rest)
        return unary, [tuple(next(pieces) for _ in range(count)) for count in self.counts]

    def _factors(self, params: tuple[Tensor, ...], block: Block | None = None, keep: bool | None = None) -> Factors:
        """Factors of a group, all as they are given, or those of a block in its order."""
        axes = tuple(range(params[0].dim() - 2)) if block is None else block.axes
        if block is not None:
            params = tuple(_of_block(p, block.factors) for p in params)
        if len(axes) > 2:
            return TableFactors(params[0].permute(0, 1, *(2 + a for a in axes)), self.reduce)
        return PairFactors(params if axes == (0, 1) else transposed(params), self.reduce, keep)

    def _prepare(self, params: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
        unary, groups = self._split(params)
        keep = fits_budget(sum(table_size(g) for g, v in zip(groups, self.variables, strict=True) if v.shape[1] == 2))
        shared: dict[tuple[int, tuple[int, ...]], Factors] = {}  # where all factors of a group share a table
        factors = []
        for block in self.plan.blocks:
            key, params = (block.group, block.axes), groups[block.group]
            made = shared[key] if key in shared else self._factors(params, block, keep)
            if params[0].shape[1] == 1:
                shared[key] = made
            factors.append(made)
        damping = 0.0 if self.plan.exact else self.graph.damping
        return Propagation(self.plan, unary, factors, damping=damping, hard=self.hard).step

    def _told(self, iterated: Iterated, of_gradient: bool) -> None:
        if not of_gradient:
            self.report = iterated._replace(
                change=torch.zeros_like(iterated.change) if self.plan.exact else iterated.change
            )
        moving = iterated.change > self.graph.tolerance
        if self.plan.exact or not self.warn or not moving.any():
            return
        what = "the gradient through the messages" if of_gradient else "messages"
        warnings.warn(
            f"{what} on this graph did not converge: after {self.graph.iterations} iterations the last change of "
            f"{int(moving.sum())} of {len(moving)} instances is up to {iterated.change.max().item():.1e}, above the "
            f"tolerance {self.graph.tolerance:.1e}. Try damping (0.5), more iterations, or a larger tolerance",
            ConvergenceWarning,
            stacklevel=_frames_of_ours(),
        )

    def _messages(self) -> Tensor:
        """The messages, packed."""
        unary = self.params[0]
        size = self.n * sum(v.numel() for v in self.variables)
        start = unary.new_zeros(len(unary), size)
        limit = 1 if self.plan.exact else self.graph.iterations
        iterate = Iteration(limit, self.graph.tolerance, self._told)
        if not size:
            return start
        if self.graph.gradient == "implicit":
            return fixed_point(self._prepare, iterate, start, self.params)
        return iterate(self._prepare(self.params), start)

    def _unpacked(self, z: Tensor) -> Messages:
        return by_group(self.plan, unpacked(self.plan, z, self.n), self.variables)

    def log_partition(self) -> Tensor:
        def value(z: Tensor, params: Sequence[Tensor]) -> Tensor:
            unary, groups = self._split(params)
            factors = [(v, self._factors(p)) for v, p in zip(self.variables, groups, strict=True)]
            return bethe(unary, factors, self._unpacked(z), hard=self.hard) + self.offset

        z = self._messages()
        return stationary(value, z, self.params) if self.graph.gradient == "implicit" else value(z, self.params)

    def gathered(self) -> Gathered:
        """All variables with all messages to them."""
        messages = self._unpacked(self._messages())
        return gathered(self.params[0], self.variables, messages, hard=self.hard)

    def cavities(self) -> list[list[Tensor]]:
        """For each group of factors and each position, what the rest of the graph says: `[B, F, N]`."""
        messages = self._unpacked(self._messages())
        nodes = gathered(self.params[0], self.variables, messages, hard=self.hard)
        return [
            [nodes.without(m, v[:, p]) for p, m in enumerate(own)]
            for v, own in zip(self.variables, messages, strict=True)
        ]

    def decode(self, count: int, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """`count` configurations `[count, B, V]`, layer after layer, each state by `choose(logits [count, B, S, N])`."""
        messages = self._unpacked(self._messages())
        unary, groups = self._split(self.params)
        nodes = gathered(unary, self.variables, messages, hard=self.hard)
        states = torch.zeros(count, *unary.shape[:2], dtype=torch.long, device=unary.device)
        possible = torch.ones(count, len(unary), dtype=torch.bool, device=unary.device)
        for layer in visits(self.variables, self.plan):
            logits = unary.index_select(1, layer.nodes).expand(count, -1, -1, -1)
            for group, position, earlier, factors, put in layer.given:
                if earlier:
                    variables = self.variables[group].index_select(0, factors)
                    cavities = [
                        None
                        if axis == position or axis in earlier
                        else nodes.without(messages[group][axis], self.variables[group][:, axis]).index_select(
                            1, factors
                        )
                        for axis in range(variables.shape[1])
                    ]
                    known = states[..., variables[:, list(earlier)]]  # [count, B, m, earlier]
                    params = tuple(_of_block(p, factors) for p in groups[group])
                    sent = self._given(params, cavities, position, earlier, known)
                else:
                    sent = messages[group][position].index_select(1, factors).expand(count, -1, -1, -1)
                logits = logits.index_add(2, put, sent)
            possible &= (logits > -math.inf).any(-1).all(-1)
            states[..., layer.nodes] = choose(logits)
        return torch.where(possible[..., None], states, -1)

    def _given(
        self,
        params: tuple[Tensor, ...],
        cavities: list[Tensor | None],
        position: int,
        earlier: tuple[int, ...],
        known: Tensor,
    ) -> Tensor:
        """Messages `[count, B, m, N]` of factors, some of whose variables are known, `[count, B, m, earlier]`."""
        if len(cavities) == 2:
            params = transposed(params) if position == 0 else params
            potential = Dense(params[0]) if len(params) == 1 else Factored(*params)
            sent = normalised(potential.block(known)[..., 0, :])
        else:
            later = [a for a, c in enumerate(cavities) if c is not None]
            table = TableFactors(params[0], self.reduce).joint(cavities)
            table = table.permute(0, 1, *(2 + a for a in (*later, *earlier, position)))
            table = table.flatten(2, 1 + len(later)) if later else table[:, :, None]
            table = self.reduce(table, 2)
            place = torch.zeros_like(known[..., 0])
            for i, size in enumerate(table.shape[2:-1]):
                place = place * size + known[..., i]
            sent = Dense(table.flatten(2, -2)).block(place[..., None])[..., 0, :]
        return F.pad(sent, (0, self.n - sent.shape[-1]), value=-math.inf)


def _frames_of_ours() -> int:
    """How many callers up the first one is that is not of this package: what a warning should point at."""
    frame, count = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("tailsum", "torch"):
        frame, count = frame.f_back, count + 1
    return count


def _of_block(param: Tensor, factors: Tensor) -> Tensor:
    """Those of some factors, which are in ascending order: as many as there are means all, as they stand."""
    return param if param.shape[1] in (1, len(factors)) else param.index_select(1, factors)


def _known(params: Sequence[Tensor]) -> set[int]:
    """The numbers of states that the factors of a group know of their variables."""
    return set(params[0].shape[2:]) if len(params) == 1 else {p.shape[-2] for p in params}
