"""What the page says of a model's states is what its samples say; and nothing else is needed to read it."""

import base64
import csv
import itertools
import json
import math
import re
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from pages.outline import Outline
from tailsum.nn import Decoder, Estimator, as_sample
from tailsum_studies.text import Split
from tailsum_studies.vae.build import build
from tailsum_studies.vae.data import END, Corpus, batch_of
from tailsum_studies.vae.evaluate import drawn
from tailsum_studies.vae.explore import explore, gather, n_steps, write_states
from tailsum_studies.vae.generate import sample_prior
from tailsum_studies.vae.occurrences import AROUND, Context, Occurrences
from tailsum_studies.vae.report.figures import running_mean
from tailsum_studies.vae.report.findings import bound, curve
from tailsum_studies.vae.report.layout import BENDS, GAP, arrange, bend, choose
from tailsum_studies.vae.run import Run
from tailsum_studies.vae.settings import Settings

FULL = Estimator("full", 30)
WORDS = ["the", "dog", "&", "saw", "<b>", "$x^$", "cat", "'quoted\"", "fish", "日本"]
SCORES = {"per_word": 3.25, "per_sentence": 31.5, "standard_error": 0.75}
EVALUATION = {
    "dev": {**SCORES, "sampling_error": 0.125, "words": -25.0, "states": -10.5, "entropy": 3.0, "sentences": 1234},
    "test": {**SCORES, "per_word": 3.0, "samples": 77},
    "baselines": {"bigram": {"dev": SCORES, "test": {"per_word": 3.875}}, "mine <i>": {"dev": {"per_word": 9.5}}},
    "estimator": "full",
}


def some_corpus():
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 22, (120,), generator=generator).tolist()
    train = [[WORDS[i] for i in torch.randint(0, 10, (n,), generator=generator).tolist()] for n in lengths]
    return Corpus.of(Split([*train, ["once"]], train[:2], train[:2]), rare=1)  # "once" is rare


def settings_of(**how):
    return Settings(**{"states": 30, "size": 8, "state_size": 4, "hidden": 8, "spread": 0.3, "dropout": 0.5, **how})


def losses():
    parts = {"words": -8.0, "states": -5.0, "entropy": 3.0}
    rows = [{"step": step, "part": "train", **parts, "nll": 10 / step} for step in range(1, 9)]
    return [*rows, {"step": 8, "part": "dev", "nll": 1.5}]


def new_run(folder, corpus, **how):
    run = Run.new(folder, settings_of(**how), corpus).write()
    run.cut_curve(0)
    for row in losses():
        run.add_to_curve(row)
    return run


def outline(path):
    return Outline(path.read_text(encoding="utf-8"))


def png_size(content):
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return tuple(int.from_bytes(content[at : at + 4], "big") for at in (16, 20))


@pytest.fixture(scope="module")
def corpus():
    return some_corpus()


@pytest.fixture(scope="module")
def model(corpus):
    return build(settings_of(), corpus.vocabulary)


@pytest.fixture(scope="module")
def found(model, corpus):
    return gather(model, corpus.train, FULL, seed=5)


@pytest.fixture(scope="module")
def sampled(model, corpus):
    """For each sentence its states, by what `gather` is made from."""
    states = {}
    with torch.no_grad():
        for chosen, drawn_states, lengths in drawn(model, corpus.train, FULL, seed=5):
            for sentence, row, length in zip(chosen, drawn_states.tolist(), lengths.tolist(), strict=True):
                states[sentence] = row[:length]
    return [states[sentence] for sentence in range(len(corpus.train))]


def numbered(states, sentences=None, n_states=6):
    """Occurrences of these states, in sentences of words that do not matter."""
    return Occurrences.of(sentences or [[1] * len(row) for row in states], states, n_states)


# What was gathered


