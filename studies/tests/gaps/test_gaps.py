"""Words missing from sentences: their data, the ways to train, and the command."""

import itertools
import json
import math

import pytest
import torch
from typer.testing import CliRunner

import tailsum as ts
from harness.agree import close
from tailsum_studies.cli.app import app
from tailsum_studies.gaps.candidates import draw, log_frequency
from tailsum_studies.gaps.compare import Settings, compare
from tailsum_studies.gaps.data import Text, batches, cut
from tailsum_studies.gaps.examples import filled
from tailsum_studies.gaps.model import GapFiller
from tailsum_studies.gaps.next_word import NextWord
from tailsum_studies.gaps.report import behind, table, write
from tailsum_studies.gaps.train import evaluate, held_out, train
from tailsum_studies.gaps.ways import log_likelihood, ways
from tailsum_studies.text import Split

CPU = torch.device("cpu")
SENTENCES = [
    f"the {a} {b} sits on the {c} mat".split()
    for a in ["red", "big", "old"]
    for b in ["cat", "dog", "cow"]
    for c in ["wet", "dry"]
]


@pytest.fixture(scope="module")
def text():
    return Text.of(Split(SENTENCES * 4, SENTENCES[::2], SENTENCES[1::2]))


@pytest.fixture
def model(text):
    torch.manual_seed(0)
    made = GapFiller(len(text.vocabulary), size=8, state_size=6, pair_size=4)
    with torch.no_grad():
        for x in (made.left, made.right):
            x.mul_(10)
    return made.double().eval()


def test_a_gap_hides_half_of_the_words_in_one_piece(text):
    gaps = cut(text.train[:20], len(text.vocabulary), torch.Generator().manual_seed(1))
    for seen, start, length, words, whole in zip(*gaps, text.train, strict=False):
        assert length == len(whole) // 2
        hidden = (seen == len(text.vocabulary)).nonzero()[:, 0]
        assert hidden.tolist() == list(range(start, start + length))
        assert words[:length].tolist() == whole[hidden].tolist()
        assert seen[gaps.places()[0][:0]].numel() == 0


def test_gaps_start_anywhere(text):
    starts = {
        int(x)
        for gaps, _ in zip(batches(text.train, 9, 99, torch.Generator().manual_seed(0)), range(9), strict=False)
        for x in gaps.start
    }
    assert starts == {0, 1, 2, 3, 4}


def test_sentences_with_new_words_are_left_out():
    split = Split(SENTENCES, [["a", *SENTENCES[0]], SENTENCES[0]], [SENTENCES[1]])
    assert len(Text.of(split).dev) == 1
    with pytest.raises(ValueError, match="the test part must have sentences of 6 to 20 words"):
        Text.of(Split(SENTENCES, SENTENCES, [["a"] * 8]))


@pytest.mark.parametrize("name", ["exact", "topk", "beam", "tailsum", "local", "paper-candidates"])
def test_with_all_words_kept_every_way_is_exact(name, text, model):
    gaps = cut(text.train[:5], len(text.vocabulary), torch.Generator().manual_seed(2))
    expected = model(gaps).log_prob(gaps.words)
    found = log_likelihood(ways(kept=200, candidates=200)[name], model, gaps, log_frequency(text).double())
    close(found, expected)


