"""Lookahead rules out no state that has a chance, given the states selected before.

With a selection whose weights are one in expectation, a sum is unbiased if and only if there are none.
"""

import math

import pytest
import torch

import tailsum as ts
from harness.registry import large
from tailsum.chains import segment_sweep
from tailsum.structure import landmark_sweep
from tailsum.trees.rules import pair_sweep

FEW = {
    "1": ts.Lookahead(1, neighbours=0),
    "1, static": ts.Lookahead(1, sequential=False, neighbours=0),
    "1, neighbours, static": ts.Lookahead(1, sequential=False, neighbours=1),
    "8": ts.Lookahead(8, neighbours=0),
    "1, no rounds": ts.Lookahead(1, rounds=0),
}
SPARSE = {
    "segments-dense": {},
    "segments-dense of each boundary": {},
    "spans-dense": {},
    "pcfg-dense": {"length": 4},
    "pcfg-dense, many preterminals": {"length": 4, "n": 3, "p": 6},
    "pcfg-dense, more states than guides": {"length": 4, "n": 20, "p": 3},
    "pcfg-scored": {"length": 4},
    "pcfg-low rank": {"length": 4},
    "dependencies-states": {"length": 4},
    "dependencies-states, multiroot": {"length": 4},
    "dependencies-states, dense of each arc": {"length": 4},
}
GRAMMARS = [name for name in SPARSE if name.startswith("pcfg")]


class Recording(ts.Selection):
    """A selection that records its inputs and its choices."""

    def __init__(self, selection):
        self.selection, self.calls = selection, []

    def __call__(self, log_q, generator=None):
        subset = self.selection(log_q, generator)
        self.calls.append((log_q.clone(), ts.Subset(subset.index.clone(), subset.log_weight.clone())))
        return subset

    def steps(self, model, sequential):
        """In the order of selection: index tensors of the nodes, `log_q` for them, and the chosen subset."""
        length = model.node_shape[0]
        if not sequential or isinstance(model, ts.SpanTree):  # all nodes at once
            return [((...,), *self.calls[0])]
        if len(model.node_shape) == 2:  # spans by width
            position = torch.arange(length)
            where = [(slice(None), position[: length - w], position[w:]) for w in range(length)]
            return [(here, *call) for here, call in zip(where, self.calls, strict=True)]
        calls = self.calls
        if isinstance(model, ts.DependencyTree):  # the first selection is of all words, the first word's for good
            log_q, subset = calls[0]
            calls = [(log_q[:, 0], ts.Subset(subset.index[:, 0], subset.log_weight[:, 0])), *calls[1:]]
        return [((slice(None), word), *call) for word, call in enumerate(calls)]


def forbidding(name, seed, forbidden, lengths=None):
    """Twelve sentences that share their scores; only scores that couple nodes forbid anything."""
    how = {"batch": (12,), "lengths": lengths, "shared": True, "seed": seed, "forbidden": forbidden}
    form = name.removesuffix(", many preterminals").removesuffix(", more states than guides")
    return large(form, **how, **SPARSE[name]).couple_only()


def wrongly_ruled_out(case, proposal, selection, generator):
    """How many states could not be selected, though they have a chance given the states selected before."""
    recording, model = Recording(selection), case.model()
    model.sketch(proposal=proposal, selection=recording, generator=generator)
    every = torch.arange(model.n_states).expand(*model.batch_shape, *model.node_shape, -1)
    log_weight = torch.zeros(every.shape).double()
    count = 0
    for where, log_q, subset in recording.steps(model, proposal.sequential):
        chance = case.state_chances(model.restrict(ts.Subset(every, log_weight)))[where]
        count += int(((chance > 0) & (log_q == -math.inf)).sum())
        log_weight[where] = torch.zeros_like(log_q).scatter_add(-1, subset.index, subset.log_weight.exp()).log()
    return count


@pytest.mark.parametrize(
    ("name", "few", "budget"),
    [
        *((name, "1, neighbours, static", 1 << 30) for name in SPARSE if name not in GRAMMARS),
        *((name, few, 1 << 30) for name in SPARSE for few in ("1", "1, static")),
        *((name, few, 0) for name in GRAMMARS for few in FEW),  # no table of rules: messages from pairs
    ],
)
def test_no_state_that_matters_is_ruled_out(name, few, budget, generator):
    """Several patterns of forbidden rules and transitions, each for sentences of all lengths."""
    selections = (ts.Optimal(2), 0.4), (ts.TopAndSample(1, 2), 0.4), (ts.Optimal(3), 0.7), (ts.Optimal(2), 0.6)
    for seed, (selection, forbidden) in enumerate(selections):
        lengths = ((torch.arange(12) % (2 if name == "spans-dense" else 3)) + 2).tolist()
        case = forbidding(name, seed, forbidden, lengths)
        with ts.table_budget(budget):
            assert wrongly_ruled_out(case, FEW[few], selection, generator) == 0


@pytest.mark.parametrize("few", ["1", "1, static"])
@pytest.mark.parametrize("name", ["segments-dense", "pcfg-dense", "dependencies-states"])
def test_states_that_are_ruled_out_are_noticed(name, few, generator, monkeypatch):
    for module in (segment_sweep, pair_sweep, landmark_sweep):
        monkeypatch.setattr(module, "fill_unreached", lambda sent: sent)
    cases = [forbidding(name, seed, 0.4) for seed in range(4)]
    with ts.table_budget(0):
        assert sum(wrongly_ruled_out(case, FEW[few], ts.Optimal(2), generator) for case in cases) > 0
