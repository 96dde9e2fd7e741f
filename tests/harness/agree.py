"""What a model says of one case against what enumeration says: the checks that all structures share."""

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from harness.case import Case
from harness.truth import Weighted

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
MINUS_INFINITY = torch.tensor(-math.inf).double()


def close(found, expected, **how):
    torch.testing.assert_close(found, expected, **(how or CLOSE))


def padded(scores: Tensor, k: int) -> Tensor:
    """Scores of the best `[at most k, ...]` as `[k, ...]`, minus infinity where there are fewer."""
    return torch.cat((scores, scores.new_full((k - len(scores), *scores.shape[1:]), -math.inf)))


def sums(case: Case, model: Any, other: Any = None) -> list[Tensor]:
    """Everything that follows from sums over configurations, as the library gives it."""
    found = [model.log_partition(), model.entropy(), model.marginals(), model.kl(model if other is None else other)]
    return [*found, *case.other_marginals(model)]


def agrees(case: Case, model: Any) -> None:
    """Every operation on one model; of a random sample and of the best, that they are what they should be."""
    truths = case.truths(model)
    sums_agree(case, model, truths)
    argmax, sample = model.argmax(), model.sample((2,), generator=torch.Generator().manual_seed(1))
    best, scores_of_best = model.topk(3)
    rows = {"argmax": case.rows(argmax), "top": case.rows(best), "sample": case.rows(sample)}
    scores = {
        "argmax": model.score(argmax).reshape(1, -1),
        "top": padded(scores_of_best, 3).reshape(3, case.size),
        "sample": model.score(sample).reshape(2, -1),
    }
    assert not any(x.isnan().any() for x in scores.values())
    for b, truth in enumerate(truths):
        close(scores["top"][:, b], truth.best(3))
        close(scores["argmax"][:, b], truth.best(1))
        found = {name: [case.read(row, b) for row in x[:, b]] for name, x in rows.items()}
        if truth.possible:
            configurations_agree(truth, found, {name: x[:, b] for name, x in scores.items()})
        else:
            assert found["argmax"] == [None]
            assert found["sample"] == [None] * 2


def sums_agree(case: Case, model: Any, truths: list[Weighted]) -> None:
    log_partition, entropy, marginals = model.log_partition(), model.entropy(), case.marginals(model)
    assert log_partition.shape == entropy.shape == case.batch
    log_partition, entropy = case.flat(log_partition), case.flat(entropy)
    assert not any(x.isnan().any() for x in (log_partition, entropy, marginals))
    for b, truth in enumerate(truths):
        close(log_partition[b], truth.log_partition)
        close(entropy[b], truth.entropy if truth.possible else MINUS_INFINITY)
        close(marginals[b][case.within(case.lengths[b])], truth.marginals)
        close(marginals[b].sum(), truth.marginals.sum())  # none in the padding
        assert truth.possible or marginals[b].eq(0).all()
    for found, expected in case.more(model, truths):
        close(found, expected)


def configurations_agree(truth: Weighted, found: dict[str, list], scores: dict[str, Tensor]) -> None:
    """What was found is possible and scored as it should be; the best are different ones."""
    for name, configurations in found.items():
        for configuration, score in zip(configurations, scores[name][: len(configurations)], strict=True):
            if score > -math.inf:
                c = truth.index_of(configuration)
                assert truth.scores[c] > -math.inf
                close(score, truth.unweighted[c])
    many = int((truth.best(3) > -math.inf).sum())
    assert len(set(found["top"][:many])) == many
    assert all(x is not None for x in found["sample"])
    assert (scores["sample"] > -math.inf).all()


def divergences_agree(case: Case, p: Any, other: Case) -> None:
    """Of a model of a case from that of another, and from itself."""
    q = other.model()
    cross, kl, own = p.cross_entropy(q), p.kl(q), p.kl(p)
    assert cross.shape == kl.shape == case.batch
    cross, kl, own = map(case.flat, (cross, kl, own))
    for b, (truth, theirs) in enumerate(zip(case.truths(p), other.truths(p), strict=True)):
        assert not any(x[b].isnan() for x in (cross, kl, own))
        if not truth.possible:
            assert kl[b] == own[b] == math.inf
            continue
        close(cross[b], truth.cross_entropy(theirs))
        close(kl[b], truth.cross_entropy(theirs) - truth.entropy)
        close(own[b], torch.zeros_like(own[b]))


def scores_agree(case: Case, model: Any, r: Random) -> None:
    """Scores and probabilities of random configurations, and of none."""
    truths, count = case.truths(model), 5
    chosen = [[r.randrange(max(1, len(truth.configurations))) for _ in range(count)] for truth in truths]
    configurations = case.written(
        [
            [
                case.row(truth.configurations[chosen[b][s]]) if truth.configurations else case.none
                for b, truth in enumerate(truths)
            ]
            for s in range(count)
        ]
    )
    score, log_prob = model.score(configurations), model.log_prob(configurations)
    assert score.shape == log_prob.shape == (count, *case.batch)
    score, log_prob = score.reshape(count, -1), log_prob.reshape(count, -1)
    for b, truth in enumerate(truths):
        expected = truth.unweighted[chosen[b]] if truth.configurations else MINUS_INFINITY.expand(count)
        close(score[:, b], expected)
        if truth.possible:
            close(log_prob[:, b], expected - truth.log_partition)
        assert not log_prob[:, b].isnan().any()
    assert model.score(case.written([[case.none] * case.size])).eq(-math.inf).all()


def frequencies_agree(case: Case, model: Any, sample: Any, count: int) -> None:
    """Of `count` samples: what is impossible never comes, and the rest as often as it should, within five deviations."""
    rows = case.rows(sample)
    for b, truth in enumerate(case.truths(model)):
        found, times = rows[:, b].unique(dim=0, return_counts=True)
        seen = torch.zeros(len(truth.configurations)).double()
        for row, often in zip(found, times.tolist(), strict=True):
            seen[truth.index_of(case.read(row, b))] += often
        p = truth.probability
        assert seen[p == 0].eq(0).all()
        rare = p * count < 10
        p, seen = (torch.cat((x[~rare], x[rare].sum()[None])) for x in (p, seen / count))
        assert ((seen - p).abs() <= 5 * (p * (1 - p) / count).sqrt() + 1e-12).all()
