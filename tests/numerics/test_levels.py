"""Sums over the paths of lattices by hand-written passes: the same values and derivatives as autograd through the recursion."""

import math

import pytest
import torch
from torch import Tensor

from harness.agree import close
from harness.interpreter import with_fast_numbers
from tailsum import kernels
from tailsum.numerics.levels import path_sums
from tailsum.numerics.moves import Listed, Moves, Steps
from tailsum.numerics.reduce import Draw, Reduce, highest, log_sum_exp

LEVELS, BATCH, PLACES = 4, 2, 3
STEPS = [(1, 0), (2, 1), (3, 2), (1, 1)]


def steps(closed: bool = True) -> Steps:
    bars = torch.zeros(len(STEPS), BATCH, PLACES).double()
    bars[1, 0, 1] = -math.inf
    return Steps(STEPS, LEVELS, PLACES, bars if closed else None)


def by_steps(scores: Tensor, closed: Tensor | None, reduce: Reduce = log_sum_exp) -> Tensor:
    """The sum at the last place of the last level, `[B]`, one node after the other."""
    scores = scores.expand(-1, len(STEPS), -1, -1)
    scores = scores if closed is None else scores + closed
    nodes = {(0, 0): scores.new_zeros(BATCH)}
    for level in range(1, LEVELS + 1):
        for place in range(PLACES):
            ways = [
                nodes[level - back, place - by] + scores[level - 1, k, :, place]
                for k, (back, by) in enumerate(STEPS)
                if (level - back, place - by) in nodes
            ]
            if ways:
                nodes[level, place] = reduce(torch.stack(ways), 0)
    return nodes[LEVELS, PLACES - 1]


# Node 0 is the start; nodes 1 and 2 are entered by two slots each, one of them empty, and node 3 by three.
LISTED = Listed(torch.tensor([0, 0, 0, 0, 1, 2, 0]), torch.tensor([1, 2, 1, 0, 3, 3, 3]), 1, [(2, 2), (3, 1)])


def by_list(scores: Tensor) -> Tensor:
    first = torch.stack((scores[0], scores[2])).logsumexp(0)
    return torch.stack((first + scores[4], scores[1] + scores[5], scores[6])).logsumexp(0)


