"""Sketches of segmentations, trees, grammars and dependency trees: right in expectation, and close where it is hard.

Replicates are a batch of identical sentences. Estimates are divided by the truth, so that they scatter around one.
"""

import math

import pytest
import torch

import tailsum as ts
from harness.statistics import Broken, z_score
from tailsum.apps.paper.trees import hard_dependencies, hard_grammar
from tailsum.chains import segment_sweep
from tailsum.dependencies import dependency_sweep
from tailsum.trees import grammar_sweep

SELECTIONS = {"optimal": ts.Optimal(2), "top and sample": ts.TopAndSample(1, 2)}
# Landmarks: so many states of each start in a semi-Markov model, an eighth of that of spans and words. The number of
# pairs of states that a grammar's messages come from is limited too.
PROPOSALS = {
    "uniform": ts.Uniform(),
    "local": ts.Local(),
    "lookahead": ts.Lookahead(16),
    "lookahead, static": ts.Lookahead(16, sequential=False),
}
FEW = {
    "1": ts.Lookahead(1),
    "1, static": ts.Lookahead(1, sequential=False),
    "8": ts.Lookahead(8),
    "1, no rounds": ts.Lookahead(1, rounds=0),
}


def randn(*shape, generator, forbidden=0.0):
    scores = torch.randn(*shape, generator=generator).double() * 0.7
    return scores.masked_fill(torch.rand(*shape, generator=generator) < forbidden, -math.inf)


def semi_markov(lead=(), seed=0, forbidden=0.0, lengths=None, form="table"):
    g = torch.Generator().manual_seed(seed)
    segment = randn(4, 3, 6, generator=g)
    if form == "factors":
        pairs = ts.Factored(randn(6, 2, generator=g), randn(6, 2, generator=g))
    else:
        pairs = randn(*((3,) if form == "by position" else ()), 6, 6, generator=g, forbidden=forbidden)
    return ts.SemiMarkov(segment.expand(*lead, -1, -1, -1), pairs, lengths)


def span_tree(lead=(), seed=0, forbidden=0.0, lengths=None):
    g = torch.Generator().manual_seed(seed)
    return ts.SpanTree(randn(3, 3, 5, generator=g, forbidden=forbidden).expand(*lead, -1, -1, -1), lengths)


def grammar(lead=(), seed=0, forbidden=0.0, lengths=None, form="table", length=3, n=5, p=4):
    g = torch.Generator().manual_seed(seed)
    if form in ("table", "function"):
        table = randn(n, n + p, n + p, generator=g, forbidden=forbidden)
        rule = table if form == "table" else ts.ScoredRule(lambda a, b, c: table[a, b, c], n, p)
    else:
        kind = ts.FactoredRule if form == "factors" else ts.LowRankRule
        rule = kind(*(randn(size, 3, generator=g, forbidden=forbidden) for size in (n, n + p, n + p)))
    emission = randn(length, p, generator=g).expand(*lead, -1, -1)
    return ts.PCFG(randn(n, generator=g), rule, emission, lengths)


def dependencies(lead=(), seed=0, forbidden=0.0, lengths=None, form="table", length=3, multiroot=False):
    g = torch.Generator().manual_seed(seed)
    arc, node = randn(length, length, generator=g), randn(length, 5, generator=g).expand(*lead, -1, -1)
    if form == "factors":
        pairs = ts.Factored(randn(5, 2, generator=g), randn(5, 2, generator=g))
    else:
        pairs = randn(*((length, length) if form == "by arc" else ()), 5, 5, generator=g, forbidden=forbidden)
    return ts.DependencyTree(arc, lengths, multiroot=multiroot, node=node, transition=pairs)


def with_form(make, **form):
    return lambda *args, **how: make(*args, **how, **form)


MAKE = {
    "semi-Markov": semi_markov,
    "span tree": span_tree,
    "grammar": grammar,
    "grammar of factors": with_form(grammar, form="factors"),
    "grammar of low rank": with_form(grammar, form="ranks"),
    "grammar by a function": with_form(grammar, form="function"),
    "dependencies": dependencies,
    "dependencies, several roots": with_form(dependencies, multiroot=True),
}
ONE_EACH = ["semi-Markov", "span tree", "grammar", "dependencies"]
FORBIDDING = [name for name in MAKE if name != "grammar of factors"]  # factors must be finite
REPLICATES = dict.fromkeys(PROPOSALS, 20_000) | {"lookahead": 10_000, "lookahead, static": 10_000}