def test_every_word_has_the_state_that_was_sampled(found, sampled, corpus):
    rows = list(
        zip(found.sentence.tolist(), found.place.tolist(), found.words.tolist(), found.states.tolist(), strict=True)
    )
    assert rows == [
        (i, t, corpus.train[i][t], sampled[i][t]) for i in range(len(sampled)) for t in range(len(corpus.train[i]))
    ]
    assert len({len(row) for row in sampled}) > 5  # there is padding to get wrong


def test_counts(found, sampled, model, corpus):
    counts = Counter(itertools.chain(*sampled))
    assert found.counts.tolist() == [counts[state] for state in range(30)]
    assert torch.equal(found.counts, gather(model, corpus.train, FULL, seed=5).counts)
    assert set(found.ranked()) == set(range(30))
    net = found.information.net.tolist()
    assert found.ranked() == sorted(range(30), key=lambda state: (not counts[state], -net[state], state))


def test_information():
    """Against the definition, by all pairs; states that copy their words tell everything, shuffled ones nothing."""
    words, states = torch.randint(5, (400,)).tolist(), torch.randint(4, (400,)).tolist()
    found = numbered([states], [words], 4).information
    pairs, of_words, of_states = Counter(zip(states, words, strict=True)), Counter(words), Counter(states)
    for state in range(4):
        parts = [(n, of_words[w]) for (s, w), n in pairs.items() if s == state]
        expected = sum(n / 400 * math.log(n * 400 / (of_states[state] * m)) for n, m in parts)
        assert found.of_states[state].item() == pytest.approx(expected)
    assert found.of_words == pytest.approx(-sum(n / 400 * math.log(n / 400) for n in of_words.values()))
    assert abs(found.net.sum()) < 0.03
    copied = numbered([words], [words], 6).information
    assert copied.of_states.sum().item() == pytest.approx(copied.of_words)
    assert copied.net.sum() > 0.95 * copied.of_words
    assert copied.net[5] == 0


def test_perplexity():
    assert numbered([[0, 1, 2, 3]]).perplexity == pytest.approx(4)
    assert numbered([[2, 2, 2]]).perplexity == pytest.approx(1)
    assert numbered([[2, 2, 2, 5]]).perplexity == pytest.approx(
        math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    )


def test_words_of_each_state(found, sampled, corpus):
    counts = Counter(zip(itertools.chain(*sampled), itertools.chain(*corpus.train), strict=True))
    for state, words in enumerate(found.words_of(4)):
        mine = {word: count for (s, word), count in counts.items() if s == state}
        assert words == sorted(mine.items(), key=lambda each: (-each[1], each[0]))[:4]


def test_transitions_stay_within_sentences(found, sampled):
    counts = Counter(pair for row in sampled for pair in itertools.pairwise(row))
    wanted = sorted(((*pair, count) for pair, count in counts.items()), key=lambda each: (-each[2], each[:2]))
    assert found.transitions() == wanted
    assert sum(count for *_, count in wanted) == len(found.words) - len(sampled)


def test_sentences_of_one_word_have_no_transitions():
    assert numbered([[0], [1], [0]]).transitions() == []


def test_how_late_a_state_stands():
    late = numbered([[0, 1, 2], [3], [1, 1, 0, 4, 2]]).how_late()
    assert late.tolist() == pytest.approx([0.25, (0.5 + 0 + 0.25) / 3, 1.0, 0.0, 0.75, 0.0])


def test_examples_are_occurrences_of_the_state(found, sampled):
    examples = found.examples(3, seed=1)
    for state, places in enumerate(examples):
        assert len(places) == min(3, sum(row.count(state) for row in sampled))
        assert [found.states[at].item() for at in places] == [state] * len(places)
    assert examples == found.examples(3, seed=1) != found.examples(3, seed=2)


def test_examples_are_not_the_same_words_again():
    twice = numbered([[0, 1]] * 5 + [[1, 0]], [[3, 2]] * 5 + [[4, 2]])
    assert [len(places) for places in twice.examples(3)] == [2, 2, 0, 0, 0, 0]


