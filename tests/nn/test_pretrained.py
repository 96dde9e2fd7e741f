"""Pretrained models as encoders: each word has the mean of its sub-words' vectors, whatever the tokenizer and the batch."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from harness.stored_models import config_of, minilm_folder, model_of, store
from tailsum.nn.pretrained import PretrainedEncoder
from tailsum.nn.words import END

transformers = pytest.importorskip("transformers")

WORDS = ("<unk>", END, "the", "dogs", ",", "man's", "well-known", "unwords", "a", ".")
SENTENCES = [[2, 3, 4, 7, 9, 1], [8, 5, 1], [6, 2, 2, 7, 7, 4, 3, 1], [1], [3, 3, 1]]
FAMILIES = ("gpt2", "bert", "roberta", "t5")


pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models as they are stored, by family."""
    root = tmp_path_factory.mktemp("models")
    store(root, *FAMILIES)
    return root


@pytest.fixture
def copy(folders, tmp_path):
    """A model's folder, to be damaged."""

    def copy(family="bert"):
        return Path(shutil.copytree(folders / family, tmp_path / family))

    return copy


def batch_of(sentences):
    """Sentences as tensors, with zeros behind their ends, and their lengths."""
    padded = pad_sequence([torch.tensor(sentence) for sentence in sentences], batch_first=True)
    return padded, torch.tensor([len(sentence) for sentence in sentences])


def plain(folder, sentence):
    """The vectors of one sentence's words, from the text as the tokenizer reads it by itself, by places in the text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder)
    model = model.encoder if "t5" in str(folder) else model
    text = " " + " ".join(sentence)
    read = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
    state = model(input_ids=read["input_ids"]).last_hidden_state[0]
    ends = read["offset_mapping"][0, :, 1].tolist()
    of_word = [text[:end].count(" ") for end in ends]  # 0 for signs around the sentence
    return torch.stack([state[[n == word for n in of_word]].mean(0) for word in range(1, len(sentence) + 1)])


def hand_made(frozen=True):
    """A small GPT-2 whose words have one to three sub-words."""
    return PretrainedEncoder(model_of("gpt2", 12), [[1], [2, 3], [4, 5, 6], [7], [8, 2]], frozen=frozen)


@pytest.mark.parametrize("family", FAMILIES)
def test_words_have_the_mean_of_what_the_model_says_of_their_text(folders, family):
    """Punctuation, apostrophes and hyphens included; "<end>" left out, as a text does not spell it."""
    words = tuple(word for word in WORDS if word != END)
    encoder = PretrainedEncoder.load(folders / family, words)
    text = [["a", "man's", "dogs", ",", "well-known", "unwords", "."], ["the", "dogs"]]
    words_of, lengths = batch_of([[words.index(word) for word in sentence] for sentence in text])
    read = encoder(words_of, lengths)
    assert read.shape == (2, 7, encoder.size)
    for found, sentence in zip(read, text, strict=True):
        torch.testing.assert_close(found[: len(sentence)], plain(folders / family, sentence), atol=1e-5, rtol=1e-5)
    assert not read[1, 2:].any()
    assert max(counts(encoder)[:-2]) > 1


@pytest.mark.parametrize(("family", "sign"), [("bert", "[SEP]"), ("roberta", "</s>"), ("t5", "</s>")])
def test_the_end_is_the_sign_that_the_model_wants_there(folders, family, sign):
    encoder = PretrainedEncoder.load(folders / family, WORDS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders / family)
    model = transformers.AutoModel.from_pretrained(folders / family)
    ids = tokenizer(" the dogs", return_tensors="pt")["input_ids"]
    assert ids[0, -1] == tokenizer.convert_tokens_to_ids(sign)
    expected = (model.encoder if family == "t5" else model)(input_ids=ids).last_hidden_state[0, -1]
    read = encoder(torch.tensor([[2, 3, 1]]), torch.tensor([3]))[0]
    torch.testing.assert_close(read[2], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(read[:2], plain(folders / family, ["the", "dogs"]), atol=1e-5, rtol=1e-5)


def test_signs_for_unknown_words_and_the_end(folders):
    """GPT-2's sign for unknown words ends a text: inside one the word is spelt."""
    for family, unknown, end in (("bert", "[UNK]", "[SEP]"), ("t5", "<unk>", "</s>"), ("gpt2", None, "<|endoftext|>")):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folders / family)
        ids = tokenizer(" unknown")["input_ids"] if unknown is None else [tokenizer.convert_tokens_to_ids(unknown)]
        encoder = PretrainedEncoder.load(folders / family, (*WORDS, "\u200b"))
        assert pieces_of(encoder, 0) == ids
        assert pieces_of(encoder, 1) == [tokenizer.convert_tokens_to_ids(end)]
        if family == "bert":
            assert pieces_of(encoder, len(WORDS)) == ids  # nothing is left of a space without width


