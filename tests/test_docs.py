"""What the README, the documents and the examples show is run."""

import re
import sys
from pathlib import Path

import pytest
import torch

import tailsum as ts

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_readme_has_an_example_of_ten_lines():
    (example,) = blocks(ROOT / "README.md")
    assert len(example.strip().splitlines()) <= 13


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile reads it at breaks in the graph
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_code_in_documents(page):
    states = torch.randn(300, 8) * 0.3
    context = torch.randn(2, 5, 8)
    names = {
        "torch": torch,
        "ts": ts,
        "chain": ts.LinearChain(ts.Factored(context, states), ts.Factored(states, states)),
    }
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), names)


ROWS = re.findall(r"^\| (.+?) \| .+? \| (.+?) \|$", (ROOT / "docs" / "paper_to_code.md").read_text(), re.MULTILINE)
NAMED = [
    (name, (ROOT / "docs" / target).resolve())
    for names, files in ROWS
    for name in re.findall(r"(?:Algorithm|Table|Figure|Theorem|Eqs?\.) [0-9](?: to [0-9]+)?|Section [0-9]", names)
    for target in re.findall(r"\]\(([^)#]+\.py)\)", files)
]


@pytest.mark.parametrize(("name", "file"), NAMED, ids=lambda x: str(getattr(x, "name", x)))
def test_files_name_what_they_have_from_the_paper(name, file):
    assert name in file.read_text()


def test_the_table_of_the_paper_is_read():
    assert {"Algorithm 1", "Algorithm 4", "Eqs. 4 to 7", "Table 5", "Figure 2"} <= {name for name, _ in NAMED}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_example_learns(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sys.modules.pop("tagger", None)
    import tagger  # noqa: PLC0415

    losses = tagger.train(n_tags=400, k=20, steps=60, batch=8, length=6)
    assert sum(losses[-5:]) / 5 < losses[0] - 2


def test_the_picture_of_two_views(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sys.modules.pop("stereo", None)
    import stereo  # noqa: PLC0415

    wrong = stereo.draw(tmp_path / "stereo.png", height=24, width=40, n_labels=48, k=12, most=8.0)
    assert (tmp_path / "stereo.png").stat().st_size > 10_000
    alone, exact, kept = wrong.values()
    assert max(exact, kept) < 0.7 * alone
    assert abs(exact - kept) < 0.03
