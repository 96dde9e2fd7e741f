"""Graphs of variables and factors: `score(x) = sum_v unary[v, x_v] + sum_f factor_f(x at its variables)`.

On forests inference passes messages between variables and factors (sum-product, or belief propagation), which is
exact. On graphs with loops, variables are summed out one by one as long as the tables for this are small; that is exact
too. Elsewhere messages are iterated until they converge; the log-partition and entropy are then the Bethe
approximations, and the marginals the corresponding beliefs.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tailsum.audience import for_authors
from tailsum.graphs.elimination import LIMIT, Bucket, Elimination, elimination_order
from tailsum.graphs.factor_scores import FactorGroups
from tailsum.graphs.graph_sweep import GraphSweep
from tailsum.graphs.layers import plan
from tailsum.graphs.monitor import Convergence, Passing, default_tolerance
from tailsum.graphs.search import best_states
from tailsum.graphs.solver import Solver
from tailsum.graphs.unary import padded_unary
from tailsum.numerics.check import at_least, check_choice
from tailsum.numerics.noise import drawn_by, most_likely
from tailsum.numerics.precision import full_precision
from tailsum.numerics.reduce import Reduce, highest, log_sum_exp
from tailsum.numerics.tensors import finite, without_common
from tailsum.numerics.tiles import tile_rows
from tailsum.scores.potential import Dense, Potential
from tailsum.sketch.selection import Subset
from tailsum.structure.base import Structure
from tailsum.structure.check import check_nodes, check_states, node_potential
from tailsum.structure.derivatives import recording_as_before
from tailsum.structure.k_best import Best
from tailsum.structure.transforms import outside_transforms


class GraphTerms(NamedTuple):
    """Scores of the states of each variable `[*batch, V, N]`, and of the joint states of each group of factors."""

    nodes: Dense
    factors: FactorGroups


class Graph(Structure[GraphTerms, Tensor]):
    """The base of pairwise graphs and factor graphs: everything but the form of the factors.

    `iterations` is the maximum on a graph with loops, `damping` the weight of the old message (0 to below 1), and
    `tolerance` the change at which iteration stops, relative to the size of a message above one (default: the square
    root of the dtype's precision; the log-partition is stationary in the messages, so its error is of the order of the
    precision). `schedule` is "sweep" (layer by layer and back, exact on forests after one iteration) or "flooding" (all
    messages at once). `gradient` is "implicit" (at the fixed point, memory independent of the number of iterations) or
    "unrolled" (through the iterations).

    `method` is "auto" (exact where the tables of variable elimination have at most 2^22 entries together, messages
    elsewhere), "exact" (a ValueError where they have more) or "propagation" (messages). All three are exact on forests.
    """

    variables: list[Int[Tensor, "_ _"]]  # of each group of factors: [F, r]; no group is empty
    sizes: tuple[int, ...]  # the number of states of each variable in the whole graph
    scopes: tuple[tuple[int, ...], ...]  # the variables of all factors
    unary: Potential

    def _read_unary(self, unary: Any) -> tuple[Potential, list[int]]:
        """The scores of single variables, and the number of states of each."""
        sizes = []
        if isinstance(unary, list | tuple):
            unary, sizes = padded_unary(unary)
        nodes = node_potential("unary", unary, "[*batch, V, N]", "a tensor, Factored or a list of tensors")
        self.device = nodes.tensors[0].device
        self.node_shape, self.n_states = nodes.lead[-1:], nodes.n_to
        if 0 in (*self.node_shape, self.n_states):
            raise ValueError(f"unary must have at least one variable and one state: got {[*nodes.lead, nodes.n_to]}")
        check_nodes("unary", nodes)
        return nodes, sizes or [self.n_states] * self.node_shape[0]

    def _configure(
        self, iterations: int, damping: float, tolerance: float | None, schedule: str, gradient: str, method: str
    ) -> None:
        at_least(1, iterations=iterations)
        if not 0 <= damping < 1:
            raise ValueError(f"damping must lie between 0 and 1, 1 excluded: got {damping}")
        if tolerance is not None and not tolerance >= 0:
            raise ValueError(f"tolerance must be at least 0: got {tolerance}")
        check_choice("schedule", schedule, "sweep", "flooding")
        check_choice("gradient", gradient, "implicit", "unrolled")
        check_choice("method", method, "auto", "exact", "propagation")
        self.iterations, self.damping, self.schedule, self.gradient = iterations, damping, schedule, gradient
        self.method = method
        self.tolerance = default_tolerance(self.dtype) if tolerance is None else tolerance
        self.lengths = None
        self.plan = plan(self.variables, self.node_shape[0], schedule, self.device)
        if method == "exact" and not self.is_exact:
            raise ValueError(
                f'method must be "auto" or "propagation" on this graph, for which "exact" needs tables of more than '
                f"{LIMIT:,} entries: got {method!r}"
            )

    def __repr__(self) -> str:
        size, count = self.node_shape[0], sum(map(len, self.variables))
        text = super().__repr__()[:-1].replace(f"T={size},", f"V={size}, factors={count},")
        return f"{text}, {'forest' if self.is_forest else 'with loops, exact' if self.is_exact else 'with loops'})"

    @property
    def is_forest(self) -> bool:
        """Whether the graph has no loops: all results are then exact."""
        return self.plan.forest

    @property
    def is_exact(self) -> bool:
        """Whether all results are exact: on a forest, and where variables are summed out one by one."""
        return self.is_forest or self._buckets is not None

    @property
    def _buckets(self) -> tuple[Bucket, ...] | None:
        """The order in which variables are summed out; None where messages are passed."""
        if self.is_forest or self.method == "propagation":
            return None
        return elimination_order(self.plan.scopes, self._sizes)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """The number of states of each variable."""
        return self.sizes if self.kept is None else (self.n_states,) * self.node_shape[0]

    # Each kind of graph defines these.

    @for_authors
    @abstractmethod
    def factor_scores(self) -> FactorGroups:
        """The scores of each group of factors."""

    @for_authors
    @abstractmethod
    def pair_scores(self) -> list[Potential | None]:
        """For each group of factors over pairs of variables with the same N states, their scores; None for others."""

    @for_authors
    @abstractmethod
    def extend(
        self, group: int, factors: Int[Tensor, " m"], position: int, others: Sequence[Subset | None]
    ) -> Float[Tensor, "B m N"]:
        """Messages from factors to all states of the variable at a position.

        Each factor sums over selected states `[B, m, K]` of its other variables, with cavities `log_weight`.
        """

    @for_authors
    @abstractmethod
    def factor_score(self, states: Int[Tensor, "*sample_batch V"]) -> Float[Tensor, "*sample_batch"]:
        """The sum of the scores of all factors."""

    # Scores and their sum.

    def node_scores(self) -> Float[Tensor, "*batch V n"]:
        return self.unary.block()[..., 0, :].expand(*self.batch_shape, *self.node_shape, -1)

    def terms(self) -> GraphTerms:
        return GraphTerms(Dense(self.node_scores()), self.factor_scores())

    def total(self, terms: GraphTerms, reduce: Reduce) -> Float[Tensor, "*batch"]:
        """Exact where `is_exact`; else the Bethe value at the fixed point of the messages."""
        return self._inference(terms, reduce).total().to(self.dtype).reshape(self.batch_shape)

    def _inference(self, terms: GraphTerms, reduce: Reduce) -> Elimination | Solver:
        buckets = self._buckets
        if buckets is None:
            return self.solver(terms, reduce)
        return Elimination(*self._flat(terms), self.variables, buckets, self._sizes, reduce)

    @for_authors
    def solver(self, terms: GraphTerms, reduce: Reduce, *, warn: bool = True) -> Solver:
        """Message passing with the given scores."""
        return Solver(*self._flat(terms), self.variables, self.plan, self._passing(warn=warn), reduce)

    def _flat(self, terms: GraphTerms) -> tuple[Float[Tensor, "B V n"], FactorGroups]:
        """The unary scores and those of the factors, with the batch flattened."""
        unary = terms.nodes.scores
        return unary.reshape(self.batch_shape.numel(), *unary.shape[-2:]), terms.factors.flat(self.batch_shape)

    def _passing(self, *, warn: bool = True) -> Passing:
        return Passing(self.iterations, self.damping, self.tolerance, self.gradient == "implicit", warn)

    def centred(self, terms: GraphTerms) -> GraphTerms:
        return GraphTerms(terms.nodes.map(lambda x: without_common(x, 1)), terms.factors.centred())

    def after_batch(self) -> dict[str, None]:
        return {"edges": None, "variables": None}

    def with_leaves(self, change: Callable[[Any], Any], memo: dict[int, Any]) -> "Graph":
        other = super().with_leaves(change, memo)
        by_default = self.tolerance == default_tolerance(self.dtype)
        return other.replaced(tolerance=default_tolerance(other.dtype)) if by_default else other

    def form(self) -> tuple[object, ...]:
        return tuple(tuple(map(tuple, v.tolist())) for v in self.variables)

    def n_scores(self) -> int:
        return self.node_shape[0] + sum(map(len, self.variables))

    def sweep(self) -> GraphSweep:
        return GraphSweep(
            self.weighted_nodes(), self.variables, self.plan, self.extend, self.cavities, self.pair_scores()
        )

    # Beliefs.

    def marginals(self) -> Float[Tensor, "*batch V n"]:
        """The probability of each state of each variable; the belief in it where the graph is not exact.

        Once the messages have converged this is the gradient of the log-partition in the unary scores.
        """
        if self._buckets is not None:
            return super().marginals()
        with recording_as_before(self.device, self.summed()) as terms:
            solver = self.solver(terms, log_sum_exp)
            belief = solver.gathered().all()
            return _probability(belief, belief).reshape(*self.batch_shape, *self.node_shape, self.n_states)

    @outside_transforms
    @torch.no_grad()
    def whole_marginals(self) -> Float[Tensor, "*batch V all"]:
        """The belief in every state of the whole graph, including those that a sketch does not keep.

        One more message from each factor extends the beliefs from the kept states to all states of its variables. This is
        more accurate where beliefs are spread over more states than are kept. Has no gradient; costs factors x N x K.
        Without a sketch, the same as `marginals`. With loops it is approximate, even where `marginals` are exact.
        """
        if self.kept is None:
            return self.marginals()
        with full_precision(self.device):
            solver, sweep = self.solver(self.summed(), log_sum_exp), self.whole.sweep()
            sweep.set_landmarks(self.states.reshape(-1, *self.states.shape[-2:]), solver.cavities())
            belief = sweep.log_q(0, None)
            return _probability(belief, solver.gathered().all().reshape(self.states.shape))

    @outside_transforms
    @torch.no_grad()
    def convergence(self, of: str = "sum") -> Convergence:
        """The convergence of messages, for each instance; an exact graph with loops iterates none.

        `of` is "sum" (log-partition, marginals, samples and what follows from them) or "maximum" (`argmax` and `topk`,
        whose search starts from these messages). One may converge where the other does not.
        """
        check_choice("of", of, "sum", "maximum")
        if self._buckets is not None:
            zero = torch.zeros(self.batch_shape, dtype=self.dtype, device=self.device)
            return Convergence(zero.long(), zero, zero == 0)
        with full_precision(self.device):
            terms, reduce = (self.summed(), log_sum_exp) if of == "sum" else (self.distinct(), highest)
            solver = self.solver(terms, reduce, warn=False)
            solver.gathered()
        count, change = (x.reshape(self.batch_shape) for x in (solver.monitor.iterations, solver.monitor.change))
        return Convergence(count, change, change <= self.tolerance)

    @torch.no_grad()
    def state_chances(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch V n"]]:
        return super().state_chances() if self.is_exact else (self.log_partition(), self.marginals())

    @torch.no_grad()
    def diagnostics(self) -> list[str]:
        """Messages that do not converge, or whose value changes with a random start and stronger damping."""
        if self.is_exact:
            return []
        reasons, converged = list[str](), self.convergence().converged
        if not converged.all():
            reasons.append(
                f"messages of {int((~converged).sum())} of {converged.numel()} sums did not converge in {self.iterations} "
                f"iterations: raise damping or iterations"
            )
        with full_precision(self.device):
            other = self.replaced(damping=0.5 + 0.5 * self.damping, iterations=2 * self.iterations)
            again = other.solver(self.summed(), log_sum_exp, warn=False)
            again.noise, again.generator = 3.0, torch.Generator(self.device).manual_seed(0)
            second = again.total().to(self.dtype).reshape(self.batch_shape)
            first = self.solver(self.summed(), log_sum_exp, warn=False).total().reshape(self.batch_shape)
        both = converged & (again.monitor.change <= self.tolerance).reshape(self.batch_shape)
        apart = torch.where(both, (second - first).abs(), 0.0).nan_to_num(0.0)
        if (apart > 0.01).any():
            reasons.append(
                f"messages of {int((apart > 0.01).sum())} of {apart.numel()} sums have another fixed point, whose value "
                f"is up to {apart.max().item():.3g} nats away: beliefs on this graph are not to be trusted"
            )
        return reasons

    @for_authors
    @torch.no_grad()
    def cavities(self, subset: Subset | None = None) -> list[list[Float[Tensor, "B F n"]]]:
        """The cavities of each group of factors at each position, of the graph or of its restriction to a subset."""
        graph = self if subset is None else self.restrict(subset)
        return graph.solver(graph.summed(), log_sum_exp, warn=False).cavities()

    @torch.no_grad()
    def best(self, terms: GraphTerms) -> Int[Tensor, "*batch V"]:
        if self._buckets is None:
            states = best_states(*self._flat(terms), self.variables, self.plan, self._passing())
        else:
            states = self._inference(terms, highest).decode(1, most_likely)[0]
        return states.reshape(*self.batch_shape, *self.node_shape)

    def topk(self, k: int) -> Best:
        """The k configurations of highest score, best first, and their scores.

        Where the graph is not exact they are the best that a search finds, as in `argmax`.
        """
        best = super().topk(k)
        if self.is_exact:
            return best
        order = best.scores.detach().argsort(dim=0, descending=True, stable=True)
        return Best(best.configurations.take_along_dim(order[..., None], 0), best.scores.take_along_dim(order, 0))

    def drawn(
        self, terms: GraphTerms, sample_shape: Sequence[int], generator: torch.Generator | None
    ) -> Int[Tensor, "*sample_batch V"]:
        """Exact where the graph is.

        Messages on a graph with loops give approximate samples: variables are drawn layer after layer, each given its
        neighbours drawn before it and the messages of the others, which do not depend on the draws. Where states are
        forbidden, a draw may reach a dead end; it is then -1 throughout.
        """
        inference = self._inference(terms, log_sum_exp)
        chunk = tile_rows(self.batch_shape.numel() * self.node_shape[0] * self.n_states, self.device)

        def draw(count: int) -> Tensor:
            states = inference.decode(count, drawn_by(generator))
            return states.reshape(count, *self.batch_shape, *self.node_shape)

        return self.chunked(draw, math.prod(sample_shape), chunk, sample_shape)

    def check_configuration(self, configuration: Int[Tensor, "*#sample_batch V"]) -> Int[Tensor, "*sample_batch V"]:
        return check_states(configuration, self.inside(), self.node_shape, self.n_states, "V")

    def score_of(self, configuration: Int[Tensor, "*sample_batch V"]) -> Float[Tensor, "*sample_batch"]:
        empty, states = (configuration < 0).all(-1), configuration.clamp(min=0)
        total = self.unary.block(None, states[..., None])[..., 0, 0].sum(-1) + self.factor_score(states)
        return total.masked_fill(empty, -math.inf)


def _probability(belief: Tensor, kept: Tensor) -> Tensor:
    """Beliefs `[*batch, V, N]` that sum to one; zero where a variable has no possible state among the kept ones."""
    possible = (kept > -math.inf).any(-1).all(-1)[..., None, None]
    total = finite(log_sum_exp(belief, -1))
    return torch.where(possible, (belief - total[..., None]).exp(), 0.0)