def pieces_of(encoder, word):
    return [piece for piece in encoder._pieces[word].tolist() if piece >= 0]


def counts(encoder):
    """How many sub-words each word has, and what stands before and after a sentence."""
    return [len(pieces_of(encoder, word)) for word in range(len(encoder._pieces))]


@pytest.mark.parametrize("family", FAMILIES)
def test_neither_padding_nor_the_rest_of_the_batch_matters(folders, family):
    encoder = PretrainedEncoder.load(folders / family, WORDS)
    words, lengths = batch_of(SENTENCES)
    together = encoder(words, lengths)
    padding = torch.arange(words.shape[1]) >= lengths[:, None]
    torch.testing.assert_close(encoder(words.where(~padding, 999), lengths), together, atol=0, rtol=0)
    for sentence, read in zip(SENTENCES, together, strict=True):
        alone = encoder(*batch_of([sentence]))[0]
        torch.testing.assert_close(read[: len(sentence)], alone, atol=1e-5, rtol=1e-5)
        assert not read[len(sentence) :].any()


def test_context_matters(folders):
    """Else the tests above would pass with a table of vectors."""
    encoder = PretrainedEncoder.load(folders / "bert", WORDS)
    read = encoder(torch.tensor([[2, word, 1] for word in range(len(WORDS))]), torch.full((len(WORDS),), 3))
    assert (read[:, 0] - read[3, 0]).abs().max() > 0.01


def test_weights_are_those_of_the_folder(folders):
    encoder = PretrainedEncoder.load(str(folders / "bert"), WORDS)
    stored = transformers.AutoModel.from_pretrained(folders / "bert").state_dict()
    assert encoder.model.state_dict().keys() == stored.keys()
    assert all(torch.equal(weight, stored[name]) for name, weight in encoder.model.state_dict().items())
    assert encoder.size == 16


def test_half_precision_files_are_read_as_single(copy):
    folder = copy()
    transformers.AutoModel.from_pretrained(folder).half().save_pretrained(folder)
    read = PretrainedEncoder.load(folder, WORDS)(*batch_of(SENTENCES))
    assert read.dtype == torch.float32


def test_causal_models_do_not_look_ahead():
    encoder = hand_made()
    assert config_of("gpt2", 12).pad_token_id is None
    words, lengths = torch.tensor([[1, 2, 3, 4], [1, 2, 4, 1]]), torch.tensor([4, 4])
    one, other = encoder(words, lengths)
    torch.testing.assert_close(one[:2], other[:2], atol=1e-6, rtol=1e-6)
    assert ((one[2:] - other[2:]).abs().amax(1) > 0.01).all()


def test_signs_around_a_sentence_stand_right_beside_it():
    model = model_of("gpt2", 12)
    encoder = PretrainedEncoder(model, [[1], [2, 3]], before=[9, 10], after=[11])
    seen = []
    model.register_forward_pre_hook(lambda _, __, given: seen.append(given), with_kwargs=True)
    encoder(torch.tensor([[1, 0, 1], [0, 0, 0]]), torch.tensor([3, 1]))
    assert seen[0]["input_ids"].tolist() == [[9, 10, 2, 3, 1, 2, 3, 11], [9, 10, 1, 11, 0, 0, 0, 0]]
    assert seen[0]["attention_mask"].tolist() == [[1] * 8, [1] * 4 + [0] * 4]


def test_frozen_has_no_gradients_and_unfrozen_has():
    words, lengths = torch.tensor([[1, 2, 3]]), torch.tensor([3])
    frozen, learning = hand_made(), hand_made(frozen=False)
    assert not frozen(words, lengths).requires_grad
    assert not any(weight.requires_grad for weight in frozen.parameters())
    nn.Linear(16, 1)(frozen(words, lengths)).sum().backward()
    assert not nn.Sequential(frozen).requires_grad_()[0](words, lengths).requires_grad  # whatever is done around it
    learning(words, lengths).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in learning.parameters())


def test_padding_has_no_gradients():
    encoder = hand_made(frozen=False)
    embeddings = encoder.get_parameter("model.wte.weight")
    read = encoder(torch.tensor([[1, 2, 3], [3, 4, 0]]), torch.tensor([3, 2]))
    used = torch.autograd.grad(read.square().sum(), embeddings)[0].any(1)
    assert used.tolist() == [piece in {2, 3, 4, 5, 6, 7, 8} for piece in range(12)]


