"""Text in batches, the seeds of random numbers, settings, and the folder of a run."""

import dataclasses
import itertools
import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tailsum.apps.text import Split, sentences
from tailsum.apps.vae.build import build, learned
from tailsum.apps.vae.checkpoint import Checkpoint
from tailsum.apps.vae.data import END, Corpus, Order, batch_of, in_turn
from tailsum.apps.vae.run import Run
from tailsum.apps.vae.seeds import mixed, seeded
from tailsum.apps.vae.settings import Settings
from tailsum.nn.estimator import EXACT_UP_TO

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=30)
SIZES = st.integers(1, 12)


# The order of batches.


def epoch(order, number):
    return [order.at(step) for step in range(number * order.per_epoch, (number + 1) * order.per_epoch)]


@given(LENGTHS, SIZES, st.integers(-5, 2**63), st.integers(0, 4))
def test_every_epoch_has_each_sentence_once(lengths, size, seed, number):
    batches = epoch(Order(lengths, size, seed), number)
    assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
    left = len(lengths) % size
    assert Counter(map(len, batches)) == Counter([size] * (len(lengths) // size) + [left] * bool(left))


@given(LENGTHS, SIZES, st.integers(0, 99))
def test_batches_hold_sentences_of_neighbouring_lengths(lengths, size, seed):
    """From the shortest batch to the longest, all lengths are in order: no batch spans another."""
    found = sorted(sorted(lengths[i] for i in batch) for batch in epoch(Order(lengths, size, seed), 0))
    assert list(itertools.chain(*found)) == sorted(lengths)


@given(LENGTHS, SIZES, st.integers(0, 99), st.randoms(use_true_random=False))
def test_the_order_depends_on_seed_and_step_alone(lengths, size, seed, random):
    steps = list(range(4 * math.ceil(len(lengths) / size)))
    in_order = Order(lengths, size, seed)
    expected = {step: in_order.at(step) for step in steps}
    random.shuffle(steps)
    torch.manual_seed(random.randrange(100))
    torch.rand(3)
    before = torch.get_rng_state()
    asked = Order(lengths, size, seed)
    assert {step: asked.at(step) for step in steps} == expected
    assert torch.equal(torch.get_rng_state(), before)


def test_epochs_and_seeds_differ_in_who_comes_together_and_in_which_batch_comes_first():
    lengths = [1 + i // 10 for i in range(100)]
    orders = [epoch(Order(lengths, 5, seed), number) for seed in (0, 1) for number in (0, 1)]
    for a, b in itertools.combinations(orders, 2):
        assert {frozenset(batch) for batch in a} != {frozenset(batch) for batch in b}
        assert [lengths[batch[0]] for batch in a] != [lengths[batch[0]] for batch in b]
        assert [lengths[batch[0]] for batch in a] != sorted(lengths[batch[0]] for batch in a)


def test_an_order_needs_sentences_and_a_size():
    with pytest.raises(ValueError, match="sentences"):
        Order([], 3, 0)
    with pytest.raises(ValueError, match="size"):
        Order([1, 2], 0, 0)


@given(LENGTHS, SIZES)
def test_in_turn_has_every_sentence_once_short_ones_first(lengths, size):
    batches = in_turn([[1] * length for length in lengths], size)
    places = list(itertools.chain(*batches))
    assert sorted(places) == list(range(len(lengths)))
    assert [lengths[i] for i in places] == sorted(lengths)
    assert all(len(batch) == size for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= size


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=6))
def test_a_batch_holds_its_sentences_and_zeros(rows):
    words, lengths = batch_of(rows)
    assert words.dtype == lengths.dtype == torch.long
    assert lengths.tolist() == [len(row) for row in rows]
    assert words.shape == (len(rows), max(map(len, rows)))
    for found, row in zip(words.tolist(), rows, strict=True):
        assert found[: len(row)] == row
        assert not any(found[len(row) :])


# Seeds.


def test_mixed_numbers_are_distinct_and_order_counts():
    tuples = [t for n in range(4) for t in itertools.product(range(-2, 10), repeat=n)]
    found = [mixed(*t) for t in tuples]
    assert len(set(found)) == len(tuples)
    assert all(0 <= seed < 2**63 for seed in found)
    assert mixed(3, 5) == mixed(3, 5) != mixed(5, 3)


def test_mixed_numbers_have_nothing_in_common():
    """Of 63 bits about half change with any number, whichever place it has."""
    changed = [
        (mixed(seed, step, shard) ^ other).bit_count()
        for seed, step, shard in itertools.product(range(8), repeat=3)
        for other in (mixed(seed + 1, step, shard), mixed(seed, step + 1, shard), mixed(seed, step, shard + 1))
    ]
    deviation = math.sqrt(63 / 4)
    assert abs(sum(changed) / len(changed) - 63 / 2) < 5 * deviation / math.sqrt(len(changed))
    assert min(changed) > 63 / 2 - 7 * deviation


def test_seeded_numbers_are_the_seeds_and_those_of_before_go_on():
    torch.manual_seed(3)
    expected = torch.rand(6)
    torch.manual_seed(3)
    first = torch.rand(3)
    with seeded(7, CPU):
        inner = torch.rand(2)
        with seeded(8, CPU):
            torch.rand(5)
        inner = torch.cat((inner, torch.rand(2)))
    assert torch.equal(torch.cat((first, torch.rand(3))), expected)
    assert torch.equal(inner, torch.rand(4, generator=torch.Generator().manual_seed(7)))


def test_seeded_restores_the_state_after_an_exception():
    before = torch.get_rng_state()

    def fail():
        with seeded(7, CPU):
            torch.rand(5)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(torch.get_rng_state(), before)


# Numbered sentences.


def split(train, dev="a", test="b"):
    return Split(*([line.split() for line in part.split("/")] for part in (train, dev, test)))


def test_words_seen_once_are_unknown_and_every_sentence_ends():
    corpus = Corpus.of(split("a b a/c a b/b", "a d/c", "b b b"))
    assert corpus.vocabulary.words == ("<unk>", END, "a", "b")  # three times each, by the alphabet
    assert corpus.train == [[2, 3, 2, 1], [0, 2, 3, 1], [3, 1]]
    assert corpus.dev == [[2, 0, 1], [0, 1]]
    assert corpus.test == [[3, 3, 3, 1]]
    assert [corpus.sentence(row) for row in corpus.train] == [["a", "b", "a"], ["<unk>", "a", "b"], ["b"]]
    assert corpus.sentence([2, 1, 0, 0]) == ["a"]
    assert corpus.sentence([2, 3]) == ["a", "b"]


def test_the_most_frequent_words_are_kept():
    corpus = Corpus.of(split("a b b a c/c b b/a"), n_words=2)
    assert corpus.vocabulary.words == ("<unk>", END, "b", "a")
    assert Corpus.of(split("a b/a"), n_words=9).vocabulary.words == ("<unk>", END, "a")  # few words are no error


def test_sentences_of_too_many_words_are_left_out_and_not_counted():
    corpus = Corpus.of(split("a a a a/b b b/b c c", "a b c d/a", "c"), longest=3)
    assert corpus.vocabulary.words == ("<unk>", END, "b", "c")
    assert corpus.train == [[2, 2, 2, 1], [2, 3, 3, 1]]
    assert corpus.dev == [[0, 1]]


@pytest.mark.parametrize("part", Split._fields)
def test_a_part_without_sentences_is_named(part):
    with pytest.raises(ValueError, match=f"{part} part.* 2 words"):
        Corpus.of(Split([["a"]], [["a"]], [["a"]])._replace(**{part: [["a", "b", "c"]]}), longest=2)


@pytest.mark.parametrize("bad", [{"n_words": 0}, {"longest": 0}])
def test_a_corpus_names_bad_arguments(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Corpus.of(split("a/a"), **bad)


@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=5), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 2),
)
def test_the_end_is_a_word_of_its_own_however_few_sentences_and_words_there_are(train, n_words, rare):
    distinct = len(set(itertools.chain(*train)))
    if distinct < n_words and not rare:
        return
    corpus = Corpus.of(Split(train, train, train), n_words, rare)
    assert END in corpus.vocabulary.words
    end = corpus.vocabulary.words.index(END)
    for part in (corpus.train, corpus.dev, corpus.test):
        assert [len(row) for row in part] == [len(row) + 1 for row in train]
        assert all(row[-1] == end and end not in row[:-1] for row in part)


