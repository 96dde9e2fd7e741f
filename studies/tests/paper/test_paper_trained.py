"""Text to train on is read as it should be, and what is trained on it has learned."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch

from tailsum import LinearChain
from tailsum_studies.paper import trained
from tailsum_studies.paper.trained import Settings, WordCRF, WordHMM, load, save, train
from tailsum_studies.text import Split, Vocabulary, sentences, tokens

SMALL = Settings("crf", n_states=20, size=8, steps=25, batch=8)


@pytest.fixture
def text(prose):
    """A little of the standard library's prose, to train on."""
    return Split(prose.train[:1500], [], prose.test[:100])


@pytest.fixture(scope="module")
def captions():
    if "TAILSUM_DATA" not in os.environ:
        pytest.skip("set TAILSUM_DATA to the folder that contains coco/, the MSCOCO captions")
    return sentences(Path(os.environ["TAILSUM_DATA"]) / "coco")


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def annotations(*captions):
    return json.dumps({"annotations": [{"image_id": image, "caption": caption} for image, caption in captions]})


# Text.


def test_every_python_has_sentences(prose):
    together = prose.train + prose.dev + prose.test
    assert len(prose.train) > 3000
    assert len(prose.test) == len(together) // 10
    assert abs(len(prose.dev) - len(prose.test)) <= 1
    assert len({tuple(sentence) for sentence in together}) == len(together)
    assert all(3 <= len(sentence) <= 25 for sentence in together)
    words = {word for sentence in together for word in sentence}
    assert {"the", "file", "returns", "."} <= words
    assert all(word == word.lower() for word in words)
    assert not any(mark in word for word in words for mark in '_=<>[]{}`*"#/\\@')


def test_the_library_reads_the_same_again(monkeypatch):
    monkeypatch.setattr("sys.stdlib_module_names", frozenset({"argparse", "json", "queue", "textwrap", "_thread"}))
    first, again = sentences(), sentences()
    assert first == again
    assert len(first.train) > 100


def test_tokens():
    assert tokens("The dog's red-hot BALL (2 of them), isn\u2019t it?") == [
        *("the", "dog's", "red-hot", "ball", "(", "2", "of", "them", ")", ",", "isn't", "it", "?")
    ]


def test_letters_of_several_characters():
    assert tokens("हिन्दी, \u0905\u091a\u094d\u091b\u093e nai\u0308ve") == [
        "हिन्दी",
        ",",
        "\u0905\u091a\u094d\u091b\u093e",
        "nai\u0308ve",
    ]


def test_what_ends_a_line(write):
    path = write("lines.txt", "A\u2028b.\n{curly} c.\rD\x0ce.\r\n\n" * 10)
    split = sentences(path)
    assert split.train[:3] == [["a", "b", "."], ["curly", "c", "."], ["d", "e", "."]]
    assert sum(map(len, split)) == 30
    assert sentences(write("brace.txt", "{curly} first line\n" * 10)).test == [["curly", "first", "line"]]


def test_a_text_file(write):
    path = write("lines.txt", "".join(f"Sentence number {i}.\n\n" for i in range(30)))
    split = sentences(path)
    assert [sentence[2] for sentence in split.train] == [str(i) for i in range(24)]
    assert [sentence[2] for sentence in split.dev] == ["24", "25", "26"]
    assert [sentence[2] for sentence in split.test] == ["27", "28", "29"]


def test_one_file_of_captions_is_split_by_image(write):
    pairs = [(image % 20, f"caption {image}") for image in range(60)]
    split = sentences(write("captions.json", annotations(*pairs)))
    assert {int(number) % 20 for _, number in split.train} == set(range(16))
    assert sorted(int(number) for _, number in split.dev) == [16, 17, 36, 37, 56, 57]
    assert sorted(int(number) for _, number in split.test) == [18, 19, 38, 39, 58, 59]


def test_a_folder_of_captions(write, tmp_path):
    write("captions_train.json", annotations((1, "A cat."), (2, "A dog.")))
    write("captions_dev.json", annotations((4, "A cow.")))
    write("captions_test.json", annotations((3, "A bird.")))
    train = [["a", "cat", "."], ["a", "dog", "."]]
    assert sentences(tmp_path) == Split(train, [["a", "cow", "."]], [["a", "bird", "."]])


