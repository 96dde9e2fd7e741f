"""Text in batches, and the seeds of random numbers."""

import itertools
import json
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tailsum_studies.text import Split, sentences
from tailsum_studies.vae.data import END, Corpus, Order, batch_of, in_turn
from tailsum_studies.vae.seeds import mixed, seeded

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