# Text.


@given(st.lists(st.integers(1, 5), min_size=3, max_size=40), st.randoms(use_true_random=False))
def test_captions_of_an_image_stay_in_one_part(tmp_path_factory, per_image, random):
    captions = [
        {"image_id": 1000 - image, "caption": f"image{image} number{n}."}
        for image, count in enumerate(per_image)
        for n in range(count)
    ]
    random.shuffle(captions)
    path = tmp_path_factory.mktemp("captions") / "captions.json"
    path.write_text(json.dumps({"annotations": captions}))
    parts = sentences(path)
    images = [{words[0] for words in part} for part in parts]
    assert all(not a & b for a, b in itertools.combinations(images, 2))
    every = sorted(" ".join(words) for part in parts for words in part)
    assert every == sorted(caption["caption"].replace(".", " .") for caption in captions)
    tenth = max(1, len(per_image) // 10)
    assert [len(part) for part in images] == [len(per_image) - 2 * tenth, tenth, tenth]


def test_a_folder_of_captions_has_its_own_parts(tmp_path):
    for part in Split._fields:
        content = {"annotations": [{"image_id": 1, "caption": f"of {part}"}]}
        (tmp_path / f"captions_{part}.json").write_text(json.dumps(content))
    assert sentences(tmp_path) == Split(*([["of", part]] for part in Split._fields))


# Settings.


def test_settings_are_what_their_json_says():
    for settings in (
        Settings(),
        Settings(data="a/b.txt", kept=7, estimator="rdp", rate=1.0, hard=False, seed=-3, final_temperature=0.1),
        Settings(warm_up=0.0, entropy_weight=0.0, shards=3, encoder="some/model", frozen=False),
    ):
        assert Settings.from_json(json.loads(json.dumps(settings.as_json()))) == settings
    assert Settings.from_json({"steps": 7}) == Settings(steps=7)  # an earlier version had fewer names


def test_a_whole_number_may_stand_for_any(unchecked):
    assert Settings.from_json({"rate": 1, "warm_up": 0}) == Settings(rate=1.0, warm_up=0.0)


@pytest.mark.parametrize("content", [None, [], "text", 3, {"step": 3}, {"steps": 3, "Steps": 3}])
def test_what_is_no_settings_is_refused(content):
    with pytest.raises(ValueError, match="settings"):
        Settings.from_json(content)


WRONG = {
    int: ("3", 1.5, True, [1], None),
    float: ("3", True, [1.0], None),
    bool: (0, 1, "yes", None),
    str: (3, True, ["lstm"], None),
}


def wrong_types():
    for field in dataclasses.fields(Settings):
        if field.name == "estimator":
            wrong = ("sum", None, 3, ["rdp"])
        elif field.default is None:
            kind = {"data": str, "kept": int, "drawn": int, "last_word_dropout": float}[field.name]
            wrong = tuple(x for x in WRONG[kind] if x is not None)
        else:
            wrong = WRONG[type(field.default)]
        yield from ((field.name, value) for value in wrong)


@pytest.mark.parametrize(("name", "value"), list(wrong_types()))
def test_a_value_of_a_wrong_type_is_named(name, value):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        Settings.from_json({name: value})


BAD = {
    **dict.fromkeys(("words", "longest", "size", "state_size", "hidden", "steps", "batch", "shards"), (0, -1)),
    **dict.fromkeys(("check_every", "check_sentences", "check_samples", "landmarks", "probes", "drawn"), (0, -1)),
    **dict.fromkeys(("states", "kept"), (1, 0, -1)),
    **dict.fromkeys(("rate", "clip", "temperature", "final_temperature", "spread"), (0.0, -1.0, math.inf, math.nan)),
    "dropout": (-0.1, 1.0, math.inf, math.nan),
    **dict.fromkeys(("warm_up", "word_dropout", "last_word_dropout"), (-0.1, 1.1, math.inf, math.nan)),
    "entropy_weight": (-0.1, math.inf, math.nan),
    "estimator": ("sum", "TopK"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_named(name, value, unchecked):
    with pytest.raises(ValueError, match=rf"\b{name}\b.*{value}"):
        Settings(**{name: value})


def test_a_batch_has_a_sentence_for_each_shard():
    Settings(batch=3, shards=3)
    with pytest.raises(ValueError, match="shards"):
        Settings(batch=3, shards=4)


def test_the_rate_grows_then_falls():
    settings = Settings(steps=1000, rate=0.5)
    rates = [settings.rate_at(step) for step in range(1000)]
    assert rates[0] == pytest.approx(0.5 / 100)
    assert rates[99:501] == [0.5] * 402
    assert rates[:100] == sorted(rates[:100])
    assert rates[500:] == sorted(rates[500:], reverse=True)
    assert rates[750] == pytest.approx(0.25)
    assert rates[-1] == pytest.approx(0.5 * 0.02)


@given(st.integers(1, 30), st.floats(1e-4, 1.0))
def test_the_rate_is_never_zero_nor_above_what_was_asked(steps, rate):
    settings = Settings(steps=steps, rate=rate)
    assert all(0 < settings.rate_at(step) <= rate for step in range(steps))


def test_the_weight_grows_to_its_end():
    settings = Settings(steps=100, warm_up=0.2, kl_weight=1.0)
    assert [settings.weight_at(step) for step in (0, 5, 20, 99)] == [0, 0.25, 1, 1]
    assert Settings(steps=10, warm_up=1.0, kl_weight=2.0).weight_at(9) == pytest.approx(1.8)
    assert Settings(steps=10, warm_up=0.0, kl_weight=0.7).weight_at(0) == 0.7


def test_the_temperature_changes_geometrically_in_the_second_half():
    settings = Settings(steps=100, temperature=2.0, final_temperature=0.5)
    found = [settings.temperature_at(step) for step in (0, 50, 75, 100)]
    assert found == pytest.approx([2.0, 2.0, 1.0, 0.5])
    assert Settings(temperature=0.7, final_temperature=0.7).temperature_at(999) == pytest.approx(0.7)


def test_word_dropout_changes_linearly_in_the_first_half():
    settings = Settings(steps=100, word_dropout=1.0, last_word_dropout=0.2)
    assert [settings.word_dropout_at(step) for step in (0, 25, 50, 99)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert Settings(steps=100, word_dropout=0.3).word_dropout_at(40) == 0.3
    assert Settings(steps=100, word_dropout=0.3, last_word_dropout=0.0).word_dropout_at(99) == pytest.approx(0.0)


def test_how_many_states_are_kept():
    def kept(**given):
        return Settings(**given).sums().kept

    many = EXACT_UP_TO + 1
    assert kept(states=500, estimator="tailsum") == kept(states=500, estimator="full") == 500
    assert kept(states=EXACT_UP_TO, estimator="tailsum") == EXACT_UP_TO
    assert kept(states=many, estimator="tailsum") == 200
    assert kept(states=500, estimator="rdp") == kept(states=500, estimator="topk") == 100
    assert kept(states=3, estimator="rdp") == 2
    assert kept(states=50, kept=70, estimator="rdp") == 50
    assert kept(states=many, kept=30, estimator="tailsum") == 30


# The folder of a run.

TINY = Settings(states=3, size=4, state_size=3, hidden=4, steps=4, batch=2)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"a b c{i % 3}" for i in range(30)))
    return path


@pytest.fixture
def run(tmp_path, text):
    settings = dataclasses.replace(TINY, data=str(text))
    return Run.new(tmp_path / "run", settings, Corpus.read(text)).write()


def checkpoint_of(run, model):
    tensors = {f"model.{name}": x for name, x in learned(model).items()}
    return Checkpoint(tensors, {"settings": run.settings.as_json(), "digest": run.digest})


def test_a_run_is_opened_as_it_was_created(run, text, tmp_path):
    opened = Run.open(run.folder)
    assert (opened.settings, opened.vocabulary, opened.digest) == (run.settings, run.vocabulary, run.digest)
    assert opened.corpus() == Corpus.read(text)
    moved = text.rename(tmp_path / "moved.txt")
    assert opened.corpus(moved).train == Corpus.read(moved).train


def test_a_run_is_not_created_over_another(run):
    with pytest.raises(ValueError, match="holds a run already"):
        Run.new(run.folder, run.settings, run.corpus()).write()


@pytest.mark.parametrize("name", ["", "nowhere", "checkpoints"])
def test_a_folder_without_a_run_is_refused(run, name):
    with pytest.raises(ValueError, match=r"folder of a run"):
        Run.open(run.folder / name if name else run.folder.parent)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"states": "many"}', '{"rate": -1.0}', "\udcff"])
def test_damaged_settings_are_refused(run, content):
    (run.folder / "settings.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"settings|rate"):
        Run.open(run.folder)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "3", '{"words": ["a"], "digest": ""}', '{"words": 3, "digest": ""}', None]
)
def test_damaged_words_are_refused(run, content):
    path = run.folder / "words.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ValueError, match=r"words\.json"):
        Run.open(run.folder)