def test_contexts(found, corpus):
    for at in range(0, len(found.words), 7):
        sentence = corpus.vocabulary.decode(corpus.train[found.sentence[at]])
        left, word, right = found.context(at, corpus.vocabulary)
        place = found.place[at].item()
        assert word == sentence[place]
        assert left == sentence[:place][-AROUND:]
        assert right == [each for each in sentence[place + 1 :][:AROUND] if each != END]
    last = found.context(len(corpus.train[0]) - 1, corpus.vocabulary, around=1)
    assert last == Context([corpus.sentence(corpus.train[0])[-1]], END, [])


def test_states_as_a_table(tmp_path, corpus):
    end, the = corpus.vocabulary.encode([END, "the"])
    write_states(tmp_path / "states.csv", numbered([[4, 2], [2]] * 20, [[the, end], [end]] * 20), corpus.vocabulary)
    with (tmp_path / "states.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert [[a, b, d] for a, b, _, d in rows[:3]] == [["state", "count", "words"], ["4", "20", "the"], ["2", "40", END]]
    assert float(rows[1][2]) == pytest.approx(math.log(3) / 3, abs=0.05)  # less what chance adds
    assert sorted(rows[3:]) == [[state, "0", "0.000000", ""] for state in "0135"]


# The generative model's own sentences


def tiny_decoder():
    decoder = Decoder(n_words=3, n_states=2, size=4, state_size=3, hidden=5, dropout=0.5)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.8)
    return decoder


def outcomes(end=1):
    """All sentences of three words and two states that end after one or two words, or are cut off there."""
    states = list(itertools.product(range(2), repeat=2))
    short = [((end,), (state,)) for state in range(2)]
    return short + [((first, last), pair) for first in (0, 2) for last in range(3) for pair in states]


def probabilities(decoder):
    def one(words, states):
        return decoder(*batch_of([list(words)]), as_sample(torch.tensor([states]))).total.exp().item()

    return {outcome: one(*outcome) for outcome in outcomes()}


def test_samples_of_the_prior_have_the_probabilities_of_the_decoder():
    decoder = tiny_decoder()
    counts = Counter((tuple(words), tuple(states)) for words, states in sample_prior(decoder, 40_000, 2, end=1))
    with torch.no_grad():
        chances = probabilities(decoder.eval())
    assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
    assert set(counts) <= set(chances)
    for outcome, chance in chances.items():
        z = (counts[outcome] - 40_000 * chance) / math.sqrt(40_000 * chance * (1 - chance))
        assert abs(z) < 4.5, (outcome, z)
    assert max(chances.values()) > 5 * min(chances.values())  # a uniform sampler would not do