def instances(name: str, blocked: bool = False) -> tuple[Tensor, Moves, Tensor]:
    """Scores, moves and ends."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    if name == "listed":
        return draw(7, 2).index_fill(0, torch.tensor(3), -math.inf), LISTED, torch.tensor([6, 7])
    x = draw(LEVELS, 1 if name == "one score a place" else len(STEPS), BATCH, PLACES)
    x = x.masked_fill(torch.rand(x.shape, generator=generator) < 0.3, -math.inf) if blocked else x
    last = torch.full((BATCH,), LEVELS)
    moves = steps(name == "closed")
    return x, moves, moves.at(last, torch.full((BATCH, 1), PLACES - 1))[:, 0]


def plain(name: str, x: Tensor) -> Tensor:
    return by_list(x) if name == "listed" else by_steps(x, steps().closed if name == "closed" else None)


NAMES = ["closed", "open", "one score a place", "listed"]


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_every_order(name):
    x, moves, ends = instances(name)
    real = x > -math.inf

    def summed(values: Tensor) -> Tensor:
        return path_sums(x.masked_scatter(real, values), moves, ends)

    values = x[real].requires_grad_()
    close(summed(values), plain(name, x))
    assert torch.autograd.gradcheck(summed, values)
    # Functions of sums, whose gradients depend on the scores in two ways.
    assert torch.autograd.gradgradcheck(lambda v: summed(v).pow(2).sum(), values)
    slope = lambda v: torch.autograd.grad(summed(v).exp().sum(), v, create_graph=True)[0]  # noqa: E731
    assert torch.autograd.gradgradcheck(lambda v: slope(v).sin().sum(), values)


@pytest.mark.parametrize("name", ["closed", "open", "one score a place"])
def test_derivatives_where_much_is_forbidden(name):
    impossible = 0
    for seed in range(4):
        x, moves, ends = instances(name, blocked=True)
        x = x.roll(seed, 0).requires_grad_()
        total = path_sums(x, moves, ends)
        impossible += int((total == -math.inf).sum())
        ours, theirs = (derivatives(value, x) for value in (total, plain(name, x)))
        for mine, other in zip(ours, theirs, strict=True):
            close(mine, other)
    assert impossible


def derivatives(total: Tensor, x: Tensor) -> list[Tensor]:
    """The sum, and three derivatives."""
    found, value = [total], total.masked_fill(total == -math.inf, 0.0).sin().sum() + total.sum()
    for _ in range(3):
        (grad,) = torch.autograd.grad(value, x, create_graph=True)
        found.append(grad)
        value = (grad * grad).sum()
    return found


@pytest.mark.parametrize("use", ["never", "always"])
@pytest.mark.parametrize("name", NAMES)
def test_choices(name, use):
    """The gradient of a maximum is the best path, and that of a draw a path: so many arcs that they make one up."""
    x, moves, ends = instances(name)
    x, close_enough = (x, {}) if use == "never" else (x.float(), {"rtol": 1e-6, "atol": 1e-6})
    with kernels(use):
        for reduce in (highest, Draw(torch.Generator().manual_seed(0))):
            x = x.detach().requires_grad_()
            total = path_sums(x, moves, ends, reduce)
            (used,) = torch.autograd.grad(total.sum(), x)
            assert ((used == 0) | (used == 1)).all()
            score = (used * x.detach().masked_fill(used == 0, 0.0)).sum(dtype=torch.float64)
            if reduce is highest:
                close(score, total.sum(), **close_enough)
            else:
                close(total, path_sums(x, moves, ends))
                assert score <= path_sums(x, moves, ends, highest).sum() + 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_of_equal_paths_kernels_choose_that_of_the_reference(name):
    x, moves, ends = instances(name)
    x = torch.where(x > -math.inf, 0.0, x).float().requires_grad_()
    paths = []
    for use in ("never", "always"):
        with kernels(use):
            paths += torch.autograd.grad(path_sums(x, moves, ends, highest).sum(), x)
    assert torch.equal(*paths)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_sum_beside_masks(name):
    """Scores of -1e9 that every path must take leave the others their digits, and those that none can take no trace."""
    x, moves, ends = instances(name)
    x = torch.where(torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.4, -1e9, x.float())
    found = []
    for use in ("never", "always"):
        with kernels(use):
            scores = x.clone().requires_grad_()
            total = path_sums(scores, moves, ends)
            found += [total.detach(), *torch.autograd.grad(total.sum(), scores)]
    for ours, truth in zip(found[2:], found[:2], strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-7, atol=1e-7)


def frequencies(use: str, columns: int) -> Tensor:
    """How often the arcs of "listed" were drawn less their chances."""
    x, moves, _ = instances("listed")
    x = x if use == "never" else x.float()
    many = x[:, :1].expand(-1, columns).clone().requires_grad_()
    with kernels(use):
        total = path_sums(many, moves, 3 * columns + torch.arange(columns), Draw(torch.Generator().manual_seed(0)))
        (used,) = torch.autograd.grad(total.sum(), many)
    one = x[:, :1].clone().requires_grad_()
    (chance,) = torch.autograd.grad(path_sums(one, moves, torch.tensor([3])).sum(), one)
    return used.mean(1) - chance[:, 0]


def test_draws_have_the_probabilities_of_paths():
    assert frequencies("never", 20_000).abs().max() < 0.02


def test_draws_of_kernels_have_the_probabilities_of_paths(monkeypatch):
    with_fast_numbers(monkeypatch)
    assert frequencies("always", 100).abs().max() < 0.12


def test_draws_of_kernels_by_steps_have_the_probabilities_of_steps(monkeypatch):
    """At each level one of three steps from the only place to itself."""
    with_fast_numbers(monkeypatch)
    levels, chance = 150, torch.tensor([0.5, 0.2, 0.3])
    x = chance.log()[:, None, None].expand(levels, -1, 1, 1).clone().requires_grad_()
    moves = Steps([(1, 0)] * 3, levels, 1)
    draw = Draw(torch.Generator().manual_seed(0))
    with kernels("always"):
        total = path_sums(x, moves, moves.at(torch.tensor([levels]), torch.tensor([[0]])), draw)
        (used,) = torch.autograd.grad(total.sum(), x)
    assert (used.sum(1) == 1).all()
    assert (used.mean((0, 2, 3)) - chance).abs().max() < 0.1


def test_half_of_the_precision_of_scores_is_not_that_of_sums():
    x, moves, ends = instances("open")
    assert path_sums(x.float(), moves, ends).dtype == torch.float64
    y = x.float().requires_grad_()
    (grad,) = torch.autograd.grad(path_sums(y, moves, ends).sum(), y, create_graph=True)
    assert grad.dtype == torch.float32
    assert torch.autograd.grad(grad.square().sum(), y)[0].dtype == torch.float32