@pytest.mark.parametrize(
    "change", [lambda s: s + "\na b", lambda s: s.replace("c2", "c1", 1), lambda s: s[: len(s) // 2]]
)
def test_changed_text_is_refused(run, text, change):
    text.write_text(change(text.read_text()))
    with pytest.raises(ValueError, match="it has changed"):
        run.corpus()


def test_the_best_model_is_loaded(run):
    with seeded(5, CPU):
        model = build(run.settings, run.vocabulary)
        for weight in model.parameters():
            torch.nn.init.normal_(weight)
    run.keeper.save_best(checkpoint_of(run, model))
    found = Run.open(run.folder).model()
    assert not found.training
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), model.parameters(), strict=True))


def test_a_checkpoint_of_another_run_is_refused(run, tmp_path, text):
    model = build(run.settings, run.vocabulary)
    before = [x.clone() for x in model.parameters()]
    other_settings = Run.new(tmp_path / "b", dataclasses.replace(run.settings, seed=1), run.corpus()).write()
    text.write_text(text.read_text() + "\na b c0")
    other_text = Run.new(tmp_path / "c", run.settings, Corpus.read(text)).write()
    for other, name in ((other_settings, "settings"), (other_text, "digest")):
        theirs = checkpoint_of(other, build(other.settings, other.vocabulary))
        with pytest.raises(ValueError, match=f"one of this run.*{name}"):
            run.put(theirs, model)
    run.accept(checkpoint_of(run, model))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


