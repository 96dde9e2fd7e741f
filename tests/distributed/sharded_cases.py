"""Checks that every rank of a process group runs together: a sharded chain against the same chain on one rank.

`run` starts the ranks, and gives what each check said on each rank. `start` starts any function once for each rank.
"""

import math
import multiprocessing
import traceback
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import tailsum as ts
from harness.statistics import z_score
from tailsum.distributed import shards

CHECKS, AMONG_SEVERAL = [], []  # checks of ranks of any number, and of two or more


def check(function):
    CHECKS.append(function)
    return function


def check_among_several(function):
    AMONG_SEVERAL.append(function)
    return function


def start(function, arguments, world):
    """`function(rank, *arguments)`, each in a process forked from one that has loaded what takes a rank most of its time."""
    multiprocessing.set_forkserver_preload(["pytest", "torch.distributed", "tailsum.public", "tailsum.distributed"])
    mp.start_processes(function, arguments, nprocs=world, start_method="forkserver")


def run(world, folder):
    """`{name: errors of the ranks}`; no check is run after one that failed, as the ranks may be out of step."""
    start(_rank, (world, str(folder)), world)
    said = [torch.load(folder / f"rank{p}") for p in range(world)]
    return {c.__name__: [told.get(c.__name__, "did not run") for told in said] for c in CHECKS + AMONG_SEVERAL}


def _rank(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timedelta(seconds=90)
    )
    told = {}
    for function in CHECKS + AMONG_SEVERAL:
        torch.manual_seed(0)
        try:
            function()
        except Exception:  # noqa: BLE001  (every rank must come to its end)
            told[function.__name__] = traceback.format_exc()
            break
        told[function.__name__] = ""
    torch.save(told, f"{folder}/rank{rank}")
    dist.destroy_process_group()


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


# Chains in two forms: whole on every rank, and in slices.


class Pair:
    """A chain of random scores (the same on every rank) as a `LinearChain`, and in slices of given sizes."""

    def __init__(self, kind, sizes=None, batch=(3,), length=5, n=11, lengths=None, lead=(), forbid=0.0, scale=1.0):
        self.kind, self.lengths = kind, lengths
        if sizes is None:
            self.own = ts.distributed.local_states(n)
        else:
            sizes = (sizes * 4)[: world()]
            n = sum(sizes)
            start = sum(sizes[: rank()])
            self.own = slice(start, start + sizes[rank()])
        self.n = n

        def scores(*shape):
            x = scale * torch.randn(shape, dtype=torch.float64)
            return x.masked_fill_(torch.rand(shape) < forbid, -math.inf)

        self.tensors = {}
        if "context" in kind:
            self.tensors["context"] = torch.randn(*batch, length, 4, dtype=torch.float64)
            self.tensors["states"] = torch.randn(n, 4, dtype=torch.float64)
        else:
            self.tensors["emission"] = scores(*batch, length, n)
        if "factored" in kind:
            self.tensors["left"], self.tensors["right"] = scale * torch.randn(2, *lead, n, 4, dtype=torch.float64)
        else:
            self.tensors["table"] = scores(*lead, n, n)
        self.whole_inputs = {name: x.clone().requires_grad_() for name, x in self.tensors.items()}
        self.inputs = {name: self.slice(name, x).clone().requires_grad_() for name, x in self.tensors.items()}
        self.whole = self.made(ts.LinearChain, self.whole_inputs)
        self.chain = self.made(ts.distributed.ShardedChain, self.inputs)

    def made(self, model, x):
        emission = ts.Factored(x["context"], x["states"]) if "context" in x else x["emission"]
        transition = ts.Factored(x["left"], x["right"]) if "left" in x else ts.Dense(x["table"])
        return model(emission, transition, self.lengths)

    def slice(self, name, x):
        if name == "context":
            return x
        return x[..., self.own] if name == "emission" else x[..., self.own, :]

    def agree(self, operation, tolerance=1e-9):
        """Values, and every rank's gradients of a loss that all ranks compute."""
        expected, found = operation(self.whole), operation(self.chain)
        close(found, expected, tolerance)
        weight = torch.randn(expected.shape, dtype=expected.dtype)
        truth = torch.autograd.grad(loss(expected, weight), list(self.whole_inputs.values()), allow_unused=True)
        mine = torch.autograd.grad(loss(found, weight), list(self.inputs.values()), allow_unused=True)
        for name, a, b in zip(self.inputs, mine, truth, strict=True):
            expected = torch.zeros_like(self.whole_inputs[name]) if b is None else b
            close(a if a is not None else torch.zeros_like(self.inputs[name]), self.slice(name, expected), tolerance)


