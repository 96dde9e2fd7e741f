"""Real English sentences to train models on: image captions, a plain text file, or the standard library's own prose."""

import ast
import collections
import itertools
import json
import re
import sys
import sysconfig
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

Sentence = list[str]
UNKNOWN = "<unk>"  # stands for the words of no vocabulary, as in `tailsum.nn.PretrainedEncoder`

_MARKS = "".join(c for c in map(chr, range(0x300, 0x10000)) if unicodedata.category(c).startswith("M"))
_LETTERS = rf"(?:[^\W_]|[{_MARKS}])+"  # a letter may consist of several characters
_TOKEN = re.compile(rf"{_LETTERS}(?:['-]{_LETTERS})*|[.,;:!?()]")
_MARKUP = re.compile(r":\w+(?::\w+)*:(?=`)|[`*\"“”]|(?<!\w)'|'(?!\w)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_PROSE = re.compile(r"[A-Z][A-Za-z'-]*(?:[,;:]? \(?[A-Za-z][A-Za-z'-]*\)?)*[.!?]")
_NOT_READ = {"encodings", "idlelib", "lib2to3", "test", "tests", "turtledemo"}  # tables, tools and tests


class Split(NamedTuple):
    """Sentences to train on, to watch training by, and to test on at the end: lower-case words and punctuation marks."""

    train: list[Sentence]
    dev: list[Sentence]
    test: list[Sentence]


def sentences(path: Path | None = None) -> Split:
    """The sentences of a file or a folder, or, without one, those that every CPython carries in its documentation.

    `path` is a folder with MSCOCO's `captions_train.json`, `captions_dev.json` and `captions_test.json`, one such file
    (the last tenth of its images is the test part, the tenth before it the dev part), or a text file with a sentence on
    each line (its last tenths likewise). To read the documentation takes some seconds; its sentences have 3 to 25 words,
    and are the same on the same version of Python.
    """
    if path is None:
        found = _standard_library()  # all parts are about the same things
        return Split([words for i, words in enumerate(found) if i % 10 < 8], found[8::10], found[9::10])
    if path.is_dir():
        split = Split(*(_flat(_captions(path / f"captions_{part}.json")) for part in Split._fields))
    elif re.match(r'\s*\{\s*"', text := _read(path)) or path.suffix == ".json":
        split = _last_tenths(_captions(path))
    else:
        split = _last_tenths([[words] for line in text.split("\n") if (words := tokens(line))])
    if not all(split):
        got = f"got {sum(map(len, split))} in all"
        raise ValueError(f"{path} must hold sentences to train on, and others for the dev and test parts: {got}")
    return split


def tokens(text: str) -> Sentence:
    """Lower-case words and punctuation marks.

    >>> tokens("A man's dog, asleep.")
    ['a', "man's", 'dog', ',', 'asleep', '.']
    """
    return _TOKEN.findall(text.lower().replace("\u2019", "'"))


@dataclass(frozen=True)
class Vocabulary:
    """Numbered words; the first is "<unk>", which stands for all words that are not among them."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[:1] != (UNKNOWN,) or len(set(self.words)) != len(self.words):
            raise ValueError(f"words must start with {UNKNOWN!r} and hold none twice: got {self.words[:5]} ...")

    @classmethod
    def of(cls, sentences: Iterable[Sentence], n: int, rare: int = 0) -> "Vocabulary":
        """The n most frequent words, most frequent first, after "<unk>"; words as frequent stand in alphabetical order.

        With `rare` there may be fewer than n: words that occur at most so many times are not among them.

        >>> Vocabulary.of([["a", "dog"], ["a", "cat"]], 2).words
        ('<unk>', 'a', 'cat')
        """
        count = collections.Counter(itertools.chain.from_iterable(sentences))
        if len(count) < n and not rare:
            raise ValueError(f"sentences must have at least n = {n} different words: got {len(count)}")
        ranked = sorted((word for word in count if count[word] > rare), key=lambda word: (-count[word], word))
        return cls((UNKNOWN, *ranked[:n]))

    @cached_property
    def _number(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentence: Sentence) -> list[int]:
        """The number of each word."""
        return [self._number.get(word, 0) for word in sentence]

    def decode(self, numbers: Sequence[int]) -> Sentence:
        """The words of some numbers."""
        return [self.words[number] for number in numbers]


# Captions and text files.


def _read(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"path must be a file or folder of sentences: {path} does not exist")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError(f"path must be captions in JSON or a text in UTF-8: {path} is neither")
    return text


def _captions(path: Path) -> list[list[Sentence]]:
    """The captions of each image, in the order in which the images first appear."""
    try:
        content: Any = json.loads(_read(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} must be captions in JSON, and is damaged or something else: {error}") from None
    images: dict[Any, list[Sentence]] = {}
    try:
        for annotation in content["annotations"]:
            if words := tokens(annotation["caption"]):
                images.setdefault(annotation["image_id"], []).append(words)
    except (AttributeError, KeyError, TypeError):
        raise ValueError(
            f'{path} must hold captions in MSCOCO\'s form, {{"annotations": [{{"image_id": 1, "caption": "..."}}]}}'
        ) from None
    return list(images.values())


def _last_tenths(groups: list[list[Sentence]]) -> Split:
    """Split so that no group (image) is in two parts."""
    tenth = max(1, len(groups) // 10)
    dev, test = max(0, len(groups) - 2 * tenth), max(0, len(groups) - tenth)
    return Split(_flat(groups[:dev]), _flat(groups[dev:test]), _flat(groups[test:]))


def _flat(groups: list[list[Sentence]]) -> list[Sentence]:
    return list(itertools.chain.from_iterable(groups))


# The standard library.


def _standard_library() -> list[Sentence]:
    """Sentences of 3 to 25 words from docstrings and the language reference, each once, in the order of the files."""
    paragraphs = (paragraph for text in _documentation() for paragraph in re.split(r"\n\s*\n", text))
    return [*map(list, dict.fromkeys(tuple(words) for paragraph in paragraphs for words in _prose(paragraph)))]


def _prose(paragraph: str) -> Iterator[Sentence]:
    """The sentences of a paragraph that are English: indented paragraphs are code, and so is what has odd characters."""
    if paragraph.startswith((" ", "\t")):
        return
    for text in _SENTENCE_END.split(" ".join(_MARKUP.sub("", paragraph).split())):
        words = tokens(text) if _PROSE.fullmatch(text) else []
        if 3 <= len(words) <= 25:
            yield words


def _documentation() -> Iterator[str]:
    """Docstrings from the library's source files, which are read and not imported, and the topics of `help`."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in sorted(sys.stdlib_module_names - _NOT_READ):
        for file in (library / f"{name}.py", *sorted((library / name).rglob("*.py"))):
            if file.is_file() and not _NOT_READ.intersection(file.parts):
                yield from _docstrings(ast.parse(file.read_bytes()))
    yield from topics.values()


def _docstrings(node: ast.Module | ast.stmt) -> Iterator[str]:
    """Those of a module, class or function and of what is defined in its body."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield ast.get_docstring(node) or ""
        for inner in node.body:
            yield from _docstrings(inner)