def test_frozen_never_drops_out():
    words, lengths = torch.tensor([[1, 2, 3]]), torch.tensor([3])
    for frozen in (True, False):
        encoder = hand_made(frozen)
        parent = nn.Sequential(encoder).train()
        assert encoder.training
        assert encoder.model.training is not frozen
        assert torch.equal(encoder(words, lengths), encoder(words, lengths)) is frozen
        parent.eval()
        assert torch.equal(encoder(words, lengths), encoder(words, lengths))
    made_to_learn = model_of("gpt2", 12).train()
    assert not PretrainedEncoder(made_to_learn, [[1]]).model.training


def test_moves_with_its_sub_words(unchecked):
    encoder = hand_made()
    assert {tensor.device.type for tensor in encoder.to("meta").state_dict().values()} == {"meta"}
    encoder = hand_made().double()
    assert encoder(torch.tensor([[1, 2]]), torch.tensor([2])).dtype == torch.float64


def test_state_is_restored():
    one, other = hand_made(), hand_made()
    words, lengths = torch.tensor([[1, 2, 3]]), torch.tensor([3])
    assert not torch.equal(one(words, lengths), other(words, lengths))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(words, lengths), other(words, lengths))


def test_random_numbers_are_left_alone(copy):
    """A model often comes without its pooler, whose weights are then drawn."""
    folder = copy()
    drop(folder, "pooler")
    before = torch.get_rng_state()
    encoder = PretrainedEncoder.load(folder, WORDS)
    encoder(*batch_of(SENTENCES))
    assert torch.equal(torch.get_rng_state(), before)


def drop(folder, part):
    """Leave weights out of a folder."""
    model = transformers.AutoModel.from_pretrained(folder)
    model.save_pretrained(folder, state_dict={k: v for k, v in model.state_dict().items() if part not in k})


@pytest.mark.parametrize(("family", "longest"), [("gpt2", 64), ("bert", 64), ("roberta", 64)])
def test_too_long_sentences(folders, family, longest):
    """RoBERTa has two positions more than it can use."""
    encoder = PretrainedEncoder.load(folders / family, WORDS)
    fits = longest - sum(counts(encoder)[-2:])
    assert counts(encoder)[1] == 1
    encoder(torch.ones(1, fits, dtype=torch.long), torch.tensor([fits]))
    message = f"at most {longest} sub-words .* got {longest + 1} in a sentence of {fits + 1} words"
    with pytest.raises(ValueError, match=message):
        encoder(torch.ones(2, fits + 1, dtype=torch.long), torch.tensor([2, fits + 1]))
    encoder.check_room([[1] * fits, [1]])
    with pytest.raises(ValueError, match=message):
        encoder.check_room([[1] * fits, [1] * (fits + 1)])


def test_relative_positions_have_no_limit(folders):
    encoder = PretrainedEncoder.load(folders / "t5", WORDS)
    assert encoder(torch.ones(1, 700, dtype=torch.long), torch.tensor([700])).isfinite().all()


@pytest.mark.parametrize(
    ("words", "lengths", "message"),
    [
        ([[1, 5]], [2], "words must lie between 0 and V-1 = 4: got 5"),
        ([[-1, 2]], [2], "words must lie between 0 and V-1 = 4: got -1"),
        ([[1, 2]], [3], "lengths must lie between 1 and 2.* got 3"),
        ([[1, 2]], [0], "lengths must lie between 1 and 2.* got 0"),
    ],
)
def test_words_that_do_not_exist(words, lengths, message):
    with pytest.raises(ValueError, match=message):
        hand_made()(torch.tensor(words), torch.tensor(lengths))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pieces": []}, "one or more sub-words for each word: got no words"),
        ({"pieces": [[1], []]}, "one or more sub-words for each word: got none for word 1"),
        ({"pieces": [[1], [12]]}, "pieces must be sub-words of the model, from 0 to 11: got 12"),
        ({"pieces": [[1]], "before": [-1]}, "before must be sub-words of the model, from 0 to 11: got -1"),
        ({"pieces": [[1]], "after": [3, 99]}, "after must be sub-words of the model, from 0 to 11: got 99"),
    ],
)
def test_sub_words_that_do_not_exist(arguments, message):
    with pytest.raises(ValueError, match=message):
        PretrainedEncoder(model_of("gpt2", 12), **arguments)


@pytest.mark.parametrize(
    "name", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "some/where/else", Path("nowhere")]
)
def test_folders_that_do_not_exist(name):
    with pytest.raises(ValueError, match=re.escape(f"there is no folder {name}")):
        PretrainedEncoder.load(name, WORDS)


