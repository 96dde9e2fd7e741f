"""Sum-product (the paper's Eq. 3) and max-product on a factor graph: messages between factors and variables, in log space.

A message `[B, F, N]` goes from each factor to the variable at one of its positions; its largest entry is zero. Cavities,
the messages from variables to factors, are defined in `factors.py`.

At a fixed point the Bethe value of the log-partition,

    sum_f log Z_f + sum_v (1 - factors at v) log Z_v,

with Z_v and Z_f summed over the states of a variable and of a factor under scores and messages, is stationary in the
messages. So its gradient is computed with the messages held fixed, and consists of the beliefs.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tailsum.graphs.factors import Factors
from tailsum.graphs.layers import Incoming, Plan
from tailsum.numerics.reduce import Reduce
from tailsum.numerics.tensors import finite

Messages = list[list[Tensor]]  # for each block (or group), for each position: [B, F, N]


class Propagation:
    """One iteration of messages by a plan, for `unary [B, V, N]` and the factors of each block of the plan."""

    def __init__(self, plan: Plan, unary: Tensor, factors: Sequence[Factors], *, damping: float, hard: bool) -> None:
        self.plan, self.unary, self.factors = plan, unary, factors
        self.damping, self.hard = damping, hard

    def step(self, z: Tensor) -> Tensor:
        """From all messages, packed as `[B, Z]`, to those of the next iteration."""
        messages = unpacked(self.plan, z, self.unary.shape[-1])
        for stage in self.plan.stages:
            sent: list[tuple[int, int, Tensor]] = []
            for update in stage:
                old = messages[update.block]
                nodes = Gathered(self.unary, update.nodes, update.incoming, messages, hard=self.hard)
                cavities: list[Tensor | None] = [None] * len(old)
                for position, place in zip(update.needs, update.place, strict=True):
                    cavities[position] = nodes.without(old[position], place)
                for to in update.to:
                    new = normalised(self.factors[update.block].send(cavities, to))
                    sent.append((update.block, to, self._damped(new, old[to])))
            for block, to, message in sent:
                messages[block][to] = message
        return torch.cat([message.flatten(1) for of_block in messages for message in of_block], 1)

    def _damped(self, new: Tensor, old: Tensor) -> Tensor:
        if self.damping == 0.0:
            return new
        if not self.hard:
            return torch.lerp(new, old, self.damping)
        either = (new == -math.inf) | (old == -math.inf)
        return torch.where(either, new, torch.lerp(finite(new), finite(old), self.damping))


class Gathered:
    """The scores of `nodes` plus all messages to them; single messages can be subtracted again."""

    def __init__(
        self, unary: Tensor, nodes: Tensor, incoming: Sequence[Incoming], messages: Messages, *, hard: bool
    ) -> None:
        total = unary if len(nodes) == unary.shape[1] else unary.index_select(1, nodes)
        count = torch.zeros_like(total) if hard else None  # the number of messages that forbid each state
        for block, position, take, put in incoming:
            message = messages[block][position]
            if len(take) != message.shape[1]:
                message = message.index_select(1, take)
            total = total.index_add(1, put, finite(message) if hard else message)
            if count is not None:
                count = count.index_add(1, put, (message == -math.inf).to(count.dtype))
        self.total, self.count = total, count

    def all(self) -> Tensor:
        """The beliefs, unnormalised."""
        return self.total if self.count is None else self.total.masked_fill(self.count > 0, -math.inf)

    def without(self, message: Tensor, place: Tensor) -> Tensor:
        """The beliefs of the variables at `place [F]` less one message to each, `[B, F, N]`: cavities."""
        total = self.total.index_select(1, place)
        if self.count is None:
            return total - message
        others = self.count.index_select(1, place) - (message == -math.inf).to(self.count.dtype)
        return (total - finite(message)).masked_fill(others > 0, -math.inf)

    def cavities(self, variables: Tensor, messages: Sequence[Tensor]) -> list[Tensor]:
        """The cavities of factors over `variables [F, r]`, from their messages to each position."""
        return [self.without(message, variables[:, p]) for p, message in enumerate(messages)]


def bethe(
    unary: Tensor, groups: Sequence[tuple[Tensor, Factors]], messages: Messages, reduce: Reduce, *, hard: bool
) -> Tensor:
    """The Bethe log-partition `[B]` in float64; `groups` are pairs of variables `[F, r]` and the factors over them."""
    nodes = gathered(unary, [variables for variables, _ in groups], messages, hard=hard)
    totals = reduce(nodes.all(), -1)
    impossible = (totals == -math.inf).any(-1)
    degree = torch.zeros(unary.shape[1], dtype=torch.float64, device=unary.device)
    for variables, _ in groups:
        degree = degree.index_add(0, variables.flatten(), torch.ones_like(variables.flatten(), dtype=torch.float64))
    value = (finite(totals).double() * (1.0 - degree)).sum(-1)
    for (variables, factors), of_group in zip(groups, messages, strict=True):
        totals = factors.total(nodes.cavities(variables, of_group))
        impossible = impossible | (totals == -math.inf).any(-1)
        value = value + finite(totals).sum(-1)
    return value.masked_fill(impossible, -math.inf)


def gathered(unary: Tensor, groups: Sequence[Tensor], messages: Messages, *, hard: bool) -> Gathered:
    """All variables with the messages to them; `groups` are the variables `[F, r]` of each group of factors."""
    incoming = [
        Incoming(g, p, torch.arange(len(variables), device=unary.device), variables[:, p])
        for g, variables in enumerate(groups)
        for p in range(variables.shape[1])
    ]
    return Gathered(unary, torch.arange(unary.shape[1], device=unary.device), incoming, messages, hard=hard)


def normalised(message: Tensor) -> Tensor:
    """The message shifted such that its largest entry is zero."""
    return message - finite(message.amax(-1, keepdim=True))


def unpacked(plan: Plan, z: Tensor, n: int) -> Messages:
    """The messages of each block and position from one tensor `[B, Z]`."""
    sizes = [n * len(block.factors) for block in plan.blocks for _ in block.axes]
    pieces = iter(z.split(sizes, 1))
    return [[next(pieces).unflatten(1, (-1, n)) for _ in block.axes] for block in plan.blocks]


def by_group(plan: Plan, z: Tensor, n: int, groups: Sequence[Tensor]) -> Messages:
    """The messages of each group from one tensor `[B, Z]`, with factors and positions in the order of the group."""
    messages = z.unflatten(1, (-1, n))
    return [
        [messages.index_select(1, plan.places[g, axis]) for axis in range(variables.shape[1])]
        if len(variables)
        else [messages[:, :0]] * variables.shape[1]
        for g, variables in enumerate(groups)
    ]