def test_the_real_captions(captions):
    assert len(captions.train) > len(captions.test) > 1000
    assert captions.train[0] == tokens("A black Honda motorcycle parked in front of a garage.")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", "", "sentences to train on"),
        ("single.txt", "One sentence only.", "got 1 in all"),
        ("marks.txt", "***\n---\n", "got 0 in all"),
        ("picture.png", b"\x89PNG\x00\xff", "is neither"),
        ("latin.txt", "caf\xe9".encode("latin-1"), "is neither"),
        ("damaged.json", annotations((1, "A cat."), (2, "A dog."))[:-5], "damaged"),
        ("damaged.txt", '{"annotations": [', "damaged"),
        ("deep.json", '{"annotations": ' + "[" * 200_000, "damaged"),
        ("other.json", '{"images": []}', "MSCOCO's form"),
        ("list.json", "[1, 2]", "MSCOCO's form"),
        ("number.json", annotations((1, 5)), "MSCOCO's form"),
        ("none.json", annotations(), "got 0 in all"),
    ],
)
def test_errors_of_files(write, name, content, message):
    path = write(name, content)
    with pytest.raises(ValueError, match=message) as caught:
        sentences(path)
    assert name in str(caught.value)


def test_errors_of_missing_files(write, tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.txt does not exist"):
        sentences(tmp_path / "nowhere.txt")
    write("captions_train.json", annotations((1, "A cat.")))
    with pytest.raises(ValueError, match=r"captions_dev\.json does not exist"):
        sentences(tmp_path)


def test_vocabulary():
    vocabulary = Vocabulary.of([["b", "a", "c"], ["c", "d", "b"], ["c"]], 3)
    assert vocabulary.words == ("<unk>", "c", "b", "a")
    assert vocabulary.encode(["a", "d", "c", "e"]) == [3, 0, 1, 0]
    assert vocabulary.decode([3, 0, 1]) == ["a", "<unk>", "c"]
    assert len(vocabulary) == 4
    with pytest.raises(ValueError, match="at least n = 5 different words: got 4"):
        Vocabulary.of([["a", "b"], ["c", "d"]], 5)
    with pytest.raises(ValueError, match="must start with '<unk>'"):
        Vocabulary(("a", "b"))


# Models.


@pytest.mark.parametrize("kind", ["crf", "hmm"])
def test_training_learns(kind, text):
    steps = []
    settings = dataclasses.replace(SMALL, kind=kind, steps=100, rate=0.1)
    found = train(settings, text, lambda: steps.append(1))
    assert len(steps) == 100
    assert found.record.after < found.record.before - 0.5
    assert found.record.after < found.record.unigram


@pytest.mark.parametrize("kind", ["crf", "hmm"])
def test_training_is_reproducible_and_leaves_the_random_state_alone(kind, text):
    settings, before = dataclasses.replace(SMALL, kind=kind, steps=3), torch.get_rng_state()
    first = train(settings, text)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    second = train(settings, text)
    other = train(dataclasses.replace(settings, seed=1), text)
    assert first.record == second.record != other.record
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name])


def test_the_crf_is_a_distribution_over_words():
    model, vocabulary = WordCRF(3, 4), Vocabulary(("<unk>", "a", "dog"))
    batch = trained.batch_of([["a", "dog"], ["a"]], vocabulary)
    every = [(i, j) for i in range(3) for j in range(3)]
    words = torch.tensor(every)[:, None].expand(-1, 2, -1)
    probability = model.chain(batch).log_prob(words).exp()
    torch.testing.assert_close(probability[:, 0].sum(), torch.tensor(1.0))
    torch.testing.assert_close(probability[::3, 1].sum(), torch.tensor(1.0))  # the second word is padding there
    chosen = model.log_likelihood(batch).exp()
    torch.testing.assert_close(chosen, torch.stack((probability[every.index((1, 2)), 0], probability[3, 1])))


def test_the_hmm_is_a_distribution_over_sentences():
    model = WordHMM(n_states=4, n_words=3, size=5)
    words = torch.cartesian_prod(torch.arange(3), torch.arange(3), torch.arange(3))
    batch = trained.Batch(words, torch.zeros_like(words), torch.full((27,), 3))
    torch.testing.assert_close(model.log_likelihood(batch).exp().sum(), torch.tensor(1.0))


@pytest.mark.parametrize("model", [WordCRF(12, 6), WordHMM(12, 12, 6)])
def test_padding_changes_nothing(model, text):
    vocabulary = Vocabulary.of(text.train, 11)
    short, long = ["return", "the", "file"], ["set", "the", "name", "of", "a", "given", "class", "."]
    alone = model.log_likelihood(trained.batch_of([short], vocabulary))
    together = model.log_likelihood(trained.batch_of([long, short], vocabulary))
    torch.testing.assert_close(together[1:], alone)