def off(small, whole):
    """By how many standard errors the mean of the estimates misses the truth."""
    truth = whole.log_partition()
    assert (truth > -math.inf).all()
    return z_score((small.log_partition() - truth).exp(), 1.0)


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", MAKE)
def test_partition(name, selection, proposal, generator):
    small = MAKE[name]((REPLICATES[proposal],)).sketch(
        proposal=PROPOSALS[proposal], selection=SELECTIONS[selection], generator=generator
    )
    assert off(small, MAKE[name]()) < 4


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", MAKE)
def test_a_wrong_weight_is_noticed(name, selection, generator):
    """Of 2%, as in `test_unbiased.py`."""
    small = MAKE[name]((5_000,)).sketch(
        proposal=PROPOSALS["lookahead"], selection=Broken(SELECTIONS[selection]), generator=generator
    )
    assert off(small, MAKE[name]()) > 4


@pytest.mark.parametrize("few", ["1", "1, static"])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", FORBIDDING)
def test_partition_where_much_is_forbidden(name, seed, few, generator):
    """40% of the rules or transitions, and a single landmark: the states that it does not reach still count."""
    small = MAKE[name]((6_000,), seed, 0.4).sketch(2, proposal=FEW[few], generator=generator)
    assert off(small, MAKE[name](seed=seed, forbidden=0.4)) < 4


@pytest.mark.parametrize("proposal", ["uniform", "lookahead", "lookahead, static"])
@pytest.mark.parametrize("name", ONE_EACH)
def test_partition_of_sentences_of_different_lengths(name, proposal, generator):
    lengths = torch.tensor([2, 3, 3] if name == "grammar" else [1, 2, 3])  # a single word has no derivation
    replicates = 5000
    model = MAKE[name]((3 * replicates,), forbidden=0.2, lengths=lengths.repeat(replicates))
    found = model.sketch(2, proposal=PROPOSALS[proposal], generator=generator).log_partition().reshape(replicates, 3)
    truth = MAKE[name]((3,), forbidden=0.2, lengths=lengths).log_partition()
    assert z_score((found - truth).exp(), 1.0) < 4


@pytest.mark.parametrize("make", [semi_markov, dependencies])
@pytest.mark.parametrize("proposal", [ts.Global(), ts.LocalGlobal(), ts.Lookahead(16)], ids=lambda x: type(x).__name__)
def test_partition_with_embeddings(make, proposal, generator):
    small = make((10_000,), form="factors").sketch(2, proposal=proposal, generator=generator)
    assert off(small, make(form="factors")) < 4


@pytest.mark.parametrize(("make", "form"), [(semi_markov, "by position"), (dependencies, "by arc")])
@pytest.mark.parametrize("proposal", ["lookahead", "lookahead, static"])
def test_partition_with_transitions_that_vary(make, form, proposal, generator):
    small = make((10_000,), form=form, forbidden=0.2).sketch(2, proposal=PROPOSALS[proposal], generator=generator)
    assert off(small, make(form=form, forbidden=0.2)) < 4


@pytest.mark.parametrize("few", ["1", "1, static"])
def test_partition_of_a_grammar_whose_pairs_are_selected_too(few, generator):
    """Four words and three states a span: more pairs of children than a single landmark asks for."""
    small = grammar((10_000,), length=4).sketch(3, proposal=FEW[few], generator=generator)
    assert off(small, grammar(length=4)) < 4


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_sketch_of_a_sketch(name, generator):
    first = MAKE[name]((10_000,)).sketch(3, proposal=ts.Uniform(), generator=generator)
    again = first.sketch(2, proposal=ts.Local(), generator=generator)
    assert again.n_states == 2
    assert again.whole is first.whole
    assert off(again, MAKE[name]()) < 4


@pytest.mark.parametrize(
    "name",
    ["span tree", "dependencies"],
)
def test_a_sketch_of_a_sketch_by_lookahead(name, generator):
    first = MAKE[name]((10_000,)).sketch(3, proposal=ts.Uniform(), generator=generator)
    assert off(first.sketch(2, proposal=ts.Lookahead(16), generator=generator), MAKE[name]()) < 4