# The curve of losses.

ROWS = [
    {"step": 1, "part": "train", "words": "-5.25", "states": "-2.5", "entropy": "1.125", "nll": "3.0625"},
    {"step": 2, "part": "train", "words": "-4.25", "states": "-2.25", "entropy": "1.5", "nll": "2.0625"},
    {"step": 2, "part": "dev", "nll": "2.8125"},
    {"step": 13, "part": "train", "words": "-3.25", "states": "-2.125", "entropy": "1.75", "nll": "1.9375"},
]


def written(run, rows):
    run.cut_curve(0)
    for row in rows:
        run.add_to_curve(row)
    return [
        {name: str(row.get(name, "")) for name in ("step", "part", "words", "states", "entropy", "nll")} for row in rows
    ]


def test_the_curve_is_read_as_it_was_written(run):
    assert run.losses() == []
    assert written(run, ROWS) == run.losses()


def test_the_curve_forgets_what_came_after_a_step(run):
    rows = written(run, ROWS)
    run.cut_curve(2)
    assert run.losses() == rows[:3]
    run.add_to_curve(ROWS[3])
    assert run.losses() == rows
    run.cut_curve(0)
    assert run.losses() == []


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_row_that_was_cut_off_is_left_out_wherever_it_was_cut(run, count):
    """Also within its last number, which would be another then."""
    rows = written(run, ROWS[:count])
    whole = run.curve.read_bytes()
    start = len(b"".join(whole.splitlines(keepends=True)[:-1]))
    for end in range(start, len(whole.rstrip())):
        run.curve.write_bytes(whole[:end])
        assert run.losses() == rows[:-1], whole[start:end]


def test_a_cut_off_row_does_not_spoil_the_next(run):
    rows = written(run, ROWS)
    run.curve.write_bytes(run.curve.read_bytes()[:-12])
    run.cut_curve(13)
    run.add_to_curve(ROWS[3])
    assert run.losses() == rows


def test_paths_are_made(tmp_path, text):
    folder = Path(tmp_path) / "a" / "b"
    Run.new(folder, TINY, Corpus.read(text)).write()
    assert {path.name for path in folder.iterdir()} == {"lock", "settings.json", "words.json"}
