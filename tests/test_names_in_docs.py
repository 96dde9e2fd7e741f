"""Names of code in the documentation, docstrings and comments: they exist.

Checked is what stands in backticks and looks like code: paths of Python files, dotted names that start at the package or a room, and words with
an underscore, a capital, a dot before them or a parenthesis behind them. Such a word must be an identifier in our sources, a name of Python,
torch, numpy or a library that the page compares with, or stand in a block of code on the same page.
"""

import ast
import builtins
import importlib
import importlib.util
import io
import re
import tokenize
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("src/**/*.md")),
    *sorted(ROOT.glob("studies/**/*.md")),
]
SOURCES = sorted((ROOT / "src" / "tailsum").rglob("*.py"))
OURS = [folder for name in ("src", "tests", "benchmarks", "examples", "studies") if (folder := ROOT / name).exists()]
PEERS = ("torch_struct", "torchcrf", "hmmlearn", "supar")  # whose names the pages "Coming from" have
ROOMS = "|".join(path.parent.name for path in (ROOT / "src" / "tailsum").glob("*/__init__.py"))
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
DOTTED = re.compile(rf"(?<![\w.])(?:(?:ts|tailsum)(?:\.[A-Za-z_]\w*)+|(?:{ROOMS})(?:\.[A-Za-z_]\w*){{2,}})")
FILE = re.compile(r"[\w./-]*\w\.py\b")
WORD = re.compile(r"(?<![\w-])(\.?)([A-Za-z_]\w*)([(=]?)")
FORMULA = re.compile(r"[A-Za-z]\w*_[A-Za-z0-9]{0,2}|[A-Z]_\w+|Var|[Pp]hi")  # subscripts, Z_hat, functions of textbooks


def name_of(path):
    return str(path.relative_to(ROOT))


# What there is.


def identifiers(text):
    """All names, attributes, arguments and keywords of a source, and strings that are names or options."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found |= set(value.split("."))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) == 1:
            found |= set(re.findall(r"\w+", node.value))
    return found


@cache
def files():
    """The paths of all sources from the root, but this one: it names what does not exist."""
    found = {path.relative_to(ROOT).as_posix() for folder in OURS for path in folder.rglob("*.py")}
    return found - {name_of(Path(__file__))}


@cache
def known():
    found = set(dir(builtins))
    for module in (np, torch, torch.Tensor, torch.nn, torch.nn.Module, torch.nn.functional, torch.autograd, torch.func):
        found |= set(dir(module))
    for module in (torch.cuda, torch.distributed, torch.distributions, torch.distributions.Distribution, torch.optim):
        found |= set(dir(module))
    for path in files():
        found |= set(Path(path).with_suffix("").parts) | identifiers((ROOT / path).read_text("utf-8"))
    return found


@cache
def of_peers():
    found = set()
    for spec in filter(None, map(importlib.util.find_spec, PEERS)):
        for path in Path(spec.origin).parent.rglob("*.py") if spec.submodule_search_locations else [Path(spec.origin)]:
            found |= identifiers(path.read_text("utf-8"))
    return found


def exists(file):
    return any(f"/{path}".endswith(f"/{file}") for path in files())


def resolves(dotted):
    """Whether modules and attributes lead from the package to the last name, which may be a placeholder: NAME."""
    first, *names = dotted.split(".")
    path = "tailsum" if first in ("ts", "tailsum") else f"tailsum.{first}"
    if exists("/".join([path.replace(".", "/"), *names]) + ".py"):
        return True  # without loading what the module needs
    value = importlib.import_module(path)
    for name in names:
        path = f"{path}.{name}"
        try:
            value = getattr(value, name) if hasattr(value, name) else importlib.import_module(path)
        except ImportError:
            return name.isupper()
    return True


# What is named.


def words(span):
    """The words of a span that can only be code. What stands within a call is the reader's own, unless it is a keyword."""
    for found in WORD.finditer(span):
        dot, word, behind = found.groups()
        within = span.count("(", 0, found.start()) > span.count(")", 0, found.start())
        looks_like_code = not within and ("_" in word or re.search(r"[a-z][A-Z]|[A-Z][a-z]{3}", word))
        if (dot or behind == "(" or looks_like_code or (within and behind)) and not FORMULA.fullmatch(word):
            yield word


def wrong(text, more=()):
    """The code in a text's backticks that does not exist."""
    for _, span in SPAN.findall(text):
        yield from (file for file in FILE.findall(span) if not exists(file))
        yield from (name for name in DOTTED.findall(span) if not resolves(name))
        rest = FILE.sub("", DOTTED.sub("", span))
        yield from (word for word in words(rest) if word not in known() and word not in more)


def prose(source):
    """The docstrings and comments of a source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    comments = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    for _, lines in groupby(enumerate(comments), lambda item: item[1].start[0] - item[0]):
        yield "\n".join(comment.string.lstrip("# ") for _, comment in lines)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_in_pages(page):
    text = page.read_text("utf-8")
    for peer in PEERS:
        if f"from {peer}" in text and importlib.util.find_spec(peer) is None:
            pytest.skip(f"needs {peer}")
    blocks = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
    shown = set(re.findall(r"\w+", "".join(blocks.findall(text))))
    assert not sorted({*wrong(blocks.sub("", text), shown | of_peers())})


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_names_in_docstrings_and_comments(path):
    assert not sorted({name for text in prose(path.read_text("utf-8")) for name in wrong(text)})


WRONG = [
    "`_Flo`", "`fill_charts`", "`ts.LinearChian`", "`chain.sketsh(3)`", "`chains/scan_it.py`", "`chains.forward.scan_it`",
    "see `x` and `Fatcored(a, b)`", "`chain.sketch(k, propozal=None)`",
]  # fmt: skip
RIGHT = [
    "`ts.nn.Decoder(3)`", "`chains/ctc.py`", "`x @ y`", "`chain.sketch(k)` of `[*batch, T, N]`", "`chains.forward.log_space_scan`",
    "`ts.HMM(my_own, scores)`", "`sum_t alpha_t`", "`tailsum.NAME`",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_name_is_seen(text):
    assert len([*wrong(text)]) == 1


@pytest.mark.parametrize("text", RIGHT)
def test_what_exists_is_not_reported(text):
    assert not [*wrong(text)]