@pytest.mark.parametrize("name", ["semi-Markov", "grammar"])
def test_where_lookahead_needs_the_whole_model(name):
    with pytest.raises(ValueError, match="has no Lookahead: sketch the whole"):
        MAKE[name]().sketch(3, proposal=ts.Uniform()).sketch(2)


# What is ruled out.


class Recording(ts.Selection):
    """A selection that remembers what it was asked and what it chose."""

    def __init__(self, selection):
        self.selection, self.calls = selection, []

    def __call__(self, log_q, generator=None):
        subset = self.selection(log_q, generator)
        self.calls.append((log_q.clone(), ts.Subset(subset.index.clone(), subset.log_weight.clone())))
        return subset

    def steps(self, model, sequential):
        """Where `log_q` is of, in the order of selection: index tensors of nodes, `log_q` and the subset chosen."""
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


def chances(model):
    """The chance of every state of every node."""
    if isinstance(model, ts.SemiMarkov):
        return model.marginals().sum(-2)
    return model.state_marginals() if isinstance(model, ts.DependencyTree) else model.marginals()


def wrongly_ruled_out(model, proposal, selection, generator):
    """How many states were never to be selected, though they have a chance given what was selected before.

    With a selection whose weights are one in expectation, a sum is unbiased if and only if there are none.
    """
    recording = Recording(selection)
    model.sketch(proposal=proposal, selection=recording, generator=generator)
    every = torch.arange(model.n_states).expand(*model.batch_shape, *model.node_shape, -1)
    log_weight = torch.zeros(every.shape).double()
    count = 0
    for where, log_q, subset in recording.steps(model, proposal.sequential):
        chance = chances(model.restrict(ts.Subset(every, log_weight)))[where]
        count += int(((chance > 0) & (log_q == -math.inf)).sum())
        log_weight[where] = torch.zeros_like(log_q).scatter_add(-1, subset.index, subset.log_weight.exp()).log()
    return count


SPARSE = {
    "semi-Markov": semi_markov,
    "semi-Markov, by position": with_form(semi_markov, form="by position"),
    "span tree": span_tree,
    "grammar": with_form(grammar, length=4),
    "grammar of many preterminals": with_form(grammar, length=4, n=3, p=6),
    "grammar of more states than guides": with_form(grammar, length=4, n=20, p=3),
    "grammar by a function": with_form(grammar, length=4, form="function"),
    "ranks of a grammar": with_form(grammar, length=4, form="ranks"),
    "dependencies": with_form(dependencies, length=4),
    "dependencies, several roots": with_form(dependencies, length=4, multiroot=True),
    "dependencies, by arc": with_form(dependencies, length=4, form="by arc"),
}


@pytest.mark.parametrize(
    ("name", "few"),
    [
        *((name, few) for name in SPARSE for few in ("1", "1, static")),
        *((name, few) for name in SPARSE if name.startswith("grammar") for few in ("8", "1, no rounds")),
    ],
)
def test_no_state_that_matters_is_ruled_out(name, few, generator):
    """Several patterns of forbidden rules and transitions, each for sentences of all lengths."""
    selections = (ts.Optimal(2), 0.4), (ts.TopAndSample(1, 2), 0.4), (ts.Optimal(3), 0.7), (ts.Optimal(2), 0.6)
    for seed, (selection, forbidden) in enumerate(selections):
        lengths = (torch.arange(12) % (2 if name == "span tree" else 3)) + 2
        model = SPARSE[name]((12,), seed, forbidden, lengths)
        assert wrongly_ruled_out(model, FEW[few], selection, generator) == 0


@pytest.mark.parametrize("few", ["1", "1, static"])
@pytest.mark.parametrize("name", ["semi-Markov", "grammar", "dependencies"])
def test_the_test_above_sees_states_that_are_ruled_out(name, few, generator, monkeypatch):
    for module in (segment_sweep, grammar_sweep, dependency_sweep):
        monkeypatch.setattr(module, "known", lambda sent: sent)
    models = [SPARSE[name]((12,), seed, 0.4) for seed in range(4)]
    assert sum(wrongly_ruled_out(model, FEW[few], ts.Optimal(2), generator) for model in models) > 0