def loss(value, weight):
    return (value.masked_fill(value == -math.inf, 0.0) * weight).sum()


def close(a, b, tolerance=1e-9):
    assert a.shape == b.shape, (a.shape, b.shape)
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def log_partition(chain):
    return chain.log_partition()


def kinds():
    return (
        ["factored", "dense, context"] if world() > 2 else ["factored", "dense", "factored, context", "dense, context"]
    )


@check
def values_and_gradients():
    for kind in kinds():
        Pair(kind).agree(log_partition)


@check
def tables_that_are_streamed():
    with ts.table_budget(0):
        for kind in ["factored", "dense"]:
            Pair(kind).agree(log_partition)
            Pair(kind, lead=(3, 4)).agree(log_partition)


@check
def entropy_and_its_gradient():
    for kind in kinds():
        Pair(kind, lengths=[5, 1, 3]).agree(lambda chain: chain.entropy())


@check
def marginals_of_the_own_states():
    for kind in ["factored", "dense"]:
        pair = Pair(kind, lengths=[5, 1, 3])
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                close(pair.chain.marginals(), pair.slice("emission", pair.whole.marginals()))
                close(pair.chain.entropy(), pair.whole.entropy())
        weight = torch.randn(3, 5, pair.n, dtype=torch.float64)
        truth = torch.autograd.grad((pair.whole.marginals() * weight).sum(), list(pair.whole_inputs.values()))
        mine = torch.autograd.grad((pair.chain.marginals() * weight[..., pair.own]).sum(), list(pair.inputs.values()))
        for name, a, b in zip(pair.inputs, mine, truth, strict=True):
            close(a, pair.slice(name, b))


@check
def slices_of_any_size():
    for kind in kinds():
        for sizes in ([7, 2], [1, 0, 3, 5]) if "context" in kind else ([7, 0], [0, 4] if world() > 1 else [4]):
            Pair(kind, sizes=sizes, length=3).agree(log_partition)
    Pair("factored", sizes=[4, 0], length=3).agree(lambda chain: chain.entropy())
    Pair("dense, context", sizes=[4, 0], length=3).agree(lambda chain: chain.entropy())


@check
def lengths_and_leading_dimensions():
    for kind in ["factored", "dense"]:
        Pair(kind, lead=(4,), lengths=[2, 5, 1]).agree(log_partition)
        Pair(kind, lead=(3, 1), length=2).agree(log_partition)
    Pair("factored", batch=()).agree(log_partition)
    Pair("dense", batch=(2, 2), n=3).agree(log_partition)


@check
def one_position():
    for kind in kinds():
        Pair(kind, length=1).agree(log_partition)
        Pair(kind, length=1).agree(lambda chain: chain.entropy())
        Pair(kind, length=1, n=2).agree(lambda chain: chain.sketch(2).log_partition())


@check
def forbidden_states_and_steps():
    for kind in ["factored", "dense"]:
        pair = Pair(kind, forbid=0.5, length=4)
        pair.agree(log_partition)
        pair.agree(lambda chain: chain.entropy())
        pair.agree(lambda chain: chain.sketch(20).log_partition())  # of 11
    impossible = Pair("dense", forbid=0.97)
    assert (impossible.whole.log_partition() == -math.inf).any()
    impossible.agree(log_partition)