def test_samples_of_the_prior_follow_from_the_seed():
    decoder = tiny_decoder()
    before = torch.get_rng_state()
    first = sample_prior(decoder, 50, 9, end=1, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert decoder.training
    assert first == sample_prior(decoder, 50, 9, end=1, seed=4) != sample_prior(decoder, 50, 9, end=1, seed=5)
    assert {len(words) for words, _ in first} > {1, 2}
    for words, states in first:
        assert len(words) == len(states) <= 9
        assert 1 not in words[:-1]
        assert words[-1] == 1 or len(words) == 9


def test_prior_says_what_is_wrong():
    with pytest.raises(ValueError, match="end must be a word, from 0 to V-1 = 2: got 3"):
        sample_prior(tiny_decoder(), 1, 1, end=3)
    with pytest.raises(ValueError, match="longest must be a whole number of at least 1"):
        sample_prior(tiny_decoder(), 1, 0, end=1)


# Pictures


def test_curves():
    rows = [{name: "" if name not in row else str(row[name]) for name in ("step", "part", "words", "states", "entropy", "nll")}
            for row in losses()]  # fmt: skip
    rows += [{**rows[0], "step": "9", "nll": ""}, {**rows[0], "step": "10", "nll": "nan"}]
    assert curve(rows, "dev").to_dict() == {8: 1.5}
    assert curve(rows, "train").to_dict() == {step: 10 / step for step in range(1, 9)}
    parts = bound(rows)
    assert parts.index.tolist() == list(range(1, 9))
    for step in range(1, 9):  # ten nats a sentence: it has as many words as steps
        assert parts.loc[step].tolist() == pytest.approx([-8 / step, -5 / step, 3 / step])


def test_running_mean():
    values = np.arange(300.0) ** 2
    smooth = running_mean(pd.Series(values))
    assert smooth.tolist() == pytest.approx([values[max(0, i - 3) : i + 4].mean() for i in range(300)])


def test_the_graph_has_the_most_frequent_pairs(found):
    nodes, pairs = choose(found.transitions(), nodes=8, arrows=20)
    assert len(nodes) <= 8
    assert set(nodes) == {state for first, second, _ in pairs for state in (first, second)}
    left_out = [each for each in found.transitions() if each not in pairs and {*each[:2]} <= set(nodes)]
    assert len(pairs) == 20 or not left_out
    assert all(each[2] <= pairs[-1][2] for each in left_out)


@pytest.mark.parametrize("count", [1, 2, 20])
def test_boxes_of_the_graph_do_not_overlap(count):
    rng = np.random.default_rng(count)
    boxes = np.stack([rng.uniform(32, 110, count), np.full(count, 33.0)], 1)
    links = [(i, j, 1.0) for i in range(count) for j in range(count) if rng.random() < 0.1]
    places = arrange(links, boxes, np.sort(rng.random(count)), (580.0, 380.0))
    assert (places - boxes / 2 >= -1e-6).all()
    assert (places + boxes / 2 <= np.array([580, 380]) + 1e-6).all()
    for i, j in itertools.combinations(range(count), 2):
        assert (np.abs(places[i] - places[j]) - (boxes[i] + boxes[j]) / 2).max() > 0.3 * min(GAP)


def test_early_states_are_on_the_left():
    late = np.linspace(1, 0, 12)
    places = arrange([], np.full((12, 2), 20.0), late, (600.0, 300.0))
    assert np.corrcoef(late, places[:, 0])[0, 1] > 0.8


def test_arrows_go_around_other_boxes():
    places = np.array([[0.0, 0.0], [300.0, 0.0], [150.0, 20.0], [150.0, -25.0]])
    boxes = np.full((4, 2), 30.0)
    assert bend(0, 1, places[:2], boxes[:2]) == BENDS[0]
    for other in (2, 3):
        rad = bend(0, 1, places[[0, 1, other]], boxes[:3])
        height = -rad * 300 / 2  # a curve's highest point is half as high as the point that it is drawn to
        assert abs(height - places[other, 1]) > 15


# The page


@pytest.fixture(scope="module")
def explored(tmp_path_factory, corpus, model):
    run = new_run(tmp_path_factory.mktemp("run"), corpus, data="some <file> & more")
    (run.folder / "evaluation.json").write_text(json.dumps(EVALUATION))
    steps = []
    path = explore(run, corpus, model, FULL, lambda: steps.append(1), seed=5)
    assert len(steps) == n_steps(corpus)
    return path, outline(path)


def test_the_page_needs_nothing_else(explored):
    path, page = explored
    text = path.read_text(encoding="utf-8")
    assert not [tag for tag, _ in page.tags if tag in {"script", "link", "iframe", "object"}]
    assert not re.search(r"url\(|@import|https?:|//[a-z]", re.sub(r"base64,[^\"]*", "", text))
    assert len(page.ids()) == len(set(page.ids()))
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids()
        elif not link.startswith("data:image/png;base64,"):
            assert link == "states.csv"
            assert (path.parent / link).exists()


def test_the_page_is_accessible(explored):
    _, page = explored
    tags = [tag for tag, _ in page.tags]
    assert tags.count("h1") == tags.count("main") == tags.count("title") == 1
    assert tags.count("table") == tags.count("caption") == 2
    assert [attributes.get("class") for tag, attributes in page.tags if tag == "div"].count("scroll many") == 2
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")


def test_words_are_escaped(explored):
    path, page = explored
    text = path.read_text(encoding="utf-8")
    assert not [tag for tag, _ in page.tags if tag in {"unk", "end", "i", "file", "mine"}]
    assert not re.search(r"<b>\s*<", text)
    assert "&lt;b&gt;" in text
    assert "&amp; <small>" in text
    assert {"<b> ", "& ", "<end> ", "<unk> ", "some <file> & more", "mine <i>"} <= set(page.words)


def test_every_picture_is_on_the_page(explored):
    path, page = explored
    images = [attributes for tag, attributes in page.tags if tag in {"img", "source"}]
    files = {file.name: file.read_bytes() for file in (path.parent / "plots").iterdir()}
    names = ("bound", "learning", "states", "transitions")
    assert sorted(files) == [f"{name}{size}.png" for name in names for size in ("-narrow", "")]
    embedded = [base64.b64decode((image.get("src") or image["srcset"]).partition(",")[2]) for image in images]
    assert sorted(embedded) == sorted(files.values())
    for content, image in zip(embedded, images, strict=True):
        width, height = png_size(content)
        assert 1300 <= width <= 1400 if "src" in image else width == 660
        assert 400 <= height <= 1200
        assert (int(image["width"]), int(image["height"])) == (round(width / 1.5), round(height / 1.5))
        assert 4_000 < len(content) < 60_000  # something is drawn, with few colours
        assert not re.search(rb"tEXt|tIME|iTXt", content)


def test_cards_say_what_was_counted(explored, found, corpus):
    path, _ = explored
    cards = re.findall(
        r'<article class="card" id="state-(\d+)".*?</article>', path.read_text(encoding="utf-8"), re.DOTALL
    )
    assert [int(state) for state in cards] == found.ranked()
    card = re.search(r'<article class="card" id="state-7".*?</article>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert card is not None
    seen = Outline(card.group())
    count = found.counts[7].item()
    word, times = found.words_of(1)[7][0]
    assert f"({count:,})" in " ".join(seen.words)
    assert seen.words.index(f"{corpus.vocabulary.words[word]} ") + 1 == seen.words.index(f"{100 * times / count:.0f}%")
    assert len([tag for tag, attributes in seen.tags if attributes.get("class") == "left"]) == 3


def test_the_page_shows_the_prior(explored, model, corpus):
    _, page = explored
    said = [attributes.get("class") for _, attributes in page.tags].count("word")
    (end,) = corpus.vocabulary.encode([END])
    samples = sample_prior(model.decoder, 20, settings_of().longest + 1, end, seed=5)
    assert said == sum(len(sample.words) for sample in samples) > 20


def test_the_page_shows_the_evaluation(explored):
    path, page = explored
    rows = re.findall(r"<tr.*?</tr>", path.read_text(encoding="utf-8"))
    cells = {tuple(Outline(row).words) for row in rows}
    assert ("Structured VAE", "3.250", "31.50 ± 0.75", "3.000", "31.50 ± 0.75") in cells
    assert ("Bigram (Kneser-Ney)", "3.250", "31.50 ± 0.75", "3.875", "-") in cells
    assert ("mine <i>", "9.500", "-", "-", "-") in cells
    assert ("Dev", "-25.00", "-10.50", "3.00", "-32.50", "-31.50", "0.125", "1,234") in cells
    assert [row.startswith('<tr class="ours">') for row in rows] == ["Structured VAE" in row for row in rows]
    assert {"3.000", "nats per word of the test part", "Bigram (Kneser-Ney): 3.875"} <= set(page.words)
    assert "77 samples" in " ".join(page.words)


def test_chosen_settings_come_first(explored):
    _, page = explored
    names = [page.words[place] for place in range(len(page.words))]
    chosen, left = names.index("Chosen"), names.index("Left as they were")
    assert chosen < names.index("state size") < left < names.index("temperature")
    assert names[names.index("hidden") + 1] == "8"


@pytest.mark.parametrize("evaluation", [None, {}, {"dev": {"per_word": float("nan")}, "test": None, "baselines": {}}])
def test_without_an_evaluation(evaluation, tmp_path, corpus, model):
    run = new_run(tmp_path, corpus)
    if evaluation is not None:
        (tmp_path / "evaluation.json").write_text(json.dumps(evaluation))
    page = outline(explore(run, corpus, model, FULL))
    assert "table" not in [tag for tag, _ in page.tags]
    assert {"1.500", "nats per word of the dev part", "tailsum evaluate"} <= set(page.words)


@pytest.mark.parametrize("evaluated", [None, 20, 80])
def test_an_evaluation_of_another_step_is_left_out(tmp_path, corpus, model, evaluated):
    run = new_run(tmp_path, corpus)
    (tmp_path / "evaluation.json").write_text(json.dumps({**EVALUATION, "step": evaluated}))
    page = outline(explore(run, corpus, model, FULL, trained=80))
    assert ("table" in [tag for tag, _ in page.tags]) == (evaluated == 80)


def test_a_damaged_evaluation_is_named(tmp_path, corpus, model):
    run = new_run(tmp_path, corpus)
    (tmp_path / "evaluation.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"evaluation\.json must hold an object: got a list"):
        explore(run, corpus, model, FULL)


def explore_states(states_of, folder, corpus, model, monkeypatch):
    """The page where the states of each sentence are given by its length."""

    def given(_model, sentences, _estimator, _seed):
        for place, sentence in enumerate(sentences):
            yield [place], torch.tensor([states_of(len(sentence))]), torch.tensor([len(sentence)])

    monkeypatch.setattr("tailsum_studies.vae.explore.drawn", given)
    return outline(explore(Run.new(folder, settings_of(), corpus).write(), corpus, model, FULL))


def test_one_state_in_use(tmp_path, corpus, model, monkeypatch):
    page = explore_states(lambda length: [17] * length, tmp_path, corpus, model, monkeypatch)
    assert [each for each in page.ids() if each.startswith("state-")] == ["state-17"]
    assert {"1 of 30", "1.00"} <= set(page.words)
    assert sorted(file.name for file in (tmp_path / "plots").iterdir()) == [
        *("states-narrow.png", "states.png", "transitions-narrow.png", "transitions.png")
    ]


def test_states_never_used(tmp_path, corpus, model, monkeypatch):
    page = explore_states(lambda length: [t % 4 * 3 for t in range(length)], tmp_path, corpus, model, monkeypatch)
    assert {each for each in page.ids() if each.startswith("state-")} == {"state-0", "state-3", "state-6", "state-9"}
    assert "4 of 30" in page.words
    with (tmp_path / "states.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    assert len(rows) == 30
    assert [row[1:] for row in rows[4:]] == [["0", "0.000000", ""]] * 26


def test_more_states_than_cards(tmp_path, corpus, monkeypatch):
    many = build(settings_of(states=90), corpus.vocabulary)
    monkeypatch.setattr(
        sys.modules["tailsum_studies.vae.report.page"], "CARDS", 14
    )  # the package has a function of that name
    run = Run.new(tmp_path, settings_of(states=90), corpus).write()
    page = outline(explore(run, corpus, many, FULL))
    assert len([each for each in page.ids() if each.startswith("state-")]) == 14
    assert "2 more states" in page.words


def test_the_same_model_gives_the_same_files(tmp_path, corpus, model):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        explore(new_run(folder, corpus), corpus, model, FULL, seed=3)
    files = [file.relative_to(folders[0]) for file in folders[0].rglob("*") if file.is_file()]
    assert len(files) == 14
    assert all((folders[0] / file).read_bytes() == (folders[1] / file).read_bytes() for file in files)