# Sums other than the partition function.


def expected(model):
    """The chances of all parts, and of all states of nodes, spread over the states of the whole model; flattened."""
    parts = [model.scatter(model.state_marginals() if isinstance(model, ts.DependencyTree) else model.marginals())]
    if isinstance(model, ts.DependencyTree):
        parts.append(model.marginals())
    if isinstance(model, ts.PCFG):
        parts.append(model.rule_marginals())
    return torch.cat([x.flatten(len(model.batch_shape)) for x in parts], -1)


@pytest.mark.parametrize("proposal", ["local", "lookahead"])
@pytest.mark.parametrize("name", ONE_EACH)
def test_expected_sums_are_unbiased(name, proposal, generator):
    """Z times marginals: the gradient of Z in the scores."""
    whole = MAKE[name]()
    small = MAKE[name]((10_000,)).sketch(3, proposal=PROPOSALS[proposal], generator=generator)
    ratio = (small.log_partition() - whole.log_partition()).exp()
    assert z_score(ratio[:, None] * expected(small), expected(whole)) < 4.5


@pytest.mark.parametrize("name", MAKE)
def test_log_partition_is_a_lower_bound_in_expectation(name, generator):
    error = MAKE[name]((5_000,)).sketch(2, proposal=ts.Uniform(), generator=generator).log_partition()
    error = error - MAKE[name]().log_partition()
    assert error.mean() < -4 * error.std() / math.sqrt(len(error))


# One subset for several spans.

SHARED = {"span tree": span_tree, "grammar": with_form(grammar, n=5, p=5)}


def shared(model, by_width, generator):
    """The model restricted to one selection for all spans of a sentence, or for all spans of a width."""
    length, n = model.node_shape[0], model.n_states
    sets = length if by_width else 1
    subset = ts.Optimal(2)(torch.zeros(*model.batch_shape, sets, n).double(), generator)
    position = torch.arange(length)
    which = (position - position[:, None]).clamp(min=0) if by_width else torch.zeros(length, length).long()
    return model.restrict(ts.Subset(subset.index[:, which], subset.log_weight[:, which]))