@check
def scores_of_any_range():
    Pair("dense", scale=300.0, forbid=0.2, length=4).agree(log_partition)
    Pair("factored", scale=100.0, sizes=[5, 0], length=4).agree(log_partition)


@check
def long_chains_in_float32():
    emission, (left, right) = torch.randn(150, 12), torch.randn(2, 12, 3)
    own = ts.distributed.local_states(12)
    chain = ts.distributed.ShardedChain(emission[:, own] + 1000, ts.Factored(left[own], right[own]))
    exact = ts.LinearChain(emission.double() + 1000, ts.Factored(left.double(), right.double())).log_partition()
    found = chain.log_partition()
    assert found.dtype == torch.float32
    assert abs(found / exact - 1) < 1e-6


@check
def scores_of_paths():
    for kind in kinds():
        pair = Pair(kind, lengths=[5, 1, 3], forbid=0.1)
        paths = torch.randint(pair.n, (2, 3, 5))
        pair.agree(lambda chain: chain.score(paths))  # noqa: B023
        pair.agree(lambda chain: chain.log_prob(paths))  # noqa: B023


@check
def sketches_of_all_states_are_exact():
    for kind in kinds():
        pair = Pair(kind, lengths=[5, 1, 3])
        for operation in (log_partition, lambda c: c.entropy(), lambda c: c.log_prob(torch.zeros(3, 5).long())):
            pair.agree(lambda chain: operation(chain if chain is pair.whole else chain.sketch(pair.n + 5)))  # noqa: B023
        assert torch.equal(pair.chain.sketch(pair.n).argmax(), pair.whole.argmax())


@check
def sketches_keep_what_one_rank_would():
    for kind in ["factored", "dense"]:
        pair = Pair(kind, sizes=[5, 1, 0, 9] if kind == "dense" else None, n=40, length=4, lengths=[4, 1, 3])
        for proposal in (ts.Lookahead(landmarks=3, rounds=1, neighbours=0), ts.Local(), ts.Uniform()):

            def sketched(chain):
                return chain.sketch(4, proposal=proposal, generator=torch.Generator().manual_seed(3))  # noqa: B023

            small, truth = sketched(pair.chain), sketched(pair.whole)
            assert torch.equal(small.states, truth.states), (kind, proposal)
            close(small.log_weight, truth.log_weight)
        pair.agree(lambda chain: sketched(chain).entropy())
        # Where steps differ, one rank has for each state itself as its neighbour, too.
        pair, proposal = Pair(kind, n=20, length=4, lead=(3,)), ts.Lookahead(landmarks=3)
        small, truth = sketched(pair.chain), sketched(pair.whole)
        assert torch.equal(small.states, truth.states), kind


@check
def sketches_are_unbiased():
    count = 400
    for kind, sizes, proposal in (
        ("factored", None, ts.Lookahead(landmarks=6)),
        ("dense", [9, 5, 0, 4], ts.Lookahead(landmarks=6)),
        ("factored", [9, 3], lambda chain: torch.zeros_like(chain.node_scores())),
    ):
        pair = Pair(kind, sizes=sizes, batch=(1,), length=4, n=12, forbid=0.2 if kind == "dense" else 0.0)
        many = {name: x.expand(count, *x.shape[1:]) if name == "emission" else x for name, x in pair.inputs.items()}
        chain = pair.made(ts.distributed.ShardedChain, many)
        # The first rank's numbers decide, whatever the others'.
        generator = torch.Generator().manual_seed(7 * rank())
        found = chain.sketch(5, proposal=proposal, generator=generator).log_partition()
        error = (found - pair.whole.log_partition()).exp()
        assert error.std() > 1e-3
        assert z_score(error.detach(), 1.0) < 4


