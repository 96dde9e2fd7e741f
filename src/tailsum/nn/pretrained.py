"""What reads a sentence with a pretrained model: a vector for each word in its context, `[B, T, size]`.

Such a model knows sub-words, not words. A sentence becomes the sub-words of its words in turn, all sentences of a batch
at once, and each word gets the mean of its sub-words' vectors.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tailsum.nn.words import END, UNKNOWN
from tailsum.structure.check import check_lengths

_LEAD = "the"  # inside a sentence is after another word
_FOLDER = (
    "a folder as save_pretrained of a model and of its tokenizer writes it, or a model's name on the Hugging Face hub"
)

Pieces = Sequence[int]


class PretrainedEncoder(nn.Module):
    """The last layer of a pretrained model of text such as BERT or GPT-2.

    `model` is one of `transformers`, whose result has a `last_hidden_state`. `pieces` holds the numbers of the sub-words
    of each word of the vocabulary; `before` and `after` are those that the model wants around a sentence. A causal model
    (GPT-2) reads from left to right: vector t then knows the words up to t only. Behind a sentence's end are zeros.

    A `frozen` encoder learns nothing, has no gradients, and never drops out; what is trained is what comes after it.

    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(vocab_size=9, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    >>> encoder = PretrainedEncoder(model, pieces=[[0], [3, 4], [5]])
    >>> encoder(torch.tensor([[1, 2, 1], [2, 2, 0]]), torch.tensor([3, 2])).shape
    torch.Size([2, 3, 16])
    """

    _pieces: Int[Tensor, " pieces"]
    _starts: Int[Tensor, " words+2"]
    _counts: Int[Tensor, " words+2"]

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
        rows = [*pieces, before, after]  # two words more, so that all of a sequence is made of words
        counts = torch.tensor([len(row) for row in rows])
        self.register_buffer("_pieces", torch.tensor([piece for row in rows for piece in row]))
        self.register_buffer("_starts", _sum_before(counts))
        self.register_buffer("_counts", counts)
        if frozen:
            model.requires_grad_(False)
        self.train(self.training)

    @classmethod
    def load(cls, name: str | Path, words: Sequence[str], frozen: bool = True) -> "PretrainedEncoder":
        """A model from a folder or the Hugging Face hub, for the words of a vocabulary.

        A word has the sub-words that it has inside a sentence. "<unk>" and "<end>" are the model's own signs for these
        where it has them: "<end>" then also stands for what the model wants after a sentence, which is not added again.
        Of a model with an encoder and a decoder (T5) the encoder is taken.
        """
        try:
            from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415  (heavy, and only here)
        except ImportError:
            raise ImportError("Pretrained encoders need more packages: pip install 'tailsum[vae]'") from None
        source = _source(name)
        split = _split(_loaded(AutoTokenizer.from_pretrained, "tokenizer", source), words, source)
        options = {"dtype": torch.float32, "output_loading_info": True}
        with torch.random.fork_rng(devices=[]):  # weights that a file lacks are drawn, if only to be refused
            model, report = _loaded(AutoModel.from_pretrained, "model", source, **options)
        return cls(_encoder(model, report["missing_keys"], source), *split, frozen)

    def train(self, mode: bool = True) -> "PretrainedEncoder":
        """Start or end training; a frozen model stays as it is used."""
        super().train(mode)
        if self.frozen:
            self.model.eval()
        return self

    def forward(self, words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> Float[Tensor, "B T size"]:
        """A vector for each word in its context."""
        words = self._checked(words, lengths)
        sequence = self._sequence(words, lengths)
        with torch.no_grad() if self.frozen else nullcontext():
            state = self.model(input_ids=sequence.ids, attention_mask=sequence.mask).last_hidden_state
            read = state[sequence.row, sequence.place]
            shape = (sequence.counts.numel(), read.shape[-1])
            total = read.new_zeros(shape).index_add(0, sequence.owner, read)
            mean = total / sequence.counts.reshape(-1, 1).clamp(min=1)
        return mean.unflatten(0, sequence.counts.shape)[:, 1:-1]

    def _checked(self, words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> Int[Tensor, "B T"]:
        """The words, with zeros behind the end whatever stood there."""
        check_lengths(lengths, words.shape[1])
        words = words.where(torch.arange(words.shape[1], device=words.device) < lengths[:, None], 0)
        least, most = (int(end) for end in words.aminmax())
        if least < 0 or most >= self.n_words:
            raise ValueError(
                f"words must lie between 0 and {self.n_words - 1}, the last with sub-words: got {least} to {most}"
            )
        return words

    def _sequence(self, words: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> "_Sequence":
        """The model's input for a batch, and which word and which place in it each sub-word has."""
        edge = words.new_full((len(words), 1), self.n_words)
        words = torch.cat([edge, words, edge + 1], 1)
        column = torch.arange(words.shape[1], device=words.device)
        padding = (column > lengths[:, None]) & (column < words.shape[1] - 1)  # counts for nothing: `after` comes next
        counts = self._counts[words].masked_fill(padding, 0)
        sums = counts.sum(1)
        room = self._room(sums, lengths)
        owner = torch.repeat_interleave(counts.flatten())
        number = torch.arange(len(owner), device=words.device)
        row = owner // words.shape[1]
        place = number - _sum_before(sums)[row]
        ids, mask = words.new_zeros(2, len(words), room).unbind()
        ids[row, place] = self._pieces[
            self._starts[words.flatten()[owner]] + number - _sum_before(counts.flatten())[owner]
        ]
        mask[row, place] = 1
        return _Sequence(ids, mask, row, place, owner, counts)

    def _room(self, sums: Int[Tensor, " B"], lengths: Int[Tensor, " B"]) -> int:
        """How many sub-words the longest sentence has."""
        most = sums.argmax()
        room = int(sums[most])
        self._check_longest(room, int(lengths[most]))
        return room

    def check_room(self, sentences: Iterable[Sequence[int]]) -> None:
        """A ValueError if one of some sentences has more sub-words than the model reads."""
        counts = self._counts.tolist()
        around = sum(counts[self.n_words :])
        for sentence in sentences:
            self._check_longest(around + sum(counts[word] for word in sentence), len(sentence))

    def _check_longest(self, pieces: int, words: int) -> None:
        if self.longest is not None and pieces > self.longest:
            raise ValueError(
                f"words must have at most {self.longest} sub-words in a sentence, which is the model's limit: "
                f"got {pieces} in a sentence of {words} words"
            )


class _Sequence(NamedTuple):
    """The model's input, and for each of its sub-words the row and place there, and the word (of all) it belongs to."""

    ids: Int[Tensor, "B L"]
    mask: Int[Tensor, "B L"]
    row: Int[Tensor, " n"]
    place: Int[Tensor, " n"]
    owner: Int[Tensor, " n"]
    counts: Int[Tensor, "B T+2"]


def _sum_before(counts: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    return counts.cumsum(0) - counts


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
            return limit - module.padding_idx - 1  # RoBERTa counts from behind the number of its padding
    return limit


# Loading.


def _source(name: str | Path) -> str:
    """A folder or a name on the hub, as `transformers` takes it; what can only be a folder must be one."""
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if (
        isinstance(name, Path)
        or path.exists()
        or name.startswith((".", "~"))
        or path.is_absolute()
        or name.count("/") > 1
    ):
        raise ValueError(f"name must be {_FOLDER}: there is no folder {name}")
    return name


def _loaded(load: Callable[..., Any], what: str, source: str, **options: Any) -> Any:
    folder = Path(source).is_dir()
    try:
        return load(source, local_files_only=folder, trust_remote_code=False, **options)
    except Exception as error:  # what is damaged or missing shows in a dozen kinds of them
        reason = f"{type(error).__name__}: {error}"
        if folder:
            raise ValueError(f"name must be {_FOLDER}: the {what} in {source} cannot be read. {reason}") from error
        raise ValueError(
            f"name must be {_FOLDER}: there is no folder {source}, and the hub gave no {what} of that name. Without a "
            f"network, fetch it elsewhere (hf download {source} --local-dir FOLDER) and give the folder. {reason}"
        ) from error


def _encoder(model: Any, missing: set[str], source: str) -> nn.Module:
    """The part of a model that reads, all of whose weights must have been in the files."""
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
    found = _inside(tokenizer, words, lead)
    if all(not row or tokenizer.unk_token_id in row for row in [lead, *found]):
        raise ValueError(f"name must be {_FOLDER}: {source} has no tokenizer, or one that knows none of the words")
    unknown, end = _unknown(tokenizer, lead), _end(tokenizer)
    signs = {UNKNOWN: unknown, END: end or unknown}
    pieces = [signs.get(word) or row or unknown for word, row in zip(words, found, strict=True)]
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
    """The sign for an unknown word. GPT-2's is the end of a text, which must not stand inside one: it is spelt out."""
    sign = tokenizer.unk_token_id
    return [sign] if sign not in {None, tokenizer.eos_token_id} else _inside(tokenizer, ["unknown"], lead)[0]


def _end(tokenizer: Any) -> Pieces:
    """The sign for the end of a text, if there is one."""
    return [sign for sign in (tokenizer.eos_token_id, tokenizer.sep_token_id) if sign is not None][:1]


def _around(tokenizer: Any, lead: Pieces) -> tuple[Pieces, Pieces]:
    """What a tokenizer puts before and after a sentence."""
    row: Pieces = tokenizer(_LEAD)["input_ids"]
    start = next(start for start in range(len(row)) if row[start : start + len(lead)] == lead)
    return row[:start], row[start + len(lead) :]