@pytest.mark.parametrize(
    "name",
    ["tailsum", "local", *(pytest.param(x, marks=pytest.mark.slow) for x in ("paper", "paper-candidates", "sampled"))],
)
def test_sums_over_candidates_and_kept_words_are_unbiased(name, text, model):
    gaps = cut(text.train[:1] * 4, len(text.vocabulary), torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(4)
    way, log_q = ways(kept=6, candidates=9)[name], log_frequency(text).double()
    with torch.no_grad():
        chain = model(gaps)
        exact, score = chain.log_partition(), chain.score(gaps.words)
        ratio = torch.stack(
            [(score - log_likelihood(way, model, gaps, log_q, generator) - exact).exp() for _ in range(600)]
        )
    # Those of a batch share their candidates: one number for each draw.
    ratio = ratio.mean(-1)
    error = ratio.std() / math.sqrt(len(ratio))
    assert error < 0.1
    assert abs(ratio.mean() - 1) < 4.5 * error
    assert ratio.std() > 1e-3  # it is not exact by accident


@pytest.mark.parametrize("name", ["topk", "beam"])
def test_the_missing_words_are_among_those_kept(name, text, model):
    gaps = cut(text.train[:8], len(text.vocabulary), torch.Generator().manual_seed(5))
    found = log_likelihood(ways(kept=3)[name], model, gaps, log_frequency(text).double())
    assert (found < 0).all()  # the sum has the words' own score in it, and more
    assert (found > model(gaps).log_prob(gaps.words)).all()  # and less than the whole


def test_candidates_have_the_needed_words_with_weight_one():
    drawn = draw(torch.zeros(50), torch.tensor([[3, 3], [40, 7]]), 8, torch.Generator().manual_seed(0))
    for words, log_weight, needed in zip(*drawn, ((3, 40), (3, 7)), strict=True):
        weight = dict(zip(words.tolist(), log_weight.exp().tolist(), strict=True))
        assert all(weight.pop(word) == 1 for word in needed)
        assert all(abs(x - 48 / 6) < 1e-4 for x in weight.values())
    place = drawn.local(torch.tensor([[40, 7]]), 50)
    assert drawn.words.gather(-1, place.mT).flatten().tolist() == [40, 7]


def test_words_that_are_no_states_have_their_share_of_the_unknown(text):
    torch.manual_seed(0)
    model = GapFiller(len(text.vocabulary), n_states=4, size=8).eval()
    gaps = held_out(text, "test", 4)
    total = torch.zeros(())
    # All words of one gap of three positions, one position at a time: probabilities of what it can be add up to one.
    (batch,) = gaps
    one = type(batch)(*(x[:1] for x in batch))
    one = one._replace(lengths=torch.tensor([1]), words=one.words[:, :1])
    for word in range(1, len(text.vocabulary)):  # "<unk>" itself never occurs
        total = total + evaluate(model, [one._replace(words=torch.tensor([[word]]))], text).log_likelihood.exp()
    close(total, torch.ones(1, dtype=total.dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", list(ways()))
def test_training_lowers_the_loss(name, text):
    way, passed = ways(kept=8, candidates=16, n_states=10)[name], []
    _, start = train(way, text, 1e-9, 0, CPU)
    ticks = itertools.count()
    model, end = train(way, text, 3.0, 0, CPU, passed.append, lambda: next(ticks) / 10)
    assert start.steps == 1
    assert end.steps == 30  # a tick for each
    assert sum(passed) == 3
    assert end.loss < start.loss
    assert math.isfinite(evaluate(model, held_out(text, "dev", 8), text).nll)


def test_a_sketched_measurement_agrees_with_the_exact_one(text, model):
    gaps = held_out(text, "test", 9)
    exact = evaluate(model, gaps, text, None)
    close(evaluate(model, gaps, text, 200).log_likelihood, exact.log_likelihood)
    found = evaluate(model, gaps, text, 12, 8, torch.Generator().manual_seed(0))
    assert 0 < abs(found.nll - exact.nll) < 0.3
    assert exact.words.sum() == sum(batch.lengths.sum() for batch in gaps)


def test_without_pairs_words_are_independent(text):
    model = GapFiller(len(text.vocabulary), size=8, paired=False).double().eval()
    gaps = held_out(text, "dev", 5)
    found = evaluate(model, gaps, text).log_likelihood
    close(found, torch.cat([model(batch).log_prob(batch.words) for batch in gaps]))


def test_words_one_after_another_have_probabilities_that_add_up_to_one(text):
    torch.manual_seed(0)
    model = NextWord(len(text.vocabulary), size=8, state_size=6).double().eval()
    (gaps,) = held_out(text, "dev", 2)
    gaps = gaps._replace(lengths=torch.tensor([2, 1]), words=gaps.words[:, :2])
    every = torch.cartesian_prod(*[torch.arange(len(text.vocabulary))] * 2)
    each = torch.stack([model.log_prob(gaps._replace(words=words.expand(2, 2))) for words in every]).detach()
    close(each[:, 0].logsumexp(0), torch.zeros(()).double())
    one = each[every[:, 1] == 0, 1]  # what lies behind the end of a gap does not count
    close(one.logsumexp(0), torch.zeros(()).double())
    written = model.greedy(gaps)
    assert written[1, 0] == one.argmax()
    assert written[0, 1] == each[every[:, 0] == written[0, 0], 0].argmax()


@pytest.mark.parametrize("bound", [0.5, 12.0])
def test_scores_of_pairs_keep_to_their_bound(bound, text):
    torch.manual_seed(0)
    model = GapFiller(len(text.vocabulary), size=8, pair_size=4, bound=bound)
    with torch.no_grad():
        model.left.mul_(1e3)
        model.gate.weight.mul_(1e3)
    (gaps,) = held_out(text, "dev", 5)
    largest = model(gaps).transition.block().abs().max().item()
    assert 0.5 * bound < largest <= bound * (1 + 1e-5)
    found = [name for name, way in ways(bound=bound).items() if way.bound]
    assert found == [name for name in ways() if name not in ("independent", "next-word")]


def test_a_run_with_another_bound_is_another_run(text, tmp_path):
    settings = Settings(seconds=0.05, sentences=9, kept=50)
    first, again, other = (
        next(compare([ways(kept=8, candidates=16, bound=bound)["tailsum"]], text, settings, (0,), tmp_path, CPU))
        for bound in (0.0, 0.0, 3.0)
    )
    assert first == again
    assert (first.bound, other.bound) == (0, 3)


def test_runs_are_kept_and_compared(text, tmp_path):
    chosen = [ways(kept=8, candidates=16)[name] for name in ("tailsum", "independent")]
    settings = Settings(seconds=0.05, sentences=9, exact=9, kept=50)
    runs = list(compare(chosen, text, settings, (0, 1), tmp_path, CPU))
    assert [(run.way, run.seed) for run in runs] == [
        ("tailsum", 0),
        ("independent", 0),
        ("tailsum", 1),
        ("independent", 1),
    ]
    assert runs[0].exact == pytest.approx(runs[0].sketched, abs=1e-4)  # all words are kept
    assert list(compare(chosen, text, settings, (0, 1), tmp_path, CPU)) == runs
    path = tmp_path / "runs" / "tailsum-0.json"
    path.write_text(path.read_text()[:-9])  # damaged: run again
    assert next(iter(compare(chosen, text, settings, (0,), tmp_path, CPU))).way == "tailsum"
    json.loads(path.read_text())
    late, error = behind(runs[1::2], runs[::2])
    assert late == pytest.approx((runs[1].test - runs[0].test + runs[3].test - runs[2].test) / 2)
    assert error >= 0
    assert behind(runs[:1], ()) != behind(runs[:1], runs[:1]) == (0, 0)
    found = table(runs)
    assert list(found.index) == ["tailsum, 8 of 16 candidates", "exact, no pairs of words"]
    page = write(tmp_path, runs, "Two ways.").read_text()
    assert all(label in page for label in found.index)
    assert runs[0].examples[0].split(" [")[0] in page
    assert (tmp_path / "gaps.png").stat().st_size > 1000
    assert len((tmp_path / "gaps.csv").read_text().splitlines()) == 5


def test_gaps_can_be_read(text, model):
    (gaps,) = held_out(text, "test", 4)
    shown = filled(model, gaps, text, 20, torch.Generator().manual_seed(0))
    assert len(shown) == 4
    for line, words, length in zip(shown, gaps.words, gaps.lengths, strict=True):
        assert f"was: {' '.join(text.vocabulary.decode(words[:length].tolist()))};" in line


def test_more_words_than_there_are_mean_all_of_them(text):
    assert ways(n_states=10_000)["small"].model(len(text.vocabulary)).n_states == len(text.vocabulary)
    gaps = held_out(text, "dev", 4)
    model = ways()["tailsum"].model(len(text.vocabulary)).eval()
    for name in ("tailsum", "paper", "sampled", "topk", "beam"):
        found = log_likelihood(ways(kept=500, candidates=2)[name], model, gaps[0], log_frequency(text))
        assert found.isfinite().all()


def test_the_command_says_which_ways_there_are(tmp_path, unchecked):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(sentence) for sentence in SENTENCES * 3))
    ask = ["gaps", "--data", str(path), "--output", str(tmp_path / "out"), "--seconds", "1", "--sentences", "16"]
    wrong = CliRunner().invoke(app, [*ask, "--ways", "tailsum,exactly"])
    assert wrong.exit_code == 1
    assert "--ways must be among tailsum, local, paper," in wrong.output
    found = CliRunner().invoke(app, [*ask, "--kept", "8", "--candidates", "12", "--device", "cpu"])
    assert found.exit_code == 0, found.output
    assert "behind ours" in found.output
    assert (tmp_path / "out" / "gaps.md").is_file()


def test_transitions_differ_at_every_step(text, model):
    chain = model(cut(text.train[:2], len(text.vocabulary), torch.Generator().manual_seed(0)))
    assert isinstance(chain.transition, ts.Gated)
    assert chain.transition.lead == (2, 3)
    table_of = chain.transition.block()
    assert (table_of[0, 0] - table_of[0, 1]).abs().max() > 1e-4
    assert (table_of[0, 0] - table_of[1, 0]).abs().max() > 1e-4