@check
def fewer_possible_states_than_kept():
    n = 12
    emission = torch.full((3, n), -math.inf, dtype=torch.float64)
    emission[:, [2, 9]] = torch.randn(3, 2, dtype=torch.float64)
    factors = torch.randn(2, n, 3, dtype=torch.float64)
    own = ts.distributed.local_states(n)
    chain = ts.distributed.ShardedChain(emission[:, own], ts.Factored(factors[0, own], factors[1, own]))
    close(chain.sketch(5).log_partition(), ts.LinearChain(emission, ts.Factored(*factors)).log_partition())


def refused(text, *arguments, **named):
    """Every rank raises, with this in its message, and goes on."""
    with pytest.raises(ValueError, match=text):
        ts.distributed.ShardedChain(*arguments, **named)


@check_among_several
def wrong_calls_are_errors_on_every_rank():
    nodes, factors = torch.zeros(3, 2), ts.Factored(torch.zeros(2, 4), torch.zeros(2, 4))
    first = rank() == 0
    refused("positions must be the same on every rank", torch.zeros(3 + first, 2), factors)
    refused("batch shape must be the same", torch.zeros(*(2,) * first, 3, 2), factors)
    refused("dtype", nodes.double() if first else nodes, factors)
    refused("kind of transition", nodes, torch.zeros(2, 2 * world()) if first else factors)
    refused("number of columns", nodes, ts.Factored(torch.zeros(2, 4 + first), torch.zeros(2, 4 + first)))
    refused("lengths must be the same", nodes[None], factors, [3 - first])
    refused("gradients", nodes.clone().requires_grad_(first), factors)
    refused("a column for each of the", nodes, torch.zeros(2, 2))
    refused("2 rows of left and of right", nodes, ts.Factored(torch.zeros(3, 4), torch.zeros(3, 4)))
    refused("at least one state", torch.zeros(3, 0), ts.Factored(torch.zeros(0, 4), torch.zeros(0, 4)))
    refused("NaN" if first else "rank 0: emission must not hold NaN", nodes / (0.0 if first else 1.0), factors)
    refused("transition must be", nodes, ts.Scored(lambda i, j: i * j, 2, 2))


def fails(text, call, kind=ValueError):
    """Every rank raises, with this in its message."""
    with pytest.raises(kind, match=text):
        call()


@check_among_several
def arguments_that_differ_are_errors_on_every_rank():
    first = rank() == 0
    pair = Pair("factored, context")
    chain, paths, subset = pair.chain, torch.randint(pair.n, (2, 3, 5)), pair.whole.sketch(4).kept
    fails("k must be the same on every rank: got 5, 6", lambda: chain.sketch(5 + rank()))
    fails("states must be the same", lambda: chain.score(paths[:, :1] if first else paths))
    fails("states must be the same", lambda: chain.log_prob(paths.roll(rank(), 0)))
    fails("subset.index must be the same", lambda: chain.restrict(replace(subset, index=subset.index.roll(rank(), -1))))
    other = replace(subset, log_weight=subset.log_weight + 1e-3 * rank())
    fails("subset.log_weight must be the same", lambda: chain.restrict(other))
    fails("proposal must be the same", lambda: chain.sketch(4, proposal=ts.Local() if first else ts.Uniform()))
    fails("the operation must be the same", chain.entropy if first else chain.log_partition)
    fails(
        "the operation must be the same",
        (lambda: pair.made(type(chain), pair.inputs)) if first else chain.log_partition,
    )
    with torch.set_grad_enabled(first):
        fails("gradients", chain.marginals)
    with ts.table_budget(rank()):
        fails("table budget must be the same", chain.log_partition)
    context = pair.inputs["context"].detach() + torch.eye(5, 4) * 1e-3 * rank()
    fails("the context of emission must be", lambda: pair.made(type(chain), pair.inputs | {"context": context}))
    # Padding may hold anything, and last digits may differ.
    chain = pair.made(type(chain), pair.inputs)
    context = pair.inputs["context"].detach() * (1 + 1e-14 * rank())
    context[1:, 3:] = rank()
    lengths, pair.lengths = pair.lengths, [5, 3, 3]
    pair.made(type(chain), pair.inputs | {"context": context}).log_partition()
    pair.lengths = lengths
    pair.agree(log_partition)  # the ranks are in step