def test_every_parameter_has_a_gradient(text):
    vocabulary = Vocabulary.of(text.train, 11)
    batch = trained.batch_of([["return", "the", "file", "."], ["the", "name"]], vocabulary)
    for model in (WordCRF(12, 6), WordHMM(12, 12, 6)):
        chain = model.chain(batch)
        assert isinstance(chain, LinearChain)
        chain.log_partition().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def test_hints_tell_first_letters_and_sizes():
    assert trained.hint("cat") == trained.hint("cow") != trained.hint("dog")
    assert trained.hint("cat") != trained.hint("cats")
    assert trained.hint(".") == trained.hint(",") != trained.hint("a")
    every = {trained.hint(letter * size) for letter in "abcdefghijklmnopqrstuvwxyz." for size in range(1, 12)}
    assert every == set(range(trained.N_HINTS))


def test_the_baseline_counts():
    vocabulary = Vocabulary(("<unk>", "a", "b"))
    data, held_out = [["a", "a", "b", "z"]], [["a", "z"]]
    given_nothing = trained._unigram_per_word(data, held_out, vocabulary, by_hint=False)
    assert given_nothing == pytest.approx(-torch.tensor([3 / 7, 2 / 7]).log().mean().item())
    given_hints = trained._unigram_per_word(data, held_out, vocabulary, by_hint=True)
    assert given_hints == pytest.approx(-torch.tensor([3 / 4, 2 / 2]).log().mean().item())


def test_held_out_batches_to_measure_on(text):
    found = train(dataclasses.replace(SMALL, steps=1), text)
    first, again, other = (
        trained.held_out_batch(found, text, 16, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first.words, again.words)
    assert not torch.equal(first.lengths, other.lengths)
    assert first.words.shape == (16, first.lengths.max())
    assert first.lengths.max() <= trained.LONGEST
    test = {tuple(found.vocabulary.encode(sentence)) for sentence in text.test}
    assert all(tuple(row[:size].tolist()) in test for row, size in zip(first.words, first.lengths, strict=True))
    with pytest.raises(ValueError, match=r"n must be at most \d+, the number of test sentences: got 100000"):
        trained.held_out_batch(found, text, 100_000)


def test_a_saved_model_comes_back(text, tmp_path):
    path = tmp_path / "new" / "crf.pt"
    found = train(dataclasses.replace(SMALL, steps=2), text)
    save(path, found)
    again = load(path, found.settings, text)
    assert (again.record, again.settings, again.vocabulary) == (found.record, found.settings, found.vocabulary)
    batch = trained.held_out_batch(found, text, 4)
    assert torch.equal(again.model.log_likelihood(batch), found.model.log_likelihood(batch))
    assert [file.name for file in path.parent.iterdir()] == ["crf.pt"]


def test_errors_of_saved_models(text, tmp_path, write):
    path = tmp_path / "crf.pt"
    found = train(dataclasses.replace(SMALL, steps=1), text)
    save(path, found)
    for change in ({"n_states": 21}, {"kind": "hmm"}, {"steps": 2}, {"seed": 1}):
        (name, value), *_ = change.items()
        with pytest.raises(ValueError, match=rf"crf\.pt must hold a model trained with {name} = {value}: got "):
            load(path, dataclasses.replace(found.settings, **change), text)
    other = Split([[f"word{i}" for i in range(20)]], [], text.test)
    with pytest.raises(ValueError, match="trained on another"):
        load(path, found.settings, other)
    whole = path.read_bytes()
    torch.save({"settings": 1}, tmp_path / "other.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    for name in ("empty.pt", "half.pt", "text.pt"):
        write(name, {"empty.pt": b"", "half.pt": whole[: len(whole) // 2], "text.pt": b"not a model"}[name])
    for name in ("empty.pt", "half.pt", "text.pt", "other.pt", "list.pt", "missing.pt"):
        with pytest.raises(ValueError, match=rf"{name} must be a trained model"):
            load(tmp_path / name, found.settings, text)


def test_errors_of_training(text, unchecked):
    with pytest.raises(ValueError, match="kind must be 'crf' or 'hmm': got 'rnn'"):
        Settings("rnn")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1: got 0"):
        Settings("crf", steps=0)
    with pytest.raises(ValueError, match="at least n = 19 different words"):
        train(SMALL, Split([["a", "b"]], [], [["a"]]))
    with pytest.raises(ValueError, match=r"split\.test must have sentences of up to 20 words"):
        train(SMALL, Split(text.train, [], [["a"] * 21]))
