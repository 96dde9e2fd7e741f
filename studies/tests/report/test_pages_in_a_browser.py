"""Pages as people see them, in a real browser: wide and narrow, light and dark. Nothing is cut, and all can be read."""

import functools
import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pages.browser import browser, executable
from tailsum_studies.bench.machine import claim
from tailsum_studies.bench.plan import write_plan
from tailsum_studies.bench.report import write_page as write_bench
from tailsum_studies.paper.report import write_report
from tailsum_studies.paper.rows import EXACT
from tailsum_studies.text import UNKNOWN, Vocabulary
from tailsum_studies.vae.data import END
from tailsum_studies.vae.generate import Generated
from tailsum_studies.vae.occurrences import Occurrences
from tailsum_studies.vae.report import Findings, write_page
from tailsum_studies.vae.settings import Settings

FLAWS = (Path(__file__).parents[1] / "pages" / "flaws.js").read_text(encoding="utf-8")
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")

pytestmark = pytest.mark.skipif(
    executable() is None, reason="no Chromium on the PATH to open pages with: apt-get install chromium"
)


@pytest.fixture(scope="module")
def tab():
    with browser() as one:
        yield one


def cases_of(name):
    """The made-up results of another folder's tests."""
    sys.path.insert(0, str(Path(__file__).parents[1] / name))
    try:
        return importlib.import_module(f"{name}_cases")
    finally:
        sys.path.pop(0)


def paper(folder):
    """Every experiment, the exact sum beside the estimators, and names that are long."""
    cases = cases_of("paper")
    results = cases.everything()
    for name in ("table2", "hard", "text"):
        once = [row for row in results[name] if row.method == "paper"]
        results[name] += [replace(row, method=EXACT, label="all", kept=row.states, seconds=0.1) for row in once]
    results["gradients"] += cases.directions("tailsum, K landmarks, refined", [0.99], parameter="encoder.weight")
    about = {"command": "tailsum reproduce all --states 2000,10000 --repeats 100 --seed 0", "path": "/a" * 60}
    return write_report(folder, results, about)


def explored(folder):
    """Words of any length, more states than are seen at once, an evaluation and a curve."""
    words = (UNKNOWN, "dog", "<b>", "w" * 60, *(f"word{i}" for i in range(40)), END)
    states = [[(3 * i + j) % 90 for j in range(8)] for i in range(60)]
    sentences = [[1 + (5 * i + j * j) % 43 for j in range(7)] + [44] for i in range(60)]
    found = Occurrences.of(sentences, states, 100)
    scores = {"per_word": 3.25, "per_sentence": 31.5, "standard_error": 0.75, "samples": 77, "sentences": 1234}
    part = {**scores, "words": -25.0, "states": -10.5, "entropy": 3.0, "sampling_error": 0.125}
    losses = [
        {"step": str(i), "part": "train", "nll": str(4 - i / 50), "words": "-30", "states": "-9", "entropy": "6"}
        for i in range(1, 60)
    ]
    findings = Findings(
        settings=Settings(states=100, data="/a/long/path" * 8),
        vocabulary=Vocabulary(words),
        occurrences=found,
        examples=found.examples(3),
        samples=[Generated(sentence, states[0]) for sentence in sentences[:5]],
        losses=losses,
        evaluation={"dev": part, "test": part, "baselines": {"bigram": {"dev": scores, "test": scores}}},
    )
    return write_page(folder, findings)


def benchmark(folder):
    cases = cases_of("bench")
    cases.made_up(folder / "results.csv").add([])
    claim(folder, cases.MACHINE)
    write_plan(folder, cases.PLAN)
    return write_bench(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A page of a kind, written once."""
    return functools.cache(lambda make: make(tmp_path_factory.mktemp(make.__name__)))


@pytest.fixture(scope="module", params=[paper, explored, benchmark], ids=lambda make: make.__name__)
def page(request, made):
    return made(request.param)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_and_all_is_legible(page, tab, width, scheme):
    tab.open(page, width, scheme)
    assert tab.ask("innerWidth") == width
    assert tab.ask(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
    assert tab.ask("document.images.length") >= 4
    assert tab.ask(FLAWS) == []
    assert tab.errors == []


def test_small_screens_have_pictures_of_their_own(tab, made):
    page = made(explored)
    shown = {}
    for width in WIDTHS:
        tab.open(page, width)
        shown[width] = tab.ask("[...document.images].map(each => each.naturalWidth)")
    assert max(shown[390]) < min(shown[1280]) - 300


def test_pictures_are_dark_on_a_dark_page(tab, made, tmp_path):
    """The ground of a picture is the page's own, and what is drawn on it is lighter."""
    tab.open(made(explored), 1280, "dark")
    tab.ask("document.images[0].scrollIntoView({behavior: 'instant'})")
    top = tab.ask("document.images[0].getBoundingClientRect().top + scrollY")
    tab.picture(tmp_path / "seen.png", top - 4, 200)
    image = pytest.importorskip("PIL.Image").open(tmp_path / "seen.png").convert("L")
    ground = image.getpixel((10, 1))
    assert ground < 40
    part = image.crop((24, 0, 900, 200))
    assert abs(part.getpixel((2, 8)) - ground) < 6
    low, high = part.getextrema()
    assert low > ground - 6
    assert high > 180


BAD = """<!DOCTYPE html><meta name="viewport" content="width=device-width"><body style="background: #fff; color: #222">
<div style="overflow-x: hidden; width: 200px"><table><tr><td style="min-width: 500px">hidden</td></tr></table></div>
<div style="overflow-x: auto; width: 200px"><table><tr><td style="min-width: 500px">no hint</td></tr></table></div>
<p style="color: #999">pale</p><figure><picture><img src="missing.png" alt="lost"></picture></figure>
<div style="width: 3000px">wide</div><script>console.error("oh")</script>"""


def test_what_is_wrong_is_found(tab, tmp_path):
    (tmp_path / "bad.html").write_text(BAD)
    tab.open(tmp_path / "bad.html", 390)
    found = " ".join(tab.ask(FLAWS))
    for flaw in (
        "the page is 30",
        '"hidden" reaches out',
        "nothing says that",
        '"pale" has a contrast of 2.8',
        '"lost" is not',
    ):
        assert flaw in found
    assert any("ERR_FILE_NOT_FOUND" in error for error in tab.errors)
    assert any("oh" in error for error in tab.errors)