@check_among_several
def what_is_wrong_on_one_rank_is_an_error_on_all():
    first = rank() == 0
    pair = Pair("factored")
    chain, paths = pair.chain, torch.zeros(3, 5).long()
    fails("states must lie between" if first else "rank 0: states must lie", lambda: chain.score(paths - 7 * first))
    fails("k must be" if first else "rank 0: k must be", lambda: chain.sketch(0 if first else 4))
    fails("argument" if first else "rank 0: TypeError", lambda: chain.score(*(() if first else (paths,))))

    for of_others in (chain.node_scores, chain.marginals):  # without exchanges, and with some

        def proposal(chain):
            if first:
                raise KeyError("mine")
            return of_others()  # noqa: B023

        fails("KeyError: 'mine'" if first else "rank 0: KeyError", lambda: chain.sketch(4, proposal=proposal))
    fails("proposal must give", lambda: chain.sketch(4, proposal=lambda chain: chain.node_scores()[first:]))
    pair.agree(log_partition)


@check_among_several
def an_error_between_exchanges_reaches_all():
    """The group cannot be used any more; others can."""
    group, first = dist.new_group(), rank() == 0
    before = shards.Shards.scattered_sum, shards.PATIENCE
    steps = []

    def scattered_sum(self, x):
        steps.append(x)
        if first and len(steps) == 3:
            raise MemoryError("no more")
        return before[0](self, x)

    emission, table = torch.randn(9, 2), torch.randn(2, 2 * world())
    chain = ts.distributed.ShardedChain(emission, table, group=group)
    shards.Shards.scattered_sum, shards.PATIENCE = scattered_sum, timedelta(seconds=0.1)
    wrong = "no more" if first else "rank 0 failed within an operation: MemoryError: no more"
    fails(wrong, chain.log_partition, MemoryError if first else RuntimeError)
    shards.Shards.scattered_sum, shards.PATIENCE = before
    fails("out of step.*rank 0.*no more", chain.log_partition, RuntimeError)
    fails("out of step", lambda: ts.distributed.ShardedChain(emission, table, group=group), RuntimeError)
    Pair("dense").agree(log_partition)
    dist.destroy_process_group(group)


@check_among_several
def reduce_scatter_in_place_of_all_reduce():
    before, shards.Shards.has_reduce_scatter = shards.Shards.has_reduce_scatter, lambda self: True
    Pair("dense", sizes=[4, 1, 0, 3], length=3).agree(log_partition)
    shards.Shards.has_reduce_scatter = before


@check_among_several
def generators_that_are_alike_stay_alike():
    Pair("factored").chain.sketch(4)
    state = torch.get_rng_state()
    gathered = [torch.empty_like(state) for _ in range(world())]
    dist.all_gather(gathered, state)
    assert all(torch.equal(state, other) for other in gathered)


@check_among_several
def subgroups():
    """A chain on the last two ranks alone."""
    group = dist.new_group([world() - 2, world() - 1])
    if rank() < world() - 2:
        return
    emission, factors = torch.randn(4, 9).double(), torch.randn(2, 9, 2).double()
    with ts.table_budget(0):
        own = ts.distributed.local_states(9, group)
        transition = ts.Factored(factors[0, own].requires_grad_(), factors[1, own].requires_grad_())
        chain = ts.distributed.ShardedChain(emission[:, own], transition, group=group)
        chain.log_partition().backward()
    close(chain.log_partition(), ts.LinearChain(emission, ts.Factored(*factors)).log_partition())