def test_a_file_is_no_folder(folders):
    with pytest.raises(ValueError, match=r"there is no folder .*config\.json"):
        PretrainedEncoder.load(str(folders / "bert" / "config.json"), WORDS)


def test_a_name_that_cannot_be_reached_says_what_to_do(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = r"no folder no/such, and the hub gave no tokenizer .*\(hf download no/such --local-dir FOLDER\)"
    with pytest.raises(ValueError, match=message) as raised:
        PretrainedEncoder.load("no/such", WORDS)
    assert isinstance(raised.value.__cause__, OSError)


DAMAGE = {
    "config.json": ("the tokenizer|the model", "{"),
    "tokenizer.json": ("the tokenizer", "{}"),
    "model.safetensors": ("the model", "not weights" * 20),
}


@pytest.mark.parametrize("file", DAMAGE)
def test_damaged_folders(copy, file):
    what, content = DAMAGE[file]
    folder = copy()
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=f"({what}) in .*bert cannot be read"):
        PretrainedEncoder.load(folder, WORDS)


def test_a_folder_without_weights(copy):
    folder = copy()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"the model in .* cannot be read"):
        PretrainedEncoder.load(folder, WORDS)


def test_an_empty_folder(tmp_path):
    with pytest.raises(ValueError, match=r"the tokenizer in .* cannot be read"):
        PretrainedEncoder.load(tmp_path, WORDS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_without_tokenizer(copy, family):
    """Transformers then makes one that knows nothing, and says nothing."""
    folder = copy(family)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match=f"{family} has no tokenizer, or one that knows none of the words"):
        PretrainedEncoder.load(folder, WORDS)


@pytest.mark.parametrize(("family", "part"), [("bert", "encoder.layer.1.output"), ("t5", "encoder.block.0")])
def test_weights_that_are_missing_are_not_made_up(copy, family, part):
    folder = copy(family)
    drop(folder, part)
    with pytest.raises(ValueError, match=f"lacks [0-9]+ of the weights, such as {part}"):
        PretrainedEncoder.load(folder, WORDS)


def test_weights_that_are_not_used_may_be_missing(copy):
    folder = copy("t5")
    drop(folder, "decoder")
    assert PretrainedEncoder.load(folder, WORDS)(*batch_of(SENTENCES)).isfinite().all()


def test_a_folder_may_not_bring_code_along(copy, tmp_path):
    folder = copy()
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    mapped = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": mapped}))
    with pytest.raises(ValueError, match="trust_remote_code"):
        PretrainedEncoder.load(folder, WORDS)
    assert not ran.exists()


def test_transformers_is_imported_only_to_load_and_its_absence_said():
    code = """
import sys
sys.modules["transformers"] = None
from tailsum.nn.pretrained import PretrainedEncoder
try:
    PretrainedEncoder.load("name", ["<unk>"])
except ImportError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "Pretrained encoders need more packages: pip install 'tailsum[huggingface]'\n"


# A real one.


@pytest.fixture(scope="module")
def minilm():
    return minilm_folder()


REAL = (
    "<unk>",
    END,
    "the",
    "dog",
    "cat",
    "barked",
    "loudly",
    "bank",
    "of",
    "river",
    "money",
    "in",
    "a",
    "untokenizable",
    ".",
)


def real_sentence(text):
    return [*map(REAL.index, text.split()), 1]


def test_real_weights_know_english(minilm):
    encoder = PretrainedEncoder.load(minilm, REAL)
    words, lengths = batch_of([real_sentence(f"the {word} barked loudly .") for word in ("dog", "cat", "bank")])
    dog, cat, bank = encoder(words, lengths)[:, 1]
    alike = nn.functional.cosine_similarity
    assert encoder.size == 384
    assert alike(dog, cat, 0) > alike(dog, bank, 0) + 0.1


def test_real_vectors_are_those_of_the_model_itself(minilm):
    encoder = PretrainedEncoder.load(minilm, REAL)
    sentences = ["the river bank .", "a untokenizable dog barked in the bank of money ."]
    words, lengths = batch_of([real_sentence(text) for text in sentences])
    found = encoder(words, lengths)
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    for row, text in zip(found, sentences, strict=True):
        read = tokenizer(text.split(), is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            vectors = model(**read).last_hidden_state[0]
        owners = read.word_ids()
        for place in range(len(text.split())):
            mine = [i for i, owner in enumerate(owners) if owner == place]
            torch.testing.assert_close(row[place], vectors[mine].mean(0), rtol=1e-4, atol=1e-4)
    assert len(tokenizer.tokenize("untokenizable")) > 1