@pytest.mark.parametrize("by_width", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_one_subset_for_several_spans_is_biased(name, by_width, generator):
    whole, replicates = SHARED[name](), SHARED[name]((50_000,))
    assert off(shared(replicates, by_width, generator), whole) > 4
    assert off(replicates.sketch(2, proposal=ts.Uniform(), generator=generator), whole) < 4


def test_spans_are_selected_independently(generator):
    """Also by Lookahead: where all scores are the same, nothing that one span keeps says what another does."""
    model = ts.PCFG(torch.zeros(4), torch.zeros(4, 8, 8), torch.zeros(10_000, 3, 4))
    kept = torch.zeros(10_000, 3, 3, 4).double().scatter_(-1, model.sketch(2, generator=generator).states, 1.0)
    spans = [kept[:, i, j, 0] for i in range(3) for j in range(i, 3)]
    correlation = torch.corrcoef(torch.stack(spans)) - torch.eye(6).double()
    assert correlation.abs().max() < 4.5 / math.sqrt(10_000)


# No randomness, and what there is of it.


@pytest.mark.parametrize("proposal", [*PROPOSALS, "1", "default"])
@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("more", [0, 3])
def test_keeping_all_states_is_exact(name, proposal, more):
    chosen = {**PROPOSALS, **FEW, "default": None}[proposal]
    model = MAKE[name]((3,))
    small = model.sketch(model.n_states + more, proposal=chosen)
    torch.testing.assert_close(small.log_partition(), model.log_partition(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", MAKE)
def test_keeping_all_states_of_one_sentence_is_exact(name):
    model = MAKE[name]()
    small = model.sketch(model.n_states)
    torch.testing.assert_close(small.log_partition(), model.log_partition(), rtol=0, atol=1e-9)
    torch.testing.assert_close(small.entropy(), model.entropy(), rtol=0, atol=1e-9)


def test_a_span_tree_is_exact_by_its_own_scores(generator):
    """Nothing couples its spans, and states kept in proportion to what they are worth estimate a sum without error."""
    for seed in range(5):
        model = span_tree((50,), seed, 0.2)
        for how in ({"proposal": ts.Local()}, {"proposal": ts.Lookahead()}, {}):
            for selection in (ts.Optimal(1), ts.Optimal(3), ts.TopAndSample(0, 1), ts.TopAndSample(2, 2)):
                small = model.sketch(selection=selection, generator=generator, **how)
                torch.testing.assert_close(small.log_partition(), model.log_partition(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("name", MAKE)
def test_top_k_is_too_low(name, proposal):
    model = MAKE[name]((2,))
    found = [
        model.sketch(selection=ts.TopK(k), proposal=PROPOSALS[proposal]).log_partition()
        for k in range(1, model.n_states)
    ]
    found = torch.stack(found)
    assert (found[:3] < model.log_partition()).all()  # of the four preterminals, more would be all
    assert (found <= model.log_partition() + 1e-12).all()


@pytest.mark.parametrize("proposal", [*PROPOSALS, "1"])
@pytest.mark.parametrize("name", MAKE)
def test_a_sketch_follows_its_generator(name, proposal):
    model = MAKE[name]((20,))

    def sketch(seed):
        chosen = {**PROPOSALS, **FEW}[proposal]
        return model.sketch(2, proposal=chosen, generator=torch.Generator().manual_seed(seed))

    torch.manual_seed(1)
    one = sketch(0)
    torch.manual_seed(2)
    same, other = sketch(0), sketch(1)
    assert torch.equal(one.states, same.states)
    assert torch.equal(one.log_weight, same.log_weight)
    assert not torch.equal(one.states, other.states)


@pytest.mark.parametrize("name", MAKE)
def test_a_sketch_without_a_generator_follows_the_global_seed(name):
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(MAKE[name]((20,)).sketch(2).states)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


# Where local scores mislead.


def hard(name, seed, replicates):
    """A peaked model, as a batch of replicates; the leaf whose gradient is compared; and how many landmarks."""
    g = torch.Generator().manual_seed(seed)
    if name == "grammar":
        one = hard_grammar(60, 60, rule=1.5, emission=3.0, length=6, generator=g)
        leaf = one._emission.double().requires_grad_()
        rule = one._rule.map(torch.Tensor.double)
        return ts.PCFG(one._root.double(), rule, leaf.expand(replicates, -1, -1)), leaf, 128
    if name == "dependencies":
        one = hard_dependencies(200, length=8, generator=g)
        leaf = one._nodes.double().requires_grad_()
        pairs = one._pairs.map(torch.Tensor.double)
        return ts.DependencyTree(one._arc.double(), node=leaf.expand(replicates, -1, -1), transition=pairs), leaf, 128
    left, right = torch.randn(2, 200, 16, generator=g).double()
    leaf = torch.randn(10, 4, 16, generator=g).double() @ left.T * 0.5
    leaf.requires_grad_()
    return ts.SemiMarkov(leaf.expand(replicates, -1, -1, -1), ts.Factored(left * 0.75, right)), leaf, 64


@pytest.mark.parametrize("name", ["semi-Markov", "grammar", "dependencies"])
def test_lookahead_comes_close_where_local_scores_mislead(name, generator):
    """The error of log Z in nats on three peaked models, with as many states; and the direction of the gradient."""
    errors, cosines = {"local": [], "lookahead": []}, []
    for seed in range(3):
        model, leaf, landmarks = hard(name, seed, 8)
        exact = model.log_partition()
        truth = torch.autograd.grad(exact[0], leaf, retain_graph=True)[0]
        for kind, proposal in (("local", ts.Local()), ("lookahead", ts.Lookahead(landmarks))):
            found = model.sketch(10, proposal=proposal, generator=generator).log_partition()
            errors[kind].append((found - exact).detach())
        gradient = torch.autograd.grad(found.mean(), leaf)[0]
        cosines.append(torch.cosine_similarity(gradient.flatten(), truth.flatten(), 0).item())
    local, lookahead = (torch.stack(errors[kind]).square().mean().sqrt() for kind in ("local", "lookahead"))
    assert lookahead < local / 3
    assert min(cosines) > 0.9
