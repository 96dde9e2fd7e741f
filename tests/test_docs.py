"""What the README, the documents and the examples show is run; the site is built, and its links lead somewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tailsum as ts

ROOT = Path(__file__).parent.parent
STUDIES = ROOT / "studies"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL_PAGES = [*PAGES, STUDIES / "README.md", *sorted((STUDIES / "docs").rglob("*.md"))]


# What is shown with large models runs with smaller ones.
SMALLER = {"30_000": "3_000", "N, P, d = 400, 300, 16": "N, P, d = 80, 60, 16"}


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def name_of(page):
    return str(page.relative_to(ROOT))


def test_the_readme_has_an_example_of_ten_lines():
    (example,) = blocks(ROOT / "README.md")
    assert len(example.strip().splitlines()) <= 13


@pytest.mark.parametrize("page", [p for p in ALL_PAGES if blocks(p)], ids=name_of)
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # supar, on the page that compares with it
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile reads it at breaks in the graph
def test_code_in_documents(page, request, capsys):
    """A page runs from its first block to its last, with nothing but what it imports."""
    if "from supar" in page.read_text():
        request.getfixturevalue("supar")
    names = {}
    for block in blocks(page):
        for shown, smaller in SMALLER.items():
            block = block.replace(shown, smaller)  # noqa: PLW2901
        exec(compile(block, name_of(page), "exec"), names)


def test_no_block_of_python_is_left_out():
    """Python in documents stands in blocks that are run: ```python at the start of a line, nothing else."""
    for page in ALL_PAGES:
        fences = re.findall(r"^[ >]*```+ *\{?\.?(py\w*)", page.read_text(), re.MULTILINE | re.IGNORECASE)
        assert [fence for fence in fences if fence != "pycon"] == ["python"] * len(blocks(page)), page


# The site.


class Anchors(HTMLParser):
    """The ids of a page, and what it links to or loads."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in {"script", "img", "source", "iframe"} and given.get("src"):
            self.loads.append(given["src"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.loads.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it: a warning is an error (with `--quiet`, mkdocs would not count it)."""
    pytest.importorskip("material")
    if not (STUDIES / "docs" / "paper").exists():
        pytest.skip("a source distribution has not all pages")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_needs_nothing_from_elsewhere(site):
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 40
    for page in pages:
        for target in Anchors(page.read_text()).loads:
            assert target.startswith("data:") or (page.parent / target.split("?")[0]).exists(), (page, target)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:", sheet.read_text()), sheet


def test_links_of_the_site_lead_somewhere(site):
    pages = {page: Anchors(page.read_text()) for page in site.rglob("*.html") if page.name != "404.html"}
    for page, found in pages.items():
        for link in found.links:
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), (page.name, link)
            if anchor and target in pages:
                assert anchor in pages[target].ids, (page.name, link)


def test_methods_for_authors_have_a_page_of_their_own(site):
    users, authors = (Anchors((site / "api" / page).read_text()).ids for page in ("structures.html", "extend.html"))
    assert {"tailsum.Structure.entropy", "tailsum.LinearChain.pair_marginals"} <= users
    for name in ("total", "terms", "drawn", "score_of", "log_sum_and_mean", "summed"):
        assert not any(anchor.endswith(f".{name}") for anchor in users), name
        assert any(anchor.endswith(f".{name}") for anchor in authors), name


def test_formulas_are_written_out(site):
    page = (site / "mathematics.html").read_text()
    assert page.count("<math") > 100
    assert "arithmatex" not in page
    assert "\\sum" not in page


def test_every_public_name_is_in_the_reference():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = set(re.findall(r"^::: tailsum\.(\S+)$", pages, re.MULTILINE))
    named = set(ts.__all__)
    for room in set(dir(ts)) - named:
        named |= {f"{room}.{name}" for name in getattr(getattr(ts, room), "__all__", ())}
    assert {"LinearChain", "nn.Decoder", "plot.tree", "distributed.ShardedChain"} <= named
    assert not named - shown


# From the paper to the code.


ROWS = re.findall(r"^\| (.+?) \| .+? \| (.+?) \|$", (ROOT / "docs" / "paper_to_code.md").read_text(), re.MULTILINE)
NAMED = [
    (name, (ROOT / "docs" / target).resolve())
    for names, files in ROWS
    for name in re.findall(
        r"(?:Algorithm|Table|Figure|Theorem|Eqs?\.) [0-9]+(?: to [0-9]+|, [0-9]+ and [0-9]+)?|Section [0-9]", names
    )
    for target in re.findall(r"\]\(([^)#]+\.py)\)", files)
]


@pytest.mark.parametrize(("name", "file"), NAMED, ids=lambda x: str(getattr(x, "name", x)))
def test_files_name_what_they_have_from_the_paper(name, file):
    assert name in file.read_text()


def test_the_table_of_the_paper_is_read():
    assert {"Algorithm 1", "Algorithm 4", "Eqs. 4 to 7", "Table 5", "Figure 2"} <= {name for name, _ in NAMED}


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    """Where the repository is browsed; the site has its own test above."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    results = STUDIES / "docs" / "paper"  # not in a source distribution
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        file = (page.parent / target).resolve()
        assert file.exists() or (results in file.parents and not results.exists()), target


def test_the_example_learns(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sys.modules.pop("tagger", None)
    import tagger  # noqa: PLC0415

    losses = tagger.train(n_tags=400, k=20, steps=60, batch=8, length=6)
    assert sum(losses[-5:]) / 5 < losses[0] - 2


def test_the_tagger_of_names_learns(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sys.modules.pop("ner", None)
    import ner  # noqa: PLC0415

    assert ner.train(steps=60, count=16) > 0.8


def test_the_picture_of_two_views(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sys.modules.pop("stereo", None)
    import stereo  # noqa: PLC0415

    wrong = stereo.draw(tmp_path / "stereo.png", height=24, width=40, n_labels=48, k=12, most=8.0)
    assert (tmp_path / "stereo.png").stat().st_size > 10_000
    alone, exact, kept = wrong.values()
    assert max(exact, kept) < 0.7 * alone
    assert abs(exact - kept) < 0.03


def test_words_without_spaces(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sys.modules.pop("segment_words", None)
    import segment_words  # noqa: PLC0415

    monkeypatch.setattr(sys, "argv", ["segment_words", "The next statement is in a loop"])
    segment_words.main()
    assert "best: the next statement is in a loop\n" in capsys.readouterr().out
