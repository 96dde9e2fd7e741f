"""Whatever people's text and names hold, pages show it as text: nothing in it is run or read as a tag."""

import pytest
import torch

from pages.outline import Outline
from tailsum_studies.paper.report import write_report
from tailsum_studies.paper.rows import Check, Direction, Estimate
from tailsum_studies.text import UNKNOWN, Vocabulary
from tailsum_studies.vae.data import END
from tailsum_studies.vae.generate import Generated
from tailsum_studies.vae.occurrences import Occurrences
from tailsum_studies.vae.report import Findings, write_page
from tailsum_studies.vae.settings import Settings

EVIL = "<script>alert('x')</script>"


def paper_page(folder):
    rows = [
        Estimate(EVIL, 100, EVIL, method, EVIL, 2, place, 1.0 + place, 1.0, 0.5, 1024)
        for method in ("TopK", "paper", "tailsum", EVIL)
        for place in range(2)
    ]
    gradients = [
        Direction(EVIL, 100, method, "1%", 2, 0, EVIL, EVIL, 0.5, 0.5) for method in ("paper", "tailsum", EVIL)
    ]
    names = ("table2", "table3", "table4", "hard", "text")
    results = {**dict.fromkeys(names, rows), "gradients": gradients, "theory": [Check(EVIL, EVIL, 1.0, 1.0, 1.1, 0.1)]}
    return write_report(folder, results, {EVIL: EVIL})


def vae_page(folder):
    words = torch.tensor([1, 2, 1, 2])
    numbers, place = torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 0, 1])
    found = Occurrences([[1, 2], [1, 2]], words, numbers, torch.tensor([0, 0, 1, 1]), place, 3)
    scores = {part: {"per_word": 2.0, "per_sentence": 3.0} for part in ("dev", "test")}
    findings = Findings(
        settings=Settings(states=3, data=EVIL),
        vocabulary=Vocabulary((UNKNOWN, EVIL, END)),
        occurrences=found,
        examples=found.examples(2),
        samples=[Generated([1, 2], [0, 1])],
        losses=[{"step": "1", "part": EVIL, "nll": EVIL}],
        evaluation={**scores, "baselines": {EVIL: scores}, "estimator": EVIL},
    )
    return write_page(folder, findings)


@pytest.mark.parametrize("page", [paper_page, vae_page])
def test_scripts_are_shown_and_not_run(page, tmp_path):
    text = page(tmp_path).read_text(encoding="utf-8")
    seen = Outline(text)
    assert "<script" not in text
    assert "script" not in {tag for tag, _ in seen.tags}
    assert any(EVIL in words for words in seen.words)
    assert all("alert" not in name for _, attributes in seen.tags for name in attributes)


def test_scripts_in_markdown_are_escaped(tmp_path):
    folder = paper_page(tmp_path).parent
    for name in ("table2", "hard", "gradients", "theory"):
        text = (folder / f"{name}.md").read_text(encoding="utf-8")
        assert "\\<script\\>" in text
        assert "<script" not in text.replace("\\<", "")
