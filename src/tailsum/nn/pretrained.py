"""Encoders from pretrained models: a vector for each word in its context, `[B, T, size]`.

Such models read sub-words: each word of a sentence is split, and gets the mean of its sub-words' vectors.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tailsum.nn.words import END, UNKNOWN, checked_inside
from tailsum.numerics.check import as_whole

_NONE = -1  # behind the last sub-word of a word
_LEAD = "the"  # a word before the others, so that they are split as inside a sentence
_FOLDER = (
    "a folder as save_pretrained of a model and of its tokenizer writes it, or a model's name on the Hugging Face hub"
)

Pieces = Sequence[int]


class PretrainedEncoder(nn.Module):
    """The last layer of a pretrained model of text such as BERT or GPT-2.

    `model` is one of `transformers`, whose result has a `last_hidden_state`. `pieces` holds the numbers of the sub-words
    of each word of the vocabulary; `before` and `after` are those that the model expects around a sentence. A causal model
    (GPT-2) reads from left to right: vector t then depends on the words up to t only. The padding gets zeros.

    A `frozen` encoder has no gradients and no dropout; only the layers after it are trained.

    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(vocab_size=9, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    >>> encoder = PretrainedEncoder(model, pieces=[[0], [3, 4], [5]])
    >>> encoder(torch.tensor([[1, 2, 1], [2, 2, 0]]), torch.tensor([3, 2])).shape
    torch.Size([2, 3, 16])
    """

    _pieces: Int[Tensor, "words+2 most"]

    def __init__(
        self, model: nn.Module, pieces: Sequence[Pieces], before: Pieces = (), after: Pieces = (), frozen: bool = True
    ) -> None:
        super().__init__()
        _check_pieces(model, pieces, before, after)
        config: Any = model.config
        self.model, self.frozen = model, frozen
        self.size: int = config.hidden_size
        self.longest = _longest(model)
        self.n_words = len(pieces)
        # `before` and `after` become two more words, so that a sequence consists of words only.
        rows = [torch.tensor(row, dtype=torch.long) for row in (*pieces, before, after)]
        self.register_buffer("_pieces", pad_sequence(rows, batch_first=True, padding_value=_NONE))
        if frozen:
            model.requires_grad_(False)
        self.train(self.training)

    @classmethod
    def load(cls, name: str | Path, words: Sequence[str], frozen: bool = True) -> "PretrainedEncoder":
        """A model from a folder or the Hugging Face hub, for the words of a vocabulary.

        A word gets the sub-words that it has inside a sentence. "<unk>" and "<end>" become the model's special tokens where
        it has them; "<end>" then replaces the token that the model expects after a sentence. For a model with an encoder
        and a decoder (T5), the encoder is used.
        """
        try:
            from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415  (heavy, and only here)
        except ImportError:
            raise ImportError("Pretrained encoders need more packages: pip install 'tailsum[huggingface]'") from None
        source = _source(name)
        split = _split(_loaded(AutoTokenizer.from_pretrained, "tokenizer", source), words, source)
        options = {"dtype": torch.float32, "output_loading_info": True}
        with torch.random.fork_rng(devices=[]):  # weights that a file lacks are drawn before they are refused
            model, report = _loaded(AutoModel.from_pretrained, "model", source, **options)
        return cls(_encoder(model, report["missing_keys"], source), *split, frozen)

    def train(self, mode: bool = True) -> "PretrainedEncoder":
        """Start or end training; a frozen model stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.model.eval()
        return self

    def forward(
        self, words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | Sequence[int]
    ) -> Float[Tensor, "B T size"]:
        """A vector for each word in its context."""
        lengths = as_whole("lengths", lengths, words.device)
        pieces = self._pieces_of(words, lengths)  # [B, T+2, most]
        counts = (pieces != _NONE).sum(-1)
        room = self._check_room(counts.sum(1), lengths)
        flat = pieces.flatten(1)
        place = (flat == _NONE).byte().argsort(dim=1, stable=True)[:, :room]  # sub-words first, then none
        ids = flat.gather(1, place)
        mask = ids != _NONE
        with torch.no_grad() if self.frozen else nullcontext():
            read = self.model(input_ids=ids.where(mask, 0), attention_mask=mask.long()).last_hidden_state
            read = read.where(mask[..., None], 0)
            word = (place // pieces.shape[-1])[..., None].expand_as(read)
            total = read.new_zeros(*counts.shape, read.shape[-1]).scatter_add(1, word, read)
            mean = total / counts[..., None].clamp(min=1)
        return mean[:, 1:-1]

    def _pieces_of(self, words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> Int[Tensor, "B T+2 most"]:
        """The sub-words of all words, with `before` and `after` around a sentence; none in the padding."""
        inside = checked_inside(words, lengths, self.n_words)
        edge = words.new_full((len(words), 1), self.n_words)
        numbers = torch.cat([edge, words.masked_fill(~inside, 0), edge + 1], 1)
        return self._pieces[numbers].masked_fill(~nn.functional.pad(inside, (1, 1), value=True)[..., None], _NONE)

    def check_room(self, sentences: Sequence[Sequence[int]]) -> None:
        """A ValueError if a sentence has more sub-words than the model can read."""
        counts = (self._pieces != _NONE).sum(1).tolist()
        around = sum(counts[self.n_words :])
        totals = [around + sum(counts[word] for word in sentence) for sentence in sentences]
        self._check_room(torch.tensor(totals), torch.tensor([len(sentence) for sentence in sentences]))

    def _check_room(self, pieces: Int[Tensor, " B"], words: Int[Tensor, " B"]) -> int:
        """The largest number of sub-words of a sentence, checked against the model's limit."""
        longest = pieces.argmax()
        most = int(pieces[longest])
        if self.longest is not None and most > self.longest:
            raise ValueError(
                f"words must have at most {self.longest} sub-words in a sentence, which is the model's limit: "
                f"got {most} in a sentence of {words[longest]} words"
            )
        return most


def _check_pieces(model: Any, pieces: Sequence[Pieces], before: Pieces, after: Pieces) -> None:
    if not pieces or not all(pieces):
        got = f"none for word {[len(row) for row in pieces].index(0)}" if pieces else "no words"
        raise ValueError(f"pieces must hold one or more sub-words for each word: got {got}")
    known: int = model.get_input_embeddings().num_embeddings
    for name, rows in (("pieces", pieces), ("before", [before]), ("after", [after])):
        for wrong in (piece for row in rows for piece in row if not 0 <= piece < known):
            raise ValueError(f"{name} must be sub-words of the model, from 0 to {known - 1}: got {wrong}")


def _longest(model: Any) -> int | None:
    """How many sub-words a sentence may have; None for models of relative positions, which have no limit."""
    limit: int | None = getattr(model.config, "max_position_embeddings", None)
    if limit is None or limit < 1:
        return None
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return limit - module.padding_idx - 1  # RoBERTa's positions start after its padding index
    return limit


# Loading.


def _source(name: str | Path) -> str:
    """A folder or a name on the hub, as `transformers` takes it; a name that must be a folder is checked."""
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    is_path = isinstance(name, Path) or name.startswith((".", "~")) or name.count("/") > 1
    if is_path or path.exists() or path.is_absolute():
        raise ValueError(f"name must be {_FOLDER}: there is no folder {name}")
    return str(name)


def _loaded(load: Callable[..., Any], part: str, source: str, **options: Any) -> Any:
    folder = Path(source).is_dir()
    try:
        return load(source, local_files_only=folder, trust_remote_code=False, **options)
    except Exception as error:  # damaged or missing files raise many kinds
        reason = f"{type(error).__name__}: {error}"
        if folder:
            raise ValueError(f"name must be {_FOLDER}: the {part} in {source} cannot be read. {reason}") from error
        raise ValueError(
            f"name must be {_FOLDER}: there is no folder {source}, and the hub gave no {part} of that name. Without a "
            f"network, fetch it elsewhere (hf download {source} --local-dir FOLDER) and give the folder. {reason}"
        ) from error


def _encoder(model: Any, missing: set[str], source: str) -> nn.Module:
    """The encoder of a model, or all of it; the files must have held all of its weights."""
    model.config.use_cache = False  # nothing is generated
    encoder: nn.Module = model.get_encoder() if model.config.is_encoder_decoder else model
    used = {id(weight) for weight in encoder.parameters()}
    absent = [name for name, weight in model.named_parameters() if name in missing and id(weight) in used]
    absent = [name for name in absent if "pooler" not in name]  # not part of the last layer, and often left out
    if absent:
        raise ValueError(f"name must be {_FOLDER}: {source} lacks {len(absent)} of the weights, such as {absent[0]}")
    return encoder


def _split(tokenizer: Any, words: Sequence[str], source: str) -> tuple[list[Pieces], Pieces, Pieces]:
    """The sub-words of each word, and those before and after a sentence."""
    lead: Pieces = tokenizer(_LEAD, add_special_tokens=False)["input_ids"]
    rows = _inside(tokenizer, words, lead)
    if all(not row or tokenizer.unk_token_id in row for row in [lead, *rows]):
        raise ValueError(f"name must be {_FOLDER}: {source} has no tokenizer, or one that knows none of the words")
    unknown = _unknown(tokenizer, lead)
    end: Pieces = [token for token in (tokenizer.eos_token_id, tokenizer.sep_token_id) if token is not None][:1]
    special = {UNKNOWN: unknown, END: end or unknown}
    pieces = [special.get(word) or row or unknown for word, row in zip(words, rows, strict=True)]
    before, after = _around(tokenizer, lead)
    return pieces, before, () if END in words and after == end else after


def _inside(tokenizer: Any, words: Sequence[str], lead: Pieces) -> list[Pieces]:
    """The sub-words that words have after another word and a space."""
    if not words:
        return []
    rows: list[Pieces] = tokenizer([f"{_LEAD} {word}" for word in words], add_special_tokens=False)["input_ids"]
    for word, row in zip(words, rows, strict=True):
        if row[: len(lead)] != lead:
            raise ValueError(f"name must be a model whose tokenizer keeps words apart: it joins {_LEAD!r} and {word!r}")
    return [row[len(lead) :] for row in rows]


def _unknown(tokenizer: Any, lead: Pieces) -> Pieces:
    """The sub-words of an unknown word. GPT-2's token for it ends a text, so the word "unknown" is used instead."""
    token = tokenizer.unk_token_id
    return [token] if token not in {None, tokenizer.eos_token_id} else _inside(tokenizer, ["unknown"], lead)[0]


def _around(tokenizer: Any, lead: Pieces) -> tuple[Pieces, Pieces]:
    """The sub-words that a tokenizer adds before and after a sentence."""
    row: Pieces = tokenizer(_LEAD)["input_ids"]
    start = next(start for start in range(len(row)) if row[start : start + len(lead)] == lead)
    return row[:start], row[start + len(lead) :]
