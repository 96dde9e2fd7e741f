"""Messages on a graph, iterated until they converge, and the sums, beliefs and configurations computed from them."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tailsum.graphs.factor_scores import FactorGroups, Group
from tailsum.graphs.factors import TableFactors, padded
from tailsum.graphs.layers import Links, Plan, visits
from tailsum.graphs.monitor import Monitor, Passing
from tailsum.graphs.propagate import Gathered, Messages, bethe, by_group, gathered, normalised
from tailsum.graphs.sweeps import all_factors, iteration, of_factors
from tailsum.numerics.fixed_point import Iteration, fixed_point, stationary
from tailsum.numerics.noise import Choose
from tailsum.numerics.reduce import Reduce, highest
from tailsum.numerics.tensors import finite
from tailsum.scores.potential import Dense


class Network:
    """Functions of a graph's scores, which autograd keeps: steps of the messages, and the Bethe value.

    The scores, `params`, are those of the variables `[B, V, N]` followed by the tensors of the flat scores of factors. Here
    these are held without their graph: a reference cycle through autograd is never freed.
    """

    def __init__(
        self,
        unary: Tensor,
        factors: FactorGroups,
        variables: Sequence[Tensor],
        plan: Plan,
        damping: float,
        reduce: Reduce,
    ) -> None:
        self.variables, self.plan, self.reduce, self.n = variables, plan, reduce, unary.shape[-1]
        # Without loops there is no oscillation to damp, and messages are final after a few iterations.
        self.damping = 0.0 if plan.forest else damping
        self.factors = factors.map(torch.detach)
        # Whether messages may contain minus infinity, which cannot be subtracted again.
        self.hard = bool((unary.detach() == -math.inf).all(-1).any()) or any(
            _may_forbid(group) or set(group.node_sizes) != {self.n} for group in factors.groups
        )

    def split(self, params: Sequence[Tensor]) -> tuple[Tensor, Sequence[Group]]:
        """The scores of the variables, and those of each group of factors."""
        unary, *rest = params
        return unary, self.factors.with_tensors(rest).groups

    def step(self, params: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
        """One iteration of the messages."""
        unary, groups = self.split(params)
        return iteration(self.plan, unary, groups, self.damping, self.reduce, hard=self.hard)

    def value(self, z: Tensor, params: Sequence[Tensor]) -> Tensor:
        """The Bethe value at messages `[B, Z]`."""
        unary, groups = self.split(params)
        factors = [(v, all_factors(group, self.reduce)) for v, group in zip(self.variables, groups, strict=True)]
        messages = by_group(self.plan, z, self.n, self.variables)
        return bethe(unary, factors, messages, self.reduce, hard=self.hard)


class Solver:
    """Messages on a graph, for `unary [B, V, N]` and the flat scores of each group of factors over its `variables [F, r]`.

    Messages start at zero plus `noise` times a normal variable from `generator`.
    """

    noise = 0.0
    generator: torch.Generator | None = None

    def __init__(
        self,
        unary: Tensor,
        factors: FactorGroups,
        variables: Sequence[Tensor],
        plan: Plan,
        passing: Passing,
        reduce: Reduce,
    ) -> None:
        self.variables, self.plan, self.passing, self.reduce = variables, plan, passing, reduce
        top = finite(unary.detach().amax(-1, keepdim=True))
        unary, self.offset = unary - top, top.double().sum((-2, -1))
        self.n = unary.shape[-1]
        self.params = (unary, *factors.tensors)
        self.network = Network(unary, factors, variables, plan, passing.damping, reduce)
        of = "maximum" if reduce is highest else "sum"
        self.monitor = Monitor(passing, plan.forest, of, unary.detach().new_zeros(len(unary)))

    @functools.cached_property
    def messages(self) -> Messages:
        """For each group of factors and each position, the messages to its variables, `[B, F, N]`."""
        return by_group(self.plan, self._packed(), self.n, self.variables)

    def _packed(self) -> Tensor:
        """The messages of all blocks in one tensor, computed anew."""
        size = self.n * sum(v.numel() for v in self.variables)
        start = self.params[0].new_zeros(len(self.params[0]), size)
        if not size:
            return start
        if self.noise:
            start.normal_(0.0, self.noise, generator=self.generator)
        limit, tolerance = self.passing.iterations, self.passing.tolerance
        if self.plan.forest:  # messages become final, except for rounding
            limit, tolerance = self.plan.forest_iterations, 16 * torch.finfo(start.dtype).eps
        iterate = Iteration(limit, tolerance, self.monitor, 1.0 - self.network.damping)
        if self.passing.implicit or not torch.is_grad_enabled():
            return fixed_point(self.network.step, iterate, start, self.params)
        return iterate(self.network.step(self.params), start)

    def total(self) -> Tensor:
        """The Bethe log-partition `[B]`, in float64."""
        value, z = self.network.value, self._packed()
        return (stationary(value, z, self.params) if self.passing.implicit else value(z, self.params)) + self.offset

    def gathered(self) -> Gathered:
        """All variables with the messages to them."""
        return gathered(self.params[0], self.variables, self.messages, hard=self.network.hard)

    def cavities(self) -> list[list[Tensor]]:
        """The cavities `[B, F, N]` of each group of factors at each position."""
        nodes = self.gathered()
        return [nodes.cavities(v, of_group) for v, of_group in zip(self.variables, self.messages, strict=True)]

    def decode(self, count: int, choose: Choose) -> Tensor:
        """`count` configurations `[count, B, V]`, layer after layer, with states from `choose(logits [count, B, S, N])`."""
        unary, groups = self.network.split(self.params)
        cavities = self.cavities()
        states = torch.zeros(count, *unary.shape[:2], dtype=torch.long, device=unary.device)
        possible = torch.ones(count, len(unary), dtype=torch.bool, device=unary.device)
        for layer in visits(self.variables, self.plan):
            logits = unary.index_select(1, layer.nodes).expand(count, -1, -1, -1)
            for links in layer.links:
                if links.earlier:
                    sent = self._sent(links, groups[links.group], cavities[links.group], states)
                else:
                    sent = self.messages[links.group][links.position].index_select(1, links.factors)
                logits = logits.index_add(2, links.put, sent.expand(count, -1, -1, -1))
            possible &= (logits > -math.inf).any(-1).all(-1)
            states[..., layer.nodes] = choose(logits)
        return torch.where(possible[..., None], states, -1)

    def score(self, states: Tensor) -> Tensor:
        """The scores `[count, B]` of configurations `[count, B, V]`, in float64; minus infinity where states are -1."""
        unary, groups = self.network.split(self.params)
        impossible, states = (states < 0).any(-1), states.clamp(min=0)
        total = unary.expand(len(states), -1, -1, -1).gather(-1, states[..., None])[..., 0].double().sum(-1)
        for variables, group in zip(self.variables, groups, strict=True):
            total = total + group.at(*states[..., variables].unbind(-1)).double().sum(-1)
        return (total + self.offset).masked_fill(impossible, -math.inf)

    def _sent(self, links: Links, scores: Group, cavities: list[Tensor], states: Tensor) -> Tensor:
        """Messages `[count, B, m, N]` of factors, given the `states [count, B, V]` of their variables in earlier layers."""
        group, position, earlier, factors, _ = links
        chosen = states[..., self.variables[group][factors][:, list(earlier)]]  # [count, B, m, earlier]
        scores = of_factors(scores, factors)
        if len(cavities) == 2:
            sent = normalised((scores.backwards() if position == 0 else scores).block(chosen)[..., 0, :])
        else:
            later = [a for a in range(len(cavities)) if a != position and a not in earlier]
            others = [c.index_select(1, factors) if a in later else None for a, c in enumerate(cavities)]
            table = TableFactors(scores.scores, self.reduce).joint(others)
            table = table.permute(0, 1, *(2 + a for a in (*later, *earlier, position)))
            table = table.flatten(2, 1 + len(later)) if later else table[:, :, None]
            table = self.reduce(table, 2)
            place = torch.zeros_like(chosen[..., 0])  # flat index of the chosen joint state, row-major
            for i, size in enumerate(table.shape[2:-1]):
                place = place * size + chosen[..., i]
            sent = Dense(table.flatten(2, -2)).block(place[..., None])[..., 0, :]
        return padded(sent, self.n)


def _may_forbid(group: Group) -> bool:
    """Whether a score may be minus infinity."""
    return not group.always_finite and any(bool((x == -math.inf).any()) for x in group.tensors)
